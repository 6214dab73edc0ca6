// RMS norm, or layer norm if CENTRED: a workgroup for each group of a row. WEIGHT is the number of the weight that multiplies.
struct Params { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let x = command.at.a + id.z * p.x_stride + id.x * p.dim;
    let y = command.at.b + id.z * p.y_stride + id.x * p.dim;
    var mean = 0.0;
    if CENTRED {
        var sum = 0.0;
        for (var i = t; i < p.dim; i += WG) {
            sum += float_at(x + i);
        }
        mean = sum_of_all(t, sum) / f32(p.dim);
    }
    var squares = 0.0;
    for (var i = t; i < p.dim; i += WG) {
        let value = float_at(x + i) - mean;
        squares += value * value;
    }
    let scale = 1.0 / sqrt(sum_of_all(t, squares) / f32(p.dim) + p.eps);
    for (var i = t; i < p.dim; i += WG) {
        var value = (float_at(x + i) - mean) * scale;
        if has(WEIGHT) {
            if WEIGHT == 0u {
                value *= vector0(i);
            } else {
                value *= weight1[i];
            }
        }
        if CENTRED && has(1u) {
            value += weight1[i];
        }
        put(y + i, value);
    }
}
