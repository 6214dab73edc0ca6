// Products of a matrix with one row: a workgroup computes four outputs. `products` gives an invocation's part of them, from
// matmul_units.wgsl or matmul_wide.wgsl. The order of every sum depends on k alone.

var<workgroup> partial: array<vec4<f32>, WG>;

fn sum_of_partials(t: u32, value: vec4<f32>) -> vec4<f32> {
    workgroupBarrier();
    partial[t] = value;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half {
            partial[t] += partial[t + half];
        }
    }
    workgroupBarrier();
    return partial[0];
}
