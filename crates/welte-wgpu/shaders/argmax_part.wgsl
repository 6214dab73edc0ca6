// The largest logit of one part of a row, and its index: a workgroup for each part. NaN never wins.
struct Params { n: u32, logits_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let logits = command.at.a + id.z * p.logits_stride;
    let first = id.x * command.at.split;
    let end = min(p.n, first + command.at.split);
    var most = 0.0;
    var place = NOWHERE;
    for (var i = first + t; i < end; i += WG) {
        let value = float_at(logits + i);
        if !is_nan(value) && is_better(value, i, most, place) {
            most = value;
            place = i;
        }
    }
    find_best(t, most, place);
    if t == 0u {
        let y = command.at.scratch + 2u * (id.z * command.at.splits + id.x);
        put(y, largest[0]);
        mem[y + 1u] = places[0];
    }
}
