// The power of two of every row of a matrix (power.wgsl), once after it is loaded: a workgroup for each row.
struct Params { k: u32 }

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let k = command.p.k;
    let row = id.x + id.y * grid.x;
    if row >= command.at.count {
        return;
    }
    var most = 0.0;
    for (var unit = t; unit < (k + 7u) / 8u; unit += WG) {
        let values = load(row * row_words(k), unit, k);
        let larger = max(abs(values.a), abs(values.b));
        most = max(most, max(max(larger.x, larger.y), max(larger.z, larger.w)));
    }
    most = max_of_all(t, most);
    if t == 0u {
        put(row, inverse_for(most));
    }
}
