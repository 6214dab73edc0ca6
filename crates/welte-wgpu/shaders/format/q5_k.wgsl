// Bit g of byte j of the fifth bits belongs to element 32g + j.
fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 32u * 44u;
    let v = unit % 32u;
    let sub = v / 8u * 2u;
    let fifth = weight0[base + 4u + v % 8u] >> sub;
    let word = weight0[base + 12u + v];
    let a = scale_min(base, sub);
    let b = scale_min(base, sub + 1u);
    let low = low4(word) | (bytes(fifth & 0x01010101u) << vec4(4u));
    let high = high4(word) | (bytes((fifth >> 1u) & 0x01010101u) << vec4(4u));
    return Eight(a.x * vec4<f32>(low) - a.y, b.x * vec4<f32>(high) - b.y);
}
