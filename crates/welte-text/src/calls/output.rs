//! Events, and the buffer that collects them.

use super::schema::Tool;
use std::fmt;

/// The longest source of one call, in bytes. It is kept, because a malformed call comes back as text.
pub(super) const LONGEST_CALL: usize = 4 << 20;

/// A part of an answer, in the order in which the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Text for the user.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// A call begins.
    CallBegin {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments. The deltas of a call, joined, are one JSON object.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// JSON text.
        delta: String,
    },
    /// A call is complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
    /// A call was malformed. Its source follows as text.
    Problem(Problem),
}

/// Why a call could not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The call if it had begun. It is void.
    pub index: Option<usize>,
    /// Where the call begins, in bytes of the answer.
    pub start: usize,
    /// Where the error is, in bytes of the answer.
    pub at: usize,
    /// What the syntax requires at `at`.
    pub expected: String,
    /// The character at `at`; `None` if the answer ended there.
    pub found: Option<char>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            start,
            at,
            expected,
            ..
        } = self;
        write!(f, "malformed tool call at byte {start} of the answer: ")?;
        match self.found {
            Some(found) => write!(f, "expected {expected} at byte {at}, found {found:?}"),
            None => write!(f, "expected {expected}, but the answer ended at byte {at}"),
        }
    }
}

/// A complete answer: the sum of its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text for the user.
    pub text: String,
    /// The model's reasoning.
    pub reasoning: String,
    /// Complete calls, in order.
    pub calls: Vec<Call>,
    /// Calls that were malformed.
    pub problems: Vec<Problem>,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The index of its events.
    pub index: usize,
    /// The function.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

impl Answer {
    /// Adds events. A problem removes the call that it voids.
    pub fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match event {
                Event::Text(text) => self.text.push_str(&text),
                Event::Reasoning(text) => self.reasoning.push_str(&text),
                Event::CallBegin { index, name } => self.calls.push(Call {
                    index,
                    name,
                    arguments: String::new(),
                }),
                Event::CallArguments { index, delta } => {
                    if let Some(call) = self.calls.iter_mut().find(|call| call.index == index) {
                        call.arguments.push_str(&delta);
                    }
                }
                Event::CallEnd { .. } => {}
                Event::Problem(problem) => {
                    self.calls.retain(|call| Some(call.index) != problem.index);
                    self.problems.push(problem);
                }
            }
        }
    }
}

/// Collects events. Neighbours of one kind are joined.
#[derive(Clone, Debug, Default)]
pub(super) struct Output {
    ready: Vec<Event>,
    /// Events of the call in progress, if calls are handed out whole.
    held: Vec<Event>,
    whole: bool,
    /// The index of the next call.
    next: usize,
    /// A call has begun and not ended.
    open: bool,
    /// Complete calls.
    complete: usize,
}

impl Output {
    /// Hands out calls only when they are complete.
    pub(super) fn hold_calls(&mut self) {
        self.whole = true;
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ready)
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.ready.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Text(last)) => last.push_str(text),
            _ => self.ready.push(Event::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.ready.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ => self.ready.push(Event::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn begin(&mut self, name: &str) {
        self.open = true;
        let event = Event::CallBegin {
            index: self.next,
            name: name.to_owned(),
        };
        self.call_events().push(event);
    }

    pub(super) fn arguments(&mut self, text: &str) {
        let index = self.next;
        let events = self.call_events();
        match events.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::CallArguments { delta, .. }) => delta.push_str(text),
            _ => events.push(Event::CallArguments {
                index,
                delta: text.to_owned(),
            }),
        }
    }

    pub(super) fn end(&mut self) {
        let index = self.next;
        self.call_events().push(Event::CallEnd { index });
        self.ready.append(&mut self.held);
        self.open = false;
        self.next += 1;
        self.complete += 1;
    }

    /// A call failed: `source` becomes text.
    pub(super) fn fail(&mut self, mut problem: Problem, source: &str) {
        problem.index = self.void();
        self.ready.push(Event::Problem(problem));
        self.text(source);
    }

    /// Gives up the call that is open. Returns its index if its events have been handed out.
    fn void(&mut self) -> Option<usize> {
        self.held.clear();
        let seen = self.open && !self.whole;
        self.open = false;
        if !seen {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// How many calls are complete.
    pub(super) fn complete(&self) -> usize {
        self.complete
    }

    /// Whether the call that ended last fits the schema of its tool.
    pub(super) fn last_call_fits(&self, tools: &[Tool]) -> bool {
        let mut answer = Answer::default();
        answer.add(self.ready.iter().cloned());
        answer.calls.last().is_some_and(|call| {
            let arguments = serde_json::from_str(&call.arguments);
            let tool = tools.iter().find(|tool| tool.name == call.name);
            tool.zip(arguments.ok())
                .is_some_and(|(tool, arguments)| tool.takes(&arguments))
        })
    }

    fn call_events(&mut self) -> &mut Vec<Event> {
        if self.whole {
            &mut self.held
        } else {
            &mut self.ready
        }
    }
}
