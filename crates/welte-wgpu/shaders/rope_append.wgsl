// Norm and rope of a row's queries and keys in place, then keys and values into the cache: a workgroup for each head.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, rot: u32, interleaved: u32, magnitude: f32, eps: f32, qkv_stride: u32, sections: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let row = id.z;
    let head = id.x;
    let x = command.at.a + row * p.qkv_stride + head * p.head_dim;
    let is_query = head < p.heads;
    let is_value = head >= p.heads + p.kv_heads;
    if !is_value {
        let normed = (is_query && has(1u)) || (!is_query && has(2u));
        if normed {
            var squares = 0.0;
            for (var i = t; i < p.head_dim; i += WG) {
                let value = float_at(x + i);
                squares = fma(value, value, squares);
            }
            turned_squares[t] = squares;
            workgroupBarrier();
            let factor = norm_factor(0u, p.head_dim, p.eps);
            for (var i = t; i < p.head_dim; i += WG) {
                var weight = 1.0;
                if is_query {
                    weight = weight1[i];
                } else {
                    weight = weight2[i];
                }
                put(x + i, float_at(x + i) * factor * weight);
            }
            storageBarrier();
            workgroupBarrier();
        }
        for (var i = t; i < p.rot / 2u; i += WG) {
            rotate(x, p.rot, p.interleaved, row, i, p.magnitude);
        }
        storageBarrier();
        workgroupBarrier();
    }
    if is_query {
        return;
    }
    let kv_head = (head - p.heads) % p.kv_heads;
    let part = (head - p.heads) / p.kv_heads;
    let place = head_place(part, kv_head, p.kv_heads, slot_of(row), position_of(row), p.head_dim);
    for (var unit = t; unit < p.head_dim / UNIT_ELEMENTS; unit += WG) {
        store(place, unit, x + unit * UNIT_ELEMENTS);
    }
}
