//! DRY: penalties for tokens that would extend a run of tokens that occurred before.

use super::{HostScratch, HostSlot};

impl HostScratch {
    /// Applies the penalties of a slot to the logits. Takes time in proportion to the tokens that DRY looks at.
    pub(super) fn penalise_runs(&mut self, slot: &HostSlot) {
        let s = &slot.settings;
        if !s.has_dry() {
            return;
        }
        let count = slot.len.min(s.dry_penalty_last_n as usize);
        let allowed = s.dry_allowed_length as usize;
        if count <= allowed {
            return;
        }
        let recent = |back: usize| {
            let size = slot.history.len();
            slot.history[(slot.head + size - 1 - back) % size]
        };
        // A run does not go beyond the last breaker.
        let breaker = (0..count).find(|back| slot.is_breaker(recent(*back)));
        let most = breaker.unwrap_or(count);
        if most < allowed {
            return;
        }
        // The Z algorithm: `runs[j]` tokens before `j` tokens ago are those at the end. `[left, right)` is the run found so
        // far that ends last.
        let runs = &mut self.runs;
        runs.clear();
        runs.push(0);
        let (mut left, mut right) = (0, 0);
        for j in 1..count {
            let mut run = if j < right {
                (runs[j - left] as usize).min(right - j)
            } else {
                0
            };
            while j + run < count && recent(j + run) == recent(run) {
                run += 1;
            }
            if j + run > right {
                (left, right) = (j, j + run);
            }
            runs.push(run as u32);
        }
        // The token after an earlier run would extend it.
        for (j, &run) in runs.iter().enumerate().skip(1) {
            let run = (run as usize).min(most);
            if run < allowed {
                continue;
            }
            if let Some(longest) = self.counts.get_mut(recent(j - 1) as usize) {
                // Longer by one than the run, because 0 stands for none.
                *longest = (*longest).max(run as u32 + 1);
            }
        }
        for back in 0..count {
            let token = recent(back) as usize;
            let longest = self.counts.get_mut(token).map(std::mem::take);
            if let Some(longest @ 1..) = longest {
                let beyond = longest - 1 - s.dry_allowed_length;
                let growth = f64::from(s.dry_base).powi(beyond.min(i32::MAX as u32) as i32);
                let penalty = f64::from(s.dry_multiplier) * growth;
                self.work[token] -= penalty.min(f64::from(f32::MAX)) as f32;
            }
        }
    }
}
