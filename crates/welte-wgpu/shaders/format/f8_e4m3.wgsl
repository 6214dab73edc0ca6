fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn values(word: u32) -> vec4<f32> {
    let b = bytes(word);
    return vec4(e4m3(b.x), e4m3(b.y), e4m3(b.z), e4m3(b.w));
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 16u * 33u;
    let scale = bitcast<f32>(weight0[base]);
    let at = base + 1u + unit % 16u * 2u;
    return Eight(scale * values(weight0[at]), scale * values(weight0[at + 1u]));
}
