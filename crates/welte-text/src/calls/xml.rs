//! Calls as XML: a name and one element for each parameter.

use super::json::{push_escaped, quoted};
use super::marks::{Expect, Until, one_of};
use super::output::Output;
use super::schema::{LONGEST_NAME, Tool, Types, is_name, types};
use super::step::{Step, Taken};

/// A syntax of this family.
#[derive(Debug)]
pub(super) struct Xml {
    /// Before the name. If empty, the name follows the mark that begins the block.
    pub(super) call: &'static str,
    /// After the name.
    pub(super) name_end: &'static str,
    /// Before a parameter's key.
    pub(super) key: &'static str,
    /// After a parameter's key.
    pub(super) key_end: &'static str,
    /// Before a parameter's value, if it does not follow the key.
    pub(super) value: Option<&'static str>,
    /// After a parameter's value.
    pub(super) value_end: &'static str,
    /// After the last parameter. The first is the regular one.
    pub(super) ends: &'static [&'static str],
    /// A line break at either end of a value belongs to the layout.
    pub(super) lines: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Call,
    Name,
    KeyOrEnd,
    Key,
    BeforeValue,
    Value,
}

/// Reads a call.
#[derive(Clone, Debug)]
pub(super) struct XmlCall {
    syntax: &'static Xml,
    state: State,
    until: Until,
    expect: Expect,
    name: String,
    key: String,
    parameters: usize,
    value: Value,
}

/// A parameter's value.
#[derive(Clone, Debug)]
struct Value {
    types: Types,
    /// The text so far, unless the value is a string that is handed out as it comes.
    text: String,
    /// Nothing has been read.
    start: bool,
    /// A line break that may be the last one.
    line: bool,
}

impl XmlCall {
    /// Before the name's mark if `block`, else after it.
    pub(super) fn new(syntax: &'static Xml, block: bool) -> XmlCall {
        let state = if block && !syntax.call.is_empty() {
            State::Call
        } else {
            State::Name
        };
        XmlCall {
            syntax,
            state,
            until: Until::default(),
            expect: Expect::default(),
            name: String::new(),
            key: String::new(),
            parameters: 0,
            value: Value::new(Types::TEXT),
        }
    }

    pub(super) fn step(&mut self, c: char, tools: &[Tool], out: &mut Output) -> Taken {
        let syntax = self.syntax;
        match self.state {
            State::Call => {
                if self.mark(c, &[syntax.call])?.is_some() {
                    self.state = State::Name;
                }
            }
            State::Name => return self.name(c, out),
            State::KeyOrEnd => {
                let marks = [&[syntax.key], syntax.ends].concat();
                match self.mark(c, &marks)? {
                    Some(0) => self.state = State::Key,
                    Some(_) => return self.finish(out),
                    None => {}
                }
            }
            State::Key => return self.key(c, tools, out),
            State::BeforeValue => {
                if self.mark(c, syntax.value.as_slice())?.is_some() {
                    self.state = State::Value;
                }
            }
            State::Value => {
                let mut free = String::new();
                let end = self.until.step(c, &[syntax.value_end], &mut free);
                for c in free.chars() {
                    out.arguments(&self.value.push(c, syntax.lines));
                }
                if end.is_some() {
                    out.arguments(&self.value.end());
                    self.state = State::KeyOrEnd;
                }
            }
        }
        Ok(Step::More)
    }

    fn mark(&mut self, c: char, marks: &[&str]) -> Result<Option<usize>, String> {
        self.expect.step(c, marks).map_err(|_| one_of(marks))
    }

    fn name(&mut self, c: char, out: &mut Output) -> Taken {
        let syntax = self.syntax;
        // Without a mark of its own the name ends where the next thing begins.
        let marks = if syntax.call.is_empty() {
            [&[syntax.name_end, syntax.key], syntax.ends].concat()
        } else {
            vec![syntax.name_end]
        };
        let mut free = String::new();
        let found = self.until.step(c, &marks, &mut free);
        self.name.push_str(&free);
        if self.name.len() > LONGEST_NAME {
            return Err(one_of(&marks));
        }
        let Some(found) = found else {
            return Ok(Step::More);
        };
        let name = self.name.trim();
        if name.is_empty() && found == 0 && syntax.call.is_empty() {
            return Ok(Step::More);
        }
        if !is_name(name) {
            return Err("the name of a function".to_owned());
        }
        self.name = name.to_owned();
        out.begin(&self.name);
        out.arguments("{");
        self.state = match found {
            0 => State::KeyOrEnd,
            1 => State::Key,
            _ => return self.finish(out),
        };
        Ok(Step::More)
    }

    fn key(&mut self, c: char, tools: &[Tool], out: &mut Output) -> Taken {
        let mut free = String::new();
        let found = self.until.step(c, &[self.syntax.key_end], &mut free);
        self.key.push_str(&free);
        if self.key.len() > LONGEST_NAME {
            return Err(one_of(&[self.syntax.key_end]));
        }
        if found.is_none() {
            return Ok(Step::More);
        }
        // `name="key" string="true"`: the mark before the key ends with a quote.
        let text = std::mem::take(&mut self.key);
        let (key, attributes) = match text.split_once('"') {
            Some(parts) if self.syntax.key.ends_with('"') => parts,
            _ => (text.as_str(), ""),
        };
        if key.trim().is_empty() {
            return Err("the name of a parameter".to_owned());
        }
        let types = match attributes.trim() {
            "string=\"true\"" => Types::TEXT,
            "string=\"false\"" => Types::ANY,
            "" => types(tools, &self.name, key.trim()),
            _ => return Err("the attribute 'string' or no attribute".to_owned()),
        };
        let comma = if self.parameters == 0 { "" } else { ", " };
        out.arguments(&format!("{comma}{}: ", quoted(key.trim())));
        if types.only_text() {
            out.arguments("\"");
        }
        self.value = Value::new(types);
        self.parameters += 1;
        self.state = if self.syntax.value.is_some() {
            State::BeforeValue
        } else {
            State::Value
        };
        Ok(Step::More)
    }

    fn finish(&mut self, out: &mut Output) -> Taken {
        out.arguments("}");
        out.end();
        Ok(Step::Done)
    }
}

impl Value {
    fn new(types: Types) -> Value {
        Value {
            types,
            text: String::new(),
            start: true,
            line: false,
        }
    }

    /// Takes a character. Returns JSON that is certain.
    fn push(&mut self, c: char, lines: bool) -> String {
        let mut json = String::new();
        let start = std::mem::replace(&mut self.start, false);
        if lines && c == '\n' && start {
            return json;
        }
        if std::mem::replace(&mut self.line, lines && c == '\n') {
            self.take('\n', &mut json);
        }
        if !self.line {
            self.take(c, &mut json);
        }
        json
    }

    fn take(&mut self, c: char, json: &mut String) {
        if self.types.only_text() {
            push_escaped(c, json);
        } else {
            self.text.push(c);
        }
    }

    /// The rest of the JSON.
    fn end(&mut self) -> String {
        if self.types.only_text() {
            "\"".to_owned()
        } else {
            self.types.to_json(&self.text)
        }
    }
}
