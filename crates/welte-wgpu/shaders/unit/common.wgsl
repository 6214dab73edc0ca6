// A unit: 32 elements of a matrix row as two groups of 16 integers of 8 bits (`unit_of`), each `scale * integer - least`. `groups_of` says which
// groups they are.
struct Unit {
    a: vec4<u32>,
    b: vec4<u32>,
    scale: vec2<f32>,
    least: vec2<f32>,
}

fn low_nibbles(w: vec4<u32>) -> vec4<u32> {
    return w & vec4(0x0f0f0f0fu);
}

fn high_nibbles(w: vec4<u32>) -> vec4<u32> {
    return (w >> vec4(4u)) & vec4(0x0f0f0f0fu);
}
