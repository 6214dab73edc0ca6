//! How many rows of prompts go into a step while others decode.

use crate::average::moving_average;
use std::time::Duration;

/// Rows that a piece has at least: fewer cost hardly less.
const LEAST: usize = 16;
/// The time of a piece as a share of a decode step's. A running stream then waits about one and a half times its usual
/// time for a token, and the slowest tokens stay below twice that time.
const SHARE: f64 = 0.5;

/// Cuts prompts so that a piece takes a fixed share of a decode step. The rows follow every piece, because rows deep in a
/// prompt take longer. The cut changes no bit of a result.
pub(crate) struct Pace {
    most: usize,
    rows: usize,
    /// A decode step, as a moving average in seconds; 0: none was measured.
    decode: f64,
}

impl Pace {
    /// For a prompt pass of at most `most` rows.
    pub(crate) fn new(most: usize) -> Pace {
        Pace {
            most,
            rows: LEAST.min(most),
            decode: 0.0,
        }
    }

    /// Rows of the next piece, if somebody decodes.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// A decode step took so long.
    pub(crate) fn decoded(&mut self, each: Duration) {
        self.decode = moving_average(self.decode, each.as_secs_f64(), 0.2);
    }

    /// A piece of so many rows took so long.
    pub(crate) fn prompted(&mut self, rows: usize, took: Duration) {
        if self.decode == 0.0 || rows < self.rows.min(LEAST) {
            return;
        }
        let fitting = rows as f64 * SHARE * self.decode / took.as_secs_f64().max(1e-9);
        let wanted = fitting.clamp(0.5 * self.rows as f64, 2.0 * self.rows as f64) as usize;
        self.rows = wanted.clamp(LEAST.min(self.most), self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows after many pieces, if a piece costs a fixed time and a time per row.
    fn settled(decode: u64, fixed: u64, row: u64) -> usize {
        let mut pace = Pace::new(512);
        for _ in 0..50 {
            pace.decoded(Duration::from_micros(decode));
            let rows = pace.rows();
            pace.prompted(rows, Duration::from_micros(fixed + row * rows as u64));
        }
        pace.rows()
    }

    #[test]
    fn a_piece_takes_half_a_decode_step() {
        let rows = settled(10_000, 2_000, 40);
        assert!((70..=75).contains(&rows), "{rows}");
        assert_eq!(settled(10_000, 0, 5), 512);
        assert_eq!(settled(1_000, 5_000, 10), LEAST);
    }

    #[test]
    fn rows_follow_the_depth() {
        let mut pace = Pace::new(512);
        pace.decoded(Duration::from_millis(10));
        let mut slowest = Duration::ZERO;
        for piece in 0..200u64 {
            let rows = pace.rows();
            // At the end a row takes four times as long.
            let took = Duration::from_micros((50 + piece) * rows as u64);
            pace.prompted(rows, took);
            slowest = slowest.max(took);
        }
        assert!(slowest < Duration::from_micros(5_500), "{slowest:?}");
        assert!((19..=21).contains(&pace.rows()), "{}", pace.rows());
    }

    #[test]
    fn short_pieces_do_not_count() {
        let mut pace = Pace::new(512);
        pace.decoded(Duration::from_millis(1));
        pace.prompted(3, Duration::from_nanos(1));
        assert_eq!(pace.rows(), LEAST);
    }
}
