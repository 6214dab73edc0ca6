// `y[i] = act(gate x) * up x` of each chosen expert, or `relu(up x)^2` without a gate (activation 4): two outputs per
// workgroup.
struct Params { n: u32, k: u32, experts: u32, used: u32, act: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }

var<workgroup> chosen: u32;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let first = id.x * 2u;
    if t == 0u {
        chosen = mem[command.at.b + id.z * p.choice_stride + id.y];
    }
    let expert = workgroupUniformLoad(&chosen);
    // The expert may lie in another piece of the matrix.
    if expert - command.at.first >= command.at.count {
        return;
    }
    let second = min(first + 1u, p.n - 1u);
    // Without a gate both halves are up.
    let up_rows = select(p.n, 0u, p.act == 4u);
    let each = p.n + up_rows;
    let rows = vec4(first, second, up_rows + first, up_rows + second) + (expert - command.at.first) * each;
    let x = command.at.a + id.z * p.x_stride;
    var sum = sum_of_partials(t, products(rows, x, p.k, t));
    if t < 2u && first + t < p.n {
        var gate = sum[t];
        var up = sum[t + 2u];
        if has(1u) {
            let bias = expert * each + first + t;
            gate += weight1[bias];
            up += weight1[bias + up_rows];
        }
        let above = max(up, 0.0);
        let y = select(gated(p.act, gate, up), above * above, p.act == 4u);
        put(command.at.c + id.z * p.y_stride + id.y * p.n + first + t, y);
    }
}
