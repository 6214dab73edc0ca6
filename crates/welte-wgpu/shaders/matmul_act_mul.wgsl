// `y = act(gate x) * up x`: two outputs per workgroup.
struct Params { n: u32, k: u32, eps: f32, act: u32, x_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let p = command.p;
    let first = (id.x + id.y * grid.x) * 2u;
    if first >= p.n {
        return;
    }
    let second = min(first + 1u, p.n - 1u);
    let x = command.at.scratch + id.z * p.k;
    let sum = sum_of_partials(t, products(vec4(first, second, p.n + first, p.n + second), x, p.k, t));
    if t < 2u && first + t < p.n {
        put(command.at.b + id.z * p.y_stride + first + t, gated(p.act, sum[t], sum[t + 2u]));
    }
}
