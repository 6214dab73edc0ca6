//! Where a token's time goes: a measured profile as text, JSON or an HTML page.

mod html;
mod json;
mod roofline;
mod text;

pub use html::html;
pub use json::json;
pub use text::text;

use crate::{Floor, count};
use welte_device::Profile;
use welte_device::timeline::{Kind, Timeline};

/// A profile of a model on a device.
pub struct Report {
    /// The model's name or path.
    pub model: String,
    /// The device's name.
    pub device: String,
    /// The memory floor, measured in the same run.
    pub floor: Floor,
    /// Prompt, generation, and possibly a batch.
    pub parts: Vec<Part>,
}

/// One part of the work: the prompt, generation, or a batch of sequences.
pub struct Part {
    /// `prompt`, `generation` or `batch`.
    pub name: &'static str,
    /// Tokens that were computed.
    pub tokens: u64,
    /// How the device ran them.
    pub how: String,
    /// How the times were taken.
    pub timed: Timed,
    /// The last step.
    pub step: Timeline,
    /// What a lane of the step is: `block` or `commands`.
    pub lane: &'static str,
}

/// How the times of a part were taken.
pub enum Timed {
    /// Each command on its own; the totals by op, longest first.
    Ops(Vec<Profile>),
    /// All tokens together, because one kernel runs all commands.
    Whole {
        /// Nanoseconds of all tokens.
        ns: u64,
        /// Bytes that they had to read at least.
        bytes: u64,
    },
}

impl Timed {
    /// The ops that ran, longest first.
    pub fn ops(profile: Vec<Profile>) -> Timed {
        let ran = profile.into_iter().filter(|op| op.calls > 0);
        let mut ops: Vec<Profile> = ran.collect();
        ops.sort_by_key(|op| std::cmp::Reverse(op.ns));
        Timed::Ops(ops)
    }
}

impl Part {
    fn ns(&self) -> u64 {
        match &self.timed {
            Timed::Ops(ops) => ops.iter().map(|op| op.ns).sum(),
            Timed::Whole { ns, .. } => *ns,
        }
    }

    fn bytes(&self) -> u64 {
        match &self.timed {
            Timed::Ops(ops) => ops.iter().map(|op| op.bytes).sum(),
            Timed::Whole { bytes, .. } => *bytes,
        }
    }

    fn ops(&self) -> &[Profile] {
        match &self.timed {
            Timed::Ops(ops) => ops,
            Timed::Whole { .. } => &[],
        }
    }

    /// The kinds of commands of a kernel that runs all of them.
    fn kinds(&self) -> Vec<Kind> {
        match &self.timed {
            Timed::Ops(_) => Vec::new(),
            Timed::Whole { .. } => self.step.kinds(),
        }
    }

    fn ms_per_token(&self) -> f64 {
        self.ns() as f64 / 1e6 / self.tokens.max(1) as f64
    }

    fn gb_s(&self) -> f64 {
        per_ns(self.bytes(), self.ns())
    }

    /// `prompt: 64 tokens, 0.512 ms per token, 30.1 GB/s, 75 % of the floor`
    fn summary(&self, floor: Floor) -> String {
        let gb_s = self.gb_s();
        format!(
            "{}: {}, {:.3} ms per token, {gb_s:.1} GB/s, {}",
            self.name,
            count(self.tokens, "token"),
            self.ms_per_token(),
            floor.describe(gb_s * 1e9, "the floor")
        )
    }

    /// What the step's timeline shows.
    pub fn step_title(&self) -> String {
        let last = self.step.position;
        let what = match self.step.rows {
            1 => format!("token at position {last}"),
            rows => format!("{rows} tokens up to position {last}"),
        };
        let clocks = match self.step.lanes.len() {
            1 => String::new(),
            n => format!(", timed by {}", count(n as u64, self.lane)),
        };
        let us = self.step.length() as f64 / 1e3;
        format!("{what}{clocks}, {us:.1} us")
    }
}

/// Per nanosecond: GB/s of bytes, Gflop/s of flops.
fn per_ns(amount: u64, ns: u64) -> f64 {
    amount as f64 / (ns as f64).max(1.0)
}

/// The share of the memory floor that an op reaches.
fn of_floor(floor: Floor, op: &Profile) -> String {
    match floor.share(per_ns(op.bytes, op.ns) * 1e9) {
        Some(share) => format!("{:.0} %", 100.0 * share),
        None => "in cache".to_string(),
    }
}

/// Percent of a total.
fn percent(ns: u64, total: u64) -> f64 {
    100.0 * ns as f64 / total.max(1) as f64
}

/// What the columns of a kernel's table mean.
const COLUMNS: &str = "Time and waiting belong to the median block of those that took part in a command. Waiting is for \
input and includes fetching it. Spread is the time from the end of the first block to the end of the last, per call. The \
kernel fetches weights ahead, so the GB/s of one kind can exceed the memory's.";

#[cfg(test)]
mod tests;
