fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 4u * 5u;
    let head = unpack2x16float(weight0[base]);
    let word = weight0[base + 1u + unit % 4u];
    return Eight(head.x * vec4<f32>(low4(word)) + head.y, head.x * vec4<f32>(high4(word)) + head.y);
}
