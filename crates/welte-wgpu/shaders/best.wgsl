// The largest value of a workgroup with its place: the lowest place on a tie. A place may be NOWHERE, with any value.
var<workgroup> largest: array<f32, WG>;
var<workgroup> places: array<u32, WG>;

const NOWHERE = 0xffffffffu;

fn is_better(value: f32, place: u32, than: f32, than_place: u32) -> bool {
    return place != NOWHERE && (than_place == NOWHERE || value > than || (value == than && place < than_place));
}

// Leaves them in `largest[0]` and `places[0]`, for invocation 0.
fn find_best(t: u32, value: f32, place: u32) {
    largest[t] = value;
    places[t] = place;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half && is_better(largest[t + half], places[t + half], largest[t], places[t]) {
            largest[t] = largest[t + half];
            places[t] = places[t + half];
        }
    }
}
