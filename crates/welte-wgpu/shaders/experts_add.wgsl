// `y += sum over the chosen experts of share * (W x + bias)`: four outputs per workgroup.
struct Params { n: u32, k: u32, experts: u32, used: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let first = id.x * 4u;
    let outputs = min(vec4(first) + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u));
    let choice = command.at.b + id.z * p.choice_stride;
    var sum = vec4(0.0);
    var bias = 0.0;
    for (var i = 0u; i < p.used; i++) {
        let expert = mem[choice + i];
        // The expert may lie in another piece of the matrix.
        if expert - command.at.first < command.at.count {
            let share = float_at(choice + p.used + i);
            let x = command.at.a + id.z * p.x_stride + i * p.k;
            sum += share * products(outputs + (expert - command.at.first) * p.n, x, p.k, t);
            if has(1u) && t < 4u {
                bias += share * weight1[expert * p.n + outputs[t]];
            }
        }
    }
    sum = sum_of_partials(t, sum);
    if t < 4u && first + t < p.n {
        let y = command.at.c + id.z * p.y_stride + first + t;
        put(y, float_at(y) + sum[t] + bias);
    }
}
