//! Calls as JSON objects: `{"name": "f", "arguments": {...}}`, alone or in a list.

use super::json::{JsonScanner, Scan, quoted, whole};
use super::output::Output;
use super::schema::{Tool, is_name};
use super::step::{Step, Taken};

const NAMES: [&str; 3] = ["name", "function", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Keys that a call may have besides. Other keys show that an object without marks is not a call.
const OTHERS: [&str; 3] = ["type", "id", "tool_call_id"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A list or an object.
    Start,
    /// An object within a list.
    Item,
    AfterItem,
    Key,
    KeyOrEnd,
    InKey,
    Colon,
    Value,
    InName,
    InArguments,
    /// Arguments as a JSON text within a string.
    InQuotedArguments,
    InOther,
    CommaOrEnd,
}

/// Reads calls as JSON objects.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    state: State,
    list: bool,
    /// Only a call of a known tool counts, because nothing marks the object as a call.
    tentative: bool,
    /// Within `{"function": {...}}`.
    nested: bool,
    scanner: JsonScanner,
    /// The key or the string that is being read, as JSON.
    text: String,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    /// The arguments are complete.
    complete: bool,
}

impl Envelope {
    pub(super) fn new(tentative: bool) -> Envelope {
        Envelope {
            state: State::Start,
            list: false,
            tentative,
            nested: false,
            scanner: JsonScanner::new(),
            text: String::new(),
            name: None,
            early: None,
            complete: false,
        }
    }

    pub(super) fn step(&mut self, c: char, tools: &[Tool], out: &mut Output) -> Taken {
        let scanning = matches!(
            self.state,
            State::InKey
                | State::InName
                | State::InArguments
                | State::InQuotedArguments
                | State::InOther
        );
        if scanning {
            let scan = self.scan(c, out)?;
            if scan != Scan::More {
                self.scanned(tools, out)?;
            }
            if scan != Scan::Before {
                return Ok(Step::More);
            }
        } else if c.is_whitespace() {
            return Ok(Step::More);
        }
        self.state = match (self.state, c) {
            (State::Start, '[') => {
                self.list = true;
                State::Item
            }
            (State::Start | State::Item, '{') => State::KeyOrEnd,
            (State::Start | State::Item, _) => return Err("'{'".to_owned()),
            (State::AfterItem, ',') => State::Item,
            (State::AfterItem, ']') => return Ok(Step::Done),
            (State::AfterItem, _) => return Err("',' or ']' after a call".to_owned()),
            (State::Key | State::KeyOrEnd, '"') => self.read(c, State::InKey)?,
            (State::KeyOrEnd | State::CommaOrEnd, '}') => return self.close(out),
            (State::Key | State::KeyOrEnd, _) => return Err("a key in double quotes".to_owned()),
            (State::Colon, ':') => State::Value,
            (State::Colon, _) => return Err("':' after a key".to_owned()),
            (State::Value, _) => self.value(c, out)?,
            (State::CommaOrEnd, ',') => State::Key,
            _ => return Err("',' or '}' after a value".to_owned()),
        };
        Ok(Step::More)
    }

    /// Begins to read a value of which `c` is the first character.
    fn read(&mut self, c: char, state: State) -> Result<State, String> {
        self.scanner = JsonScanner::new();
        self.text.clear();
        self.scanner.step(c, &mut self.text)?;
        Ok(state)
    }

    fn scan(&mut self, c: char, out: &mut Output) -> Result<Scan, String> {
        match self.state {
            State::InArguments => {
                let mut delta = String::new();
                let scan = self.scanner.step(c, &mut delta)?;
                self.arguments(&delta, out);
                Ok(scan)
            }
            State::InOther => Ok(self.scanner.step(c, &mut String::new())?),
            _ => Ok(self.scanner.step(c, &mut self.text)?),
        }
    }

    /// A value is complete.
    fn scanned(&mut self, tools: &[Tool], out: &mut Output) -> Result<(), String> {
        match self.state {
            State::InKey => {
                self.state = State::Colon;
                return Ok(());
            }
            State::InName => self.begin(tools, out)?,
            State::InArguments => self.complete = true,
            State::InQuotedArguments => {
                let inner: Option<String> = serde_json::from_str(&self.text).ok();
                let inner = inner.and_then(|text| whole(&text));
                let object = inner.filter(|json| json.starts_with('{'));
                let object = object.ok_or("arguments that are a JSON object")?;
                self.arguments(&object, out);
                self.complete = true;
            }
            _ => {}
        }
        self.state = State::CommaOrEnd;
        Ok(())
    }

    /// The state within a value, by its key.
    fn value(&mut self, c: char, out: &mut Output) -> Result<State, String> {
        let key: String = serde_json::from_str(&self.text).unwrap_or_default();
        let key = key.as_str();
        let is_object = c == '{';
        if ARGUMENTS.contains(&key) {
            if self.complete {
                return Err("one object of arguments".to_owned());
            }
            if is_object {
                self.arguments("{", out);
            }
            return match c {
                '{' => self.read(c, State::InArguments),
                '"' => self.read(c, State::InQuotedArguments),
                'n' => self.read(c, State::InOther),
                _ => Err("an object of arguments".to_owned()),
            };
        }
        if key == "function" && is_object && !self.nested {
            self.nested = true;
            return Ok(State::KeyOrEnd);
        }
        if NAMES.contains(&key) && self.name.is_none() && c == '"' {
            return self.read(c, State::InName);
        }
        if self.tentative && self.name.is_none() && !OTHERS.contains(&key) {
            return Err("a key of a tool call".to_owned());
        }
        self.read(c, State::InOther)
    }

    fn begin(&mut self, tools: &[Tool], out: &mut Output) -> Result<(), String> {
        let name: String = serde_json::from_str(&self.text).unwrap_or_default();
        let known = tools.iter().any(|tool| tool.name == name);
        if !is_name(&name) || (self.tentative && !known) {
            return Err("the name of a function".to_owned());
        }
        out.begin(&name);
        self.name = Some(name);
        out.arguments(&self.early.take().unwrap_or_default());
        Ok(())
    }

    fn arguments(&mut self, delta: &str, out: &mut Output) {
        if self.name.is_some() {
            out.arguments(delta);
        } else {
            self.early.get_or_insert_default().push_str(delta);
        }
    }

    /// At `}`.
    fn close(&mut self, out: &mut Output) -> Taken {
        if self.nested {
            self.nested = false;
            self.state = State::CommaOrEnd;
            return Ok(Step::More);
        }
        if self.name.is_none() {
            return Err(format!("a key {}", quoted("name")));
        }
        if !self.complete {
            out.arguments("{}");
        }
        out.end();
        if !self.list {
            return Ok(Step::Done);
        }
        let list = Envelope::new(self.tentative);
        *self = Envelope {
            list: true,
            state: State::AfterItem,
            ..list
        };
        Ok(Step::More)
    }
}
