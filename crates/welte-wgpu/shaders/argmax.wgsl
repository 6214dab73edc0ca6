// The next token of each row: the largest logit, the lowest index on a tie; NaN never wins. Then the row's token and
// position become those of the next step.
struct Params { n: u32, logits_stride: u32 }

// The step state, which other kernels only read.
@group(0) @binding(6) var<storage, read_write> next: array<u32>;

var<workgroup> largest: array<f32, WG>;
var<workgroup> places: array<u32, WG>;

const NOWHERE = 0xffffffffu;

fn is_better(value: f32, place: u32, than: f32, than_place: u32) -> bool {
    return place != NOWHERE && (than_place == NOWHERE || value > than || (value == than && place < than_place));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let logits = command.at.a + id.z * p.logits_stride;
    var most = 0.0;
    var place = NOWHERE;
    for (var i = t; i < p.n; i += WG) {
        let value = float_at(logits + i);
        if !is_nan(value) && is_better(value, i, most, place) {
            most = value;
            place = i;
        }
    }
    largest[t] = most;
    places[t] = place;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half && is_better(largest[t + half], places[t + half], largest[t], places[t]) {
            largest[t] = largest[t + half];
            places[t] = places[t + half];
        }
    }
    if t == 0u {
        var token = places[0];
        if token == NOWHERE {
            token = 0u;
        }
        mem[command.at.b + id.z] = token;
        next[ROWS_AT + 3u * id.z] = token;
        next[ROWS_AT + 3u * id.z + 1u] += 1u;
    }
}
