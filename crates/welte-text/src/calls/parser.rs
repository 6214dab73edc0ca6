//! Takes an answer apart: text, reasoning and calls that marks set off.

use super::body::{Body, Start};
use super::format::{Format, Opening};
use super::marks::{Expect, Until};
use super::output::{LONGEST_CALL, Output, Problem};
use super::schema::Tool;
use super::step::Step;

/// The most white space that is held back, in bytes. It is dropped if a mark follows.
const LONGEST_SPACE: usize = 256;

#[derive(Clone, Debug)]
enum Mode {
    Text,
    Reasoning,
    /// A block of calls.
    Block {
        body: Body,
        /// Nothing marks the block: without a complete name it is text, not a malformed call.
        tentative: bool,
    },
    /// After a block. Marks that close it are dropped.
    Tail {
        expect: Expect,
        closed: bool,
    },
}

/// Takes an answer apart by marks. Each step depends only on the state and one character, so the result does not depend
/// on how the text is cut.
#[derive(Clone, Debug)]
pub(super) struct MarkParser {
    format: Format,
    /// The marks that begin calls; none without tools.
    openings: &'static [Opening],
    /// Marks within text: openings, those that are dropped, the one that opens the reasoning.
    in_text: Vec<&'static str>,
    /// Marks within reasoning: the one that closes it, openings that are tokens.
    in_reasoning: Vec<&'static str>,
    mode: Mode,
    until: Until,
    /// White space at the end of the text so far.
    space: String,
    /// Drop white space until something visible comes.
    trim: bool,
    /// Nothing visible has come since the answer, the reasoning or a call ended.
    fresh: bool,
    /// After visible text everything is text.
    plain_text: bool,
    /// Bytes taken so far.
    at: usize,
    /// The source of the call in progress, and where it begins.
    source: String,
    start: usize,
}

impl MarkParser {
    pub(super) fn new(format: Format, calls: bool, in_reasoning: bool) -> MarkParser {
        let Format {
            syntax, reasoning, ..
        } = format;
        let openings: &[Opening] = if calls { syntax.openings } else { &[] };
        let marks = openings.iter().map(|opening| opening.mark);
        let tokens = openings.iter().filter(|opening| opening.is_token);
        MarkParser {
            format,
            openings,
            in_text: marks
                .chain(reasoning.ignored.iter().copied())
                .chain([reasoning.open])
                .collect(),
            in_reasoning: [reasoning.close]
                .into_iter()
                .chain(tokens.map(|opening| opening.mark))
                .collect(),
            mode: if in_reasoning {
                Mode::Reasoning
            } else {
                Mode::Text
            },
            until: Until::default(),
            space: String::new(),
            trim: in_reasoning,
            fresh: true,
            plain_text: false,
            at: 0,
            source: String::new(),
            start: 0,
        }
    }

    pub(super) fn plain_text(&mut self) {
        self.plain_text = true;
    }

    pub(super) fn push(&mut self, text: &str, tools: &[Tool], out: &mut Output) {
        for c in text.chars() {
            self.step(c, tools, out);
            self.at += c.len_utf8();
        }
    }

    /// The end of the answer.
    pub(super) fn finish(&mut self, out: &mut Output) {
        if let Mode::Block { body, tentative } = &mut self.mode {
            let (complete, tentative) = (body.finish(out), *tentative);
            let between_calls = !out.is_open() && self.source.trim().is_empty();
            if !complete && !between_calls {
                self.fail("the rest of the call".to_owned(), None, tentative, out);
            }
        }
        let rest = self.until.rest();
        rest.chars().for_each(|c| self.show(c, out));
        self.flush(out);
    }

    fn step(&mut self, c: char, tools: &[Tool], out: &mut Output) {
        match &mut self.mode {
            Mode::Text => self.text(c, tools, out),
            Mode::Reasoning => self.reasoning(c, out),
            Mode::Block { .. } => self.block(c, tools, out),
            Mode::Tail { .. } => self.tail(c, tools, out),
        }
    }

    fn text(&mut self, c: char, tools: &[Tool], out: &mut Output) {
        if self.plain_text && !self.fresh {
            let held = self.until.rest();
            held.chars().for_each(|c| self.show(c, out));
            return self.show(c, out);
        }
        let Format {
            syntax, reasoning, ..
        } = self.format;
        if let Some(start) = syntax.bare
            && !tools.is_empty()
            && self.fresh
            && self.until.is_empty()
            && matches!(c, '{' | '[')
        {
            self.open("", start, true);
            return self.block(c, tools, out);
        }
        let Some(mark) = self.mark(c, false, out) else {
            return;
        };
        if let Some(opening) = self.openings.iter().find(|opening| opening.mark == mark) {
            self.open(mark, opening.start, opening.tentative);
        } else if reasoning.ignored.contains(&mark) {
            self.enter(Mode::Text);
        } else if self.fresh || reasoning.is_token {
            self.enter(Mode::Reasoning);
        } else {
            // In prose the mark is text.
            mark.chars().for_each(|c| self.show(c, out));
        }
    }

    fn reasoning(&mut self, c: char, out: &mut Output) {
        let Some(mark) = self.mark(c, true, out) else {
            return;
        };
        self.enter(Mode::Text);
        if let Some(opening) = self.openings.iter().find(|opening| opening.mark == mark) {
            self.open(mark, opening.start, opening.tentative);
        }
    }

    /// Hands out text that is in no mark. Returns a mark that is complete.
    fn mark(&mut self, c: char, in_reasoning: bool, out: &mut Output) -> Option<&'static str> {
        let marks = if in_reasoning {
            &self.in_reasoning
        } else {
            &self.in_text
        };
        let mut free = String::new();
        let found = self.until.step(c, marks, &mut free);
        let mark = found.map(|found| marks[found]);
        free.chars().for_each(|c| self.show(c, out));
        mark
    }

    fn block(&mut self, c: char, tools: &[Tool], out: &mut Output) {
        let Mode::Block { body, tentative } = &mut self.mode else {
            return;
        };
        let tentative = *tentative;
        let complete = out.complete();
        let taken = if self.source.len() < LONGEST_CALL {
            body.step(c, tools, out)
        } else {
            Err("a shorter call".to_owned())
        };
        if out.complete() > complete {
            // What comes next belongs to another call.
            self.source.clear();
            self.start = self.at + c.len_utf8();
            self.space.clear();
        } else if taken.is_ok() {
            self.source.push(c);
        }
        match taken {
            Ok(Step::More) => {}
            Ok(Step::Done) => self.enter(Mode::Tail {
                expect: Expect::default(),
                closed: false,
            }),
            Err(expected) => {
                self.fail(expected, Some(c), tentative, out);
                self.step(c, tools, out);
            }
        }
    }

    fn tail(&mut self, c: char, tools: &[Tool], out: &mut Output) {
        let Mode::Tail { expect, closed } = &mut self.mode else {
            return;
        };
        let syntax = self.format.syntax;
        match expect.step(c, syntax.closings) {
            Ok(Some(_)) => *closed = true,
            Ok(None) => {}
            Err(rest) => {
                let again = syntax.again.as_ref();
                let again = again.filter(|again| !*closed && (again.begins)(c));
                self.mode = Mode::Text;
                match again {
                    Some(again) if rest.len() == c.len_utf8() => {
                        self.open("", again.start, true);
                        self.block(c, tools, out);
                    }
                    _ => self.replay(&rest, tools, out),
                }
            }
        }
    }

    /// Takes text that matched no closing mark. The last character is the current one.
    fn replay(&mut self, text: &str, tools: &[Tool], out: &mut Output) {
        let (now, last) = (self.at, text.chars().next_back());
        self.at = now + last.map_or(0, char::len_utf8) - text.len();
        for c in text.chars() {
            self.step(c, tools, out);
            self.at += c.len_utf8();
        }
        self.at = now;
    }

    /// Enters a block. `mark` is its source so far.
    fn open(&mut self, mark: &str, start: Start, tentative: bool) {
        // The mark's last character is the current one, and it is one byte long.
        self.start = self.at - mark.len().saturating_sub(1);
        mark.clone_into(&mut self.source);
        self.mode = Mode::Block {
            body: Body::new(start, tentative),
            tentative,
        };
    }

    /// Passes a mark. White space next to it belongs to the layout.
    fn enter(&mut self, mode: Mode) {
        self.mode = mode;
        self.space.clear();
        self.trim = true;
        self.fresh = true;
    }

    /// Gives up the call in progress: its source is text.
    fn fail(&mut self, expected: String, found: Option<char>, tentative: bool, out: &mut Output) {
        self.mode = Mode::Text;
        self.trim = false;
        self.fresh = false;
        // The space before the call belongs to the text that follows the problem.
        let mut source = std::mem::take(&mut self.space);
        source.push_str(&std::mem::take(&mut self.source));
        if tentative && !out.is_open() {
            out.text(&source);
            return;
        }
        let problem = Problem {
            index: None,
            start: self.start,
            at: self.at,
            expected,
            found,
        };
        out.fail(problem, &source);
    }

    /// Hands out a character of text or reasoning.
    fn show(&mut self, c: char, out: &mut Output) {
        if c.is_whitespace() && self.trim {
            return;
        }
        if c.is_whitespace() && self.space.len() < LONGEST_SPACE {
            self.space.push(c);
            return;
        }
        self.flush(out);
        self.trim = false;
        self.fresh = self.fresh && c.is_whitespace();
        let mut bytes = [0; 4];
        let c: &str = c.encode_utf8(&mut bytes);
        match self.mode {
            Mode::Reasoning => out.reasoning(c),
            _ => out.text(c),
        }
    }

    fn flush(&mut self, out: &mut Output) {
        match self.mode {
            Mode::Reasoning => out.reasoning(&self.space),
            _ => out.text(&self.space),
        }
        self.space.clear();
    }
}
