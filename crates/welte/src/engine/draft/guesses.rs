//! The guesses of a sequence.

use super::ngram::Ngram;
use super::rate::Rate;
use super::synthetic::Synthetic;
use crate::Request;
use crate::engine::guide::Guide;
use crate::engine::options::Speculation;
use std::time::Duration;

/// The probability that a trial assumes of a draft model.
pub(super) const HOPE: f64 = 0.7;

/// The guesses of a sequence.
pub(crate) struct Draft {
    pub(super) source: Source,
    /// Guesses of the tokens after the last one.
    pub(super) tokens: Vec<u32>,
    /// How many of them the source has made. Others are forced by the sequence's constraint.
    pub(super) own: usize,
    /// The constraint does not allow the next guess of the source.
    pub(super) refused: bool,
    /// Guesses that the next step is to verify.
    pub(crate) wanted: usize,
    /// The probability that all of them are right.
    pub(super) agree: f64,
}

pub(super) enum Source {
    Ngram(Ngram),
    /// The draft model of the engine, and how often it is right.
    Model(Rate),
    Synthetic(Synthetic),
    /// The model's own draft layer, and how often each of its guesses is right if those before it are. Made-up guesses may take the
    /// place of its own, for measurements with random weights.
    Own(Vec<Rate>, Option<Synthetic>),
}

impl Draft {
    /// For a request of at most `max_len` tokens in all, verified in steps of at most `rows` rows. `None`: nothing is guessed.
    pub(crate) fn new(
        speculation: &Speculation,
        request: &Request,
        max_len: usize,
        rows: usize,
    ) -> Option<Box<Draft>> {
        let source = match (&request.synthetic_draft, speculation) {
            _ if !request.speculate => return None,
            (synthetic, Speculation::Own) => {
                let synthetic = synthetic.as_ref();
                let synthetic = synthetic.map(|draft| Synthetic::new(draft, request));
                Source::Own(vec![Rate::expected(HOPE); rows], synthetic)
            }
            (Some(draft), _) => Source::Synthetic(Synthetic::new(draft, request)),
            (None, Speculation::Off) => return None,
            (None, Speculation::Ngram | Speculation::Auto) => {
                Source::Ngram(Ngram::new(&request.prompt, max_len))
            }
            (None, Speculation::Model(_)) => Source::Model(Rate::expected(HOPE)),
        };
        Some(Box::new(Draft {
            source,
            tokens: Vec::with_capacity(rows),
            own: 0,
            refused: false,
            wanted: 0,
            agree: 1.0,
        }))
    }

    /// Takes note of the last of these tokens, which is new.
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        match &mut self.source {
            Source::Ngram(ngram) => ngram.push(tokens),
            // They followed another token.
            Source::Own(..) => self.tokens.clear(),
            Source::Model(_) | Source::Synthetic(_) => {}
        }
    }

    /// The probability that guess `nth` is right if those before it are; 0 if there is no guess.
    pub(super) fn probability(&self, nth: usize) -> f64 {
        match &self.source {
            Source::Ngram(ngram) => ngram.probability(nth).unwrap_or(0.0),
            Source::Model(rate) => rate.value(),
            Source::Own(rates, _) => rates.get(nth).map_or(0.0, Rate::value),
            Source::Synthetic(synthetic) => synthetic.probability(),
        }
    }

    /// Wants no guess. Those of the own draft layer have been made.
    pub(crate) fn forget(&mut self) {
        if !self.is_own() {
            self.tokens.clear();
        }
        (self.wanted, self.agree) = (0, 1.0);
    }

    /// True if the model's own draft layer guesses.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.source, Source::Own(..))
    }

    /// True if the draft model guesses.
    pub(super) fn is_of_model(&self) -> bool {
        matches!(self.source, Source::Model(_))
    }

    /// Makes at most `count` guesses of what follows these tokens. Those of the draft model have been made.
    pub(crate) fn guess(&mut self, tokens: &[u32], count: usize) {
        match &mut self.source {
            Source::Ngram(ngram) => {
                self.tokens.clear();
                ngram.guess(tokens, count, &mut self.tokens);
            }
            Source::Synthetic(synthetic) => {
                self.tokens.clear();
                synthetic.guess(tokens, count, &mut self.tokens);
            }
            Source::Own(_, Some(synthetic)) => {
                let made = self.tokens.len().min(count);
                self.tokens.clear();
                synthetic.guess(tokens, made, &mut self.tokens);
            }
            Source::Model(_) | Source::Own(..) => self.tokens.truncate(count),
        }
        (self.own, self.refused) = (self.tokens.len(), false);
    }

    /// Has no guesses in this round.
    pub(crate) fn drop_guesses(&mut self) {
        self.tokens.clear();
        (self.own, self.refused) = (0, false);
    }

    /// Takes a further guess of the model's own draft layer.
    pub(crate) fn take(&mut self, guess: u32) {
        self.tokens.push(guess);
    }

    /// The guesses of the last round.
    pub(crate) fn guesses(&self) -> &[u32] {
        &self.tokens
    }

    /// Replaces the guesses by at most `max_len` that a constraint allows, as far as its guide has checked them in time.
    pub(crate) fn check(&mut self, guide: &Guide, patience: Duration, max_len: usize) {
        (self.own, self.refused) = guide.checked(patience, max_len, &mut self.tokens);
    }

    /// Takes note of how many guesses of the last step were right.
    pub(crate) fn verified(&mut self, right: usize) {
        let wrong = usize::from(right < self.own || self.refused);
        let right = right.min(self.own);
        match &mut self.source {
            Source::Model(rate) => (0..right + wrong).for_each(|nth| rate.count(nth < right)),
            Source::Own(rates, _) => {
                let seen = rates.iter_mut().take(right + wrong).enumerate();
                seen.for_each(|(nth, rate)| rate.count(nth < right));
            }
            Source::Ngram(_) | Source::Synthetic(_) => {}
        }
    }
}
