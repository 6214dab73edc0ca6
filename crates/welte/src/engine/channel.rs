//! The way of tokens from the scheduler to the consumer of a stream. The queue has room for every token of the request, so
//! the scheduler never waits for a consumer and never allocates.

use super::clock::Clock;
use crate::{Error, Speculated};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use web_time::Instant;
use welte_device::Logprobs;

/// Why the scheduler ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model chose this end token.
    End(u32),
    /// The text met this one of the request's stop strings.
    Stop(usize),
    /// All tokens of the budget were generated.
    Length,
    Cancelled,
    Deadline,
}

/// What the scheduler reports beside the tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// When the first part of the prompt was about to be computed.
    pub(crate) admitted: Option<Instant>,
    /// When the first token had been chosen.
    pub(crate) first: Option<Instant>,
    /// When the request ended.
    pub(crate) ended: Option<Instant>,
    /// Tokens of the prompt that were cached.
    pub(crate) cached: usize,
    /// Tokens of the prompt that are in the caches now.
    pub(crate) computed: usize,
    /// Position of the first token that differs from the closest cached text.
    pub(crate) differs_at: Option<usize>,
    /// How often the request gave its pages back and was computed again.
    pub(crate) preemptions: u32,
    /// What was guessed.
    pub(crate) speculated: Speculated,
}

/// What a consumer finds next.
pub(crate) enum Next {
    /// A token, with its probability if that was asked for.
    Token(u32, Option<Logprobs>),
    End(Result<Finish, Error>),
}

/// What a queue has room for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) tokens: usize,
    /// Probabilities of generated tokens.
    pub(crate) logprobs: usize,
    /// Probabilities of the prompt's tokens.
    pub(crate) prompt_logprobs: usize,
}

/// A queue of tokens with one producer and one consumer.
pub(crate) struct Channel {
    state: Mutex<State>,
    changed: Condvar,
    /// The consumer wants no further token.
    left: AtomicBool,
    /// Set by cancel handles.
    cancelled: Arc<AtomicBool>,
    clock: Clock,
}

struct State {
    tokens: Vec<u32>,
    /// Of each token, if they were asked for.
    logprobs: Vec<Logprobs>,
    /// Of the prompt's tokens from the second on, if they were asked for.
    prompt_logprobs: Vec<Logprobs>,
    /// Tokens that the consumer has taken.
    taken: usize,
    end: Option<Result<Finish, Error>>,
    ended: bool,
    report: Report,
    /// The vector of a text to embed.
    vector: Vec<f32>,
    /// The consumer blocks until something arrives.
    waiting: bool,
    waker: Option<Waker>,
}

impl Channel {
    /// An empty queue.
    pub(crate) fn new(room: Room, cancelled: Arc<AtomicBool>, clock: Clock) -> Channel {
        Channel {
            state: Mutex::new(State {
                tokens: Vec::with_capacity(room.tokens),
                logprobs: Vec::with_capacity(room.logprobs),
                prompt_logprobs: Vec::with_capacity(room.prompt_logprobs),
                taken: 0,
                end: None,
                ended: false,
                report: Report::default(),
                vector: Vec::new(),
                waiting: false,
                waker: None,
            }),
            changed: Condvar::new(),
            left: AtomicBool::new(false),
            cancelled,
            clock,
        }
    }

    /// With room for a vector of this size.
    pub(crate) fn with_vector(self, size: usize) -> Channel {
        self.state().vector.reserve_exact(size);
        self
    }

    /// Sets the vector, which has the size that was announced.
    pub(crate) fn set_vector(&self, vector: &[f32]) {
        self.state().vector.extend_from_slice(vector);
    }

    /// Sets the first values of rows of this width, and after them the first or the last row.
    pub(crate) fn set_weights(&self, rows: &[f32], width: usize, first: bool) {
        let mut state = self.state();
        let each = || rows.chunks_exact(width.max(1));
        let pooled = if first { each().next() } else { each().last() };
        state.vector.extend(each().filter_map(|row| row.first()));
        state.vector.extend(pooled.into_iter().flatten());
    }

    /// Sets the mean of the rows from `left_out` on: of all `rows` rows and of the first ones, the means are known.
    pub(crate) fn set_mean_of_rest(
        &self,
        all: &[f32],
        first: &[f32],
        rows: usize,
        left_out: usize,
    ) {
        let rest = (rows - left_out) as f32;
        let [all_weight, first_weight] = [rows, left_out].map(|n| n as f32 / rest);
        let both = all.iter().zip(first);
        let values = both.map(|(all, first)| all * all_weight - first * first_weight);
        self.state().vector.extend(values);
    }

    pub(crate) fn take_vector(&self) -> Vec<f32> {
        std::mem::take(&mut self.state().vector)
    }

    /// The clock of its engine.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a token, with its probability if that was asked for.
    pub(crate) fn push(&self, token: u32, logprobs: Option<&Logprobs>) {
        let mut state = self.state();
        if state.tokens.is_empty() {
            state.report.first = Some(self.clock.now());
        }
        state.tokens.push(token);
        state.logprobs.extend(logprobs);
        self.wake(state);
    }

    /// Appends the probability of the prompt's token at `position`, unless it was known before: a preempted prompt is
    /// computed again.
    pub(crate) fn push_prompt(&self, position: usize, logprobs: &Logprobs) {
        let mut state = self.state();
        if state.prompt_logprobs.len() + 1 == position {
            state.prompt_logprobs.push(*logprobs);
        }
    }

    /// The probabilities of the prompt's tokens so far.
    pub(crate) fn prompt_logprobs(&self) -> Vec<Logprobs> {
        self.state().prompt_logprobs.clone()
    }

    /// Ends the queue. Only the first call counts.
    pub(crate) fn end(&self, result: Result<Finish, Error>) {
        let mut state = self.state();
        if !state.ended {
            state.ended = true;
            state.end = Some(result);
            state.report.ended = Some(self.clock.now());
            self.wake(state);
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let (waiting, waker) = (state.waiting, state.waker.take());
        drop(state);
        if waiting {
            self.changed.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Changes the report.
    pub(crate) fn report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.state().report);
    }

    /// Reports how much of the prompt is in the caches, and wakes an asynchronous consumer, which may want to know.
    pub(crate) fn progress(&self, computed: usize) {
        let mut state = self.state();
        state.report.computed = computed;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The report so far.
    pub(crate) fn reported(&self) -> Report {
        self.state().report
    }

    /// True while the consumer wants tokens.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.left.load(Ordering::Relaxed) && !self.is_cancelled()
    }

    /// True from a request to cancel until it is taken back.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The consumer's last word: it wants no further token.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// The next token or the end, if there is one now.
    pub(crate) fn try_next(&self) -> Option<Next> {
        self.state().next()
    }

    /// Waits for the next token or the end. `None` after the end.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut state = self.state();
        loop {
            if let Some(next) = state.next() {
                return Some(next);
            }
            if state.ended {
                return None;
            }
            state.waiting = true;
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting = false;
        }
    }

    /// As [`Channel::next`], for an executor.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Next>> {
        let mut state = self.state();
        match state.next() {
            Some(next) => Poll::Ready(Some(next)),
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl State {
    fn next(&mut self) -> Option<Next> {
        if let Some(&token) = self.tokens.get(self.taken) {
            let logprobs = self.logprobs.get(self.taken).copied();
            self.taken += 1;
            return Some(Next::Token(token, logprobs));
        }
        self.end.take().map(Next::End)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An asynchronous consumer is woken by whatever it may want to know, once for each time that it waits.
    #[test]
    fn everything_wakes_who_waits() {
        let room = Room {
            tokens: 2,
            ..Room::default()
        };
        let channel = Channel::new(room, Arc::default(), Clock::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let happens: [&dyn Fn(); 3] = [&|| channel.progress(1), &|| channel.push(1, None), &|| {
            channel.end(Ok(Finish::Length))
        }];
        for (nth, happen) in happens.into_iter().enumerate() {
            let mut context = Context::from_waker(&waker);
            assert!(channel.poll(&mut context).is_pending());
            happen();
            channel.progress(2);
            assert_eq!(woken.0.load(Ordering::Relaxed), nth + 1);
            channel.try_next();
        }
    }
}
