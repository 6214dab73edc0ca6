//! The largest of many values.

/// Logits whose maximum is computed first when the top k are searched.
pub(crate) const RUN: usize = 64;

/// Index of the largest value, the lowest on a tie; NaN never wins.
pub fn argmax(values: &[f32]) -> (f32, u32) {
    let mut largest = f32::NEG_INFINITY;
    for run in values.chunks(RUN) {
        let mut m = f32::NEG_INFINITY;
        for v in run {
            m = if *v > m { *v } else { m };
        }
        largest = if m > largest { m } else { largest };
    }
    let at = values.iter().position(|v| *v == largest).unwrap_or(0);
    (largest, at as u32)
}
