//! Counters and histograms.

pub(crate) mod text;

use crate::times::nanoseconds;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use welte::{Outcome, Speculated};

/// Upper bounds of the histograms, in seconds.
const BOUNDS: [f64; 18] = [
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
    30.0, 60.0, 300.0,
];

#[derive(Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    time: Nanoseconds,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.time.add(time);
    }

    fn write(&self, text: &mut String, name: &str, labels: &str) {
        let mut sum = 0;
        let bounds = BOUNDS
            .iter()
            .map(f64::to_string)
            .chain(["+Inf".to_string()]);
        for (count, bound) in self.counts.iter().zip(bounds) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        let seconds = self.time.seconds();
        let _ = writeln!(
            text,
            "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}"
        );
    }
}

/// A sum of times.
#[derive(Default)]
struct Nanoseconds(AtomicU64);

impl Nanoseconds {
    fn add(&self, time: Duration) {
        self.0.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) requests: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Of every prompt once, however many answers it gets.
    pub(crate) prompt_tokens: AtomicU64,
    looked_up_tokens: AtomicU64,
    /// Of those, the tokens of texts that get no answer but a vector or a score.
    embedded_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    /// Tokens of prompts that were computed for answers, and the time that it took.
    computed_tokens: AtomicU64,
    computing: Nanoseconds,
    /// Tokens that were chosen, those of them that cost a step, and the time that it took.
    chosen_tokens: AtomicU64,
    decoded_tokens: AtomicU64,
    decoding: Nanoseconds,
    /// Tokens that were guessed, right guesses, and rounds of guessing.
    guessed: [AtomicU64; 3],
    /// Right guesses by their position in a round.
    right_at: [AtomicU64; Speculated::POSITIONS],
    /// The most tokens of a request.
    longest: AtomicU64,
    /// Requests that ended by an end token or stop string, by the limit, by cancellation, and by an error.
    finished: [AtomicU64; 4],
    first_token: Histogram,
    between_tokens: Histogram,
    queued: Histogram,
    whole: Histogram,
}

const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

impl Metrics {
    /// A request was accepted. `first`: it is the first answer to its prompt.
    pub(crate) fn begun(&self, prompt_tokens: usize, first: bool) {
        let tokens = prompt_tokens as u64;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.looked_up_tokens.fetch_add(tokens, Ordering::Relaxed);
        if first {
            self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// Texts got a vector or a score.
    pub(crate) fn embedded(&self, tokens: usize) {
        for counter in [&self.prompt_tokens, &self.embedded_tokens] {
            counter.fetch_add(tokens as u64, Ordering::Relaxed);
        }
    }

    /// Guesses of requests that have ended, as the engine page reads them.
    pub(crate) fn guesses(&self) -> serde_json::Value {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [drafted, accepted, rounds] = self.guessed.each_ref().map(count);
        let by_position = self.right_at.each_ref().map(count);
        serde_json::json!({
            "drafted": drafted, "accepted": accepted, "rounds": rounds, "by_position": by_position,
        })
    }

    /// Time between two pieces of text.
    pub(crate) fn piece(&self, time: Duration) {
        self.between_tokens.add(time);
    }

    /// A request has ended without an outcome: it failed, or its client left.
    pub(crate) fn broken(&self, failed: bool) {
        self.finished[if failed { 3 } else { 2 }].fetch_add(1, Ordering::Relaxed);
    }

    /// A request has ended. `limited`: by a limit.
    pub(crate) fn ended(&self, outcome: &Outcome, limited: bool, whole: Duration) {
        self.finished[usize::from(limited)].fetch_add(1, Ordering::Relaxed);
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(
            &self.generated_tokens,
            outcome.tokens.len() - outcome.answered,
        );
        add(&self.cached_tokens, outcome.cached_tokens);
        add(&self.lookups, 1);
        add(&self.hits, usize::from(outcome.cached_tokens > 0));
        add(&self.preemptions, outcome.preemptions as usize);
        let (t, guessed) = (&outcome.timings, &outcome.speculated);
        let computed = outcome.prompt_tokens.saturating_sub(outcome.cached_tokens);
        add(&self.computed_tokens, computed);
        self.computing.add(t.prompt);
        add(&self.chosen_tokens, t.chosen);
        add(&self.decoded_tokens, t.decoded);
        self.decoding.add(t.generation);
        let guesses = [guessed.drafted, guessed.accepted, guessed.rounds];
        for (counter, n) in self.guessed.iter().zip(guesses) {
            add(counter, n);
        }
        for (counter, n) in self.right_at.iter().zip(guessed.by_position) {
            add(counter, n as usize);
        }
        let length = outcome.prompt_tokens + outcome.tokens.len();
        self.longest.fetch_max(length as u64, Ordering::Relaxed);
        // An answer may have no token.
        if !outcome.timings.first_token.is_zero() {
            self.first_token.add(outcome.timings.first_token);
        }
        self.queued.add(outcome.timings.queued);
        self.whole.add(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_in_seconds() {
        let sum = Nanoseconds::default();
        sum.add(Duration::from_millis(1500));
        sum.add(Duration::from_millis(250));
        assert_eq!(sum.seconds(), 1.75);
    }

    /// A bound belongs to its bucket.
    #[test]
    fn buckets_count_what_is_at_most_their_bound() {
        let histogram = Histogram::default();
        for milliseconds in [0, 500, 501, 400_000] {
            histogram.add(Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        histogram.write(&mut text, "a", "b=\"c\"");
        for (bound, count) in [
            ("0.0002", 1),
            ("0.2", 1),
            ("0.5", 2),
            ("1", 3),
            ("300", 3),
            ("+Inf", 4),
        ] {
            let line = format!("a_bucket{{b=\"c\",le=\"{bound}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(
            text.ends_with("a_sum{b=\"c\"} 401.001\na_count{b=\"c\"} 4\n"),
            "{text}"
        );
    }
}
