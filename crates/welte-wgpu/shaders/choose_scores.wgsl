// Scores of the positions that a row may see: an invocation has one position. Rows that see all have none.
struct Params { layer: u32, heads: u32, head_dim: u32, used: u32, q_stride: u32, gates_stride: u32, y_stride: u32, context: u32 }

var<workgroup> query: array<f32, HEAD_DIM>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let end = reach_of(id.z) + 1u;
    if end <= p.used || id.x * WG >= end {
        return;
    }
    // Invocations without a position do what the last one does.
    let position = min(id.x * WG + t, end - 1u);
    let slot = slot_of(id.z);
    let first = head_place(0u, 0u, 1u, slot, position, HEAD_DIM / 2u);
    let second = head_place(1u, 0u, 1u, slot, position, HEAD_DIM / 2u);
    let q = command.at.a + id.z * p.q_stride;
    let gates = command.at.c + id.z * p.gates_stride;
    var score = 0.0;
    for (var head = 0u; head < p.heads; head++) {
        workgroupBarrier();
        for (var i = t; i < HEAD_DIM; i += WG) {
            query[i] = float_at(q + head * HEAD_DIM + i);
        }
        workgroupBarrier();
        var sum = 0.0;
        for (var i = 0u; i < HEAD_DIM / 2u; i++) {
            sum += query[i] * cached(first, i);
        }
        for (var i = 0u; i < HEAD_DIM / 2u; i++) {
            sum += query[HEAD_DIM / 2u + i] * cached(second, i);
        }
        score += float_at(gates + head) * max(sum, 0.0);
    }
    put(command.at.scratch + id.z * p.context + position, score);
}
