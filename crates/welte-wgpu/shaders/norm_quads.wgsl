// The weights of a norm, as quads.
@group(0) @binding(4) var<storage, read> norm_weight: array<vec4<f32>>;

fn norm_quad(i: u32, k: u32) -> vec4<f32> {
    return norm_weight[i / 4u];
}
