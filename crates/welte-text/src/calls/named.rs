//! Calls as a name, a mark and a JSON object: `name[ARGS]{...}`, alone or in a section of calls.

use super::json::{JsonScanner, Scan};
use super::marks::{Expect, Until, one_of};
use super::output::Output;
use super::schema::{LONGEST_NAME, is_name};
use super::step::{Step, Taken};

/// A syntax of this family.
#[derive(Debug)]
pub(super) struct Named {
    /// Begins each call in a section.
    pub(super) begin: &'static [&'static str],
    /// Between the name and the arguments.
    pub(super) separator: &'static str,
    /// Between the name and an identifier of the call, which is skipped.
    pub(super) id: &'static [&'static str],
    /// Names are `functions.NAME:NUMBER`.
    pub(super) numbered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the mark that begins a call.
    Begin,
    Name,
    Id,
    BeforeArguments,
    /// A name that follows the separator, up to the end of the line.
    NameInLine,
    /// The fence of a block of code, then its language.
    Fence,
    Language,
    Arguments,
}

/// Reads a call.
#[derive(Clone, Debug)]
pub(super) struct NamedCall {
    syntax: &'static Named,
    state: State,
    until: Until,
    expect: Expect,
    scanner: JsonScanner,
    name: String,
}

impl NamedCall {
    /// Before the mark that begins a call if `section`, else after it.
    pub(super) fn new(syntax: &'static Named, section: bool) -> NamedCall {
        NamedCall {
            syntax,
            state: if section { State::Begin } else { State::Name },
            until: Until::default(),
            expect: Expect::default(),
            scanner: JsonScanner::new(),
            name: String::new(),
        }
    }

    pub(super) fn step(&mut self, c: char, out: &mut Output) -> Taken {
        match self.state {
            State::Begin => self.mark(c, self.syntax.begin, State::Name),
            State::Fence => self.mark(c, &["```"], State::Language),
            State::Language if c.is_ascii_alphabetic() => Ok(Step::More),
            State::Language => {
                self.state = State::BeforeArguments;
                self.step(c, out)
            }
            State::Name => self.name(c, out),
            State::Id => {
                let marks = [self.syntax.separator];
                if self.until.step(c, &marks, &mut String::new()).is_some() {
                    self.state = State::BeforeArguments;
                }
                Ok(Step::More)
            }
            State::NameInLine if c == '\n' => {
                self.state = State::Fence;
                self.begin(out)
            }
            State::NameInLine => self.push_name(c),
            State::BeforeArguments if c.is_whitespace() => Ok(Step::More),
            State::BeforeArguments if c == '{' => {
                if !out.is_open() {
                    self.begin(out)?;
                }
                self.state = State::Arguments;
                self.arguments(c, out)
            }
            // DeepSeek V3 and R1: the type comes first, then the name and a block of code.
            State::BeforeArguments if self.name == "function" && !out.is_open() => {
                self.name.clear();
                self.state = State::NameInLine;
                self.push_name(c)
            }
            State::BeforeArguments => Err("'{'".to_owned()),
            State::Arguments => self.arguments(c, out),
        }
    }

    /// Expects one of these marks.
    fn mark(&mut self, c: char, marks: &[&str], next: State) -> Taken {
        match self.expect.step(c, marks) {
            Ok(Some(_)) => self.state = next,
            Ok(None) => {}
            Err(_) => return Err(one_of(marks)),
        }
        Ok(Step::More)
    }

    fn name(&mut self, c: char, out: &mut Output) -> Taken {
        let separator = self.syntax.separator;
        let marks = [&[separator, "{"], self.syntax.id].concat();
        let mut free = String::new();
        let found = self.until.step(c, &marks, &mut free);
        for c in free.chars() {
            self.push_name(c)?;
        }
        match found {
            Some(0) => self.state = State::BeforeArguments,
            Some(1) => {
                self.state = State::BeforeArguments;
                return self.step(c, out);
            }
            Some(_) => self.state = State::Id,
            None => {}
        }
        Ok(Step::More)
    }

    fn push_name(&mut self, c: char) -> Taken {
        if self.name.len() > LONGEST_NAME {
            return Err(one_of(&[self.syntax.separator]));
        }
        self.name.push(c);
        Ok(Step::More)
    }

    fn begin(&mut self, out: &mut Output) -> Taken {
        let name = function_name(self.name.trim());
        if !is_name(name) {
            return Err("the name of a function".to_owned());
        }
        out.begin(name);
        Ok(Step::More)
    }

    fn arguments(&mut self, c: char, out: &mut Output) -> Taken {
        let mut delta = String::new();
        let scan = self.scanner.step(c, &mut delta)?;
        out.arguments(&delta);
        if scan != Scan::End {
            return Ok(Step::More);
        }
        out.end();
        Ok(Step::Done)
    }
}

/// The function in `functions.name:0`.
pub(super) fn function_name(name: &str) -> &str {
    let name = name.strip_prefix("functions.").unwrap_or(name);
    match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    }
}
