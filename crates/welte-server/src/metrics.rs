//! Counters and histograms for Prometheus, under vLLM's names where it has them.

use crate::models::{Entry, Models, Served};
use std::fmt::Write;
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
    nanoseconds: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
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
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(
            text,
            "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}"
        );
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
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) preemptions: AtomicU64,
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
    text
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
