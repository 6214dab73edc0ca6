//! Choosing the next token, in the order documented at [`Sampling`].
#![allow(unsafe_code)]

use super::Place;
use welte_table::Sampling;

/// Logits in one chunk of the parallel argmax.
pub(crate) const CHUNK: usize = 8192;
/// Logits whose largest is looked at first when the top k are searched.
const RUN: usize = 64;

/// Gumbel noise, a function of seed, position of the new token and index in the vocabulary and of nothing else.
pub fn noise(seed: u64, position: u32, index: u32) -> f32 {
    let key = mix(seed ^ mix(position as u64 ^ 0x9e37_79b9_7f4a_7c15));
    let bits = mix(key ^ (index as u64).wrapping_mul(0xd134_2543_de82_ef95)) >> 32;
    let uniform = (bits as f64 + 0.5) / 4_294_967_296.0;
    -(-uniform.ln()).ln() as f32
}

/// A bijection of 64 bits that looks random.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Index of the largest value, the lowest on a tie; NaN never wins.
pub(crate) fn argmax(values: &[f32]) -> (f32, u32) {
    let mut largest = f32::NEG_INFINITY;
    for run in values.chunks(RUN) {
        let mut m = f32::NEG_INFINITY;
        for v in run {
            m = if *v > m { *v } else { m };
        }
        largest = if m > largest { m } else { largest };
    }
    let at = values.iter().position(|v| *v == largest).unwrap_or(0);
    (largest, at as u32)
}

/// Sampling state of a session with all the scratch that choosing needs.
pub(crate) struct Sampler {
    pub(crate) settings: Sampling,
    /// Added to the logits of these tokens.
    pub(crate) bias: Vec<(u32, f32)>,
    /// The sequence's last tokens: a ring.
    history: Vec<u32>,
    head: usize,
    len: usize,
    work: Vec<f32>,
    order: Vec<u32>,
    counts: Vec<u32>,
    maxima: Vec<f32>,
}

impl Sampler {
    pub(crate) fn new(vocab: usize, context: usize) -> Sampler {
        Sampler {
            settings: Sampling::default(),
            bias: Vec::with_capacity(1024),
            history: vec![0; context.max(1)],
            head: 0,
            len: 0,
            work: vec![0.0; vocab],
            order: Vec::with_capacity(vocab),
            counts: vec![0; vocab],
            maxima: Vec::with_capacity(vocab.div_ceil(RUN)),
        }
    }

    /// Bytes of a sampler.
    pub(crate) fn bytes(vocab: usize, context: usize) -> usize {
        1024 * 8 + context.max(1) * 4 + vocab * 12 + vocab.div_ceil(RUN) * 4
    }

    pub(crate) fn set(&mut self, settings: &Sampling, bias: &[(u32, f32)], history: &[u32]) {
        self.settings = *settings;
        self.bias.clear();
        self.bias.extend(
            bias.iter()
                .filter(|(token, _)| (*token as usize) < self.work.len()),
        );
        self.len = 0;
        self.head = 0;
        for token in &history[history.len().saturating_sub(self.history.len())..] {
            self.remember(*token);
        }
    }

    /// Appends a token to the history.
    pub(crate) fn remember(&mut self, token: u32) {
        self.history[self.head] = token;
        self.head = (self.head + 1) % self.history.len();
        self.len = (self.len + 1).min(self.history.len());
    }

    /// The token that was appended `back` tokens ago (0: the last).
    fn past(&self, back: usize) -> u32 {
        let size = self.history.len();
        self.history[(self.head + size - 1 - back % size) % size]
    }

    /// The last `n` tokens, the newest first.
    pub(crate) fn last(&self, n: usize) -> impl Iterator<Item = u32> + '_ {
        (0..n.min(self.len)).map(|back| self.past(back))
    }

    /// True if the token is the argmax of the logits as they stand.
    pub(crate) fn is_plain_argmax(&self) -> bool {
        is_greedy(&self.settings) && self.bias.is_empty() && !has_penalties(&self.settings)
    }

    /// Chooses the token for `position`. Allocates nothing.
    pub(crate) fn choose(&mut self, logits: &[f32], position: u32) -> u32 {
        let s = self.settings;
        self.work.copy_from_slice(logits);
        for (token, bias) in &self.bias {
            self.work[*token as usize] += bias;
        }
        self.penalise();
        let (largest, at) = argmax(&self.work);
        if is_greedy(&s) || !largest.is_finite() {
            return at;
        }
        for v in &mut self.work {
            *v = (*v - largest) / s.temperature;
        }
        self.keep_top_k(s.top_k as usize);
        self.keep_top_p(s.top_p);
        if s.min_p > 0.0 {
            let least = s.min_p.min(1.0).ln();
            let work = &self.work;
            self.order.retain(|i| work[*i as usize] >= least);
        }
        let mut best = (f32::NEG_INFINITY, at);
        for &index in &self.order {
            let key = self.work[index as usize] + noise(s.seed, position, index);
            if key > best.0 || key == best.0 && index < best.1 {
                best = (key, index);
            }
        }
        best.1
    }

    fn penalise(&mut self) {
        let s = self.settings;
        if !has_penalties(&s) {
            return;
        }
        let n = (s.penalty_last_n as usize).min(self.len);
        for back in 0..n {
            let token = self.past(back) as usize;
            if let Some(count) = self.counts.get_mut(token) {
                *count += 1;
            }
        }
        for back in 0..n {
            let token = self.past(back) as usize;
            let Some(count) = self.counts.get_mut(token).map(std::mem::take) else {
                continue;
            };
            if count > 0 {
                self.work[token] = penalised(self.work[token], count, &s);
            }
        }
    }

    /// Leaves the indices of the `k` largest in `order` (all if `k` is 0), in any order.
    fn keep_top_k(&mut self, k: usize) {
        let Sampler {
            work,
            order,
            maxima,
            ..
        } = self;
        order.clear();
        if k == 0 || k >= work.len() {
            order.extend((0..work.len() as u32).filter(|i| !work[*i as usize].is_nan()));
            return;
        }
        // The k-th largest of the runs' maxima is no larger than the k-th largest value.
        let mut least = f32::NEG_INFINITY;
        maxima.clear();
        maxima.extend(
            work.chunks(RUN)
                .map(|run| run.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
        );
        if k <= maxima.len() {
            least = *maxima
                .select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a))
                .1;
        }
        order.extend((0..work.len() as u32).filter(|i| work[*i as usize] >= least));
        if order.len() > k {
            order.select_nth_unstable_by(k - 1, |a, b| by_value(work, *a, *b));
            order.truncate(k);
        }
    }

    /// Leaves the smallest set of the largest whose probability reaches `top_p`.
    fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 || top_p.is_nan() {
            return;
        }
        let Sampler { work, order, .. } = self;
        let weight = |i: u32| (work[i as usize] as f64).exp();
        let total: f64 = order.iter().map(|i| weight(*i)).sum();
        let wanted = top_p.max(0.0) as f64 * total;
        // Sorting all of a large vocabulary is slow: the likely ones usually suffice.
        for depth in [6.0f32, 12.0, 24.0] {
            let likely = |i: &u32| work[*i as usize] >= -depth;
            let mass: f64 = order.iter().filter(|i| likely(i)).map(|i| weight(*i)).sum();
            if mass >= wanted * (1.0 + 1e-9) {
                order.retain(likely);
                break;
            }
        }
        order.sort_unstable_by(|a, b| by_value(work, *a, *b));
        let mut mass = 0.0;
        let kept = order.iter().position(|i| {
            mass += weight(*i);
            mass >= wanted
        });
        if let Some(last) = kept {
            order.truncate(last + 1);
        }
    }
}

/// The largest first, the lowest index on a tie.
fn by_value(values: &[f32], a: u32, b: u32) -> std::cmp::Ordering {
    values[b as usize]
        .total_cmp(&values[a as usize])
        .then(a.cmp(&b))
}

fn is_greedy(s: &Sampling) -> bool {
    s.temperature.is_nan() || s.temperature <= 0.0
}

fn has_penalties(s: &Sampling) -> bool {
    let none = s.repeat_penalty == 1.0 && s.frequency_penalty == 0.0 && s.presence_penalty == 0.0;
    s.penalty_last_n > 0 && !none
}

fn penalised(logit: f32, count: u32, s: &Sampling) -> f32 {
    let repeated = if logit > 0.0 {
        logit / s.repeat_penalty
    } else {
        logit * s.repeat_penalty
    };
    repeated - count as f32 * s.frequency_penalty - s.presence_penalty
}

/// The same choice written as plainly as it goes: for tests, and for the reference replay.
pub fn choose_plainly(
    logits: &[f32],
    settings: &Sampling,
    bias: &[(u32, f32)],
    history: &[u32],
    position: u32,
) -> u32 {
    let s = settings;
    let mut values = logits.to_vec();
    for &(token, bias) in bias {
        if let Some(value) = values.get_mut(token as usize) {
            *value += bias;
        }
    }
    if has_penalties(s) {
        let recent = &history[history.len().saturating_sub(s.penalty_last_n as usize)..];
        for (token, value) in values.iter_mut().enumerate() {
            let count = recent.iter().filter(|t| **t as usize == token).count() as u32;
            if count > 0 {
                *value = penalised(*value, count, s);
            }
        }
    }
    let (largest, at) = argmax(&values);
    if is_greedy(s) || !largest.is_finite() {
        return at;
    }
    let mut kept: Vec<(u32, f32)> = values
        .iter()
        .enumerate()
        .map(|(i, v)| (i as u32, (v - largest) / s.temperature))
        .filter(|(_, z)| !z.is_nan())
        .collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if s.top_k > 0 {
        kept.truncate(s.top_k as usize);
    }
    if s.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, z)| (*z as f64).exp()).sum();
        let mut mass = 0.0;
        let mut count = 0;
        while count < kept.len() && (count == 0 || mass < s.top_p as f64 * total) {
            mass += (kept[count].1 as f64).exp();
            count += 1;
        }
        kept.truncate(count);
    }
    if s.min_p > 0.0 {
        kept.retain(|(_, z)| *z >= s.min_p.min(1.0).ln());
    }
    let key = |(index, z): &(u32, f32)| z + noise(s.seed, position, *index);
    kept.iter()
        .max_by(|a, b| key(a).total_cmp(&key(b)).then(b.0.cmp(&a.0)))
        .map_or(at, |best| best.0)
}

/// The sample op: argmax by chunks where that is all, then one chunk that chooses.
pub(crate) struct Sample {
    pub(crate) logits: Place,
    pub(crate) n: usize,
    /// (value, index) of each chunk's largest.
    pub(crate) partials: Place,
    pub(crate) tokens: *mut u32,
}

// SAFETY: addresses only; see `super`.
unsafe impl Send for Sample {}
// SAFETY: as above.
unsafe impl Sync for Sample {}

impl Sample {
    pub(crate) fn chunks(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn scan(&self, chunk: usize) {
        let from = chunk * CHUNK;
        // SAFETY: the chunk lies in the first row of logits; the partials have a place per chunk.
        unsafe {
            let logits = &self.logits.row(0, self.n)[from..self.n.min(from + CHUNK)];
            let (value, index) = argmax(logits);
            let partial = self.partials.row_mut(chunk, 2);
            partial[0] = value;
            partial[1] = f32::from_bits(index + from as u32);
        }
    }

    /// # Safety
    /// See `super`; the chunks were scanned if the argmax is all.
    pub(crate) unsafe fn choose(&self, sampler: &mut Sampler, position: u32, slot: usize) {
        // SAFETY: the conveyor has a slot after the row's own.
        unsafe {
            let token = if sampler.is_plain_argmax() {
                let mut best = (f32::NEG_INFINITY, 0);
                for chunk in 0..self.chunks() {
                    let partial = self.partials.row(chunk, 2);
                    if partial[0] > best.0 {
                        best = (partial[0], partial[1].to_bits());
                    }
                }
                best.1
            } else {
                sampler.choose(self.logits.row(0, self.n), position)
            };
            *self.tokens.add(slot + 1) = token;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(seed: u64, n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| (mix(seed ^ (i as u64 * 77)) >> 40) as f32 / 1e6 - 8.0)
            .collect()
    }

    #[test]
    fn fast_and_plain_choose_the_same() {
        let mut chosen = std::collections::BTreeSet::new();
        for case in 0..400u64 {
            let n = [3, 70, 1000][case as usize % 3];
            let pick = |of: &[f32], by: u64| of[(mix(case * 31 + by) % of.len() as u64) as usize];
            let settings = Sampling {
                temperature: pick(&[0.0, 0.3, 1.0, 2.5], 1),
                top_k: pick(&[0.0, 1.0, 2.0, 40.0, 2000.0], 2) as u32,
                top_p: pick(&[1.0, 0.95, 0.5, 0.0], 3),
                min_p: pick(&[0.0, 0.05, 0.5], 4),
                repeat_penalty: pick(&[1.0, 1.3], 5),
                frequency_penalty: pick(&[0.0, 0.5], 6),
                presence_penalty: pick(&[0.0, 0.5], 7),
                penalty_last_n: pick(&[0.0, 5.0, 64.0], 8) as u32,
                seed: case,
            };
            let history: Vec<u32> = (0..case % 90)
                .map(|i| (mix(i + case) % (n as u64 + 2)) as u32)
                .collect();
            let bias = [(1, 2.0), (2, -f32::INFINITY), (5000, 1.0)];
            let bias = &bias[..case as usize % 4];
            let logits = logits(case, n);
            let mut sampler = Sampler::new(n, 80);
            sampler.set(&settings, bias, &history);
            let known = &history[history.len().saturating_sub(80)..];
            let want = choose_plainly(&logits, &settings, bias, known, case as u32);
            assert_eq!(sampler.choose(&logits, case as u32), want, "{settings:?}");
            chosen.insert(want);
        }
        assert!(chosen.len() > 40);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let mut sampler = Sampler::new(4, 8);
        sampler.set(
            &Sampling {
                temperature: 1.0,
                seed: 7,
                ..Sampling::default()
            },
            &[],
            &[],
        );
        let mut counts = [0u32; 4];
        for position in 0..20_000 {
            counts[sampler.choose(&logits, position) as usize] += 1;
        }
        let total: f32 = logits.iter().map(|l| l.exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            assert!(
                (*count as f32 / 20_000.0 - logit.exp() / total).abs() < 0.015,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn odd_logits_are_no_trouble() {
        let mut sampler = Sampler::new(3, 4);
        for temperature in [0.0, 1.0, f32::NAN, 1e-30] {
            sampler.set(
                &Sampling {
                    temperature,
                    top_p: 0.9,
                    ..Sampling::default()
                },
                &[],
                &[9, 1],
            );
            assert_eq!(sampler.choose(&[f32::NAN, 2.0, f32::NEG_INFINITY], 1), 1);
            assert_eq!(sampler.choose(&[f32::NAN; 3], 1), 0);
            assert_eq!(sampler.choose(&[1.0, f32::INFINITY, f32::INFINITY], 1), 1);
            assert_eq!(sampler.choose(&[f32::NEG_INFINITY; 3], 1), 0);
        }
    }

    #[test]
    fn ties_go_to_the_lowest() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]).1, 1);
        assert_eq!(argmax(&[f32::NAN; 2]).1, 0);
        assert!((0..1000).all(|i| noise(3, 4, i).is_finite()));
    }
}

/// Expected values written out. The two samplers share helpers (penalties, noise, argmax), so a fault in one of those
/// stays hidden when the samplers are only compared with each other.
#[cfg(test)]
mod literal_tests {
    use super::*;
    use std::collections::BTreeSet;

    const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_last_n: 64,
        seed: 0,
    };
    const DRAW: Sampling = Sampling {
        temperature: 1.0,
        ..GREEDY
    };

    /// The token that both samplers choose; they must agree.
    #[track_caller]
    fn choice(
        logits: &[f32],
        settings: &Sampling,
        bias: &[(u32, f32)],
        history: &[u32],
        position: u32,
    ) -> u32 {
        let mut sampler = Sampler::new(logits.len(), 8);
        sampler.set(settings, bias, history);
        let fast = sampler.choose(logits, position);
        let plain = choose_plainly(logits, settings, bias, history, position);
        assert_eq!(fast, plain, "the samplers disagree");
        fast
    }

    /// Every token drawn at 2000 positions.
    fn drawn(logits: &[f32], settings: &Sampling) -> BTreeSet<u32> {
        (0..2000)
            .map(|position| choice(logits, settings, &[], &[], position))
            .collect()
    }

    #[test]
    fn penalties_change_a_logit_by_the_documented_amount() {
        let repeat = Sampling {
            repeat_penalty: 2.0,
            ..GREEDY
        };
        let frequency = Sampling {
            frequency_penalty: 0.5,
            ..GREEDY
        };
        let presence = Sampling {
            presence_penalty: 0.75,
            ..GREEDY
        };
        let all = Sampling {
            repeat_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..GREEDY
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
    fn penalties_decide_between_two_tokens() {
        let choose = |logits: [f32; 2], settings: Sampling, history: &[u32]| {
            choice(&logits, &settings, &[], history, 0)
        };
        let repeat = |repeat_penalty| Sampling {
            repeat_penalty,
            ..GREEDY
        };
        // 3 / 2 is below 2; 3 / 1.4 is not.
        assert_eq!(choose([3.0, 2.0], repeat(2.0), &[0]), 1);
        assert_eq!(choose([3.0, 2.0], repeat(1.4), &[0]), 0);
        // -1 * 2 is below -1.5.
        assert_eq!(choose([-1.0, -1.5], repeat(2.0), &[0]), 1);
        // A penalty below 1 favours repetition.
        assert_eq!(choose([2.0, 3.0], repeat(0.5), &[0]), 0);
        let frequency = |frequency_penalty| Sampling {
            frequency_penalty,
            ..GREEDY
        };
        assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 0]), 0);
        assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 0, 0]), 1);
        // Both tokens lose 0.4 per occurrence: 3 - 1.6 is below 2 - 0.4.
        assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 1, 0, 0, 0]), 1);
        let presence = |presence_penalty| Sampling {
            presence_penalty,
            ..GREEDY
        };
        assert_eq!(choose([3.0, 2.0], presence(0.4), &[0, 0, 0]), 0);
        assert_eq!(choose([3.0, 2.0], presence(1.1), &[0]), 1);
        // Tokens outside the vocabulary are ignored.
        assert_eq!(choose([3.0, 2.0], presence(1.1), &[2, u32::MAX]), 0);
    }

    #[test]
    fn penalties_look_back_as_far_as_they_are_told() {
        let presence = |penalty_last_n| Sampling {
            presence_penalty: 5.0,
            penalty_last_n,
            ..GREEDY
        };
        let logits = [3.0, 2.0, 1.0];
        // Token 0 was chosen three tokens ago.
        for (last_n, expected) in [(0, 0), (1, 0), (2, 0), (3, 1), (64, 1)] {
            let got = choice(&logits, &presence(last_n), &[], &[0, 2, 2], 0);
            assert_eq!(got, expected, "the last {last_n}");
        }
    }

    #[test]
    fn a_bias_is_added_before_penalties_and_temperature() {
        assert_eq!(choice(&[3.0, 2.0], &GREEDY, &[(1, 1.5)], &[], 0), 1);
        assert_eq!(choice(&[3.0, 2.0], &GREEDY, &[(1, 0.5)], &[], 0), 0);
        assert_eq!(
            choice(&[3.0, 2.0], &GREEDY, &[(1, 0.6), (1, 0.6)], &[], 0),
            1
        );
        // Tokens outside the vocabulary are ignored.
        let outside = [(2, 9.0), (u32::MAX, 9.0)];
        assert_eq!(choice(&[3.0, 2.0], &GREEDY, &outside, &[], 0), 0);
        let forbid = [(0, f32::NEG_INFINITY)];
        assert_eq!(choice(&[3.0, 2.0], &GREEDY, &forbid, &[], 0), 1);
        // (-1 + 4) / 2 is 1.5. Penalised before the bias it would be -2 + 4.
        let repeat = Sampling {
            repeat_penalty: 2.0,
            ..GREEDY
        };
        assert_eq!(choice(&[-1.0, 1.4], &repeat, &[(0, 4.0)], &[0], 0), 0);
        assert_eq!(choice(&[-1.0, 1.6], &repeat, &[(0, 4.0)], &[0], 0), 1);
    }

    #[test]
    fn filters_keep_the_documented_tokens() {
        // Their probabilities are 1/2, 1/4, 1/8 and 1/8.
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let kept =
            |settings: Sampling| -> Vec<u32> { drawn(&logits, &settings).into_iter().collect() };
        assert_eq!(kept(DRAW), [0, 1, 2, 3]);
        for (top_k, expected) in [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)] {
            let count = kept(Sampling { top_k, ..DRAW });
            assert_eq!(count, (0..expected).collect::<Vec<_>>(), "top_k {top_k}");
        }
        for (top_p, expected) in [
            (0.3, 1),
            (0.49, 1),
            (0.51, 2),
            (0.74, 2),
            (0.76, 3),
            (0.9, 4),
        ] {
            let count = kept(Sampling { top_p, ..DRAW });
            assert_eq!(count, (0..expected).collect::<Vec<_>>(), "top_p {top_p}");
        }
        for (min_p, expected) in [(0.2, 4), (0.3, 2), (0.49, 2), (0.51, 1), (1.0, 1)] {
            let count = kept(Sampling { min_p, ..DRAW });
            assert_eq!(count, (0..expected).collect::<Vec<_>>(), "min_p {min_p}");
        }
        // Top-p is a share of what top-k left: 1/2 of 3/4 is more than 0.6.
        let both = Sampling {
            top_k: 2,
            top_p: 0.6,
            ..DRAW
        };
        assert_eq!(kept(both), [0]);
        // Temperature comes first: at 2 the second has 0.71 of the first's share, at 1/2 it has 0.25.
        for (temperature, min_p, expected) in [(2.0, 0.6, 2), (2.0, 0.8, 1), (0.5, 0.3, 1)] {
            let settings = Sampling {
                temperature,
                min_p,
                ..DRAW
            };
            let expected: Vec<u32> = (0..expected).collect();
            assert_eq!(kept(settings), expected, "temperature {temperature}");
        }
    }

    #[test]
    fn noise_and_draws_are_those_of_the_definition() {
        // Computed in double precision by an independent script.
        for ((seed, position, index), expected) in [
            ((0, 0, 0), -0.466_273_5),
            ((0, 0, 1), 0.663_424_4),
            ((0, 1, 0), -0.868_375_3),
            ((1, 0, 0), -0.261_928_6),
            ((7, 1234, 151_935), 0.665_509_8),
            ((u64::MAX, u32::MAX, u32::MAX), 0.157_482_64),
            // The least and the largest of six million.
            ((0, 0, 1_093_813), -2.761_730_6),
            ((0, 0, 4_601_702), 14.492_942),
        ] {
            let got = noise(seed, position, index);
            assert!((got - expected).abs() < 1e-6, "{got} {expected}");
        }
        let draws = |temperature, seed| -> [u32; 16] {
            let settings = Sampling {
                temperature,
                seed,
                ..GREEDY
            };
            std::array::from_fn(|position| {
                choice(&[0.0, 0.5, 1.0, -0.5], &settings, &[], &[], position as u32)
            })
        };
        assert_eq!(
            draws(1.0, 0),
            [2, 2, 2, 2, 2, 1, 0, 0, 2, 3, 2, 0, 2, 0, 1, 2]
        );
        assert_eq!(
            draws(1.0, 9),
            [0, 2, 2, 2, 2, 2, 2, 1, 1, 2, 1, 1, 2, 3, 1, 2]
        );
        assert_eq!(
            draws(0.5, 9),
            [0, 2, 2, 2, 2, 2, 2, 1, 2, 2, 1, 2, 2, 3, 1, 2]
        );
    }

    #[test]
    fn only_a_greedy_choice_without_bias_or_penalty_is_a_plain_argmax() {
        let plain = |settings: Sampling, bias: &[(u32, f32)]| {
            let mut sampler = Sampler::new(4, 4);
            sampler.set(&settings, bias, &[1]);
            sampler.is_plain_argmax()
        };
        let repeat = Sampling {
            repeat_penalty: 1.1,
            ..GREEDY
        };
        assert!(plain(GREEDY, &[]));
        assert!(!plain(DRAW, &[]));
        assert!(!plain(GREEDY, &[(1, 1.0)]));
        assert!(!plain(repeat, &[]));
        let none = Sampling {
            penalty_last_n: 0,
            ..repeat
        };
        assert!(plain(none, &[]));
        for settings in [
            Sampling {
                frequency_penalty: 0.1,
                ..GREEDY
            },
            Sampling {
                presence_penalty: -0.1,
                ..GREEDY
            },
        ] {
            assert!(!plain(settings, &[]), "{settings:?}");
        }
    }

    #[test]
    fn top_p_keeps_a_long_tail_that_carries_the_mass() {
        // One token of weight 1, and 5000 with 7.52 together: top-p 0.9 needs most of these.
        let mut logits = vec![-6.5; 5001];
        logits[0] = 0.0;
        let settings = Sampling { top_p: 0.9, ..DRAW };
        let draws = (0..300).map(|position| choice(&logits, &settings, &[], &[], position));
        let first = draws.filter(|token| *token == 0).count();
        // 13 % of 300 draws on average.
        assert!((15..70).contains(&first), "{first}");
    }

    #[test]
    fn sizes() {
        // 1024 biases, a history, three words of each token, a maximum of each 64 tokens.
        assert_eq!(Sampler::bytes(100, 10), 8192 + 40 + 1200 + 8);
        assert_eq!(Sampler::bytes(128, 0), 8192 + 4 + 1536 + 8);
        const NOWHERE: Place = Place {
            start: std::ptr::null_mut(),
            stride: 0,
        };
        let sample = |n| Sample {
            logits: NOWHERE,
            n,
            partials: NOWHERE,
            tokens: std::ptr::null_mut(),
        };
        for (n, chunks) in [(1, 1), (8192, 1), (8193, 2), (151_936, 19)] {
            assert_eq!(sample(n).chunks(), chunks);
        }
    }

    #[test]
    fn the_history_is_a_ring() {
        let mut sampler = Sampler::new(10, 3);
        sampler.set(&GREEDY, &[], &[9, 8, 1, 2]);
        assert_eq!(sampler.last(9).collect::<Vec<_>>(), [2, 1, 8]);
        sampler.remember(5);
        assert_eq!(sampler.last(9).collect::<Vec<_>>(), [5, 2, 1]);
        assert_eq!(sampler.last(2).collect::<Vec<_>>(), [5, 2]);
        sampler.set(&GREEDY, &[], &[7]);
        assert_eq!(sampler.last(9).collect::<Vec<_>>(), [7]);
    }
}
