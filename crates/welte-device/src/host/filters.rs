//! Filters: each leaves a part of the tokens in `order`.

use super::HostScratch;
use crate::chance;
use std::cmp::Ordering;
use welte_table::Sampling;

impl HostScratch {
    /// The least distance from the largest logit that top-n-sigma keeps. It looks at all finite logits but those of tokens that a draft head
    /// does not know, which are the lowest float.
    pub(super) fn least_by_sigma(&self, sigmas: f32) -> f32 {
        if sigmas.is_nan() || sigmas <= 0.0 {
            return f32::NEG_INFINITY;
        }
        let finite = || {
            self.work
                .iter()
                .filter(|z| z.is_finite() && **z > f32::MIN / 2.0)
        };
        let count = finite().count() as f64;
        let mean = finite().map(|z| f64::from(*z)).sum::<f64>() / count;
        let square = |z: &f32| (f64::from(*z) - mean).powi(2);
        let deviation = (finite().map(square).sum::<f64>() / count).sqrt();
        (-f64::from(sigmas) * deviation) as f32
    }

    /// Leaves the indices of the `k` largest (all if `k` is 0) that are not below `floor`, in any order.
    pub(super) fn keep_top_k(&mut self, k: usize, floor: f32) {
        let HostScratch {
            work,
            order,
            maxima,
            ..
        } = self;
        order.clear();
        if k == 0 || k >= work.len() {
            order.extend((0..work.len() as u32).filter(|i| work[*i as usize] >= floor));
            return;
        }
        // The k-th largest of the runs' maxima is no larger than the k-th largest value.
        let mut least = floor;
        maxima.clear();
        maxima.extend(
            work.chunks(crate::argmax::RUN)
                .map(|run| run.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
        );
        if k <= maxima.len() {
            let kth = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            least = kth.1.max(floor);
        }
        order.extend((0..work.len() as u32).filter(|i| work[*i as usize] >= least));
        if order.len() > k {
            order.select_nth_unstable_by(k - 1, |a, b| by_value(work, *a, *b));
            order.truncate(k);
        }
    }

    /// Leaves the tokens whose surprise is closest to the entropy, until their probability exceeds `typical_p`.
    pub(super) fn keep_typical(&mut self, typical_p: f32) {
        if typical_p >= 1.0 || typical_p.is_nan() || self.order.len() < 2 {
            return;
        }
        let (total, entropy) = self.total_and_entropy();
        let HostScratch { work, order, .. } = self;
        // The surprise of a token less the entropy. Impossible tokens come last.
        let typical = total.ln() - entropy;
        let off = |i: u32| (typical - f64::from(work[i as usize])).abs();
        let by_typicality = |a: &u32, b: &u32| {
            let order = off(*a).total_cmp(&off(*b));
            order.then_with(|| by_value(work, *a, *b))
        };
        order.sort_unstable_by(by_typicality);
        let wanted = f64::from(typical_p) * total;
        let mut mass = 0.0;
        let kept = order.iter().position(|i| {
            mass += weight(work, *i);
            mass > wanted
        });
        if let Some(last) = kept {
            order.truncate(last + 1);
        }
    }

    /// Leaves the smallest set of the largest whose probability reaches `top_p`.
    pub(super) fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 || top_p.is_nan() {
            return;
        }
        let HostScratch { work, order, .. } = self;
        let total: f64 = order.iter().map(|i| weight(work, *i)).sum();
        let wanted = top_p.max(0.0) as f64 * total;
        // Sorting all of a large vocabulary is slow: the likely ones usually suffice.
        for depth in [6.0f32, 12.0, 24.0] {
            let likely = |i: &u32| work[*i as usize] >= -depth;
            let mass: f64 = order
                .iter()
                .filter(|i| likely(i))
                .map(|i| weight(work, *i))
                .sum();
            if mass >= wanted * (1.0 + 1e-9) {
                order.retain(likely);
                break;
            }
        }
        order.sort_unstable_by(|a, b| by_value(work, *a, *b));
        let mut mass = 0.0;
        let kept = order.iter().position(|i| {
            mass += weight(work, *i);
            mass >= wanted
        });
        if let Some(last) = kept {
            order.truncate(last + 1);
        }
    }

    /// The distance of the likeliest token that is left: 0 unless typical-p or XTC has dropped the largest logit.
    pub(super) fn largest(&self) -> f32 {
        let values = self.order.iter().map(|i| self.work[*i as usize]);
        values.fold(f32::NEG_INFINITY, f32::max)
    }

    /// XTC.
    pub(super) fn exclude_top_choices(&mut self, s: &Sampling, position: u32) {
        let applies =
            s.xtc_probability > 0.0 && chance(s.seed, position) < f64::from(s.xtc_probability);
        let HostScratch { work, order, .. } = self;
        if applies {
            let total: f64 = order.iter().map(|i| weight(work, *i)).sum();
            let wanted = f64::from(s.xtc_threshold) * total;
            let is_top = |i: &u32| weight(work, *i) >= wanted;
            let tops = order.iter().copied().filter(is_top);
            // The last of them stays.
            if let Some(last) = tops.max_by(|a, b| by_value(work, *a, *b)) {
                order.retain(|i| by_value(work, *i, last) != Ordering::Less);
            }
        }
    }

    /// The sum of the kept tokens' weights, and the entropy of their distribution.
    pub(super) fn total_and_entropy(&self) -> (f64, f64) {
        let (work, order) = (&self.work, &self.order);
        let total: f64 = order.iter().map(|i| weight(work, *i)).sum();
        let term = |i: &u32| match weight(work, *i) {
            0.0 => 0.0,
            weight => weight * f64::from(work[*i as usize]),
        };
        let mean: f64 = order.iter().map(term).sum();
        (total, total.ln() - mean / total)
    }
}

/// A token's probability relative to the largest.
fn weight(work: &[f32], token: u32) -> f64 {
    f64::from(work[token as usize]).exp()
}

/// The largest first, the lowest index on a tie.
fn by_value(values: &[f32], a: u32, b: u32) -> Ordering {
    values[b as usize]
        .total_cmp(&values[a as usize])
        .then(a.cmp(&b))
}
