// Scale and min of sub-block `sub` of Q4_K and Q5_K, times d and dmin.
fn scale_min(base: u32, sub: u32) -> vec2<f32> {
    let head = unpack2x16float(weight0[base]);
    let i = sub % 4u;
    let scale = byte_at(base, 4u + i);
    let least = byte_at(base, 8u + i);
    if sub < 4u {
        return head * vec2(f32(scale & 63u), f32(least & 63u));
    }
    let low = byte_at(base, 12u + i);
    return head * vec2(f32((low & 15u) | ((scale >> 6u) << 4u)), f32((low >> 4u) | ((least >> 6u) << 4u)));
}

// Byte 32g + j holds elements 64g + j and 64g + 32 + j.
fn quads(unit: u32) -> vec2<u32> {
    let first = unit / 8u * 64u + unit % 8u * 4u;
    return vec2(first, first + 32u);
}
