//! Metrics in Prometheus's text format, under vLLM's and llama.cpp's names where these have them.

use super::{Histogram, Metrics, Nanoseconds, REASONS};
use crate::models::{Entry, Models, Served};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
        "vllm:spec_decode_num_drafts_total",
        "counter",
        "Rounds of guessing.",
        |entry, _| count(&entry.metrics.guessed[2]),
    ),
    (
        "vllm:spec_decode_num_draft_tokens_total",
        "counter",
        "Tokens that were guessed.",
        |entry, _| count(&entry.metrics.guessed[0]),
    ),
    (
        "vllm:spec_decode_num_accepted_tokens_total",
        "counter",
        "Guesses that were right.",
        |entry, _| count(&entry.metrics.guessed[1]),
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
pub(crate) fn of(models: &Models) -> String {
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
    let name = "vllm:cache_config_info";
    let help = "How the cache of keys and values is divided: routers read it.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (_, served, labels) in &all {
        let Some(served) = served else { continue };
        let program = served.model.program();
        let pages = program.caches.iter().map(|cache| cache.pages).max();
        let _ = writeln!(
            text,
            "{name}{{{labels},block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"True\"}} 1",
            program.page,
            pages.unwrap_or(0),
        );
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
    let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    let help = "Guesses that were right, by their position in a round.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
    for (entry, _, labels) in &all {
        for (position, counter) in entry.metrics.right_at.iter().enumerate() {
            let count = counter.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}{{{labels},position=\"{position}\"}} {count}");
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
    fn rates_are_per_second() {
        assert_eq!(rate(10.0, 4.0), 2.5);
        assert_eq!(rate(10.0, 0.0), 0.0);
    }
}
