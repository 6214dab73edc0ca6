// Attention of one head of one row: a workgroup walks the positions that the row sees, WG at a time. The steps begin at the
// first of these positions, so the order of sums depends on the row alone.
var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> share: array<f32, WG>;
var<workgroup> places: array<u32, WG>;
var<workgroup> value_sum: array<f32, HEAD_DIM>;

fn attend(row: u32, head: u32, kv_head: u32, q: u32, y: u32, t: u32, first: u32, end: u32, scale: f32, softcap: f32, sink: f32) {
    for (var i = t; i < HEAD_DIM; i += WG) {
        query[i] = float_at(q + i);
        value_sum[i] = 0.0;
    }
    workgroupBarrier();
    var largest = sink;
    // The sink counts once.
    var total = 0.0;
    if sink > LOWEST {
        total = 1.0;
    }
    for (var step = first; step < end; step += WG) {
        let position = step + t;
        var score = LOWEST;
        if position < end {
            let at = key_place(row, kv_head, position);
            places[t] = value_place(row, kv_head, position);
            var sum = 0.0;
            for (var i = 0u; i < HEAD_DIM; i++) {
                sum += query[i] * element(at, i);
            }
            score = sum * scale;
            if softcap != 0.0 {
                score = softcap * safe_tanh(score / softcap);
            }
            score += near(row, head, position);
        }
        let before = largest;
        largest = max(largest, max_of_all(t, score));
        var weight = 0.0;
        if position < end {
            weight = exp(score - largest);
        }
        share[t] = weight;
        let kept = exp(before - largest);
        total = total * kept + sum_of_all(t, weight);
        let count = min(WG, end - step);
        for (var i = t; i < HEAD_DIM; i += WG) {
            var sum = value_sum[i] * kept;
            for (var j = 0u; j < count; j++) {
                sum += share[j] * element(places[j], i);
            }
            value_sum[i] = sum;
        }
        workgroupBarrier();
    }
    for (var i = t; i < HEAD_DIM; i += WG) {
        put(y + i, value_sum[i] / total);
    }
}
