//! Calls as Python writes them: `f(x=1, y='a')`, alone or in a list.

use super::json::{DEEPEST, push_escaped, quoted, whole};
use super::output::Output;
use super::schema::{LONGEST_NAME, Tool, is_name};
use super::step::{Step, Taken};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Name,
    /// A keyword or the end of the call.
    KeyOrEnd,
    Key,
    Equals,
    Value,
    ValueOrEnd,
    Text,
    Escape,
    /// Hexadecimal digits that are left, and the number so far.
    Code {
        left: u8,
        code: u32,
    },
    Word,
    AfterValue,
    /// Between the key and the value of a dictionary.
    Colon,
    /// `)` for each `print(`.
    Unwrap,
    /// Between the calls of a list.
    AfterItem,
}

/// What is open around a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Call,
    /// A list or a tuple, with its last character.
    List(char),
    /// Before the colon of a dictionary's entry.
    Key,
    /// After it.
    Entry,
}

/// Reads calls.
#[derive(Clone, Debug)]
pub(super) struct PythonCalls {
    state: State,
    /// Only a call of a known tool counts, because nothing marks the text as a call.
    tentative: bool,
    list: bool,
    /// How many `print(` are around the call.
    wrappers: usize,
    open: Vec<Open>,
    /// A comma was read. It is written before the next item, because Python allows one at the end.
    comma: bool,
    quote: char,
    /// The name, key or word that is being read.
    text: String,
}

impl PythonCalls {
    pub(super) fn new(tentative: bool) -> PythonCalls {
        PythonCalls {
            state: State::Start,
            tentative,
            list: false,
            wrappers: 0,
            open: Vec::new(),
            comma: false,
            quote: '"',
            text: String::new(),
        }
    }

    pub(super) fn step(&mut self, c: char, tools: &[Tool], out: &mut Output) -> Taken {
        let within = matches!(
            self.state,
            State::Name
                | State::Key
                | State::Text
                | State::Escape
                | State::Code { .. }
                | State::Word
        );
        if c.is_whitespace() && !within {
            return Ok(Step::More);
        }
        match self.state {
            State::Start if c == '[' && !self.list => self.list = true,
            State::Start if starts_word(c) => self.word(c, State::Name),
            State::Start => return Err("the name of a function".to_owned()),
            State::Name if c == '(' => self.begin(tools, out)?,
            State::Name if in_word(c) || c == '.' || c == '-' => self.push(c)?,
            State::Name => return Err("'(' after the name".to_owned()),
            State::KeyOrEnd if c == ')' => return self.close(c, out),
            State::KeyOrEnd if starts_word(c) => self.word(c, State::Key),
            State::KeyOrEnd => return Err("the name of an argument".to_owned()),
            State::Key if in_word(c) => self.push(c)?,
            State::Key | State::Equals if c == '=' => self.equals(out),
            State::Key if c.is_whitespace() => self.state = State::Equals,
            State::Key | State::Equals => return Err("'=' after an argument's name".to_owned()),
            State::ValueOrEnd if matches!(c, ']' | '}' | ')') => return self.close(c, out),
            State::Value | State::ValueOrEnd => return self.value(c, out),
            State::Text => self.text_step(c, out),
            State::Escape => return self.escape(c, out),
            State::Code { left, code } => {
                let digit = c.to_digit(16).ok_or("a hexadecimal digit")?;
                self.code(left - 1, code << 4 | digit, out)?;
            }
            State::Word if in_word(c) || matches!(c, '.' | '+' | '-') => self.text.push(c),
            State::Word => {
                self.end_word(out)?;
                return self.step(c, tools, out);
            }
            State::Colon if c == ':' => {
                out.arguments(": ");
                self.replace(Open::Entry);
                self.state = State::Value;
            }
            State::Colon => return Err("':' after a key".to_owned()),
            State::AfterValue => return self.after_value(c, out),
            State::Unwrap if c == ')' => {
                self.wrappers -= 1;
                return Ok(self.after_call());
            }
            State::Unwrap => return Err("')'".to_owned()),
            State::AfterItem if c == ',' => self.state = State::Start,
            State::AfterItem if c == ']' => return Ok(Step::Done),
            State::AfterItem => return Err("',' or ']' after a call".to_owned()),
        }
        Ok(Step::More)
    }

    fn word(&mut self, c: char, state: State) {
        self.text.clear();
        self.text.push(c);
        self.state = state;
    }

    fn push(&mut self, c: char) -> Result<(), String> {
        if self.text.len() > LONGEST_NAME {
            return Err("the end of a name".to_owned());
        }
        self.text.push(c);
        Ok(())
    }

    /// At `(` after a name.
    fn begin(&mut self, tools: &[Tool], out: &mut Output) -> Result<(), String> {
        let known = |name: &str| tools.iter().any(|tool| tool.name == name);
        if self.text == "print" && !known("print") {
            if self.wrappers > 0 {
                return Err("one 'print('".to_owned());
            }
            self.wrappers = 1;
            self.state = State::Start;
            return Ok(());
        }
        // Llama's built-in tools are called `name.call(...)`.
        let name = match self.text.strip_suffix(".call") {
            Some(name) if !known(&self.text) => name,
            _ => &self.text,
        };
        if !is_name(name) || (self.tentative && !known(name)) {
            return Err("the name of a tool".to_owned());
        }
        out.begin(name);
        out.arguments("{");
        self.open.push(Open::Call);
        self.state = State::KeyOrEnd;
        Ok(())
    }

    fn write_comma(&mut self, out: &mut Output) {
        if std::mem::take(&mut self.comma) {
            out.arguments(", ");
        }
    }

    fn equals(&mut self, out: &mut Output) {
        self.write_comma(out);
        out.arguments(&format!("{}: ", quoted(&self.text)));
        self.state = State::Value;
    }

    fn value(&mut self, c: char, out: &mut Output) -> Taken {
        let key = self.open.last() == Some(&Open::Key);
        self.write_comma(out);
        match c {
            '\'' | '"' => {
                self.quote = c;
                self.state = State::Text;
                out.arguments("\"");
            }
            '[' | '(' | '{' if !key => {
                if self.open.len() == DEEPEST {
                    return Err(format!("no deeper nesting than {DEEPEST} levels"));
                }
                self.open.push(match c {
                    '[' => Open::List(']'),
                    '(' => Open::List(')'),
                    _ => Open::Key,
                });
                out.arguments(if c == '{' { "{" } else { "[" });
                self.state = State::ValueOrEnd;
            }
            c if !key && (in_word(c) || matches!(c, '-' | '+' | '.')) => self.word(c, State::Word),
            _ if key => return Err("a key in quotes".to_owned()),
            _ => return Err("a literal".to_owned()),
        }
        Ok(Step::More)
    }

    fn text_step(&mut self, c: char, out: &mut Output) {
        if c == '\\' {
            self.state = State::Escape;
        } else if c == self.quote {
            out.arguments("\"");
            self.end_value();
        } else {
            self.letter(c, out);
        }
    }

    fn letter(&mut self, c: char, out: &mut Output) {
        let mut json = String::new();
        push_escaped(c, &mut json);
        out.arguments(&json);
        self.state = State::Text;
    }

    fn escape(&mut self, c: char, out: &mut Output) -> Taken {
        let left = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if left > 0 {
            self.state = State::Code { left, code: 0 };
            return Ok(Step::More);
        }
        match c {
            'n' => self.letter('\n', out),
            't' => self.letter('\t', out),
            'r' => self.letter('\r', out),
            '\\' | '\'' | '"' => self.letter(c, out),
            '\n' => self.state = State::Text,
            _ => {
                // Python keeps the backslash of an unknown escape.
                self.letter('\\', out);
                self.letter(c, out);
            }
        }
        Ok(Step::More)
    }

    fn code(&mut self, left: u8, code: u32, out: &mut Output) -> Result<(), String> {
        if left > 0 {
            self.state = State::Code { left, code };
            return Ok(());
        }
        let c = char::from_u32(code).ok_or("the number of a character")?;
        self.letter(c, out);
        Ok(())
    }

    fn end_word(&mut self, out: &mut Output) -> Result<(), String> {
        let word = std::mem::take(&mut self.text);
        let json = match word.as_str() {
            "True" | "true" => Some("true".to_owned()),
            "False" | "false" => Some("false".to_owned()),
            "None" | "null" => Some("null".to_owned()),
            number => whole(number),
        };
        out.arguments(&json.ok_or("a literal")?);
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.state = if self.open.last() == Some(&Open::Key) {
            State::Colon
        } else {
            State::AfterValue
        };
    }

    fn replace(&mut self, open: Open) {
        self.open.pop();
        self.open.push(open);
    }

    fn after_value(&mut self, c: char, out: &mut Output) -> Taken {
        if c != ',' {
            return self.close(c, out);
        }
        self.comma = true;
        self.state = State::ValueOrEnd;
        match self.open.last() {
            Some(Open::Call) => self.state = State::KeyOrEnd,
            Some(Open::Entry) => self.replace(Open::Key),
            _ => {}
        }
        Ok(Step::More)
    }

    /// Closes what is open.
    fn close(&mut self, c: char, out: &mut Output) -> Taken {
        let (end, json) = match self.open.pop() {
            Some(Open::Call) => (')', "}"),
            Some(Open::List(end)) => (end, "]"),
            _ => ('}', "}"),
        };
        if c != end {
            return Err(format!("',' or '{end}' after a value"));
        }
        self.comma = false;
        out.arguments(json);
        if !self.open.is_empty() {
            self.end_value();
            return Ok(Step::More);
        }
        out.end();
        Ok(self.after_call())
    }

    fn after_call(&mut self) -> Step {
        if self.wrappers > 0 {
            self.state = State::Unwrap;
        } else if self.list {
            self.state = State::AfterItem;
        } else {
            return Step::Done;
        }
        Step::More
    }
}

fn starts_word(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
