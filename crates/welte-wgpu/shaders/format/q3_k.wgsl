// The lower two bits of q lie as in Q2_K. Bit g of byte j is the third bit of element 32g + j.
fn quads(unit: u32) -> vec2<u32> {
    let v = unit % 32u;
    let first = unit / 32u * 256u + v / 16u * 128u + v / 8u % 2u * 64u + v % 8u * 4u;
    return vec2(first, first + 32u);
}

fn scaled(base: u32, d: f32, element: u32, low: vec4<u32>) -> vec4<f32> {
    let sub = element / 16u;
    let four = (byte_at(base, 96u + sub % 8u) >> (4u * (sub / 8u))) & 15u;
    let two = (byte_at(base, 104u + sub % 4u) >> (2u * (sub / 4u))) & 3u;
    let scale = d * (f32(four | (two << 4u)) - 32.0);
    let third = bytes((weight0[base + element % 32u / 4u] >> (element / 32u)) & 0x01010101u);
    return scale * (vec4<f32>(low | (third << vec4(2u))) - 4.0);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let block = unit / 32u;
    let base = row + block * 27u;
    let d = tail16(row, block, k);
    let v = unit % 32u;
    let element = quads(v).x;
    let word = weight0[base + 8u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u);
    return Eight(
        scaled(base, d, element, bytes(word & 0x03030303u)),
        scaled(base, d, element + 32u, bytes((word >> 2u) & 0x03030303u)),
    );
}
