//! The moving average of rates and times that the scheduler measures.

/// The average after a further measurement, which counts with this share. An average of 0 means that nothing has been
/// measured, so the first measurement counts alone.
pub(crate) fn moving_average(before: f64, measured: f64, share: f64) -> f64 {
    match before {
        0.0 => measured,
        before => before + share * (measured - before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_measurement_counts_alone() {
        assert_eq!(moving_average(0.0, 8.0, 0.25), 8.0);
        assert_eq!(moving_average(8.0, 4.0, 0.25), 7.0);
    }
}
