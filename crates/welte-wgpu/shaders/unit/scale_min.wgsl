// What Q4_K and Q5_K share.
const WHOLE = false;

// Byte 32g + j of a block of 256 holds elements 64g + j and 64g + 32 + j. A unit has 16 such bytes.
fn groups_of(unit: u32) -> vec2<u32> {
    let first = unit / 8u * 16u + unit % 8u / 2u * 4u + unit % 2u;
    return vec2(first, first + 2u);
}

// Scale and min of a sub-block, from the first 16 bytes of its block.
fn packed_scale_min(head: vec4<u32>, sub: u32) -> vec2<f32> {
    let shift = 8u * (sub % 4u);
    let scale = head.y >> shift;
    let least = head.z >> shift;
    if sub < 4u {
        return vec2(f32(scale & 63u), f32(least & 63u));
    }
    let low = head.w >> shift;
    return vec2(f32((low & 15u) | ((scale >> 2u) & 48u)), f32(((low >> 4u) & 15u) | ((least >> 2u) & 48u)));
}
