// Adds the fifth bits of elements j and j + 16 to the four elements from j on.
fn with_fifth(four: vec4<u32>, bits: u32) -> vec4<f32> {
    let fifth = ((vec4(bits) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u)) << vec4(4u);
    return vec4<f32>(four | fifth);
}
