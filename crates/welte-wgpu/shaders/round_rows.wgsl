// Rounds rows to F16 for `matmul_cooperative.wgsl`, after the RMS norm if NORM: a workgroup for each row. A rounded row has the inverse of
// its power of two in its first quad of words, then the units of the format's order, padded with zeros to whole slices.
struct Params { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }

fn value_at(x: u32, i: u32, scale: f32) -> f32 {
    if i >= command.p.dim {
        return 0.0;
    }
    var value = float_at(x + i);
    if NORM {
        value *= scale;
        if has(1u) {
            value *= weight1[i];
        }
    }
    return value;
}

fn rounded_pair(x: u32, i: u32, scale: f32, power: f32) -> u32 {
    return pack2x16float(power * vec2(value_at(x, i, scale), value_at(x, i + 1u, scale)));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let x = command.at.a + id.z * p.x_stride;
    let y = command.at.b + id.z * p.y_stride;
    var scale = 1.0;
    if NORM {
        var squares = 0.0;
        for (var i = t; i < p.dim; i += WG) {
            squares += float_at(x + i) * float_at(x + i);
        }
        scale = 1.0 / sqrt(sum_of_all(t, squares) / f32(p.dim) + p.eps);
    }
    var most = 0.0;
    for (var i = t; i < p.dim; i += WG) {
        most = max(most, abs(value_at(x, i, scale)));
    }
    let inverse = inverse_for(max_of_all(t, most));
    let power = power_of(inverse);
    if t == 0u {
        put(y, inverse);
    }
    let units = (p.y_stride - 4u) / 4u;
    for (var unit = t; unit < units; unit += WG) {
        let places = quads(unit);
        let to = y + 4u + 4u * unit;
        mem[to] = rounded_pair(x, places.x, scale, power);
        mem[to + 1u] = rounded_pair(x, places.x + 2u, scale, power);
        mem[to + 2u] = rounded_pair(x, places.y, scale, power);
        mem[to + 3u] = rounded_pair(x, places.y + 2u, scale, power);
    }
}
