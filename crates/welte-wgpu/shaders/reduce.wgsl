// Sums and maxima over a workgroup of WG invocations, in an order that depends on WG alone.
var<workgroup> reduced: array<f32, WG>;

fn sum_of_all(t: u32, value: f32) -> f32 {
    workgroupBarrier();
    reduced[t] = value;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half {
            reduced[t] += reduced[t + half];
        }
    }
    workgroupBarrier();
    return reduced[0];
}

fn max_of_all(t: u32, value: f32) -> f32 {
    workgroupBarrier();
    reduced[t] = value;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half {
            reduced[t] = max(reduced[t], reduced[t + half]);
        }
    }
    workgroupBarrier();
    return reduced[0];
}
