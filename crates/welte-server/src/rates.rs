//! How fast the engine is: rates between two looks at it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use welte::{SlotSnapshot, Snapshot};

/// How far back rates look.
const RATES_OVER: Duration = Duration::from_secs(1);

/// Earlier snapshots, from which rates are computed.
#[derive(Default)]
pub(crate) struct History {
    past: VecDeque<Moment>,
}

/// The counts of a snapshot.
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) prompt: u64,
    pub(crate) generated: u64,
    pub(crate) steps: u64,
    /// Positions of the running requests.
    pub(crate) positions: Vec<(u64, usize)>,
}

/// Changes per second since a moment.
pub(crate) struct Rates {
    pub(crate) prompt: f64,
    pub(crate) decode: f64,
    /// Rows of a decode step.
    pub(crate) rows: f64,
    pub(crate) steps: f64,
    pub(crate) seconds: f64,
}

impl History {
    /// Adds a snapshot. Returns the newest moment that is old enough, or the oldest.
    pub(crate) fn add(&mut self, snapshot: &Snapshot, now: Instant) -> Option<&Moment> {
        // If nobody has looked for long, the oldest moment says nothing about now.
        self.past.retain(|moment| now - moment.at <= 5 * RATES_OVER);
        let is_old = |moment: &Moment| now - moment.at >= RATES_OVER;
        while self.past.get(1).is_some_and(is_old) {
            self.past.pop_front();
        }
        let position = |slot: &SlotSnapshot| Some((slot.request?, slot.position));
        self.past.push_back(Moment {
            at: now,
            prompt: snapshot.prompt_tokens,
            generated: snapshot.generated_tokens,
            steps: snapshot.decode_steps,
            positions: snapshot.slots.iter().filter_map(position).collect(),
        });
        self.past.front().filter(|_| self.past.len() > 1)
    }
}

impl Rates {
    pub(crate) fn since(moment: Option<&Moment>, snapshot: &Snapshot, now: Instant) -> Rates {
        let Some(moment) = moment else {
            return Rates {
                prompt: 0.0,
                decode: 0.0,
                rows: 0.0,
                steps: 0.0,
                seconds: 0.0,
            };
        };
        let seconds = (now - moment.at).as_secs_f64().max(1e-3);
        let change = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let generated = change(snapshot.generated_tokens, moment.generated);
        let steps = change(snapshot.decode_steps, moment.steps);
        Rates {
            prompt: change(snapshot.prompt_tokens, moment.prompt) / seconds,
            decode: generated / seconds,
            rows: if steps > 0.0 { generated / steps } else { 0.0 },
            steps: steps / seconds,
            seconds,
        }
    }
}

/// The share of the memory's bandwidth that `steps` steps per second take, if it is known and reached at all.
pub(crate) fn floor_share(
    steps: f64,
    bytes: f64,
    bandwidth: Option<f64>,
    in_cache: bool,
) -> Option<f64> {
    let bandwidth = bandwidth.filter(|_| !in_cache && steps > 0.0)?;
    // More than memory gives came from a cache.
    Some(steps * bytes / bandwidth).filter(|share| *share <= 1.0)
}

/// Tokens per second of a request that decodes, since it had these positions.
pub(crate) fn speed(slot: &SlotSnapshot, before: &[(u64, usize)], seconds: f64) -> Option<f64> {
    let then = before.iter().find(|(of, _)| slot.request == Some(*of));
    let (_, then) = then.filter(|_| !slot.in_prompt && seconds > 0.0)?;
    Some(slot.position.saturating_sub(*then) as f64 / seconds)
}

#[cfg(test)]
mod tests;
