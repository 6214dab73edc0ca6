// Elements of vectors as integers of 8 bits with a scale for every 32.

// Elements whose squares are added up first: a group.
const PART = 16u;

fn largest_bits(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// The scale of elements whose largest has these bits, and its inverse.
fn scale_of(bits: u32) -> vec2<f32> {
    let largest = bitcast<f32>(bits);
    if bits >= 0x7f800000u {
        // Infinity or NaN stays one.
        return vec2(largest, 0.0);
    }
    if largest > 1e-30 {
        return vec2(largest / 127.0, 127.0 / largest);
    }
    return vec2(0.0);
}

fn rounded(v: vec4<f32>) -> u32 {
    return pack4xI8(vec4<i32>(round(v)));
}

fn total(group: vec4<u32>) -> f32 {
    return f32(dot16(group, vec4(0x01010101u)));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
