//! How often a guess is right.

/// Old observations count less: each weighs so much of the next one.
const KEEP: f64 = 0.97;
/// Observations that an expectation counts for.
const WEIGHT: f64 = 4.0;

/// A moving share of right guesses.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    right: f64,
    all: f64,
}

impl Rate {
    /// The rate that is assumed before anything was observed.
    pub(crate) fn expected(value: f64) -> Rate {
        Rate {
            right: WEIGHT * value,
            all: WEIGHT,
        }
    }

    /// Takes note of a guess.
    pub(crate) fn count(&mut self, right: bool) {
        self.right = self.right * KEEP + f64::from(u8::from(right));
        self.all = self.all * KEEP + 1.0;
    }

    pub(crate) fn value(&self) -> f64 {
        self.right / self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_counts_like_a_few_guesses() {
        let mut rate = Rate::expected(0.5);
        assert_eq!(rate.value(), 0.5);
        rate.count(true);
        let kept = WEIGHT * KEEP;
        assert!((rate.value() - (0.5 * kept + 1.0) / (kept + 1.0)).abs() < 1e-12);
        (0..300).for_each(|nth| rate.count(nth % 4 == 0));
        assert!((rate.value() - 0.25).abs() < 0.02, "{}", rate.value());
    }
}
