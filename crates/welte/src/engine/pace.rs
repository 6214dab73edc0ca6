//! How much work of prompts and encoders comes between two tokens of those who decode.

use crate::average::moving_average;
use std::time::Duration;

/// Rows that a piece in a step of its own has at least: fewer cost hardly less.
const LEAST: usize = 16;
/// Rows that a piece in a mixed step has at least.
const LEAST_MIXED: usize = 4;
/// The time of a piece as a share of a decode step's, if no more requests wait for their prompts than decode. A mixed step takes as long
/// as a decode step and so much more: a running stream waits about one and a half times its usual time for a token, and the slowest
/// tokens stay below twice that time. A step of its own reads all weights once more, which takes about as long as a decode step.
const SHARE: f64 = 0.5;
/// The most requests that wait for each one that decodes, as far as they lengthen the pieces.
const MOST_WAITING: f64 = 8.0;
/// The time of a piece of an encoder's pass as a share of a decode step's: the slowest tokens stay below twice their time.
const ENCODING: f64 = 0.6;
/// The time of such a piece while nobody decodes: a request that comes does not wait longer.
const ALONE: Duration = Duration::from_millis(50);
/// After this many mixed steps the time of a decode step is measured again.
const MEASURED_FOR: usize = 32;

/// Cuts prompts so that a piece takes a share of a decode step: the more requests wait for each one that decodes, the longer. The rows
/// follow every piece, because rows deep in a prompt take longer. The cut changes no bit of a result.
pub(crate) struct Pace {
    max_rows: usize,
    rows: usize,
    /// A decode step, as a moving average in seconds; 0: none was measured.
    decode: f64,
    /// Sequences of that step.
    sequences: usize,
    /// Mixed steps since it was measured.
    mixed: usize,
    /// A step was asked for, to be measured.
    asked: bool,
}

impl Pace {
    /// For a prompt pass of at most `max_rows` rows.
    pub(crate) fn new(max_rows: usize) -> Pace {
        Pace {
            max_rows,
            rows: LEAST.min(max_rows),
            decode: 0.0,
            sequences: 0,
            mixed: 0,
            asked: false,
        }
    }

    /// Rows of the next piece, if somebody decodes.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The time that a piece of an encoder's pass may take. While others decode, that is none until the time of a decode step is known.
    pub(crate) fn encoding(&self, decodes: bool) -> Duration {
        if decodes {
            Duration::from_secs_f64(ENCODING * self.decode)
        } else {
            ALONE
        }
    }

    /// A decode step of `sequences` sequences took `each`.
    pub(crate) fn decoded(&mut self, sequences: usize, each: Duration) {
        if self.is_other(sequences) {
            self.decode = 0.0;
            self.sequences = sequences;
        }
        self.decode = moving_average(self.decode, each.as_secs_f64(), 0.2);
        self.mixed = 0;
    }

    /// True if the next step should be a decode step because its time is not known, or not any more. Never twice in a row.
    pub(crate) fn measures(&mut self, sequences: usize) -> bool {
        let due = self.is_other(sequences) || self.mixed >= MEASURED_FOR;
        self.asked = due && !self.asked;
        self.asked
    }

    /// True if the time of a decode step was measured with another number of sequences.
    fn is_other(&self, sequences: usize) -> bool {
        sequences.abs_diff(self.sequences) * 8 > self.sequences
    }

    /// A piece of `rows` rows took `took`. `waiting` requests wait for their prompts for each one that decodes.
    pub(crate) fn prompted(&mut self, rows: usize, took: Duration, waiting: f64) {
        if self.decode == 0.0 || rows < self.rows.min(LEAST) {
            return;
        }
        let may_take = self.decode + self.extra(waiting);
        self.follow(rows, took.as_secs_f64(), may_take, LEAST);
    }

    /// A mixed step with a piece of `rows` rows took `took`, while `waiting` requests wait for each one that decodes.
    pub(crate) fn mixed(&mut self, rows: usize, took: Duration, waiting: f64) {
        self.mixed += 1;
        if self.decode == 0.0 || rows < self.rows.min(LEAST_MIXED) {
            return;
        }
        let took = took.as_secs_f64() - self.decode;
        self.follow(rows, took, self.extra(waiting), LEAST_MIXED);
    }

    /// The seconds that a piece may take beside reading the weights.
    fn extra(&self, waiting: f64) -> f64 {
        SHARE * waiting.clamp(1.0, MOST_WAITING) * self.decode
    }

    /// A piece of `rows` rows took `took` seconds, and may take `may_take`. The next one has at most twice as many rows, and at least half
    /// of them.
    fn follow(&mut self, rows: usize, took: f64, may_take: f64, least: usize) {
        let fitting = rows as f64 * may_take / took.max(1e-9);
        let wanted = fitting.clamp(0.5 * self.rows as f64, 2.0 * self.rows as f64) as usize;
        self.rows = wanted.clamp(least.min(self.max_rows), self.max_rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows after many pieces, if a piece costs a fixed time and a time per row, and `waiting` requests wait for each that decodes.
    fn settled(waiting: f64, decode: u64, fixed: u64, row: u64) -> usize {
        let mut pace = Pace::new(512);
        for _ in 0..50 {
            pace.decoded(16, Duration::from_micros(decode));
            let rows = pace.rows();
            let took = Duration::from_micros(fixed + row * rows as u64);
            pace.prompted(rows, took, waiting);
        }
        pace.rows()
    }

    #[test]
    fn a_piece_takes_half_as_long_again_as_a_decode_step() {
        let rows = settled(1.0, 10_000, 2_000, 40);
        assert!((318..=325).contains(&rows), "{rows}");
        assert_eq!(settled(1.0 / 16.0, 10_000, 2_000, 40), rows);
        assert_eq!(settled(1.0, 10_000, 0, 5), 512);
        assert_eq!(settled(1.0, 1_000, 5_000, 10), LEAST);
    }

    /// A step of few rows takes as long as a decode step, because both read all weights. Pieces must not shrink to the least.
    #[test]
    fn reading_the_weights_does_not_count() {
        let rows = settled(1.0, 10_000, 10_000, 40);
        assert!((118..=125).contains(&rows), "{rows}");
    }

    #[test]
    fn pieces_are_longer_while_many_wait() {
        let rows = settled(4.0, 10_000, 10_000, 100);
        assert!((190..=200).contains(&rows), "{rows}");
        let most = settled(8.0, 10_000, 10_000, 100);
        assert!((380..=400).contains(&most), "{most}");
        assert_eq!(settled(625.0, 10_000, 10_000, 100), most);
    }

    #[test]
    fn rows_follow_the_depth() {
        let mut pace = Pace::new(512);
        pace.decoded(16, Duration::from_millis(10));
        let mut slowest = Duration::ZERO;
        for piece in 0..200u64 {
            let rows = pace.rows();
            // At the end a row takes four times as long.
            let took = Duration::from_micros((50 + piece) * rows as u64);
            pace.prompted(rows, took, 1.0);
            slowest = slowest.max(took);
        }
        assert!(slowest < Duration::from_micros(16_500), "{slowest:?}");
        assert!((58..=61).contains(&pace.rows()), "{}", pace.rows());
    }

    #[test]
    fn short_pieces_do_not_count() {
        let mut pace = Pace::new(512);
        pace.decoded(16, Duration::from_millis(1));
        pace.prompted(3, Duration::from_nanos(1), 1.0);
        assert_eq!(pace.rows(), LEAST);
    }

    /// The rows after many mixed steps, which take as long as a decode step and a time per row.
    fn settled_mixed(decode: u64, row: u64) -> usize {
        let mut pace = Pace::new(512);
        for _ in 0..100 {
            if pace.measures(16) {
                pace.decoded(16, Duration::from_micros(decode));
            }
            let rows = pace.rows();
            let took = Duration::from_micros(decode + row * rows as u64);
            pace.mixed(rows, took, 1.0);
        }
        pace.rows()
    }

    #[test]
    fn a_mixed_step_takes_half_as_long_again() {
        assert!((122..=125).contains(&settled_mixed(10_000, 40)));
        assert_eq!(settled_mixed(10_000, 0), 512);
        assert_eq!(settled_mixed(1_000, 1_000), LEAST_MIXED);
    }

    #[test]
    fn decode_steps_are_measured_again() {
        let mut pace = Pace::new(512);
        assert!(pace.measures(1) && !pace.measures(1) && pace.measures(1));
        pace.decoded(1, Duration::from_millis(1));
        assert!(!pace.measures(1) && pace.measures(2));
        pace.decoded(16, Duration::from_millis(4));
        // The time of one sequence is forgotten.
        assert_eq!(pace.decode, 4e-3);
        assert!(!pace.measures(18) && pace.measures(19) && !pace.measures(19));
        pace.decoded(19, Duration::from_millis(5));
        for _ in 0..MEASURED_FOR {
            assert!(!pace.measures(19));
            pace.mixed(8, Duration::from_millis(6), 1.0);
        }
        assert!(pace.measures(19));
    }

    #[test]
    fn mixed_steps_of_few_rows_or_before_any_other_do_not_count() {
        let mut pace = Pace::new(512);
        pace.mixed(100, Duration::from_millis(1), 1.0);
        pace.prompted(100, Duration::from_millis(1), 1.0);
        assert_eq!(pace.rows(), LEAST);
        pace.decoded(16, Duration::from_millis(1));
        pace.mixed(LEAST_MIXED - 1, Duration::from_micros(1001), 1.0);
        assert_eq!(pace.rows(), LEAST);
        // A piece that costs nothing may be twice as long.
        pace.mixed(LEAST_MIXED, Duration::from_millis(1), 1.0);
        assert_eq!(pace.rows(), 2 * LEAST);
    }
}
