//! Calls as Gemma 4 writes them: `call:name{key:<|"|>text<|"|>,other:[1,true]}`.

use super::json::{DEEPEST, JsonScanner, Scan, push_escaped, quoted};
use super::marks::{Expect, Until, one_of};
use super::output::Output;
use super::schema::{LONGEST_NAME, Types, is_name};
use super::step::{Step, Taken};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Call,
    Name,
    Key,
    KeyOrEnd,
    /// A key between quotes, then what follows it.
    QuotedKey,
    Colon,
    Value,
    ValueOrEnd,
    /// The mark that opens a string.
    Quote,
    Text,
    /// A number or a word, up to the next delimiter.
    Word,
    /// A string in double quotes.
    Json,
    AfterValue,
}

/// Reads a call.
#[derive(Clone, Debug)]
pub(super) struct GemmaCall {
    /// The mark at either end of a string.
    quote: &'static str,
    state: State,
    until: Until,
    expect: Expect,
    scanner: JsonScanner,
    /// True for each open object, false for each open array.
    open: Vec<bool>,
    /// The name, key or word that is being read.
    text: String,
}

impl GemmaCall {
    pub(super) fn new(quote: &'static str) -> GemmaCall {
        GemmaCall {
            quote,
            state: State::Call,
            until: Until::default(),
            expect: Expect::default(),
            scanner: JsonScanner::new(),
            open: Vec::new(),
            text: String::new(),
        }
    }

    pub(super) fn step(&mut self, c: char, out: &mut Output) -> Taken {
        let space = c.is_whitespace();
        match self.state {
            State::Call => {
                let mark = self.expect.step(c, &["call:"]);
                if mark.map_err(|_| one_of(&["call:"]))?.is_some() {
                    self.state = State::Name;
                }
            }
            State::Name if c == '{' => {
                let name = std::mem::take(&mut self.text);
                if !is_name(name.trim()) {
                    return Err("the name of a function".to_owned());
                }
                out.begin(name.trim());
                return self.nest(c, out);
            }
            State::Name => self.push(c, "'{' after the name")?,
            State::KeyOrEnd if c == '}' && self.is_blank() => return self.close(c, out),
            State::Key | State::KeyOrEnd => return self.key(c, out),
            State::QuotedKey => {
                if self.text_or_end(c)? {
                    self.state = State::Colon;
                }
            }
            State::Colon if c == ':' => self.end_key(out),
            State::ValueOrEnd if c == ']' => return self.close(c, out),
            State::Colon | State::Value | State::ValueOrEnd | State::AfterValue if space => {}
            State::Colon => return Err("':' after a key".to_owned()),
            State::Value | State::ValueOrEnd => return self.value(c, out),
            State::Quote => {
                let mark = self.expect.step(c, &[self.quote]);
                if mark.map_err(|_| one_of(&[self.quote]))?.is_some() {
                    out.arguments("\"");
                    self.state = State::Text;
                }
            }
            State::Text => {
                let (mut free, mut json) = (String::new(), String::new());
                let end = self.until.step(c, &[self.quote], &mut free);
                free.chars().for_each(|c| push_escaped(c, &mut json));
                if end.is_some() {
                    json.push('"');
                    self.state = State::AfterValue;
                }
                out.arguments(&json);
            }
            State::Word if matches!(c, ',' | '}' | ']') => {
                let word = std::mem::take(&mut self.text);
                out.arguments(&Types::ANY.to_json(word.trim_end()));
                self.state = State::AfterValue;
                return self.step(c, out);
            }
            State::Word => self.text.push(c),
            State::Json => {
                let mut json = String::new();
                if self.scanner.step(c, &mut json)? == Scan::End {
                    self.state = State::AfterValue;
                }
                out.arguments(&json);
            }
            State::AfterValue => return self.after_value(c, out),
        }
        Ok(Step::More)
    }

    fn is_blank(&self) -> bool {
        self.text.trim().is_empty() && self.until.is_empty()
    }

    fn push(&mut self, c: char, expected: &str) -> Result<(), String> {
        if self.text.len() > LONGEST_NAME {
            return Err(expected.to_owned());
        }
        self.text.push(c);
        Ok(())
    }

    fn key(&mut self, c: char, out: &mut Output) -> Taken {
        let mut free = String::new();
        let found = self.until.step(c, &[":", self.quote], &mut free);
        for c in free.chars() {
            if matches!(c, ',' | '{' | '}' | '[' | ']') {
                return Err("':' after a key".to_owned());
            }
            self.push(c, "':' after a key")?;
        }
        match found {
            Some(0) if self.is_blank() => return Err("a key".to_owned()),
            Some(0) => self.end_key(out),
            Some(_) if self.is_blank() => {
                self.text.clear();
                self.state = State::QuotedKey;
            }
            Some(_) => return Err("':' after a key".to_owned()),
            None => {}
        }
        Ok(Step::More)
    }

    /// Reads up to the closing quote of a key.
    fn text_or_end(&mut self, c: char) -> Result<bool, String> {
        let mut free = String::new();
        let found = self.until.step(c, &[self.quote], &mut free);
        for c in free.chars() {
            self.push(c, "the end of a key")?;
        }
        Ok(found.is_some())
    }

    fn end_key(&mut self, out: &mut Output) {
        let key = std::mem::take(&mut self.text);
        out.arguments(&quoted(key.trim()));
        out.arguments(": ");
        self.state = State::Value;
    }

    fn value(&mut self, c: char, out: &mut Output) -> Taken {
        match c {
            '{' | '[' => return self.nest(c, out),
            '"' => {
                self.scanner = JsonScanner::new();
                self.state = State::Json;
                return self.step(c, out);
            }
            ',' | '}' | ']' | ':' => return Err("a value".to_owned()),
            c if self.quote.starts_with(c) => {
                self.state = State::Quote;
                return self.step(c, out);
            }
            c => {
                self.text.clear();
                self.text.push(c);
                self.state = State::Word;
            }
        }
        Ok(Step::More)
    }

    fn nest(&mut self, c: char, out: &mut Output) -> Taken {
        if self.open.len() == DEEPEST {
            return Err(format!("no deeper nesting than {DEEPEST} levels"));
        }
        self.open.push(c == '{');
        out.arguments(c.encode_utf8(&mut [0; 4]));
        self.state = if c == '{' {
            State::KeyOrEnd
        } else {
            State::ValueOrEnd
        };
        Ok(Step::More)
    }

    fn after_value(&mut self, c: char, out: &mut Output) -> Taken {
        match (c, self.open.last()) {
            ('}', Some(true)) | (']', Some(false)) => self.close(c, out),
            (',', Some(&object)) => {
                out.arguments(", ");
                self.state = if object { State::Key } else { State::Value };
                Ok(Step::More)
            }
            _ => Err("',' or the end of the object or list".to_owned()),
        }
    }

    fn close(&mut self, c: char, out: &mut Output) -> Taken {
        out.arguments(c.encode_utf8(&mut [0; 4]));
        self.text.clear();
        self.open.pop();
        self.state = State::AfterValue;
        if !self.open.is_empty() {
            return Ok(Step::More);
        }
        out.end();
        Ok(Step::Done)
    }
}
