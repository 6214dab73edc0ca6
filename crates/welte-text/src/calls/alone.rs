//! An answer that is nothing but a call, without the marks that the template asks for. Small models put the call into a
//! block of code, or double its braces as they saw them in a format string.

use super::envelope::Envelope;
use super::output::{Event, LONGEST_CALL, Output, Problem};
use super::schema::Tool;
use super::step::Step;

/// What may stand around a call. A longer opening comes before its beginning.
const WRAPPERS: [(&str, &str); 8] = [
    ("```json", "```"),
    ("```tool_call", "```"),
    ("```tool_code", "```"),
    ("```", "```"),
    ("<tool_call>", "</tool_call>"),
    ("<function_call>", "</function_call>"),
    ("<tools>", "</tools>"),
    ("<|python_tag|>", ""),
];
/// How deep wrappers nest.
const DEEPEST: usize = 2;

#[derive(Clone, Debug)]
enum State {
    /// Before a call or after one. The text is the beginning of a mark.
    Between(String),
    Call(Envelope, Braces),
}

/// Holds the text of an answer back while it can be calls of declared tools and nothing else.
#[derive(Clone, Debug)]
pub(super) struct Alone {
    state: State,
    /// What closes the open wrappers.
    open: Vec<&'static str>,
    /// The second half of the last brace may follow.
    half: bool,
    held: String,
    /// What the parser of marks said about the text.
    problem: Option<Problem>,
    calls: Output,
}

impl Alone {
    pub(super) fn new() -> Alone {
        let mut calls = Output::default();
        calls.hold_calls();
        Alone {
            state: State::Between(String::new()),
            open: Vec::new(),
            half: false,
            held: String::new(),
            problem: None,
            calls,
        }
    }

    /// Takes an event. Returns false if the answer is not a call and nothing else.
    pub(super) fn take(&mut self, event: &Event, tools: &[Tool], ready: &mut Vec<Event>) -> bool {
        let first = self.held.is_empty() && self.problem.is_none();
        match event {
            Event::Text(text) => {
                self.held.push_str(text);
                let mut characters = text.chars();
                self.held.len() <= LONGEST_CALL && characters.all(|c| self.step(c, tools))
            }
            Event::Reasoning(_) if first => {
                ready.push(event.clone());
                true
            }
            // A malformed call: its source comes next.
            Event::Problem(problem) if first && problem.index.is_none() => {
                self.problem = Some(problem.clone());
                true
            }
            _ => false,
        }
    }

    /// What has been held back.
    pub(super) fn give_up(self, ready: &mut Vec<Event>) {
        ready.extend(self.problem.map(Event::Problem));
        if !self.held.is_empty() {
            ready.push(Event::Text(self.held));
        }
    }

    /// The end of the answer: the calls, or the text.
    pub(super) fn finish(mut self, ready: &mut Vec<Event>) {
        let ended =
            matches!(&self.state, State::Between(mark) if mark.is_empty() || self.closes(mark));
        if ended && self.calls.complete() > 0 {
            ready.append(&mut self.calls.take())
        } else {
            self.give_up(ready)
        }
    }

    fn closes(&self, mark: &str) -> bool {
        self.open.last() == Some(&mark)
    }

    /// Takes a character. Returns false if the text is not a call.
    fn step(&mut self, c: char, tools: &[Tool]) -> bool {
        match &mut self.state {
            State::Between(_) => self.between(c, tools),
            State::Call(envelope, braces) => {
                let mut done = false;
                let Some(plain) = braces.step(c) else {
                    return false;
                };
                for c in plain.chars() {
                    match envelope.step(c, tools, &mut self.calls) {
                        Ok(Step::More) if !done => {}
                        Ok(Step::Done) => done = true,
                        _ => return false,
                    }
                }
                let fits = !done || self.calls.last_call_fits(tools);
                if done {
                    self.half = braces.half.is_some();
                    self.state = State::Between(String::new());
                }
                fits
            }
        }
    }

    fn between(&mut self, c: char, tools: &[Tool]) -> bool {
        let State::Between(mark) = &mut self.state else {
            return false;
        };
        let closing = self.open.last().copied().filter(|mark| !mark.is_empty());
        let closing = closing.filter(|_| self.calls.complete() > 0);
        let may_open = self.open.len() < DEEPEST;
        let begins = |text: &str| {
            let opens = WRAPPERS.iter().any(|(open, _)| open.starts_with(text));
            (may_open && opens) || closing.is_some_and(|mark| mark.starts_with(text))
        };
        let mut longer = mark.clone();
        longer.push(c);
        if !c.is_whitespace() && begins(&longer) {
            *mark = longer;
            return true;
        }
        if std::mem::take(&mut self.half) && c == '}' && mark.is_empty() {
            return true;
        }
        let mark = std::mem::take(mark);
        if !mark.is_empty() {
            // After a call a fence closes; before one it opens.
            if closing == Some(mark.as_str()) {
                self.open.pop();
            } else if let Some((_, close)) =
                WRAPPERS.iter().find(|(open, _)| *open == mark && may_open)
            {
                self.open.push(close);
            } else {
                return false;
            }
            return self.step(c, tools);
        }
        match c {
            '{' | '[' => {
                self.state = State::Call(Envelope::new(true), Braces::default());
                self.step(c, tools)
            }
            c => c.is_whitespace(),
        }
    }
}

/// Undoes doubled braces outside strings: no JSON has `{{`.
#[derive(Clone, Debug, Default)]
struct Braces {
    /// Whether each open brace was doubled.
    doubled: Vec<bool>,
    /// A brace that may be the first half of a double one.
    half: Option<char>,
    in_text: bool,
    escaped: bool,
}

impl Braces {
    /// Takes a character and returns what is certain; `None` if braces do not match.
    fn step(&mut self, c: char) -> Option<String> {
        let mut plain = String::new();
        match (self.half.take(), c) {
            (Some('{'), '{') => {
                self.doubled.push(true);
                return Some("{".to_owned());
            }
            (Some('{'), _) => {
                self.doubled.push(false);
                plain.push('{');
            }
            // The second half of the end. Models also leave it out.
            (Some(_), '}') => return Some(String::new()),
            _ => {}
        }
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_text => self.escaped = true,
            '"' => self.in_text = !self.in_text,
            _ if self.in_text => {}
            '{' => {
                self.half = Some(c);
                return Some(plain);
            }
            '}' if self.doubled.pop()? => self.half = Some(c),
            _ => {}
        }
        plain.push(c);
        Some(plain)
    }
}
