//! Speculation: tokens are guessed, and one step verifies them. A row per guess is computed and sampled as if the guess
//! were right; the guesses up to the first wrong one count. The text is that of plain decoding, because a row's bits and
//! its noise depend on its own sequence only.

mod costs;
mod guesses;
mod model;
mod ngram;
mod rate;
mod synthetic;

pub(crate) use guesses::Draft;

use super::guide::Guide;
use super::options::{EngineOptions, Speculation};
use super::sequence::Sequence;
use crate::{Error, Model};
use costs::Curve;
use guesses::{HOPE, Source};
use model::{DraftModel, can_roll_back};
use std::time::Duration;

/// A round must promise so much more than plain decoding.
const MARGIN: f64 = 1.05;
/// The least probability of a guess, given those before it, at which it is worth a row.
const LEAST: f64 = 0.02;
/// After this many tokens without a round, one is tried as if it were cheap: costs may have changed, or were measured badly.
/// The number doubles with each trial, up to the second one, which comes at once where right guesses would not have paid.
const PATIENCE: usize = 32;
const MOST_PATIENCE: usize = 512;
/// Guesses of such a trial.
const TRIAL: usize = 3;
/// The longest first chain, after which the cost of a step is known.
const FIRST_CHAIN: usize = 8;

/// Decides how many tokens are guessed, by what steps cost and how often guesses are right.
pub(crate) struct Speculator {
    /// The most guesses of a sequence.
    max_guesses: usize,
    /// Guesses count as free: for tests.
    always: bool,
    /// Steps of plain decoding, by sequences.
    chain: Curve,
    /// Steps that verify, by rows.
    round: Curve,
    /// Seconds in which a guess is made, or all of a round at once.
    guess: f64,
    /// Tokens since the last round.
    idle: usize,
    /// Tokens without a round after which one is tried.
    patience: usize,
    /// A round has shown what guesses cost.
    tried: bool,
    /// Sequences in the order in which they were promised a row.
    promised: Vec<u32>,
    /// The draft model, unless there is none or it has failed.
    model: Option<DraftModel>,
    /// The model guesses with its own draft layer.
    own: bool,
    /// It makes all guesses of a round at once.
    at_once: bool,
    /// The most rows of a step.
    rows: usize,
    /// After a wrong guess, tokens are computed again: recurrent state cannot go back by itself.
    replays: bool,
}

impl Speculator {
    /// For steps of at most `rows` rows and drafts of at most `max_guesses` guesses.
    pub(crate) fn new(max_guesses: usize, rows: usize) -> Speculator {
        Speculator {
            max_guesses: max_guesses.min(rows.saturating_sub(1)),
            always: false,
            chain: Curve::new(rows),
            round: Curve::new(rows),
            guess: 0.0,
            idle: 0,
            patience: PATIENCE,
            tried: false,
            promised: Vec::with_capacity(rows),
            model: None,
            own: false,
            at_once: false,
            rows,
            replays: false,
        }
    }

    /// For an engine of a model. `None`: wrong guesses would do harm.
    pub(crate) fn of(
        model: &Model,
        speculation: &Speculation,
        options: &EngineOptions,
    ) -> Result<Option<Speculator>, Error> {
        let rows = model.rows_of(model.inner.decode);
        let block = model.program().block;
        let block = block.filter(|_| matches!(speculation, Speculation::Own));
        let most = block.map_or(usize::MAX, |block| block.size as usize - 1);
        let mut speculator = Speculator::new(options.draft_max.min(most), rows);
        speculator.at_once = block.is_some();
        speculator.always = options.speculate_always;
        speculator.replays = !can_roll_back(model.program());
        speculator.own = matches!(speculation, Speculation::Own);
        if let Speculation::Model(draft) = speculation {
            model::check(model, draft)?;
            speculator.model = Some(DraftModel::new(draft, model, rows)?);
        }
        Ok(Some(speculator))
    }

    /// Lets the draft model guess as planned. True if the time that it took is that of guesses.
    pub(crate) fn guess(&mut self, running: &mut [Sequence]) -> bool {
        let Some(model) = &mut self.model else {
            return true;
        };
        match model.guess(running) {
            Ok(only) => only,
            Err(_) => {
                // Nobody depends on guesses.
                self.model = None;
                false
            }
        }
    }

    /// The longest chain of `sequences` sequences that may run now: a short one tells what a step costs, and one of a model with a drafter
    /// ends where a round is tried.
    pub(crate) fn longest_chain(&self, sequences: usize) -> usize {
        if self.chain.at(1) == 0.0 {
            return FIRST_CHAIN;
        }
        let tries = self.own || self.model.is_some();
        if !tries || self.is_trial() {
            return usize::MAX;
        }
        (self.patience + 1 - self.idle).div_ceil(sequences.max(1))
    }

    /// True if the draft layer shall guess for a sequence after a chain, of which it has seen nothing, and tokens can be computed again.
    /// Before the first round is over nothing is.
    pub(crate) fn looks_back(&self, draft: &Draft, remaining: usize, sequences: usize) -> bool {
        draft.is_own() && self.tried && !self.replays && self.depth(draft, remaining, sequences) > 0
    }

    /// Plain decoding of `sequences` sequences made `tokens` tokens, with a step in `step`.
    pub(crate) fn decoded(&mut self, sequences: usize, tokens: usize, step: Duration) {
        self.chain.measure(sequences, step.as_secs_f64());
        self.round.assume_one(self.chain.at(1));
        self.idle += tokens;
    }

    /// A step of `rows` rows verified guesses. `drafted` is the longest draft, `drafting` the time in which it was made.
    pub(crate) fn verified(
        &mut self,
        rows: usize,
        drafted: usize,
        drafting: Option<Duration>,
        verifying: Duration,
    ) {
        self.round.measure(rows, verifying.as_secs_f64());
        if drafted == 0 {
            return;
        }
        let is_trial = self.is_trial();
        let is_first = !std::mem::replace(&mut self.tried, true);
        if let Some(drafting) = drafting {
            let each = drafting.as_secs_f64() / self.times(drafted);
            let before = if is_trial { 0.0 } else { self.guess };
            self.guess = costs::smoothed(before, each);
        }
        if is_trial {
            self.round.forget_above(rows);
            self.patience = MOST_PATIENCE.min(2 * self.patience);
        }
        // Where not even right guesses would have paid, trials become rare at once.
        let took = (drafting.unwrap_or_default() + verifying).as_secs_f64();
        let hopeless = rows == drafted + 1 && rows as f64 * self.chain.at(1) < took;
        if hopeless && (is_trial || is_first) {
            self.patience = MOST_PATIENCE;
        }
        self.idle = 0;
    }

    /// The probability that guess `nth` is right if those before it are.
    fn chance(&self, draft: &Draft, nth: usize) -> f64 {
        match &draft.source {
            Source::Model(_) if self.model.is_none() => 0.0,
            Source::Model(rate) if self.is_trial() => rate.value().max(HOPE),
            Source::Own(..) if !self.own => 0.0,
            Source::Own(..) if self.is_trial() => draft.probability(nth).max(HOPE),
            _ => draft.probability(nth),
        }
    }

    fn is_trial(&self) -> bool {
        self.idle > self.patience
    }

    /// The most guesses for a sequence that has `remaining` tokens to come.
    fn limit(&self, remaining: usize) -> usize {
        let limit = if self.is_trial() || !self.tried && !self.always {
            self.max_guesses.min(TRIAL)
        } else {
            self.max_guesses
        };
        // The step itself makes one token.
        limit.min(remaining.saturating_sub(1))
    }

    /// How many times the cost of a guess so many take.
    fn times(&self, drafted: usize) -> f64 {
        if self.at_once {
            drafted.min(1) as f64
        } else {
            drafted as f64
        }
    }

    /// Tokens per second of a round with `rows` rows and `drafted` guesses in the longest draft, of which all are right with
    /// the probability `all_right`.
    fn speed(&self, expected: f64, rows: usize, drafted: usize, all_right: f64) -> f64 {
        if self.always {
            return expected;
        }
        let seconds = if self.is_trial() {
            self.round.hoped(rows)
        } else {
            self.round.at(rows) + self.guess * self.times(drafted)
        };
        let again = if self.replays {
            (1.0 - all_right) * seconds
        } else {
            0.0
        };
        expected / (seconds + again)
    }

    /// Tokens per second of plain decoding.
    fn plain(&self, sequences: usize) -> f64 {
        if self.always {
            0.0
        } else {
            sequences as f64 / self.chain.at(sequences)
        }
    }

    /// True if a sequence in a chain of `sequences` sequences should rather be guessed for.
    pub(crate) fn pays(&self, draft: &Draft, remaining: usize, sequences: usize) -> bool {
        if draft.is_own() {
            return self.depth(draft, remaining, sequences) > 0;
        }
        let wanted = self.plain(sequences) * MARGIN;
        let (mut agree, mut expected) = (1.0, sequences as f64);
        for nth in 0..self.limit(remaining) {
            agree *= self.chance(draft, nth);
            if agree < LEAST {
                break;
            }
            expected += agree;
            if self.speed(expected, sequences + nth + 1, nth + 1, agree) > wanted {
                return true;
            }
        }
        false
    }

    /// True if the model's own draft layer guesses.
    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// The model's own draft layer fails. Nobody depends on guesses.
    pub(crate) fn give_up_own(&mut self) {
        self.own = false;
    }

    /// How many guesses of a sequence pay, if each of `sequences` sequences has as many.
    pub(crate) fn depth(&self, draft: &Draft, remaining: usize, sequences: usize) -> usize {
        if self.chain.at(1) == 0.0 && !self.always {
            return 0;
        }
        let (mut best, mut depth) = (self.plain(sequences) * MARGIN, 0);
        let (mut agree, mut expected) = (1.0, 1.0);
        for nth in 0..self.limit(remaining) {
            let rows = sequences * (nth + 2);
            agree *= self.chance(draft, nth);
            if agree < LEAST || rows > self.rows {
                break;
            }
            expected += agree;
            let all_right = agree.powi(sequences as i32);
            let speed = self.speed(sequences as f64 * expected, rows, nth + 1, all_right);
            if speed > best {
                (best, depth) = (speed, nth + 1);
            }
        }
        depth
    }

    /// The same for guesses of the model's own draft layer, which have been made. True also if some shall be made, which takes
    /// a step.
    fn plan_own(&self, running: &mut [Sequence], rows: usize) -> bool {
        let decodes = |sequence: &&mut Sequence| sequence.is_decoding();
        let sequences = running.iter_mut().filter(decodes).count();
        let mut left = rows.saturating_sub(sequences);
        let mut guesses = false;
        for sequence in running.iter_mut().filter(decodes) {
            let remaining = sequence.remaining();
            let checked = match sequence.guide {
                Some(_) => Guide::MOST_GUESSES,
                None => usize::MAX,
            };
            let Some(draft) = &mut sequence.draft else {
                continue;
            };
            draft.forget();
            let depth = self.depth(draft, remaining, sequences);
            let made = if draft.is_own() {
                draft.tokens.len()
            } else {
                depth
            };
            draft.wanted = made.min(remaining.saturating_sub(1)).min(checked).min(left);
            left -= draft.wanted;
            guesses |= draft.wanted > 0 || depth > 0;
        }
        guesses
    }

    /// Sets how many tokens are guessed for each sequence that decodes, in a step of at most `rows` rows. The most
    /// probable guesses come first. True if any is guessed.
    pub(crate) fn plan(&mut self, running: &mut [Sequence], rows: usize) -> bool {
        if self.own {
            return self.plan_own(running, rows);
        }
        let decodes = |sequence: &&mut Sequence| sequence.is_decoding();
        let mut sequences = 0;
        for sequence in running.iter_mut().filter(decodes) {
            sequences += 1;
            if let Some(draft) = &mut sequence.draft {
                draft.forget();
            }
        }
        if sequences == 0 || self.chain.at(1) == 0.0 {
            return false;
        }
        self.promised.clear();
        let (mut best, mut kept) = (self.plain(sequences) * MARGIN, 0);
        let (mut expected, mut longest) = (sequences as f64, 0);
        let mut all_right = 1.0;
        while sequences + self.promised.len() < rows {
            let candidates = running.iter_mut().enumerate();
            let candidates = candidates.filter_map(|(at, sequence)| {
                let checked = match sequence.guide {
                    Some(_) => Guide::MOST_GUESSES,
                    None => usize::MAX,
                };
                let limit = self.limit(sequence.remaining()).min(checked);
                let decodes = sequence.is_decoding();
                let draft = sequence.draft.as_mut();
                let draft = draft.filter(|draft| decodes && draft.wanted < limit)?;
                let chance = self.chance(draft, draft.wanted);
                Some((at, draft.agree * chance, chance, draft))
            });
            let next = candidates.max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((at, agree, chance, draft)) = next.filter(|next| next.1 >= LEAST) else {
                break;
            };
            draft.agree = agree;
            all_right *= chance;
            draft.wanted += 1;
            longest = longest.max(draft.wanted);
            expected += agree;
            self.promised.push(at as u32);
            let rows = sequences + self.promised.len();
            let speed = self.speed(expected, rows, longest, all_right);
            if speed > best {
                (best, kept) = (speed, self.promised.len());
            }
        }
        for at in self.promised.drain(..).skip(kept) {
            if let Some(draft) = &mut running[at as usize].draft {
                draft.wanted -= 1;
            }
        }
        kept > 0
    }
}

#[cfg(test)]
mod tests {
    use super::rate::Rate;
    use super::*;
    use crate::{Request, SyntheticDraft};

    /// A draft that is right with this probability.
    fn draft(agreement: f64) -> Box<Draft> {
        let request = Request {
            synthetic_draft: Some(SyntheticDraft {
                agreement,
                ..SyntheticDraft::default()
            }),
            ..Request::new(vec![1])
        };
        Draft::new(&Speculation::Off, &request, 100, 16).unwrap()
    }

    /// A step of one row takes a second, and each further row `more`.
    fn speculator(more: f64) -> Speculator {
        let mut speculator = Speculator::new(16, 16);
        speculator.decoded(1, 8, Duration::from_secs(1));
        for rows in 2..=16u32 {
            let took = Duration::from_secs_f64(1.0 + more * f64::from(rows - 1));
            speculator.verified(rows as usize, 1, None, took);
        }
        speculator
    }

    #[test]
    fn guesses_must_pay() {
        assert!(speculator(0.1).pays(&draft(0.8), 100, 1));
        assert!(!speculator(0.1).pays(&draft(0.1), 100, 1));
        assert!(!speculator(0.9).pays(&draft(0.8), 100, 1));
        // The last token needs no guess.
        assert!(!speculator(0.1).pays(&draft(0.8), 1, 1));
        assert!(speculator(0.1).pays(&draft(0.8), 2, 1));
        // Nothing is known yet.
        assert!(!Speculator::new(16, 16).pays(&draft(1.0), 100, 1));
    }

    #[test]
    fn dear_rounds_are_tried_again_after_a_while() {
        let mut speculator = speculator(0.9);
        speculator.decoded(1, PATIENCE, Duration::from_secs(1));
        assert!(!speculator.pays(&draft(0.8), 100, 1));
        speculator.decoded(1, 1, Duration::from_secs(1));
        assert!(speculator.pays(&draft(0.8), 100, 1));
        speculator.verified(3, 2, None, Duration::from_secs(3));
        assert!(!speculator.pays(&draft(0.8), 100, 1));
    }

    /// A draft of a model that has made `own` guesses itself.
    fn of_model(own: usize, refused: bool) -> Draft {
        Draft {
            source: Source::Model(Rate::expected(HOPE)),
            tokens: Vec::new(),
            own,
            refused,
            wanted: 0,
            agree: 1.0,
        }
    }

    /// The model's own draft layer guesses as far as that pays, for each sequence by what it has seen there.
    #[test]
    fn depth_follows_acceptance() {
        let own = |speculator: &mut Speculator| speculator.own = true;
        let of_layer = |right: usize| {
            let source = Source::Own(vec![Rate::expected(HOPE); 16], None);
            let mut draft = Draft {
                source,
                ..of_model(4, false)
            };
            (0..300).for_each(|_| draft.verified(right));
            draft
        };
        let mut cheap = speculator(0.1);
        own(&mut cheap);
        let depths = [0, 1, 2, 4].map(|right| cheap.depth(&of_layer(right), 100, 1));
        assert!(depths.is_sorted() && depths[0] == 0, "{depths:?}");
        assert!(depths[1] == 1 && depths[3] >= 4, "{depths:?}");
        // The last token needs no guess, and one more has room for one.
        assert_eq!(
            [1, 2].map(|left| cheap.depth(&of_layer(4), left, 1)),
            [0, 1]
        );
        // Where rows are worth more than guesses, there are none: with many sequences, or if every row costs its time.
        assert!(cheap.depth(&of_layer(4), 100, 4) < depths[3]);
        assert_eq!(cheap.depth(&of_layer(4), 100, 16), 0);
        let mut dear = speculator(0.95);
        own(&mut dear);
        assert_eq!(dear.depth(&of_layer(2), 100, 1), 0);
        // Without its layer a draft has no guesses.
        cheap.give_up_own();
        assert_eq!(cheap.depth(&of_layer(4), 100, 1), 0);
    }

    /// The first wrong guess counts, and none after it. Forced tokens are nobody's guesses.
    #[test]
    fn a_model_is_rated_by_its_own_guesses() {
        for (own, refused, right, counted) in [
            (4, false, 0, &[false][..]),
            (4, false, 2, &[true, true, false]),
            (4, false, 4, &[true; 4]),
            (4, false, 6, &[true; 4]),
            (2, true, 2, &[true, true, false]),
            (0, false, 0, &[]),
        ] {
            let mut draft = of_model(own, refused);
            draft.verified(right);
            let mut expected = Rate::expected(HOPE);
            counted.iter().for_each(|right| expected.count(*right));
            let (got, expected) = (draft.probability(0), expected.value());
            assert!(
                (got - expected).abs() < 1e-12,
                "{own} {right}: {got} {expected}"
            );
        }
    }

    #[test]
    fn the_first_chain_is_short() {
        let mut speculator = Speculator::new(16, 16);
        assert_eq!(speculator.longest_chain(1), FIRST_CHAIN);
        speculator.decoded(1, 8, Duration::from_secs(1));
        assert_eq!(speculator.longest_chain(1), usize::MAX);
        // With a draft layer it ends where a round is tried, however many make its tokens, unless the trial does not pay.
        speculator.own = true;
        assert_eq!([1, 4].map(|n| speculator.longest_chain(n)), [25, 7]);
        speculator.decoded(1, 25, Duration::from_secs(1));
        assert_eq!(speculator.longest_chain(1), usize::MAX);
    }

    #[test]
    fn a_guess_costs_its_share_of_the_longest_draft() {
        let mut speculator = speculator(0.0);
        speculator.verified(5, 4, Some(Duration::from_secs(2)), Duration::from_secs(1));
        assert!((speculator.guess - 0.5).abs() < 1e-9);
        // Three tokens in a second for the step and two for four guesses.
        assert!((speculator.speed(3.0, 5, 4, 0.0) - 1.0).abs() < 1e-9);
        // And as much again where tokens are computed again after a wrong guess.
        speculator.replays = true;
        assert!((speculator.speed(3.0, 5, 4, 0.5) - 1.0 / 1.5).abs() < 1e-9);
        // Or all of its cost, if they are made at once.
        speculator.at_once = true;
        assert!((speculator.speed(3.0, 5, 4, 0.5) - 2.0 / 1.5).abs() < 1e-9);
        speculator.at_once = false;
        speculator.verified(5, 0, Some(Duration::from_secs(9)), Duration::from_secs(1));
        assert!((speculator.guess - 0.5).abs() < 1e-9);
        assert!((speculator.plain(1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn trials_are_short_and_become_rare() {
        let mut speculator = speculator(0.1);
        assert_eq!(
            [0, 1, 3, 100].map(|left| speculator.limit(left)),
            [0, 0, 2, 15]
        );
        let mut patience = Vec::new();
        for _ in 0..6 {
            patience.push(speculator.patience);
            speculator.decoded(1, speculator.patience, Duration::from_secs(1));
            assert!(!speculator.is_trial());
            speculator.decoded(1, 1, Duration::from_secs(1));
            assert!(speculator.is_trial());
            assert_eq!([3, 100].map(|left| speculator.limit(left)), [2, TRIAL]);
            speculator.verified(4, 3, None, Duration::from_secs(1));
        }
        assert_eq!(patience, [32, 64, 128, 256, 512, 512]);
    }

    /// The first round shows what guesses cost: it is short, and nothing is computed again for it.
    #[test]
    fn the_first_round_is_a_trial() {
        let mut speculator = Speculator::new(16, 16);
        speculator.own = true;
        speculator.decoded(1, 8, Duration::from_secs(1));
        assert_eq!(speculator.limit(100), TRIAL);
        let own = Source::Own(vec![Rate::expected(HOPE); 16], None);
        let draft = Draft {
            source: own,
            ..of_model(4, false)
        };
        assert!(speculator.pays(&draft, 100, 1) && !speculator.looks_back(&draft, 100, 1));
        let took = Duration::from_secs(3);
        speculator.verified(4, 3, Some(took), took);
        assert_eq!(
            (speculator.limit(100), speculator.patience),
            (15, MOST_PATIENCE)
        );
    }

    #[test]
    fn hopeless_trials_become_rare_at_once() {
        let mut speculator = speculator(0.1);
        speculator.decoded(1, PATIENCE + 1, Duration::from_secs(1));
        let (drafting, verifying) = (Duration::from_secs(2), Duration::from_secs(3));
        speculator.verified(4, 3, Some(drafting), verifying);
        assert_eq!(speculator.patience, MOST_PATIENCE);
    }

    /// However cheap it is.
    #[test]
    fn an_improbable_guess_is_not_made() {
        let mut speculator = speculator(0.1);
        speculator.always = true;
        assert!(speculator.pays(&draft(LEAST), 100, 1));
        assert!(!speculator.pays(&draft(LEAST / 2.0), 100, 1));
        // Without its model a draft has no guesses.
        assert!(!speculator.pays(&of_model(0, false), 100, 1));
    }
}
