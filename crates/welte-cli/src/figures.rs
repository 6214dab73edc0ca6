//! The figures beside an answer, on standard error: where it runs, how fast, and where the start went.

use crate::floor;
use crate::hints::hint;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use welte::{Error, Model, Outcome, Session, StopReason};
use welte_device::Error as DeviceError;
use welte_report::{count, human};
use welte_table::Class;

/// When the process began.
pub(crate) static START: OnceLock<Instant> = OnceLock::new();

/// The device and how it replays: `cuda:0, persistent`.
fn place(session: &Session) -> String {
    let device = session.model().device().id;
    let mut facts = session.model().device_facts().iter();
    match (
        session.engine().replaying(),
        facts.find(|fact| fact.0 == "experts"),
    ) {
        (Some(replaying), _) => format!("{device}, {replaying}"),
        (None, Some((_, experts))) => format!("{device}, experts: {experts}"),
        (None, None) => device.to_string(),
    }
}

/// What devices say that this machine does not have.
const ABSENT: [&str; 2] = ["the NVIDIA driver's library", "no GPU found"];

/// Why a device that an automatic choice prefers was not taken. That there is none is worth a line only in detail.
fn why_here(model: &Model, verbose: bool) -> Option<String> {
    let is_there = |why: &Error| {
        let Error::Device(DeviceError::Unavailable { why, .. }) = why else {
            return true;
        };
        !ABSENT.iter().any(|words| why.contains(words))
    };
    let mut skipped = model.skipped().iter();
    skipped
        .find(|skipped| verbose || is_there(&skipped.why))
        .map(|skipped| match (&skipped.why, hint(&skipped.why)) {
            // The model would fit there another way.
            (Error::Memory { .. }, Some(hint)) => format!("{}; {hint}", skipped.why),
            (why, _) => why.to_string(),
        })
}

/// For the first line of a chat: `m.gguf on cpu (cuda: no driver), context of 4096 tokens`
pub(crate) fn headline(session: &Session, verbose: bool) -> String {
    let (place, model) = (place(session), session.model());
    let why = why_here(model, verbose).map_or(String::new(), |why| format!(" ({why})"));
    format!(
        "{} on {place}{why}, context of {}",
        model.origin(),
        count(model.context() as u64, "token")
    )
}

/// A note before an answer if an automatic choice fell back to another device.
pub(crate) fn note_device(model: &Model, verbose: bool) {
    if let Some(why) = why_here(model, verbose) {
        eprintln!("note: running on {}: {why}", model.device().id);
    }
}

/// Where the time until the first token went. `begun` is the time from the start of the process to that of the answer.
pub(crate) fn start_line(model: &Model, begun: Duration, outcome: &Outcome) {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let weights = model.plan().bytes(Class::Weights);
    let load = model.load_time();
    eprintln!(
        "first token {:.1} ms after the process began: load {:.1} ms ({} of weights, {:.2} GB/s), prompt {:.1} ms, the rest {:.1} ms",
        ms(begun + outcome.timings.first_token),
        ms(load),
        human(weights),
        weights as f64 / load.as_secs_f64().max(1e-9) / 1e9,
        ms(outcome.timings.first_token),
        ms(begun.saturating_sub(load)),
    );
}

/// What the load and the first context spent their time on, one line per phase. Some happened at the same time.
pub(crate) fn phase_lines(model: &Model) {
    let Some(start) = START.get() else {
        return;
    };
    eprintln!("   begin ms     took ms  phase");
    for phase in model.phases() {
        let begun = phase.begun.saturating_duration_since(*start);
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        eprintln!("{:11.1} {:11.1}  {}", ms(begun), ms(phase.time), phase.name);
    }
}

/// How many guesses were right, if there were any.
pub(crate) fn speculation_line(outcome: &Outcome) {
    let s = &outcome.speculated;
    if s.rounds > 0 {
        let share = |right: &u32| format!(" {:.0}", 100.0 * f64::from(*right) / s.rounds as f64);
        let at = s.by_position.iter().take_while(|right| **right > 0);
        let shares: String = at.map(share).collect();
        eprintln!("guesses right by position, % of rounds:{shares}");
        eprintln!(
            "speculation: {} of {} right in {} of {:.1} ms, {:.1} ms of these for guessing",
            s.accepted,
            count(s.drafted as u64, "guessed token"),
            count(s.rounds as u64, "round"),
            (s.drafting + s.verifying).as_secs_f64() * 1e3,
            s.drafting.as_secs_f64() * 1e3,
        );
    }
}

/// The speeds of an answer: what a chat shows after each.
pub(crate) fn speeds(outcome: &Outcome) -> String {
    let per_second = |n: usize, d: Duration| n as f64 / d.as_secs_f64().max(1e-9);
    let computed = outcome.prompt_tokens - outcome.cached_tokens;
    let cached = match outcome.cached_tokens {
        0 => String::new(),
        n => format!(" (+{n} cached)"),
    };
    let t = &outcome.timings;
    format!(
        "prompt {}{cached} {:.1} t/s · generation {} {:.1} t/s · first token {:.1} ms",
        count(computed as u64, "token"),
        per_second(computed, t.prompt),
        count(outcome.tokens.len() as u64, "token"),
        per_second(t.decoded, t.generation),
        t.first_token.as_secs_f64() * 1e3,
    )
}

/// The closing line of a single answer: speeds, memory, bandwidth and device.
pub(crate) fn closing_line(session: &Session, outcome: &Outcome) -> String {
    let t = &outcome.timings;
    let speed = t.bytes as f64 / t.generation.as_secs_f64().max(1e-9);
    let place = place(session);
    format!(
        "{} · peak memory {} · {:.1} GB/s{} · {place}",
        speeds(outcome),
        welte::peak_memory().map_or("unknown".to_string(), human),
        speed / 1e9,
        floor::remark(session.model(), speed),
    )
}

/// A note if the end of the context ended the answer.
pub(crate) fn note_full_context(model: &Model, outcome: &Outcome) {
    if outcome.stop == StopReason::ContextFull {
        let used = outcome.prompt_tokens + outcome.tokens.len();
        eprintln!(
            "note: the context is full ({used} of {} tokens); load the model with a larger -c to continue",
            model.context()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte::{Speculated, Timings};

    #[test]
    fn speeds_count_computed_and_decoded_tokens() {
        let outcome = Outcome {
            tokens: vec![1; 21],
            answered: 0,
            stop: StopReason::Length,
            timings: Timings {
                queued: Duration::ZERO,
                prompt: Duration::from_millis(100),
                generation: Duration::from_millis(200),
                first_token: Duration::from_millis(110),
                bytes: 0,
                chosen: 21,
                decoded: 20,
            },
            prompt_tokens: 51,
            cached_tokens: 50,
            differs_at: None,
            preemptions: 0,
            speculated: Speculated::default(),
        };
        assert_eq!(
            speeds(&outcome),
            "prompt 1 token (+50 cached) 10.0 t/s · generation 21 tokens 100.0 t/s · first token 110.0 ms"
        );
    }
}
