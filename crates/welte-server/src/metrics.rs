//! Counters and histograms for Prometheus, under vLLM's names where it has them.

use crate::models::{Entry, Models, Served};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use welte::{Outcome, StopReason};

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
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
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

    /// Time between two pieces of text.
    pub(crate) fn piece(&self, time: Duration) {
        self.between_tokens.add(time);
    }

    /// A request has ended. Without an outcome it failed or its client left.
    pub(crate) fn ended(&self, outcome: Option<&Outcome>, failed: bool, whole: Duration) {
        let reason = match outcome.map(|outcome| &outcome.stop) {
            Some(StopReason::End(_) | StopReason::StopString(_)) => 0,
            Some(StopReason::Length | StopReason::ContextFull | StopReason::Deadline) => 1,
            _ if failed => 3,
            _ => 2,
        };
        self.finished[reason].fetch_add(1, Ordering::Relaxed);
        let Some(outcome) = outcome else { return };
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.generated_tokens, outcome.tokens.len());
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

/// A counter or a gauge: name, kind, help, and its value for a model.
type One = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Entry, Option<&Served>) -> Option<f64>,
);

const ONES: &[One] = &[
    (
        "vllm:num_requests_running",
        "gauge",
        "Requests that have a slot.",
        |_, served| Some(served.map_or(0, |s| s.engine.status().running) as f64),
    ),
    (
        "vllm:num_requests_waiting",
        "gauge",
        "Requests that wait for a slot or for pages.",
        |_, served| Some(served.map_or(0, |s| s.engine.status().waiting) as f64),
    ),
    (
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Share of the cache's pages in use, from 0 to 1.",
        |_, served| {
            let status = served?.engine.status();
            // As vLLM counts: pages of prefixes that nobody uses can be had.
            Some(status.held_pages as f64 / status.pages.max(1) as f64)
        },
    ),
    (
        "vllm:prompt_tokens_total",
        "counter",
        "Tokens of prompts.",
        |entry, _| count(&entry.metrics.prompt_tokens),
    ),
    (
        "vllm:generation_tokens_total",
        "counter",
        "Generated tokens.",
        |entry, _| count(&entry.metrics.generated_tokens),
    ),
    (
        "vllm:prefix_cache_queries_total",
        "counter",
        "Tokens of prompts that were looked up.",
        |entry, _| count(&entry.metrics.looked_up_tokens),
    ),
    (
        "vllm:prefix_cache_hits_total",
        "counter",
        "Tokens of prompts that were cached.",
        |entry, _| count(&entry.metrics.cached_tokens),
    ),
    (
        "vllm:num_preemptions_total",
        "counter",
        "Times that a request gave its pages to others.",
        |entry, _| count(&entry.metrics.preemptions),
    ),
    (
        "welte_requests_total",
        "counter",
        "Requests that the engine accepted.",
        |entry, _| count(&entry.metrics.requests),
    ),
    (
        "welte_requests_refused_total",
        "counter",
        "Requests that were refused because the queue was full.",
        |entry, _| count(&entry.metrics.refused),
    ),
    (
        "welte_scheduler_turns_total",
        "counter",
        "Turns of the scheduler since the model was loaded.",
        |_, served| Some(served?.engine.turns() as f64),
    ),
    (
        "welte_model_loaded",
        "gauge",
        "1 if the model is loaded.",
        |_, served| Some(f64::from(u8::from(served.is_some()))),
    ),
];

fn count(counter: &AtomicU64) -> Option<f64> {
    Some(counter.load(Ordering::Relaxed) as f64)
}

/// Everything, in Prometheus's text format.
pub(crate) fn text(models: &Models) -> String {
    let entries = models.all();
    let all: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry,
                entry.loaded(),
                format!("model_name={}", quoted(&entry.id)),
            )
        })
        .collect();
    let mut text = String::new();
    for (name, kind, help, value) in ONES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (entry, served, labels) in &all {
            if let Some(value) = value(entry, served.as_deref()) {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
    }
    let name = "vllm:request_success_total";
    let help = "Requests that have ended, by reason.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
    for (entry, _, labels) in &all {
        for (reason, counter) in REASONS.iter().zip(&entry.metrics.finished) {
            let count = counter.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "{name}{{{labels},finished_reason=\"{reason}\"}} {count}"
            );
        }
    }
    for (name, help, histogram) in HISTOGRAMS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (entry, _, labels) in &all {
            histogram(&entry.metrics).write(&mut text, name, labels);
        }
    }
    llama_cpp(&entries, &mut text);
    text
}

/// A figure under llama.cpp's name: name, kind, help, and its value for all models together.
type Sum = (&'static str, &'static str, &'static str, fn(&Sums) -> f64);

/// Sums over all models.
struct Sums<'a>(&'a [Arc<Entry>]);

impl Sums<'_> {
    fn of(&self, counter: impl Fn(&Metrics) -> &AtomicU64) -> f64 {
        let all = self.0.iter().map(|entry| counter(&entry.metrics));
        all.map(|counter| counter.load(Ordering::Relaxed) as f64)
            .sum()
    }

    fn seconds(&self, time: impl Fn(&Metrics) -> &Nanoseconds) -> f64 {
        self.0
            .iter()
            .map(|entry| time(&entry.metrics).seconds())
            .sum()
    }

    fn loaded(&self, figure: impl Fn(&Served) -> usize) -> f64 {
        let loaded = self.0.iter().filter_map(|entry| entry.loaded());
        loaded.map(|served| figure(&served) as f64).sum()
    }
}

fn rate(tokens: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens / seconds } else { 0.0 }
}

const SUMS: &[Sum] = &[
    (
        "prompt_tokens_total",
        "counter",
        "Tokens of prompts that were computed.",
        |sums| sums.of(|m| &m.computed_tokens) + sums.of(|m| &m.embedded_tokens),
    ),
    (
        "prompt_tokens_cached_total",
        "counter",
        "Tokens of prompts that were cached.",
        |sums| sums.of(|m| &m.cached_tokens),
    ),
    (
        "prompt_seconds_total",
        "counter",
        "Time that prompts took.",
        |sums| sums.seconds(|m| &m.computing),
    ),
    (
        "tokens_predicted_total",
        "counter",
        "Generated tokens.",
        |sums| sums.of(|m| &m.chosen_tokens),
    ),
    (
        "tokens_predicted_seconds_total",
        "counter",
        "Time that generation took.",
        |sums| sums.seconds(|m| &m.decoding),
    ),
    (
        "n_decode_total",
        "counter",
        "Turns of the scheduler.",
        |sums| sums.loaded(|served| served.engine.turns() as usize),
    ),
    (
        "n_tokens_max",
        "counter",
        "The most tokens of a request, with its prompt.",
        |sums| {
            let all = sums.0.iter().map(|entry| &entry.metrics.longest);
            let longest = all.map(|counter| counter.load(Ordering::Relaxed)).max();
            longest.unwrap_or(0) as f64
        },
    ),
    (
        "spec_decode_num_draft_tokens_total",
        "counter",
        "Tokens that were guessed.",
        |sums| sums.of(|m| &m.guessed[0]),
    ),
    (
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "Guesses that were right.",
        |sums| sums.of(|m| &m.guessed[1]),
    ),
    (
        "spec_decode_num_drafts_total",
        "counter",
        "Rounds of guessing.",
        |sums| sums.of(|m| &m.guessed[2]),
    ),
    (
        "prompt_tokens_seconds",
        "gauge",
        "Tokens of prompts per second, on average since the start.",
        |sums| {
            let seconds = sums.seconds(|m| &m.computing);
            rate(sums.of(|m| &m.computed_tokens), seconds)
        },
    ),
    (
        "predicted_tokens_seconds",
        "gauge",
        "Generated tokens per second, on average since the start.",
        |sums| {
            let seconds = sums.seconds(|m| &m.decoding);
            rate(sums.of(|m| &m.decoded_tokens), seconds)
        },
    ),
    (
        "requests_processing",
        "gauge",
        "Requests that have a slot.",
        |sums| sums.loaded(|served| served.engine.status().running),
    ),
    (
        "requests_deferred",
        "gauge",
        "Requests that wait for a slot or for pages.",
        |sums| sums.loaded(|served| served.engine.status().waiting),
    ),
    (
        "n_busy_slots_per_decode",
        "gauge",
        "Generated tokens per turn of the scheduler.",
        |sums| {
            let turns = sums.loaded(|served| served.engine.turns() as usize);
            rate(sums.of(|m| &m.chosen_tokens), turns)
        },
    ),
];

/// The figures under llama.cpp's names, which have no label: those of all models together.
fn llama_cpp(entries: &[Arc<Entry>], text: &mut String) {
    for (name, kind, help, value) in SUMS {
        let name = format!("llamacpp:{name}");
        let value = value(&Sums(entries));
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
        );
    }
}

/// Name, help and place of a histogram.
type Times = (&'static str, &'static str, fn(&Metrics) -> &Histogram);

const HISTOGRAMS: &[Times] = &[
    (
        "vllm:time_to_first_token_seconds",
        "Time from a request to its first token.",
        |metrics| &metrics.first_token,
    ),
    (
        "vllm:inter_token_latency_seconds",
        "Time between two pieces of an answer.",
        |metrics| &metrics.between_tokens,
    ),
    (
        "vllm:request_queue_time_seconds",
        "Time that a request waited.",
        |metrics| &metrics.queued,
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "Time from a request to its end.",
        |metrics| &metrics.whole,
    ),
];

/// A label's value.
fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sums_are_in_seconds() {
        assert_eq!(rate(10.0, 4.0), 2.5);
        assert_eq!(rate(10.0, 0.0), 0.0);
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
