// The weights of a norm, as words.
fn norm_quad(i: u32, k: u32) -> vec4<f32> {
    let places = min(vec4(i) + vec4(0u, 1u, 2u, 3u), vec4(k - 1u));
    return vec4(weight1[places.x], weight1[places.y], weight1[places.z], weight1[places.w]);
}
