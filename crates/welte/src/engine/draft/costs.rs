//! What steps cost, measured as they run.

/// Shares of a shorter and of a longer time in the estimate. Other work on the machine makes times longer, never shorter.
const SHORTER: f64 = 0.5;
const LONGER: f64 = 0.1;
/// A time counts as at most this multiple of the estimate.
const MOST: f64 = 2.0;
/// What a further row costs before that is known, as a share of a step of one row.
const SLOPE: f64 = 0.04;

/// An estimate after a further measurement; 0: there was none.
pub(crate) fn smoothed(before: f64, measured: f64) -> f64 {
    match before {
        0.0 => measured,
        _ if measured < before => before + SHORTER * (measured - before),
        _ => before + LONGER * (measured.min(MOST * before) - before),
    }
}

/// Seconds of a step by its number of rows. Numbers that were not measured are estimated from their neighbours.
pub(crate) struct Curve {
    /// 0: not measured.
    measured: Vec<f64>,
    estimates: Vec<f64>,
    /// The time of one row is that of plain decoding. It says nothing about what a further row costs: a step has a fixed cost that
    /// a chain has not.
    one_is_assumed: bool,
}

impl Curve {
    /// For steps of at most `max_rows` rows.
    pub(crate) fn new(max_rows: usize) -> Curve {
        Curve {
            measured: vec![0.0; max_rows + 1],
            estimates: vec![0.0; max_rows + 1],
            one_is_assumed: false,
        }
    }

    /// A step of `rows` rows took `seconds`.
    pub(crate) fn measure(&mut self, rows: usize, seconds: f64) {
        if let Some(known) = self.measured.get_mut(rows) {
            *known = smoothed(*known, seconds);
            self.estimate();
        }
    }

    /// Forgets the times of steps of more rows.
    pub(crate) fn forget_above(&mut self, rows: usize) {
        self.measured
            .iter_mut()
            .skip(rows + 1)
            .for_each(|known| *known = 0.0);
        self.estimate();
    }

    /// One row costs this much, unless it was measured.
    pub(crate) fn assume_one(&mut self, seconds: f64) {
        if let Some(one) = self.measured.get_mut(1) {
            *one = seconds;
            self.one_is_assumed = true;
            self.estimate();
        }
    }

    fn estimate(&mut self) {
        let mut below: Option<(usize, f64)> = None;
        let mut slope = None;
        for rows in 1..self.measured.len() {
            let mut measured = (rows..).zip(self.measured[rows..].iter().copied());
            let above = measured.find(|(_, seconds)| *seconds > 0.0);
            self.estimates[rows] = match (below, above) {
                (_, Some((at, seconds))) if at == rows => {
                    let known = below.filter(|(a, _)| *a > 1 || !self.one_is_assumed);
                    let rise = known.map(|(a, low)| (seconds - low) / (at - a) as f64);
                    slope = rise.map(|rise| rise.max(0.0));
                    below = above;
                    seconds
                }
                (Some((a, low)), Some((b, high))) => {
                    low + (high - low) * (rows - a) as f64 / (b - a) as f64
                }
                (Some((a, low)), None) => low + slope.unwrap_or(SLOPE * low) * (rows - a) as f64,
                (None, Some((_, high))) => high,
                (None, None) => 0.0,
            };
        }
    }

    /// Seconds of a step of `rows` rows; 0 if no step was measured.
    pub(crate) fn at(&self, rows: usize) -> f64 {
        self.estimates.get(rows).copied().unwrap_or(f64::INFINITY)
    }

    /// The same, if further rows cost as little as is hoped.
    pub(crate) fn hoped(&self, rows: usize) -> f64 {
        self.at(1) * (1.0 + SLOPE * rows.saturating_sub(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_rows_lie_between_measured_ones() {
        let mut curve = Curve::new(16);
        assert_eq!(curve.at(4), 0.0);
        curve.measure(1, 1.0);
        assert_eq!(curve.at(1), 1.0);
        assert!((curve.at(6) - 1.2).abs() < 1e-9);
        curve.measure(5, 3.0);
        assert!((curve.at(3) - 2.0).abs() < 1e-9);
        assert!((curve.at(7) - 4.0).abs() < 1e-9);
        assert_eq!(curve.at(17), f64::INFINITY);
        assert!((curve.hoped(6) - 1.2).abs() < 1e-9);
        curve.forget_above(4);
        assert!((curve.at(6) - 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_fixed_cost_of_rounds_is_no_cost_of_rows() {
        let mut curve = Curve::new(16);
        curve.assume_one(1.0);
        assert!((curve.at(6) - 1.2).abs() < 1e-9);
        curve.measure(5, 3.0);
        assert!((curve.at(6) - 3.0 * (1.0 + SLOPE)).abs() < 1e-9);
        curve.measure(9, 3.4);
        assert!((curve.at(7) - 3.2).abs() < 1e-9 && (curve.at(11) - 3.6).abs() < 1e-9);
    }

    #[test]
    fn one_slow_step_hardly_counts() {
        let mut curve = Curve::new(2);
        curve.measure(1, 1.0);
        curve.measure(1, 1000.0);
        assert!(curve.at(1) < 1.3);
        (0..100).for_each(|_| curve.measure(1, 2.0));
        assert!((curve.at(1) - 2.0).abs() < 1e-3);
    }

    #[test]
    fn shorter_times_count_at_once_and_longer_ones_slowly() {
        for (before, measured, after) in [
            (0.0, 5.0, 5.0),
            (4.0, 2.0, 3.0),
            (4.0, 4.0, 4.0),
            (4.0, 6.0, 4.2),
            (4.0, 8.0, 4.4),
            (4.0, 100.0, 4.4),
        ] {
            let got = smoothed(before, measured);
            assert!((got - after).abs() < 1e-9, "{before} {measured}: {got}");
        }
        let mut curve = Curve::new(4);
        (1..=4).for_each(|rows| curve.measure(rows, rows as f64));
        curve.measure(5, 1.0);
        curve.forget_above(2);
        // Of 2 and 1 follows that a further row costs a second.
        assert_eq!(
            [1, 2, 3, 4].map(|rows| curve.at(rows)),
            [1.0, 2.0, 3.0, 4.0]
        );
        curve.measure(2, 0.5);
        assert_eq!(curve.at(2), 1.25);
        // A row costs something or nothing, never less.
        curve.measure(1, 100.0);
        curve.assume_one(3.0);
        assert_eq!((curve.at(1), curve.at(4)), (3.0, 1.25 + 2.0 * SLOPE * 1.25));
    }
}
