// `y = W x`, or `y += W x` if ADDS.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let p = command.p;
    let first = (id.x + id.y * grid.x) * 4u;
    if first >= command.at.count {
        return;
    }
    let rows = min(vec4(first) + vec4(0u, 1u, 2u, 3u), vec4(command.at.count - 1u));
    let x = command.at.a + id.z * p.x_stride;
    let sum = sum_of_partials(t, products(rows, x, p.k, t));
    if t == 0u {
        let y = command.at.b + id.z * p.y_stride + command.at.first + first;
        for (var i = 0u; i < min(4u, command.at.count - first); i++) {
            var value = sum[i];
            if ADDS {
                value += float_at(y + i);
            }
            put(y + i, value);
        }
    }
}
