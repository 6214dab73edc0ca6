// Byte 64h + j holds the lower bits of elements 128h + j and 128h + 64 + j; bits 2g..2g + 2 of byte 32h + j of the upper bits
// belong to element 128h + 32g + j.
fn quads(unit: u32) -> vec2<u32> {
    let first = unit / 16u * 128u + unit % 16u * 4u;
    return vec2(first, first + 64u);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let block = unit / 32u;
    let base = row + block * 52u;
    let v = unit % 32u;
    let sub = quads(v).x / 16u;
    let word = weight0[base + v];
    let upper = weight0[base + 32u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 2u);
    let d = tail16(row, block, k);
    let a = extractBits(bitcast<i32>(weight0[base + 48u + sub / 4u]), 8u * (sub % 4u), 8u);
    let b = extractBits(bitcast<i32>(weight0[base + 49u + sub / 4u]), 8u * (sub % 4u), 8u);
    let low = low4(word) | (bytes(upper & 0x03030303u) << vec4(4u));
    let high = high4(word) | (bytes((upper >> 4u) & 0x03030303u) << vec4(4u));
    return Eight(d * f32(a) * (vec4<f32>(low) - 32.0), d * f32(b) * (vec4<f32>(high) - 32.0));
}
