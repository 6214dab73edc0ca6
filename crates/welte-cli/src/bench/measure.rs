//! Speeds of a model, one stream at a time, and the facts beside them.

use super::table;
use welte::{Model, Stepper};
use welte_report::Floor;

/// How long bandwidth is measured.
pub(crate) const SECONDS: f64 = 0.5;

/// What all rows share.
pub(crate) struct Facts {
    pub(crate) model: String,
    pub(crate) size: u64,
    pub(crate) parameters: u64,
    pub(crate) floor: Floor,
    /// The kind of device, as llama-bench spells it.
    pub(crate) backend: String,
}

impl Facts {
    /// The facts that every row of figures repeats.
    pub(crate) fn json(&self) -> table::Figures {
        let facts = serde_json::json!({
            "model_filename": self.model, "model_size": self.size, "model_n_params": self.parameters,
            "backends": self.backend, "floor_gb_s": self.floor.speed / 1e9, "in_cache": self.floor.in_cache,
        });
        facts.as_object().cloned().unwrap_or_default()
    }
}

pub(crate) fn facts(named: &str, model: &Model, floor: Floor) -> Facts {
    let weights = &model.program().weights;
    Facts {
        model: named.to_string(),
        size: weights.iter().map(welte_table::cost::stored_bytes).sum(),
        parameters: weights
            .iter()
            .map(|w| u64::from(w.n) * u64::from(w.k))
            .sum(),
        floor,
        backend: if model
            .device_facts()
            .iter()
            .any(|(name, _)| name == "experts")
        {
            format!("{}+CPU", model.device().id.kind.to_uppercase())
        } else {
            model.device().id.kind.to_uppercase()
        },
    }
}

/// Various tokens of the vocabulary.
pub(crate) fn tokens(stepper: &Stepper, n: u32) -> Vec<u32> {
    let vocab = stepper.model().vocab().max(1);
    (0..n)
        .map(|i| i.wrapping_mul(7919).wrapping_add(13) % vocab)
        .collect()
}

/// Fills the context up to `depth`. Tokens that are already there are kept.
pub(crate) fn reach(stepper: &mut Stepper, depth: u32) -> anyhow::Result<()> {
    let tokens = tokens(stepper, depth);
    let there = stepper.tokens().iter().zip(&tokens);
    let there = there.take_while(|(a, b)| a == b).count();
    stepper.truncate(there);
    stepper.feed(&tokens[there..])?;
    Ok(())
}

/// Decodes `n` tokens, at most `chain` per submission. Returns the last one.
pub(crate) fn decode(stepper: &mut Stepper, n: u32, chain: u32) -> anyhow::Result<u32> {
    let (mut last, mut left) = (1 % stepper.model().vocab().max(1), n as usize);
    while left > 0 {
        let count = stepper.chain(last, left.min(chain as usize), &mut |token| {
            last = token;
            true
        })?;
        anyhow::ensure!(
            count > 0,
            "the context is too small for {n} tokens; use a larger -c"
        );
        left -= count;
    }
    Ok(last)
}
