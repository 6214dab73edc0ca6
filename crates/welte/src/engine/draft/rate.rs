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
