// Keeps how far each value exceeds the row's threshold: a workgroup per row.
struct Params { n: u32, deviations: f32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let y = command.at.a + id.z * p.y_stride;
    var sum = 0.0;
    for (var i = t; i < p.n; i += WG) {
        sum += float_at(y + i);
    }
    let mean = sum_of_all(t, sum) / f32(p.n);
    var squares = 0.0;
    for (var i = t; i < p.n; i += WG) {
        let centred = float_at(y + i) - mean;
        squares += centred * centred;
    }
    let limit = p.deviations * sqrt(sum_of_all(t, squares) / f32(p.n));
    for (var i = t; i < p.n; i += WG) {
        put(y + i, max(float_at(y + i) - mean - limit, 0.0));
    }
}
