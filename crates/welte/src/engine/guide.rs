//! A request's guide: a thread of its own follows the constraint, so that a slow grammar delays nobody else, and nothing is
//! allocated in the scheduler's thread.

use crate::constraint::{Matching, Progress};
use crate::{Constraint, Error, Model};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use welte_device::MaskBoard;

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
    /// The chosen token that the thread has not followed yet.
    token: Option<u32>,
    /// Tokens without an alternative that the scheduler has not taken. Room for as many as the answer may have.
    forced: Vec<u32>,
    /// How many of them it has taken.
    taken: usize,
    /// What may follow the forced tokens.
    mask: Vec<u32>,
    /// Position of the mask's token, once the mask is there.
    position: Option<u32>,
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
}

impl State {
    /// True while the thread works out what comes next.
    fn is_open(&self) -> bool {
        self.token.is_some() || self.position.is_none() && self.taken == self.forced.len()
    }

    /// Puts the mask on the board, if both are there.
    fn publish(&self) {
        if let (Some((board, slot)), Some(position)) = (&self.place, self.position) {
            board.allow(*slot, position, &self.mask);
        }
    }

    /// Takes what follows `length` tokens in all.
    fn follow(&mut self, length: usize, progress: Result<Progress, String>) {
        match progress {
            Ok(Progress { forced, mask }) => {
                self.forced.clear();
                let room = self.forced.capacity();
                self.forced.extend(forced.iter().take(room));
                self.taken = 0;
                if let Some(mask) = mask {
                    let words = mask.as_slice();
                    self.mask.clear();
                    self.mask.extend_from_slice(words);
                    self.position = Some((length + forced.len()) as u32);
                }
                self.publish();
            }
            Err(why) => self.failed = Some(why),
        }
    }
}

impl Guide {
    /// Compiles a constraint and starts to follow it. `prompt` is the number of tokens before the answer, `budget` of those in it.
    pub(crate) fn start(
        model: &Model,
        constraint: &Constraint,
        prompt: usize,
        budget: usize,
        forces: bool,
    ) -> Result<Guide, Error> {
        let mut matching = model.grammars()?.compile(constraint, forces)?;
        let words = model.vocab().div_ceil(32) as usize;
        let mut state = State {
            token: None,
            forced: Vec::with_capacity(budget.max(1)),
            taken: 0,
            mask: Vec::with_capacity(words + 1),
            position: None,
            place: None,
            failed: None,
            closed: false,
        };
        state.follow(prompt, matching.start());
        if let Some(problem) = state.failed {
            return Err(Error::Guidance { problem });
        }
        let length = prompt + state.forced.len();
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            told: Condvar::new(),
            answered: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("welte-guide".into());
        let followed = shared.clone();
        let started = thread.spawn(move || follow(&followed, matching, length));
        started.map_err(|error| Error::Guidance {
            problem: format!("its thread cannot be started: {error}"),
        })?;
        Ok(Guide { shared })
    }

    /// Tells the token that was chosen within the mask.
    pub(crate) fn tell(&self, token: u32) {
        let mut state = self.shared.state();
        state.token = Some(token);
        state.position = None;
        drop(state);
        self.shared.told.notify_one();
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

    /// True if tokens without an alternative come next.
    pub(crate) fn has_forced(&self) -> bool {
        let state = self.shared.state();
        state.taken < state.forced.len()
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
    let mut state = shared.state();
    loop {
        while state.token.is_none() && !state.closed {
            let waited = shared.told.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let Some(token) = state.token.filter(|_| !state.closed) else {
            return;
        };
        drop(state);
        let progress = matching.take(token);
        length += 1;
        let forced = progress
            .as_ref()
            .map_or(0, |progress| progress.forced.len());
        state = shared.state();
        state.token = None;
        state.follow(length, progress);
        length += forced;
        shared.answered.notify_one();
        if state.failed.is_some() {
            return;
        }
    }
}
