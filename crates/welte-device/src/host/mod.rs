//! Choosing the next token on the host, in the order documented at [`Sampling`]: for the CPU, and for settings that
//! another device leaves to the host. Nothing allocates after `new`.

mod dry;
mod filters;

use crate::argmax::{RUN, argmax};
use crate::{LogprobQuery, MaskBoard, NO_MASK, NO_TOKEN, SlotState, is_token, noise};
use welte_table::Sampling;

/// The sampling state of one slot.
pub struct HostSlot {
    settings: Sampling,
    /// Added to the logits of these tokens.
    bias: Vec<(u32, f32)>,
    /// Tokens that end a chain.
    ends: Vec<u32>,
    /// Tokens at which a repeated run ends: a bit per token.
    breakers: Vec<u32>,
    /// Chooses only tokens that its mask allows.
    masked: bool,
    logprobs: Option<u32>,
    /// The last tokens of the sequence: a ring.
    history: Vec<u32>,
    head: usize,
    len: usize,
    vocab: usize,
}

/// Scratch over the vocabulary, for one choice at a time.
pub struct HostScratch {
    /// Logits; later their distances from the largest one.
    work: Vec<f32>,
    /// The tokens that the filters have left.
    order: Vec<u32>,
    /// By token, all zero between calls.
    counts: Vec<u32>,
    maxima: Vec<f32>,
    /// By token of the history.
    runs: Vec<u32>,
}

impl HostSlot {
    /// The default state, with room for the last `context` tokens.
    pub fn new(vocab: usize, context: usize) -> HostSlot {
        HostSlot {
            settings: Sampling::default(),
            bias: Vec::with_capacity(SlotState::MOST_BIASES),
            ends: Vec::with_capacity(SlotState::MOST_ENDS),
            breakers: Vec::with_capacity(vocab.div_ceil(32)),
            masked: false,
            logprobs: None,
            history: vec![0; context.max(1)],
            head: 0,
            len: 0,
            vocab,
        }
    }

    /// Bytes of a slot.
    pub fn bytes(vocab: usize, context: usize) -> usize {
        let lists = SlotState::MOST_BIASES * size_of::<(u32, f32)>() + SlotState::MOST_ENDS * 4;
        size_of::<HostSlot>() + lists + context.max(1) * 4 + vocab.div_ceil(32) * 4
    }

    /// Sets the state, whose lists were checked.
    pub fn set(&mut self, state: &SlotState<'_>) {
        self.settings = state.sampling;
        self.masked = state.masked;
        self.logprobs = state.logprobs;
        self.bias.clear();
        let vocab = self.vocab;
        let known = |(token, _): &&(u32, f32)| (*token as usize) < vocab;
        self.bias.extend(state.bias.iter().filter(known));
        self.ends.clear();
        self.ends.extend_from_slice(state.ends);
        self.breakers.clear();
        let words = state.breakers.iter().take(vocab.div_ceil(32));
        self.breakers.extend(words);
        (self.head, self.len) = (0, 0);
        let first = state.history.len().saturating_sub(self.history.len());
        for token in &state.history[first..] {
            self.remember(*token);
        }
    }

    /// Appends a token to the history.
    pub fn remember(&mut self, token: u32) {
        self.history[self.head] = token;
        self.head = (self.head + 1) % self.history.len();
        self.len = (self.len + 1).min(self.history.len());
    }

    /// True if the token ends chains of the slot.
    pub fn ends_at(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// What chains report of a token that an output row of the step has given, if they report probabilities and there is a
    /// token.
    pub fn logprob_query(&self, output: usize, token: u32) -> Option<LogprobQuery> {
        let top = self.logprobs.filter(|_| is_token(token))?;
        let output = output as u32;
        Some(LogprobQuery { output, token, top })
    }

    /// The settings.
    pub fn settings(&self) -> &Sampling {
        &self.settings
    }

    /// What is added to the logits of tokens of the vocabulary, in this order.
    pub fn biases(&self) -> &[(u32, f32)] {
        &self.bias
    }

    /// True if only tokens are chosen that the slot's mask allows.
    pub fn is_masked(&self) -> bool {
        self.masked
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The most tokens of the history.
    pub fn capacity(&self) -> usize {
        self.history.len()
    }

    /// True if the slot's token is the argmax of the unchanged logits.
    pub fn is_plain_argmax(&self) -> bool {
        let s = &self.settings;
        is_greedy(s) && self.bias.is_empty() && !s.has_penalties() && !s.has_dry() && !self.masked
    }

    /// The history, the last token first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        let size = self.history.len();
        (0..self.len).map(move |back| self.history[(self.head + size - 1 - back) % size])
    }

    fn is_breaker(&self, token: u32) -> bool {
        let word = self.breakers.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

impl HostScratch {
    /// For one choice at a time over a vocabulary, for slots of this context.
    pub fn new(vocab: usize, context: usize) -> HostScratch {
        HostScratch {
            work: vec![0.0; vocab],
            order: Vec::with_capacity(vocab),
            counts: vec![0; vocab],
            maxima: Vec::with_capacity(vocab.div_ceil(RUN)),
            runs: Vec::with_capacity(context.max(1)),
        }
    }

    /// Bytes of a scratch.
    pub fn bytes(vocab: usize, context: usize) -> usize {
        size_of::<HostScratch>() + vocab * 12 + vocab.div_ceil(RUN) * 4 + context.max(1) * 4
    }

    /// Chooses the token of slot `number` for `position`, or says why there is none.
    pub fn choose(
        &mut self,
        slot: &HostSlot,
        masks: &MaskBoard,
        number: u32,
        logits: &[f32],
        position: u32,
    ) -> u32 {
        self.work.copy_from_slice(logits);
        if slot.masked {
            let Some(mask) = masks.wait(number, position) else {
                return NO_MASK;
            };
            MaskBoard::apply(mask, &mut self.work);
        }
        self.chosen(slot, position)
    }

    /// The token that a slot would choose if it had no mask.
    pub fn guess(&mut self, slot: &HostSlot, logits: &[f32], position: u32) -> u32 {
        self.work.copy_from_slice(logits);
        match self.chosen(slot, position) {
            NO_TOKEN => 0,
            token => token,
        }
    }

    /// Chooses from the logits at work.
    fn chosen(&mut self, slot: &HostSlot, position: u32) -> u32 {
        let s = &slot.settings;
        for (token, bias) in &slot.bias {
            self.work[*token as usize] += bias;
        }
        self.penalise(slot);
        self.penalise_runs(slot);
        let (largest, at) = argmax(&self.work);
        if slot.masked && largest == f32::NEG_INFINITY {
            return NO_TOKEN;
        }
        if is_greedy(s) || !largest.is_finite() {
            return at;
        }
        for v in &mut self.work {
            *v -= largest;
        }
        self.keep_top_k(s.top_k as usize, self.least_by_sigma(s.top_n_sigma));
        self.keep_typical(s.typical_p);
        self.keep_top_p(s.top_p);
        if s.min_p > 0.0 {
            let (least, best) = (s.min_p.min(1.0).ln(), self.largest());
            let work = &self.work;
            self.order.retain(|i| work[*i as usize] - best >= least);
        }
        self.exclude_top_choices(s, position);
        let best = self.largest();
        let temperature = self.temperature(s);
        let mut chosen = (f32::NEG_INFINITY, at);
        for &index in &self.order {
            let z = (self.work[index as usize] - best) / temperature;
            let key = z + noise(s.seed, position, index);
            if key > chosen.0 || key == chosen.0 && index < chosen.1 {
                chosen = (key, index);
            }
        }
        chosen.1
    }

    /// The temperature for the tokens that are left, above 0.
    fn temperature(&self, s: &Sampling) -> f32 {
        let range = s.dynatemp_range;
        if range.is_nan() || range <= 0.0 || self.order.len() < 2 {
            return s.temperature;
        }
        let (_, entropy) = self.total_and_entropy();
        let relative = (entropy / (self.order.len() as f64).ln()).clamp(0.0, 1.0);
        let least = f64::from((s.temperature - range).max(0.0));
        let most = f64::from(s.temperature + range);
        let temperature = least + (most - least) * relative.powf(f64::from(s.dynatemp_exponent));
        (temperature as f32).max(f32::MIN_POSITIVE)
    }

    /// Applies the penalties of a slot to the logits.
    fn penalise(&mut self, slot: &HostSlot) {
        let s = &slot.settings;
        if !s.has_penalties() {
            return;
        }
        let recent = || slot.recent().take(s.repeat_last_n as usize);
        for token in recent() {
            if let Some(count) = self.counts.get_mut(token as usize) {
                *count += 1;
            }
        }
        for token in recent() {
            let count = self.counts.get_mut(token as usize).map(std::mem::take);
            if let Some(count @ 1..) = count {
                let logit = &mut self.work[token as usize];
                *logit = penalised(*logit, count, s);
            }
        }
    }
}

fn is_greedy(s: &Sampling) -> bool {
    s.temperature.is_nan() || s.temperature <= 0.0
}

fn penalised(logit: f32, count: u32, s: &Sampling) -> f32 {
    let repeated = if logit > 0.0 {
        logit / s.repeat_penalty
    } else {
        logit * s.repeat_penalty
    };
    repeated - count as f32 * s.frequency_penalty - s.presence_penalty
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_change_a_logit_by_the_documented_amount() {
        let repeat = Sampling {
            repeat_penalty: 2.0,
            ..Sampling::default()
        };
        let frequency = Sampling {
            frequency_penalty: 0.5,
            ..Sampling::default()
        };
        let presence = Sampling {
            presence_penalty: 0.75,
            ..Sampling::default()
        };
        let all = Sampling {
            repeat_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..Sampling::default()
        };
        for (settings, logit, count, expected) in [
            (&repeat, 3.0, 1, 1.5),
            (&repeat, 3.0, 5, 1.5),
            (&repeat, -3.0, 1, -6.0),
            (&repeat, 0.0, 1, 0.0),
            (&frequency, 3.0, 1, 2.5),
            (&frequency, 3.0, 4, 1.0),
            (&frequency, -1.0, 2, -2.0),
            (&presence, 3.0, 1, 2.25),
            (&presence, 3.0, 4, 2.25),
            (&all, 3.0, 2, 0.25),
            (&all, -3.0, 2, -7.25),
        ] {
            let got = penalised(logit, count, settings);
            assert_eq!(got, expected, "logit {logit}, count {count}, {settings:?}");
        }
    }

    #[test]
    fn the_history_is_a_ring() {
        let mut slot = HostSlot::new(10, 3);
        let set = |slot: &mut HostSlot, history| {
            slot.set(&SlotState {
                history,
                ..SlotState::default()
            });
        };
        let last = |slot: &HostSlot| -> Vec<u32> { slot.recent().collect() };
        set(&mut slot, &[9, 8, 1, 2]);
        assert_eq!(last(&slot), [2, 1, 8]);
        slot.remember(5);
        assert_eq!(last(&slot), [5, 2, 1]);
        set(&mut slot, &[7]);
        assert_eq!(last(&slot), [7]);
    }
}
