// Bits 2g..2g + 2 of byte 32h + j are element 128h + 32g + j: the second quad belongs to g + 1.
fn quads(unit: u32) -> vec2<u32> {
    let v = unit % 32u;
    let first = unit / 32u * 256u + v / 16u * 128u + v / 8u % 2u * 64u + v % 8u * 4u;
    return vec2(first, first + 32u);
}

fn scaled(base: u32, element: u32, q: vec4<u32>) -> vec4<f32> {
    let both = byte_at(base, element / 16u);
    let head = unpack2x16float(weight0[base + 20u]);
    return head.x * f32(both & 15u) * vec4<f32>(q) - head.y * f32(both >> 4u);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let base = row + unit / 32u * 21u;
    let element = quads(unit % 32u).x;
    let v = unit % 32u;
    let word = weight0[base + 4u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u);
    return Eight(
        scaled(base, element, bytes(word & 0x03030303u)),
        scaled(base, element + 32u, bytes((word >> 2u) & 0x03030303u)),
    );
}
