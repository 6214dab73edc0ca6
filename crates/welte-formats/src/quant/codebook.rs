//! Formats with a table of 16 values: IQ4_NL and IQ4_XS share one, MXFP4 has its own.

/// The values of IQ4_NL and IQ4_XS, denser around zero, where most weights are.
pub(super) const UNEVEN: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Candidates for a scale map the largest value to an end of the table, or up to 7 steps of this size beside it.
const CANDIDATES: i32 = 7;
const STEP: f32 = 2.0;

/// The index of the nearest value of the table.
pub(super) fn nearest(x: f32) -> u8 {
    UNEVEN.windows(2).fold(0, |index, pair| {
        let middle = (f32::from(pair[0]) + f32::from(pair[1])) * 0.5;
        index + u8::from(x > middle)
    })
}

/// The indices for `x = scale · value`, and their weighted error.
pub(super) fn fit(x: &[f32; 32], weights: &[f32; 32], scale: f32) -> ([u8; 32], f32) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut error = 0.0;
    let mut q = [0; 32];
    for ((q, x), w) in q.iter_mut().zip(x).zip(weights) {
        *q = nearest(x * inverse);
        let off = scale * f32::from(UNEVEN[usize::from(*q)]) - x;
        error += w * off * off;
    }
    (q, error)
}

/// The weight of each error. Errors of large values cost more in a product, and so do those that are multiplied by large inputs.
pub(super) fn weights(x: &[f32; 32], importance: &[f32; 32]) -> [f32; 32] {
    let rms = (x.iter().map(|x| x * x).sum::<f32>() / 32.0).sqrt();
    let mut weights = x.map(|x| rms + x.abs());
    (weights.iter_mut().zip(importance)).for_each(|(weight, matters)| *weight *= matters);
    weights
}

/// The scale for the table's values. For given indices, the best scale is Σwxv / Σwvv; it reduces the error by (Σwxv)²
/// / Σwvv.
pub(super) fn best_scale(x: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let extreme = x
        .iter()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { *b } else { a });
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for end in [UNEVEN[0], UNEVEN[15]] {
        for candidate in -CANDIDATES..=CANDIDATES {
            let inverse = (f32::from(end) + STEP * candidate as f32) / extreme;
            let (mut wxv, mut wvv) = (0f32, 0f32);
            for (x, w) in x.iter().zip(weights) {
                let v = f32::from(UNEVEN[usize::from(nearest(x * inverse))]);
                wxv += w * x * v;
                wvv += w * v * v;
            }
            if wvv > 0.0 && wxv * wxv > most * wvv {
                most = wxv * wxv / wvv;
                best = wxv / wvv;
            }
        }
    }
    best
}
