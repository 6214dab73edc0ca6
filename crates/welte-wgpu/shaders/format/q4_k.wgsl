fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 32u * 36u;
    let v = unit % 32u;
    let word = weight0[base + 4u + v];
    let a = scale_min(base, v / 8u * 2u);
    let b = scale_min(base, v / 8u * 2u + 1u);
    return Eight(a.x * vec4<f32>(low4(word)) - a.y, b.x * vec4<f32>(high4(word)) - b.y);
}
