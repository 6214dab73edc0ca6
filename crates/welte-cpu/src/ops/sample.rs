//! Choosing the next token, in the order documented at [`Sampling`].
#![allow(unsafe_code)]

use super::{FloatRows, State};
use std::sync::{Arc, Mutex, PoisonError};
use welte_device::{MaskBoard, NO_MASK, NO_TOKEN, SlotState, noise};
use welte_table::Sampling;

/// Logits in one chunk of the parallel argmax.
pub(crate) const CHUNK: usize = 8192;
/// Logits whose maximum is computed first when the top k are searched.
const RUN: usize = 64;

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

/// The sampling state of all slots, and the scratch that they share.
pub(crate) struct Samplers {
    slots: Vec<Slot>,
    /// By lane: as many tokens may be chosen at the same time. Each lane has one user, so nobody waits for a lock.
    lanes: Vec<Mutex<Scratch>>,
    vocab: usize,
    masks: Arc<MaskBoard>,
}

/// The sampling state of one slot.
struct Slot {
    settings: Sampling,
    /// Added to the logits of these tokens.
    bias: Vec<(u32, f32)>,
    /// Tokens that end a chain.
    ends: Vec<u32>,
    /// Chooses only tokens that its mask allows.
    masked: bool,
    /// The last tokens of the sequence: a ring.
    history: Vec<u32>,
    head: usize,
    len: usize,
}

/// Scratch over the vocabulary.
struct Scratch {
    work: Vec<f32>,
    order: Vec<u32>,
    /// All zero between calls.
    counts: Vec<u32>,
    maxima: Vec<f32>,
}

impl Samplers {
    pub(crate) fn new(slots: usize, lanes: usize, vocab: usize, context: usize) -> Samplers {
        let slot = |_| Slot {
            settings: Sampling::default(),
            bias: Vec::with_capacity(SlotState::MOST_BIASES),
            ends: Vec::with_capacity(SlotState::MOST_ENDS),
            masked: false,
            history: vec![0; context],
            head: 0,
            len: 0,
        };
        let scratch = |_| {
            Mutex::new(Scratch {
                work: vec![0.0; vocab],
                order: Vec::with_capacity(vocab),
                counts: vec![0; vocab],
                maxima: Vec::with_capacity(vocab.div_ceil(RUN)),
            })
        };
        Samplers {
            slots: (0..slots).map(slot).collect(),
            lanes: (0..lanes).map(scratch).collect(),
            vocab,
            masks: Arc::new(MaskBoard::new(slots, vocab)),
        }
    }

    /// Bytes of the samplers.
    pub(crate) fn bytes(slots: usize, lanes: usize, vocab: usize, context: usize) -> usize {
        let lists = SlotState::MOST_BIASES * size_of::<(u32, f32)>() + SlotState::MOST_ENDS * 4;
        let slot = size_of::<Slot>() + lists + context * 4;
        let lane = size_of::<Mutex<Scratch>>() + vocab * 12 + vocab.div_ceil(RUN) * 4;
        slots * slot + lanes * lane + MaskBoard::words(slots, vocab) * 4
    }

    /// The masks of all slots.
    pub(crate) fn masks(&self) -> &Arc<MaskBoard> {
        &self.masks
    }

    /// Tokens that may be chosen at the same time.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Sets the state of a slot, whose lists were checked.
    pub(crate) fn set(&mut self, slot: usize, state: &SlotState<'_>) {
        self.masks.clear(slot as u32);
        let slot = &mut self.slots[slot];
        slot.masked = state.masked;
        slot.settings = state.sampling;
        slot.bias.clear();
        let known = |(token, _): &&(u32, f32)| (*token as usize) < self.vocab;
        slot.bias.extend(state.bias.iter().filter(known));
        slot.ends.clear();
        slot.ends.extend_from_slice(state.ends);
        (slot.head, slot.len) = (0, 0);
        let first = state.history.len().saturating_sub(slot.history.len());
        for token in &state.history[first..] {
            slot.remember(*token);
        }
    }

    /// Appends a token to the history of a slot.
    pub(crate) fn remember(&mut self, slot: usize, token: u32) {
        self.slots[slot].remember(token);
    }

    /// True if the token ends chains of the slot.
    pub(crate) fn ends_at(&self, slot: usize, token: u32) -> bool {
        self.slots[slot].ends.contains(&token)
    }

    /// True if the slot's token is the argmax of the unchanged logits.
    pub(crate) fn is_plain_argmax(&self, slot: usize) -> bool {
        let slot = &self.slots[slot];
        let Slot { settings, bias, .. } = slot;
        is_greedy(settings) && bias.is_empty() && !has_penalties(settings) && !slot.masked
    }

    /// Chooses a slot's token for `position` with a lane's scratch, or says why there is none. Allocates nothing.
    pub(crate) fn choose(&self, lane: usize, slot: usize, logits: &[f32], position: u32) -> u32 {
        let (number, slot) = (slot as u32, &self.slots[slot]);
        let lane = self.lanes[lane].lock();
        let scratch = &mut *lane.unwrap_or_else(PoisonError::into_inner);
        let s = slot.settings;
        scratch.work.copy_from_slice(logits);
        if slot.masked {
            let Some(mask) = self.masks.wait(number, position) else {
                return NO_MASK;
            };
            MaskBoard::apply(mask, &mut scratch.work);
        }
        for (token, bias) in &slot.bias {
            scratch.work[*token as usize] += bias;
        }
        scratch.penalise(slot);
        let (largest, at) = argmax(&scratch.work);
        if slot.masked && largest == f32::NEG_INFINITY {
            return NO_TOKEN;
        }
        if is_greedy(&s) || !largest.is_finite() {
            return at;
        }
        for v in &mut scratch.work {
            *v = (*v - largest) / s.temperature;
        }
        scratch.keep_top_k(s.top_k as usize);
        scratch.keep_top_p(s.top_p);
        let Scratch { work, order, .. } = scratch;
        if s.min_p > 0.0 {
            let least = s.min_p.min(1.0).ln();
            order.retain(|i| work[*i as usize] >= least);
        }
        let mut best = (f32::NEG_INFINITY, at);
        for &index in &*order {
            let key = work[index as usize] + noise(s.seed, position, index);
            if key > best.0 || key == best.0 && index < best.1 {
                best = (key, index);
            }
        }
        best.1
    }
}

impl Slot {
    fn remember(&mut self, token: u32) {
        self.history[self.head] = token;
        self.head = (self.head + 1) % self.history.len();
        self.len = (self.len + 1).min(self.history.len());
    }

    /// The token that was appended `back` tokens ago; 0 is the last one.
    fn past(&self, back: usize) -> u32 {
        let size = self.history.len();
        self.history[(self.head + size - 1 - back % size) % size]
    }
}

impl Scratch {
    /// Applies the penalties of a slot to the logits.
    fn penalise(&mut self, slot: &Slot) {
        let s = &slot.settings;
        if !has_penalties(s) {
            return;
        }
        let n = (s.penalty_last_n as usize).min(slot.len);
        for back in 0..n {
            let token = slot.past(back) as usize;
            if let Some(count) = self.counts.get_mut(token) {
                *count += 1;
            }
        }
        for back in 0..n {
            let token = slot.past(back) as usize;
            let Some(count) = self.counts.get_mut(token).map(std::mem::take) else {
                continue;
            };
            if count > 0 {
                self.work[token] = penalised(self.work[token], count, s);
            }
        }
    }

    /// Leaves the indices of the `k` largest in `order` (all if `k` is 0), in any order.
    fn keep_top_k(&mut self, k: usize) {
        let Scratch {
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
        let Scratch { work, order, .. } = self;
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

/// The sample op in two phases: the argmax of each chunk of logits, then the choices, in as many chunks as the samplers
/// have lanes.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) logits: FloatRows,
    pub(crate) n: usize,
    /// Value and index of the largest logit of each chunk: `[row][chunk]`.
    pub(crate) partials: FloatRows,
    pub(crate) tokens: *mut u32,
}

// SAFETY: addresses only; see `super`.
unsafe impl Send for Sample {}
// SAFETY: as above.
unsafe impl Sync for Sample {}

impl Sample {
    /// Chunks of one row.
    fn chunks_per_row(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// Chunks of the first phase: none if no row's token is a plain argmax.
    pub(crate) fn chunks(&self, state: &State, rows: usize) -> usize {
        match state.plain_argmax[..rows].contains(&true) {
            true => rows * self.chunks_per_row(),
            false => 0,
        }
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn scan(&self, state: &State, chunk: usize) {
        let (row, from) = (
            chunk / self.chunks_per_row(),
            chunk % self.chunks_per_row() * CHUNK,
        );
        if !state.plain_argmax[row] {
            return;
        }
        // SAFETY: the chunk lies in its row of logits; the partials have a place per row and chunk.
        unsafe {
            let logits = &self.logits.row(row, self.n)[from..self.n.min(from + CHUNK)];
            let (value, index) = argmax(logits);
            let partial = self.partials.row_mut(chunk, 2);
            partial[0] = value;
            partial[1] = f32::from_bits(index + from as u32);
        }
    }

    /// Chooses the tokens of every row that belongs to a lane.
    ///
    /// # Safety
    /// See `super`; the rows that are a plain argmax were scanned.
    pub(crate) unsafe fn choose(&self, state: &State, rows: usize, lane: usize) {
        let rows = state.rows[..rows].iter().enumerate();
        for (row, at) in rows.skip(lane).step_by(state.samplers.lanes()) {
            // SAFETY: the row lies in its buffers, and belongs to this lane alone.
            unsafe {
                let token = match state.plain_argmax[row] {
                    true => self.argmax_of_partials(row),
                    false => {
                        let logits = self.logits.row(row, self.n);
                        let (slot, position) = (at.slot as usize, at.position + 1);
                        state.samplers.choose(lane, slot, logits, position)
                    }
                };
                *self.tokens.add(row) = token;
            }
        }
    }

    /// # Safety
    /// The row was scanned.
    unsafe fn argmax_of_partials(&self, row: usize) -> u32 {
        let chunks = self.chunks_per_row();
        let mut best = (f32::NEG_INFINITY, 0);
        for chunk in row * chunks..(row + 1) * chunks {
            // SAFETY: promised by the caller.
            let partial = unsafe { self.partials.row(chunk, 2) };
            if partial[0] > best.0 {
                best = (partial[0], partial[1].to_bits());
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Samplers of one slot in this state, which keeps the last `context` tokens.
    fn sampler(vocab: usize, context: usize, state: SlotState<'_>) -> Samplers {
        let mut samplers = Samplers::new(1, 1, vocab, context);
        samplers.set(0, &state);
        samplers
    }

    fn state(sampling: Sampling) -> SlotState<'static> {
        SlotState {
            sampling,
            ..SlotState::default()
        }
    }

    #[test]
    fn fast_and_plain_choose_the_same() {
        let mut numbers = 1u64;
        let mut below = |n: u64| {
            numbers = numbers.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (numbers >> 33) % n
        };
        let mut chosen = BTreeSet::new();
        for case in 0..400u64 {
            let n = [3, 70, 1000][case as usize % 3];
            let mut pick = |of: &[f32]| of[below(of.len() as u64) as usize];
            let sampling = Sampling {
                temperature: pick(&[0.0, 0.3, 1.0, 2.5]),
                top_k: pick(&[0.0, 1.0, 2.0, 40.0, 2000.0]) as u32,
                top_p: pick(&[1.0, 0.95, 0.5, 0.0]),
                min_p: pick(&[0.0, 0.05, 0.5]),
                repeat_penalty: pick(&[1.0, 1.3]),
                frequency_penalty: pick(&[0.0, 0.5]),
                presence_penalty: pick(&[0.0, 0.5]),
                penalty_last_n: pick(&[0.0, 5.0, 64.0]) as u32,
                seed: case,
            };
            let logits: Vec<f32> = (0..n).map(|_| below(1 << 24) as f32 / 1e6 - 8.0).collect();
            let history: Vec<u32> = (0..case % 90).map(|_| below(n + 2) as u32).collect();
            let bias = [(1, 2.0), (2, -f32::INFINITY), (5000, 1.0)];
            let state = SlotState {
                sampling,
                bias: &bias[..case as usize % 4],
                history: &history,
                ends: &[],
                ..SlotState::default()
            };
            let want = welte_reference::choose(&logits, &state, case as u32);
            let fast = sampler(n as usize, 80, state);
            assert_eq!(fast.choose(0, 0, &logits, case as u32), want, "{state:?}");
            chosen.insert(want);
        }
        assert!(chosen.len() > 40);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let sampling = Sampling {
            temperature: 1.0,
            seed: 7,
            ..Sampling::default()
        };
        let sampler = sampler(4, 8, state(sampling));
        let mut counts = [0u32; 4];
        for position in 0..20_000 {
            counts[sampler.choose(0, 0, &logits, position) as usize] += 1;
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
        for temperature in [0.0, 1.0, f32::NAN, 1e-30] {
            let sampling = Sampling {
                temperature,
                top_p: 0.9,
                ..Sampling::default()
            };
            let history = &[9, 1];
            let sampler = sampler(
                3,
                4,
                SlotState {
                    history,
                    ..state(sampling)
                },
            );
            assert_eq!(
                sampler.choose(0, 0, &[f32::NAN, 2.0, f32::NEG_INFINITY], 1),
                1
            );
            assert_eq!(sampler.choose(0, 0, &[f32::NAN; 3], 1), 0);
            assert_eq!(
                sampler.choose(0, 0, &[1.0, f32::INFINITY, f32::INFINITY], 1),
                1
            );
            assert_eq!(sampler.choose(0, 0, &[f32::NEG_INFINITY; 3], 1), 0);
        }
    }

    #[test]
    fn ties_go_to_the_lowest() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]).1, 1);
        assert_eq!(argmax(&[f32::NAN; 2]).1, 0);
        assert!((0..1000).all(|i| noise(3, 4, i).is_finite()));
    }
}

/// Expected values written out: a comparison with the reference would not notice a fault that both share.
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
        let state = SlotState {
            sampling: *settings,
            bias,
            history,
            ends: &[],
            ..SlotState::default()
        };
        let mut samplers = Samplers::new(1, 1, logits.len(), 8);
        samplers.set(0, &state);
        let fast = samplers.choose(0, 0, logits, position);
        let plain = welte_reference::choose(logits, &state, position);
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
            let mut samplers = Samplers::new(1, 1, 4, 4);
            let state = SlotState {
                sampling: settings,
                bias,
                history: &[1],
                ends: &[],
                ..SlotState::default()
            };
            samplers.set(0, &state);
            samplers.is_plain_argmax(0)
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
    fn the_history_of_each_slot_is_a_ring() {
        let mut samplers = Samplers::new(2, 1, 10, 3);
        let set = |samplers: &mut Samplers, slot, history| {
            let state = SlotState {
                history,
                ..SlotState::default()
            };
            samplers.set(slot, &state);
        };
        let last = |samplers: &Samplers, slot: usize| -> Vec<u32> {
            let slot = &samplers.slots[slot];
            (0..slot.len).map(|back| slot.past(back)).collect()
        };
        set(&mut samplers, 0, &[9, 8, 1, 2]);
        set(&mut samplers, 1, &[4]);
        assert_eq!(last(&samplers, 0), [2, 1, 8]);
        samplers.remember(0, 5);
        assert_eq!(last(&samplers, 0), [5, 2, 1]);
        assert_eq!(last(&samplers, 1), [4]);
        set(&mut samplers, 0, &[7]);
        assert_eq!(last(&samplers, 0), [7]);
    }
}
