// Joins the splits of a head of a row.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let row = id.z;
    let head = id.x;
    if is_whole(row) {
        return;
    }
    var sink = LOWEST;
    if has(0u) {
        sink = vector0(head);
    }
    var most = sink;
    for (var split = 0u; split < command.at.splits; split++) {
        let bounds = split_of(row, split);
        if bounds.x < bounds.y {
            most = max(most, float_at(partial_place(row, head, split, p.head_dim)));
        }
    }
    var total = 0.0;
    if sink > LOWEST {
        total = exp(sink - most);
    }
    for (var split = 0u; split < command.at.splits; split++) {
        let bounds = split_of(row, split);
        if bounds.x < bounds.y {
            let partial = partial_place(row, head, split, p.head_dim);
            total += exp(float_at(partial) - most) * float_at(partial + 1u);
        }
    }
    for (var i = t; i < p.head_dim; i += WG) {
        var sum = 0.0;
        for (var split = 0u; split < command.at.splits; split++) {
            let bounds = split_of(row, split);
            if bounds.x < bounds.y {
                let partial = partial_place(row, head, split, p.head_dim);
                sum += exp(float_at(partial) - most) * float_at(partial + 2u + i);
            }
        }
        put(command.at.c + row * p.y_stride + head * p.head_dim + i, sum / total);
    }
}
