// Gives a vector of `y` the mean square of the row's `x`: a workgroup for each vector of a row.
struct Params { dim: u32, groups: u32, x_stride: u32, y_stride: u32 }

fn mean_square(t: u32, at: u32, count: u32) -> f32 {
    var squares = 0.0;
    for (var i = t; i < count; i += WG) {
        let value = float_at(at + i);
        squares += value * value;
    }
    return sum_of_all(t, squares) / f32(count);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let y = command.at.b + id.z * p.y_stride + id.x * p.dim;
    let wanted = mean_square(t, command.at.a + id.z * p.x_stride, p.dim);
    let found = mean_square(t, y, p.dim);
    let factor = sqrt(wanted) / sqrt(max(found, 1e-5));
    for (var i = t; i < p.dim; i += WG) {
        put(y + i, float_at(y + i) * factor);
    }
}
