fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 4u * 6u;
    let head = unpack2x16float(weight0[base]);
    let bits = weight0[base + 1u] >> (unit % 4u * 4u);
    let word = weight0[base + 2u + unit % 4u];
    return Eight(
        head.x * with_fifth(low4(word), bits) + head.y,
        head.x * with_fifth(high4(word), bits >> 16u) + head.y,
    );
}
