// `y = act(gate x) * up x`: four outputs per workgroup.
struct Params { n: u32, k: u32, eps: f32, act: u32, x_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let p = command.p;
    let first = (id.x + id.y * grid.x) * 4u;
    if first >= p.n {
        return;
    }
    let rows = min(vec4(first) + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u));
    let x = command.at.scratch + id.z * p.k;
    let gate = sum_of_partials(t, products(rows, x, p.k, t));
    let up = sum_of_partials(t, products(rows + p.n, x, p.k, t));
    if t == 0u {
        let y = command.at.b + id.z * p.y_stride + first;
        for (var i = 0u; i < min(4u, p.n - first); i++) {
            put(y + i, gated(p.act, gate[i], up[i]));
        }
    }
}
