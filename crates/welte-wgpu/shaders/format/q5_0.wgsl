fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 4u * 5u;
    let d = tail16(row, unit / 4u, k);
    let bits = weight0[base] >> (unit % 4u * 4u);
    let word = weight0[base + 1u + unit % 4u];
    return Eight(d * (with_fifth(low4(word), bits) - 16.0), d * (with_fifth(high4(word), bits >> 16u) - 16.0));
}
