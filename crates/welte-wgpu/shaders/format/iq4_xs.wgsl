fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 32u * 34u;
    let v = unit % 32u;
    let sub = v / 4u;
    let head = weight0[base];
    let four = (byte_at(base, 4u + sub / 2u) >> (4u * (sub % 2u))) & 15u;
    let two = (head >> (16u + 2u * sub)) & 3u;
    let scale = unpack2x16float(head).x * (f32(four | (two << 4u)) - 32.0);
    let word = weight0[base + 2u + v];
    return Eight(scale * uneven(low4(word)), scale * uneven(high4(word)));
}
