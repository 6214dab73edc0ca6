// Pools the rows of each chosen row's slot: a workgroup per output.
struct Params { n: u32, kind: u32, normalise: u32, x_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let chosen = state[command.at.outputs + id.z];
    let slot = slot_of(chosen);
    var squares = 0.0;
    let y = command.at.b + id.z * p.y_stride;
    for (var i = t; i < p.n; i += WG) {
        var value = 0.0;
        var count = 0.0;
        for (var row = 0u; row <= chosen; row++) {
            if slot_of(row) == slot {
                let x = float_at(command.at.a + row * p.x_stride + i);
                if p.kind == 1u {
                    value += x;
                } else if p.kind == 0u || count == 0.0 {
                    value = x;
                }
                count += 1.0;
            }
        }
        if p.kind == 1u {
            value /= count;
        }
        put(y + i, value);
        squares += value * value;
    }
    if p.normalise == 1u {
        let length = max(sqrt(sum_of_all(t, squares)), 1e-12);
        for (var i = t; i < p.n; i += WG) {
            put(y + i, float_at(y + i) / length);
        }
    }
}
