// Rounds rows to F16 for `matmul_cooperative.wgsl`, after the RMS norm if NORM: a workgroup for each group of a row, which becomes a
// row. A rounded row has the inverse of its power of two in its first quad of words, then its eights in the order that the format's products demand, padded with zeros.
struct Params { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }

// Four values from `i` on, before they are scaled: zeros after the end.
fn values_at(x: u32, i: u32) -> vec4<f32> {
    let dim = command.p.dim;
    var values = vec4(0.0);
    if ALIGNED {
        if i < dim {
            values = quad_at(x + i);
        }
    } else {
        for (var j = 0u; j < min(4u, max(dim, i) - i); j++) {
            values[j] = float_at(x + i + j);
        }
    }
    return values;
}

fn weights_at(i: u32) -> vec4<f32> {
    if !NORM || !has(1u) {
        return vec4(1.0);
    }
    let last = command.p.dim - 1u;
    return vec4(weight1[min(i, last)], weight1[min(i + 1u, last)], weight1[min(i + 2u, last)], weight1[min(i + 3u, last)]);
}

fn largest(values: vec4<f32>) -> f32 {
    let sizes = abs(values);
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

fn rounded(values: vec4<f32>) -> vec2<u32> {
    return vec2(pack2x16float(values.xy), pack2x16float(values.zw));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let x = command.at.a + id.z * p.x_stride + id.x * p.dim;
    let y = command.at.b + (id.z * p.groups + id.x) * p.y_stride;
    var squares = 0.0;
    var most = 0.0;
    for (var i = 4u * t; i < p.dim; i += 4u * WG) {
        let values = values_at(x, i);
        squares += dot(values, values);
        most = max(most, largest(values * weights_at(i)));
    }
    var scale = 1.0;
    if NORM {
        scale = 1.0 / sqrt(sum_of_all(t, squares) / f32(p.dim) + p.eps);
    }
    let inverse = inverse_for(scale * max_of_all(t, most));
    let power = power_of(inverse);
    if t == 0u {
        put(y, inverse);
    }
    let eights = (p.y_stride - 4u) / 4u;
    for (var i = t; i < eights; i += WG) {
        let places = eight(i);
        let a = rounded(power * (scale * values_at(x, places.x) * weights_at(places.x)));
        let b = rounded(power * (scale * values_at(x, places.y) * weights_at(places.y)));
        put_quad(y + 4u + 4u * i, bitcast<vec4<f32>>(vec4(a, b)));
    }
}
