//! A request's guide: a thread of its own follows the constraint, so that a slow grammar delays nobody else, and nothing is
//! allocated in the scheduler's thread.

use crate::constraint::{Matching, Progress, compile, spawn};
use crate::{Constraint, Error, Model};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use web_time::{Duration, Instant};
use welte_device::MaskBoard;

/// The matcher calls itself for the parts of an expression. A thread takes only as much memory as it uses.
const STACK: usize = 32 << 20;

/// What is left of a long delay after each further token.
const FADES: f32 = 0.9;

/// The scheduler's end. Dropping it ends the thread.
pub(crate) struct Guide {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// For the guide's thread: a token, or the end.
    told: Condvar,
    /// For the scheduler: what follows.
    answered: Condvar,
}

struct State {
    /// The last tokens, which the thread has not followed yet.
    told: Vec<u32>,
    /// Tokens without an alternative that the scheduler has not taken. Room for as many as the answer may have.
    forced: Vec<u32>,
    /// How many of them it has taken.
    taken: usize,
    /// Position of the first of them, or of the token with the mask if there are none.
    first: u32,
    /// What may follow the forced tokens.
    mask: Vec<u32>,
    /// Position of the mask's token, once the mask is there.
    position: Option<u32>,
    /// Guesses of the token with the mask and those after it, which the thread is to check.
    guesses: Vec<u32>,
    /// Which guesses these are: the thread's answer may come when others were made.
    round: u64,
    /// True until all of them are checked.
    checking: bool,
    /// Guesses that are allowed, and forced tokens among them. The masks of the tokens after them are on the board.
    checked: Vec<u32>,
    /// A chain chooses the forced tokens too, each by a mask of its own.
    chains: bool,
    /// How long masks take, lately at most.
    delay: Duration,
    /// Where masks go while the sequence has a slot.
    place: Option<(Arc<MaskBoard>, u32)>,
    failed: Option<String>,
    closed: bool,
}

/// What a sequence may do next.
pub(crate) enum Advice {
    /// Its mask is on the board: choose.
    Choose,
    /// Take these many forced tokens first.
    Take(usize),
    /// The guide is not ready.
    Wait,
    /// The constraint cannot be followed any further.
    Fail(String),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The constraint cannot be followed: the request ends.
    fn fail(&self, why: &str) {
        let mut state = self.state();
        state.failed = Some(why.to_string());
        state.checking = false;
        drop(state);
        self.answered.notify_one();
    }
}

impl State {
    /// True while the thread works out what comes next.
    fn is_open(&self) -> bool {
        let knows_next = self.position.is_some() || self.taken < self.forced.len();
        self.failed.is_none() && (!self.told.is_empty() || !knows_next)
    }

    /// Puts the mask on the board, if both are there. A chain needs the masks of the forced tokens first.
    fn publish(&self) {
        let ahead = self.forced.len() - self.taken;
        if self.chains && ahead > 0 {
            (0..MaskBoard::DEPTH).for_each(|nth| self.publish_nth(nth));
        } else if let (Some((board, slot)), Some(position)) = (&self.place, self.position) {
            board.allow(*slot, position, &self.mask);
        }
    }

    /// Puts the mask of a forced token that is to come, or the one after them, on the board.
    fn publish_nth(&self, nth: usize) {
        let Some((board, slot)) = &self.place else {
            return;
        };
        let nth = self.taken + nth;
        let position = self.first + nth as u32;
        if let Some(token) = self.forced.get(nth) {
            board.allow_only(*slot, position, *token);
        } else if self.position == Some(position) {
            board.allow(*slot, position, &self.mask);
        }
    }

    /// Notes that a guess is allowed. The token with the mask has this position. False if no more are wanted.
    fn allow(&mut self, round: u64, position: u32, guess: u32, next: &[u32]) -> bool {
        if self.closed || self.round != round || self.checked.len() == Guide::MOST_GUESSES {
            return false;
        }
        self.checked.push(guess);
        if let Some((board, slot)) = &self.place {
            board.allow(*slot, position + self.checked.len() as u32, next);
        }
        true
    }

    /// Takes the first tokens of an answer, of which only those that are forced are known. The thread follows the others.
    fn resume(&mut self, answered: &[u32]) {
        let pairs = self.forced.iter().zip(answered);
        self.taken = pairs.take_while(|(forced, token)| forced == token).count();
        let rest = &answered[self.taken..];
        if rest.is_empty() {
            return;
        }
        if self.taken < self.forced.len() {
            self.failed = Some("a token differs from the one that is forced".into());
        }
        self.told.extend_from_slice(rest);
        self.position = None;
    }

    /// Takes what follows `length` tokens in all.
    fn follow(&mut self, length: usize, progress: Result<Progress, String>) {
        match progress {
            Ok(Progress { forced, mask }) => {
                self.forced.clear();
                let room = self.forced.capacity();
                self.forced.extend(forced.iter().take(room));
                self.taken = 0;
                self.first = length as u32;
                if let Some(mask) = mask {
                    let words = mask.as_slice();
                    self.mask.clear();
                    self.mask.extend_from_slice(words);
                    self.position = Some((length + forced.len()) as u32);
                }
                // Guesses that were wrong have left masks.
                if let Some((board, slot)) = &self.place {
                    board.clear(*slot);
                }
                self.publish();
            }
            Err(why) => self.failed = Some(why),
        }
    }
}

impl Guide {
    /// The most guesses: there are masks for them and for the token after them.
    pub(crate) const MOST_GUESSES: usize = MaskBoard::DEPTH - 1;

    /// Compiles a constraint and starts to follow it. `prompt` is the number of tokens before the answer, `budget` of those in
    /// it, and `answered` the first of these.
    pub(crate) fn start(
        model: &Model,
        constraint: &Constraint,
        prompt: usize,
        answered: &[u32],
        budget: usize,
        forces: bool,
    ) -> Result<Guide, Error> {
        let (matching, first) = compile(model, constraint, forces)?;
        let words = model.vocab().div_ceil(32) as usize;
        let mut state = State {
            told: Vec::with_capacity(MaskBoard::DEPTH.max(answered.len())),
            forced: Vec::with_capacity(budget.max(1)),
            taken: 0,
            first: 0,
            mask: Vec::with_capacity(words + 1),
            position: None,
            guesses: Vec::with_capacity(Guide::MOST_GUESSES),
            round: 0,
            checking: false,
            checked: Vec::with_capacity(Guide::MOST_GUESSES),
            chains: false,
            delay: Duration::ZERO,
            place: None,
            failed: None,
            closed: false,
        };
        state.follow(prompt, Ok(first));
        let length = prompt + state.forced.len();
        state.resume(answered);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            told: Condvar::new(),
            answered: Condvar::new(),
        });
        let followed = shared.clone();
        let started = spawn("welte-guide", STACK, move || {
            // Nobody waits for a guide that is gone.
            let follow = AssertUnwindSafe(|| follow(&followed, matching, length));
            if catch_unwind(follow).is_err() {
                followed.fail("the matcher failed");
            }
        });
        started.map_err(|error| Error::Guidance {
            problem: format!("its thread cannot be started: {error}"),
        })?;
        let guide = Guide { shared };
        if !answered.is_empty() {
            guide.wait().map_err(|problem| Error::Answered {
                problem: format!("it does not fit the constraint: {problem}"),
            })?;
        }
        Ok(guide)
    }

    /// Waits until it is known what comes next.
    fn wait(&self) -> Result<(), String> {
        let state = self.shared.state();
        let answered = &self.shared.answered;
        let waited = answered.wait_while(state, |state| state.is_open());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Tells the token that was chosen within the mask, or guesses that were right and the token after them.
    pub(crate) fn report(&self, tokens: &[u32]) {
        let mut state = self.shared.state();
        if state.taken < state.forced.len() {
            // A chain has chosen a forced token.
            state.taken += tokens.len();
            state.publish_nth(MaskBoard::DEPTH - 1);
            return;
        }
        state.told.extend_from_slice(tokens);
        state.position = None;
        state.guesses.clear();
        drop(state);
        self.shared.told.notify_one();
    }

    /// Has guesses checked. The sequence is about to choose, so its mask is there.
    pub(crate) fn propose(&self, guesses: &[u32]) {
        let mut state = self.shared.state();
        let count = guesses.len().min(Guide::MOST_GUESSES);
        state.guesses.clear();
        state.guesses.extend_from_slice(&guesses[..count]);
        state.checked.clear();
        state.checking = true;
        state.round += 1;
        drop(state);
        self.shared.told.notify_one();
    }

    /// Replaces guesses by those of them that are allowed, with forced tokens among them: as many as were checked after
    /// waiting for a while, at most `max_len`. Returns how many guesses are left, and whether the next one is not allowed.
    pub(crate) fn checked(
        &self,
        patience: Duration,
        max_len: usize,
        guesses: &mut Vec<u32>,
    ) -> (usize, bool) {
        let state = self.shared.state();
        let answered = &self.shared.answered;
        let waited = answered.wait_timeout_while(state, patience, |state| state.checking);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let whole = !state.checking && state.checked.len() < Guide::MOST_GUESSES;
        let refused = whole && !state.checked.starts_with(guesses);
        let pairs = guesses.iter().zip(&state.checked).take(max_len);
        let left = pairs.take_while(|(a, b)| a == b).count();
        state.checking = false;
        // Nobody reads what comes later.
        state.round += 1;
        let kept = state.checked.len().min(max_len);
        guesses.clear();
        guesses.extend_from_slice(&state.checked[..kept]);
        (left, refused)
    }

    /// Prepares for a chain of several steps, or for single choices. The sequence is about to choose.
    pub(crate) fn set_chains(&self, chains: bool) {
        self.shared.state().chains = chains;
    }

    /// How long its masks take.
    pub(crate) fn delay(&self) -> Duration {
        self.shared.state().delay
    }

    /// The sequence has a slot from now on: masks go to the board.
    pub(crate) fn attach(&self, board: Arc<MaskBoard>, slot: u32) {
        let mut state = self.shared.state();
        state.place = Some((board, slot));
        state.publish();
    }

    /// The sequence has no slot any more.
    pub(crate) fn detach(&self) {
        self.shared.state().place = None;
    }

    /// How many tokens without an alternative come next, as far as is known.
    pub(crate) fn forced(&self) -> usize {
        let state = self.shared.state();
        state.forced.len() - state.taken
    }

    /// What the sequence may do next, after waiting for a while if that is not known yet.
    pub(crate) fn advice(&self, patience: Duration) -> Advice {
        let mut state = self.shared.state();
        if !patience.is_zero() && state.is_open() {
            let waited = self
                .shared
                .answered
                .wait_timeout_while(state, patience, |state| state.is_open());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(why) = state.failed.take() {
            return Advice::Fail(why);
        }
        match state.forced.len() - state.taken {
            0 if state.position.is_some() => Advice::Choose,
            0 => Advice::Wait,
            forced => Advice::Take(forced),
        }
    }

    /// The next forced token.
    pub(crate) fn take_forced(&self) -> Option<u32> {
        let mut state = self.shared.state();
        let token = state.forced.get(state.taken).copied()?;
        state.taken += 1;
        Some(token)
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.place = None;
        drop(state);
        self.shared.told.notify_one();
    }
}

/// The guide's thread. `length` is the number of tokens before the first one that is told.
fn follow(shared: &Shared, mut matching: Matching, mut length: usize) {
    let (mut tokens, mut mask) = (Vec::new(), Vec::new());
    let mut state = shared.state();
    loop {
        while state.told.is_empty() && state.guesses.is_empty() && !state.closed {
            let waited = shared.told.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return;
        }
        tokens.clear();
        if state.told.is_empty() {
            tokens.append(&mut state.guesses);
            mask.clone_from(&state.mask);
            let (round, position) = (state.round, state.position.unwrap_or(0));
            drop(state);
            matching.check(&tokens, &mask, |token, next| {
                shared.state().allow(round, position, token, next)
            });
            state = shared.state();
            state.checking &= state.round != round;
        } else {
            tokens.extend_from_slice(&state.told);
            drop(state);
            let begun = Instant::now();
            let progress = matching.take(&tokens);
            length += tokens.len();
            let forced = progress
                .as_ref()
                .map_or(0, |progress| progress.forced.len());
            state = shared.state();
            state.told.clear();
            state.delay = begun.elapsed().max(state.delay.mul_f32(FADES));
            state.follow(length, progress);
            length += forced;
        }
        shared.answered.notify_one();
        if state.failed.is_some() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::toktrie::SimpleVob;

    /// A guide without a thread, with these forced tokens from position 10 on, and a board with one slot.
    fn by_hand(forced: &[u32], mask: Option<u32>) -> (Guide, Arc<MaskBoard>) {
        let mut state = State {
            told: Vec::new(),
            forced: Vec::with_capacity(16),
            taken: 0,
            first: 0,
            mask: Vec::new(),
            position: None,
            guesses: Vec::new(),
            round: 0,
            checking: false,
            checked: Vec::with_capacity(Guide::MOST_GUESSES),
            chains: false,
            delay: Duration::ZERO,
            place: None,
            failed: None,
            closed: false,
        };
        let mask = mask.map(|bits| {
            let mut all = SimpleVob::alloc(64);
            (0..32)
                .filter(|bit| bits >> bit & 1 == 1)
                .for_each(|bit| all.allow_token(bit));
            all
        });
        let forced = forced.to_vec();
        state.follow(10, Ok(Progress { forced, mask }));
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            told: Condvar::new(),
            answered: Condvar::new(),
        });
        (Guide { shared }, Arc::new(MaskBoard::new(1, 64)))
    }

    /// The first word of the mask of a position, if it is on the board.
    fn shown(board: &MaskBoard, position: u32) -> Option<u32> {
        let words = board.wait(0, position)?;
        Some(words[0].load(std::sync::atomic::Ordering::Relaxed))
    }

    #[test]
    fn a_mask_is_shown_while_the_sequence_has_a_slot() {
        let (guide, board) = by_hand(&[], Some(0b110));
        guide.attach(board.clone(), 0);
        assert_eq!(shown(&board, 10), Some(0b110));
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Choose));
        // What is chosen makes the thread work; until then nothing is known.
        guide.report(&[1]);
        assert!(guide.shared.state().is_open());
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Wait));
        guide.detach();
        assert!(guide.shared.state().place.is_none());
    }

    #[test]
    fn forced_tokens_come_before_the_choice() {
        let (guide, board) = by_hand(&[3, 5], Some(0b1000));
        guide.attach(board.clone(), 0);
        // The mask is that of the token after them.
        assert_eq!(shown(&board, 12), Some(0b1000));
        assert!(!guide.shared.state().is_open());
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Take(2)));
        assert_eq!((guide.take_forced(), guide.forced()), (Some(3), 1));
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Take(1)));
        assert_eq!((guide.take_forced(), guide.take_forced()), (Some(5), None));
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Choose));
    }

    #[test]
    fn a_chain_chooses_forced_tokens_by_masks_of_their_own() {
        let (guide, board) = by_hand(&[3, 5], Some(0b1000));
        guide.set_chains(true);
        guide.attach(board.clone(), 0);
        let all = [10, 11, 12].map(|position| shown(&board, position));
        assert_eq!(all, [Some(1 << 3), Some(1 << 5), Some(0b1000)]);
        guide.report(&[3]);
        assert_eq!(guide.forced(), 1);
        guide.report(&[5]);
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Choose));
        assert!(guide.shared.state().told.is_empty());
    }

    #[test]
    fn guesses_are_kept_as_far_as_they_were_checked() {
        let (guide, board) = by_hand(&[], Some(0b110));
        guide.attach(board.clone(), 0);
        let check = |proposed: &[u32], allowed: &[u32], done: bool, max_len: usize| {
            guide.propose(proposed);
            let mut state = guide.shared.state();
            let round = state.round;
            for (nth, token) in allowed.iter().enumerate() {
                assert!(state.allow(round, 10, *token, &[nth as u32]));
            }
            // Those of another round do not count.
            assert!(!state.allow(round - 1, 10, 9, &[0]));
            state.checking &= !done;
            drop(state);
            let mut guesses = proposed.to_vec();
            let (left, refused) = guide.checked(Duration::ZERO, max_len, &mut guesses);
            (left, refused, guesses)
        };
        assert_eq!(check(&[1, 2], &[1, 2], true, 8), (2, false, vec![1, 2]));
        assert_eq!(shown(&board, 12), Some(1));
        // The second one is not allowed.
        assert_eq!(check(&[1, 2], &[1], true, 8), (1, true, vec![1]));
        // It was not checked in time.
        assert_eq!(check(&[1, 2], &[1], false, 8), (1, false, vec![1]));
        // Forced tokens among them, and one that differs.
        assert_eq!(check(&[1, 2], &[1, 7], true, 8), (1, true, vec![1, 7]));
        assert_eq!(
            check(&[1, 2, 3], &[1, 2, 3], true, 2),
            (2, false, vec![1, 2])
        );
        let full = [1; Guide::MOST_GUESSES];
        let (left, refused, guesses) = check(&full, &full, true, 16);
        assert_eq!(
            (left, refused, guesses.len()),
            (Guide::MOST_GUESSES, false, Guide::MOST_GUESSES)
        );
        let mut state = guide.shared.state();
        let round = state.round;
        assert!(!state.allow(round, 10, 1, &[0]), "there are no more masks");
        state.checked.clear();
        state.closed = true;
        assert!(!state.allow(round, 10, 1, &[0]));
    }

    #[test]
    fn a_failure_is_told_once() {
        let (guide, _) = by_hand(&[], None);
        assert!(guide.shared.state().is_open());
        guide.shared.fail("why");
        assert!(!guide.shared.state().is_open());
        match guide.advice(Duration::from_secs(60)) {
            Advice::Fail(why) => assert_eq!(why, "why"),
            _ => panic!("no failure"),
        }
        assert!(matches!(guide.advice(Duration::ZERO), Advice::Wait));
    }
}
