//! Choosing the next token, in the order documented at [`Sampling`].

use std::cmp::Ordering;
use std::collections::BTreeMap;
use welte_device::{
    LogprobQuery, Logprobs, MaskBoard, NO_MASK, NO_TOKEN, SlotState, chance, is_token, noise,
};
use welte_table::Sampling;

/// Chooses the token at `position` as a slot in this state does. For tests of other samplers.
pub fn choose(logits: &[f32], state: &SlotState<'_>, position: u32) -> u32 {
    Slot::new(state).choose(logits.to_vec(), position)
}

/// The sampling state of a slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    sampling: Sampling,
    bias: Vec<(u32, f32)>,
    history: Vec<u32>,
    ends: Vec<u32>,
    masked: bool,
    breakers: Vec<u32>,
    /// How many likeliest tokens chains report with each token, and its probability.
    pub(crate) logprobs: Option<u32>,
}

impl Slot {
    pub(crate) fn new(state: &SlotState<'_>) -> Slot {
        Slot {
            sampling: state.sampling,
            bias: state.bias.to_vec(),
            history: state.history.to_vec(),
            ends: state.ends.to_vec(),
            masked: state.masked,
            breakers: state.breakers.to_vec(),
            logprobs: state.logprobs,
        }
    }

    /// True if the token ends a chain.
    pub(crate) fn ends_at(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Chooses the token at `position`, with the masks of this slot's number, and appends it to the history.
    pub(crate) fn next(
        &mut self,
        logits: &[f32],
        masks: &MaskBoard,
        number: u32,
        position: u32,
    ) -> u32 {
        let mut values = logits.to_vec();
        if self.masked {
            match masks.wait(number, position) {
                Some(mask) => MaskBoard::apply(mask, &mut values),
                None => return NO_MASK,
            }
        }
        let token = self.choose(values, position);
        if is_token(token) {
            self.history.push(token);
        }
        token
    }

    /// The token that it would choose if it had no mask.
    pub(crate) fn guess(&self, logits: &[f32], position: u32) -> u32 {
        match self.choose(logits.to_vec(), position) {
            NO_TOKEN => 0,
            token => token,
        }
    }

    fn choose(&self, mut values: Vec<f32>, position: u32) -> u32 {
        let s = &self.sampling;
        for &(token, bias) in &self.bias {
            if let Some(value) = values.get_mut(token as usize) {
                *value += bias;
            }
        }
        self.penalise(&mut values);
        self.penalise_runs(&mut values);
        let found = argmax(&values);
        if self.masked && found.is_none_or(|(_, largest)| largest == f32::NEG_INFINITY) {
            return NO_TOKEN;
        }
        let Some((best, largest)) = found else {
            return 0;
        };
        // A temperature that is not a number is greedy, too.
        let warm = s.temperature > 0.0;
        if !warm || !largest.is_finite() {
            return best;
        }
        let below = values.iter().map(|v| v - largest);
        let mut kept: Vec<(u32, f32)> = (0..).zip(below).filter(|(_, z)| !z.is_nan()).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        keep_top_n_sigma(&mut kept, s.top_n_sigma);
        if s.top_k > 0 {
            kept.truncate(s.top_k as usize);
        }
        keep_typical(&mut kept, s.typical_p);
        keep_top_p(&mut kept, s.top_p);
        if s.min_p > 0.0 {
            let (least, nearest) = (s.min_p.min(1.0).ln(), kept[0].1);
            kept.retain(|(_, z)| z - nearest >= least);
        }
        if chance(s.seed, position) < f64::from(s.xtc_probability) {
            exclude_top_choices(&mut kept, s.xtc_threshold);
        }
        let temperature = temperature(&kept, s);
        let nearest = kept[0].1;
        let mut winner = (best, f32::NEG_INFINITY);
        for (token, z) in kept {
            let key = (z - nearest) / temperature + noise(s.seed, position, token);
            if key > winner.1 || key == winner.1 && token < winner.0 {
                winner = (token, key);
            }
        }
        winner.0
    }

    /// Penalises every token among the last ones once: a repeated token's logit moves towards minus infinity by the
    /// repeat penalty, then falls by the frequency penalty per occurrence and by the presence penalty.
    fn penalise(&self, values: &mut [f32]) {
        let s = &self.sampling;
        let first = self.history.len().saturating_sub(s.repeat_last_n as usize);
        let mut occurrences: BTreeMap<u32, f32> = BTreeMap::new();
        for token in &self.history[first..] {
            *occurrences.entry(*token).or_default() += 1.0;
        }
        for (token, count) in occurrences {
            let Some(value) = values.get_mut(token as usize) else {
                continue;
            };
            if *value > 0.0 {
                *value /= s.repeat_penalty
            } else {
                *value *= s.repeat_penalty
            }
            *value -= count * s.frequency_penalty;
            *value -= s.presence_penalty;
        }
    }

    /// DRY: penalises every token that followed an earlier occurrence of the last tokens, by the longest such run.
    fn penalise_runs(&self, values: &mut [f32]) {
        let s = &self.sampling;
        let first = self
            .history
            .len()
            .saturating_sub(s.dry_penalty_last_n as usize);
        let (recent, allowed) = (&self.history[first..], s.dry_allowed_length as usize);
        if s.dry_multiplier == 0.0 || recent.len() <= allowed {
            return;
        }
        let breaks = |token: &u32| {
            let word = self.breakers.get(*token as usize / 32);
            word.is_some_and(|word| word >> (token % 32) & 1 == 1)
        };
        let since = recent.iter().rev().take_while(|token| !breaks(token));
        let most = since.count();
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for end in 1..recent.len() {
            let earlier = recent[..end].iter().rev();
            let same = earlier.zip(recent.iter().rev()).take_while(|(a, b)| a == b);
            let run = same.count().min(most);
            if run >= allowed {
                let entry = longest.entry(recent[end]).or_default();
                *entry = run.max(*entry);
            }
        }
        for (token, run) in longest {
            if let Some(value) = values.get_mut(token as usize) {
                let growth = f64::from(s.dry_base).powi((run - allowed) as i32);
                let penalty = f64::from(s.dry_multiplier) * growth;
                *value -= penalty.min(f32::MAX.into()) as f32;
            }
        }
    }
}

/// Probabilities of tokens, which are given by their distances from the largest logit.
fn probabilities(kept: &[(u32, f32)]) -> Vec<f64> {
    let weights: Vec<f64> = kept.iter().map(|(_, z)| f64::from(*z).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// The entropy of probabilities.
fn entropy(probabilities: &[f64]) -> f64 {
    let possible = probabilities.iter().filter(|p| **p > 0.0);
    possible.map(|p| -p * p.ln()).sum()
}

/// Drops logits that are more than a number of standard deviations below the largest.
fn keep_top_n_sigma(kept: &mut Vec<(u32, f32)>, sigmas: f32) {
    if sigmas > 0.0 {
        let finite = kept.iter().map(|(_, z)| f64::from(*z));
        let finite: Vec<f64> = finite.filter(|z| z.is_finite()).collect();
        let count = finite.len() as f64;
        let mean = finite.iter().sum::<f64>() / count;
        let variance = finite.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / count;
        let least = (-f64::from(sigmas) * variance.sqrt()) as f32;
        kept.retain(|(_, z)| *z >= least);
    }
}

/// Keeps the tokens whose surprise is closest to the entropy, until their probability exceeds `typical_p`.
fn keep_typical(sorted: &mut Vec<(u32, f32)>, typical_p: f32) {
    if typical_p < 1.0 && sorted.len() > 1 {
        let probabilities = probabilities(sorted);
        let entropy = entropy(&probabilities);
        let off = |i: &usize| (-probabilities[*i].ln() - entropy).abs();
        let mut order: Vec<usize> = (0..sorted.len()).collect();
        order.sort_by(|a, b| off(a).total_cmp(&off(b)));
        let mut mass = 0.0;
        let mut count = 0;
        while count < order.len() && mass <= f64::from(typical_p) {
            mass += probabilities[order[count]];
            count += 1;
        }
        order.truncate(count);
        order.sort_unstable();
        *sorted = order.into_iter().map(|i| sorted[i]).collect();
    }
}

/// Drops all tokens of at least this probability but the least likely of them.
fn exclude_top_choices(sorted: &mut Vec<(u32, f32)>, threshold: f32) {
    let probabilities = probabilities(sorted);
    let tops = probabilities.iter().filter(|p| **p >= f64::from(threshold));
    sorted.drain(..tops.count().saturating_sub(1));
}

/// The fixed temperature, or that of the entropy of what is left.
fn temperature(kept: &[(u32, f32)], s: &Sampling) -> f32 {
    if kept.len() < 2 || s.dynatemp_range.is_nan() || s.dynatemp_range <= 0.0 {
        return s.temperature;
    }
    let relative = entropy(&probabilities(kept)) / (kept.len() as f64).ln();
    let power = relative.clamp(0.0, 1.0).powf(s.dynatemp_exponent.into());
    let least = f64::from((s.temperature - s.dynatemp_range).max(0.0));
    let most = f64::from(s.temperature + s.dynatemp_range);
    ((least + (most - least) * power) as f32).max(f32::MIN_POSITIVE)
}

/// The largest value with its index, the lowest on a tie; a NaN never wins.
fn argmax(values: &[f32]) -> Option<(u32, f32)> {
    let numbers = (0..)
        .zip(values.iter().copied())
        .filter(|(_, v)| !v.is_nan());
    numbers.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Keeps the smallest number of the likeliest tokens whose probability reaches `top_p`, at least one.
fn keep_top_p(sorted: &mut Vec<(u32, f32)>, top_p: f32) {
    if top_p < 1.0 {
        let weights: Vec<f64> = sorted.iter().map(|(_, z)| f64::from(*z).exp()).collect();
        let wanted = f64::from(top_p) * weights.iter().sum::<f64>();
        let (mut mass, mut count) = (0.0, 0);
        while count < weights.len() && (count == 0 || mass < wanted) {
            mass += weights[count];
            count += 1;
        }
        sorted.truncate(count);
    }
}

/// The logarithms of probabilities that a row of logits gives.
pub(crate) fn log_softmax(logits: &[f32], query: &LogprobQuery) -> Logprobs {
    let value = |token: usize| match f64::from(logits[token]) {
        value if value.is_nan() => f64::NEG_INFINITY,
        value => value,
    };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| value(*b).partial_cmp(&value(*a)).unwrap_or(Ordering::Equal));
    let largest = value(order[0]);
    let sum: f64 = order.iter().map(|t| (value(*t) - largest).exp()).sum();
    let logprob = |token: usize| {
        if largest.is_finite() {
            (value(token) - largest - sum.ln()) as f32
        } else {
            f32::NEG_INFINITY
        }
    };
    let mut answer = Logprobs::new(query.token, logprob(query.token as usize));
    for token in order.into_iter().take(query.top as usize) {
        answer.push(token as u32, logprob(token));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(sampling: Sampling, history: &[u32]) -> Slot {
        Slot::new(&SlotState {
            sampling,
            history,
            ..SlotState::default()
        })
    }

    #[test]
    fn penalties_have_literal_values() {
        let sampling = Sampling {
            repeat_penalty: 2.0,
            frequency_penalty: 0.25,
            presence_penalty: 0.5,
            repeat_last_n: 4,
            ..Sampling::default()
        };
        let mut values = [8.0, 8.0, -8.0, 8.0];
        // The first token is too long ago; token 9 is not in the vocabulary.
        slot(sampling, &[3, 1, 2, 1, 9]).penalise(&mut values);
        assert_eq!(values, [8.0, 4.0 - 0.5 - 0.5, -16.0 - 0.25 - 0.5, 8.0]);
        let none = Sampling {
            repeat_last_n: 0,
            ..sampling
        };
        slot(none, &[0, 1, 2, 3]).penalise(&mut values);
        assert_eq!(values, [8.0, 3.0, -16.75, 8.0]);
    }

    #[test]
    fn greedy_takes_the_first_largest() {
        let mut slot = slot(Sampling::default(), &[]);
        let masks = MaskBoard::new(1, 4);
        assert_eq!(slot.next(&[1.0, f32::NAN, 3.0, 3.0], &masks, 0, 0), 2);
        assert_eq!(slot.next(&[f32::NAN, f32::NAN], &masks, 0, 0), 0);
        assert_eq!(slot.history, [2, 0]);
    }

    #[test]
    fn filters_keep_the_likeliest() {
        let logits = [0.0, 4.0, 3.9, -2.0];
        let hot = Sampling {
            temperature: 4.0,
            seed: 3,
            ..Sampling::default()
        };
        let seen = |sampling| {
            let slot = slot(sampling, &[]);
            let mut seen: Vec<u32> = (0..400)
                .map(|at| slot.choose(logits.to_vec(), at))
                .collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(seen(hot), [0, 1, 2, 3]);
        assert_eq!(seen(Sampling { top_k: 2, ..hot }), [1, 2]);
        // The temperature comes last. Shares: 0.009, 0.519, 0.470, 0.001.
        assert_eq!(seen(Sampling { top_p: 0.6, ..hot }), [1, 2]);
        assert_eq!(seen(Sampling { top_p: 0.5, ..hot }), [1]);
        assert_eq!(seen(Sampling { top_p: 0.0, ..hot }), [1]);
        // exp(-4) = 0.018, exp(-6) = 0.002
        assert_eq!(seen(Sampling { min_p: 0.01, ..hot }), [0, 1, 2]);
    }
}
