//! JSON, checked character by character.

/// The deepest nesting of objects and arrays. It fits into the bits of `JsonScanner::objects`.
pub(super) const DEEPEST: usize = 100;

/// Effect of a character on the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The value goes on.
    More,
    /// The value ends with this character.
    End,
    /// The value ended before this character: only numbers do so.
    Before,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Text,
    Escape,
    /// Digits of `\uXXXX` that are left, and the number so far.
    Unicode {
        left: u8,
        code: u32,
        low: bool,
    },
    /// Between the halves of a surrogate pair: `\`, then `u`.
    LowBackslash,
    LowU,
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
}

/// Checks one JSON value. Copies it with raw control characters in strings escaped, so that the copy is strict JSON.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    /// One bit for each open object (1) or array (0), the innermost last.
    objects: u128,
    depth: usize,
    state: State,
    /// Whether the string being read is a key.
    key: bool,
}

impl JsonScanner {
    pub(super) fn new() -> JsonScanner {
        JsonScanner {
            objects: 0,
            depth: 0,
            state: State::Value,
            key: false,
        }
    }

    /// Takes a character and appends what it adds to `out`. The error is what was expected instead.
    pub(super) fn step(&mut self, c: char, out: &mut String) -> Result<Scan, &'static str> {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        let next = match self.state {
            State::Value
            | State::ValueOrEnd
            | State::Key
            | State::KeyOrEnd
            | State::Colon
            | State::CommaOrEnd
                if space =>
            {
                self.state
            }
            State::ValueOrEnd if c == ']' => return Ok(self.close(c, out)),
            State::KeyOrEnd if c == '}' => return Ok(self.close(c, out)),
            State::Value | State::ValueOrEnd => self.value(c)?,
            State::Key | State::KeyOrEnd if c == '"' => {
                self.key = true;
                State::Text
            }
            State::Key | State::KeyOrEnd => return Err("a key in double quotes"),
            State::Colon if c == ':' => State::Value,
            State::Colon => return Err("':' after a key"),
            State::CommaOrEnd => match (c, self.in_object()) {
                (',', true) => State::Key,
                (',', false) => State::Value,
                ('}', true) | (']', false) => return Ok(self.close(c, out)),
                (_, true) => return Err("',' or '}' after a value"),
                (_, false) => return Err("',' or ']' after a value"),
            },
            State::Text if c == '"' => {
                out.push(c);
                return Ok(self.after_string());
            }
            State::Text if c == '\\' => State::Escape,
            State::Text => {
                push_escaped_control(c, out);
                return Ok(Scan::More);
            }
            State::Escape => match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => State::Text,
                'u' => State::Unicode {
                    left: 4,
                    code: 0,
                    low: false,
                },
                _ => return Err("one of \"\\/bfnrtu after a backslash"),
            },
            State::Unicode { left, code, low } => {
                let digit = c.to_digit(16).ok_or("a hexadecimal digit")?;
                unicode(left - 1, code << 4 | digit, low)?
            }
            State::LowBackslash if c == '\\' => State::LowU,
            State::LowU if c == 'u' => State::Unicode {
                left: 4,
                code: 0,
                low: true,
            },
            State::LowBackslash | State::LowU => {
                return Err("the second half of a surrogate pair");
            }
            State::Word(rest) => {
                let Some(rest) = rest.strip_prefix(c) else {
                    return Err("'true', 'false' or 'null'");
                };
                if rest.is_empty() {
                    out.push(c);
                    return Ok(self.after_value());
                }
                State::Word(rest)
            }
            number => match digits(number, c)? {
                Some(state) => state,
                None if self.after_value() == Scan::End => return Ok(Scan::Before),
                None => return self.step(c, out),
            },
        };
        out.push(c);
        self.state = next;
        Ok(Scan::More)
    }

    /// Whether a value that may end here is complete: true for numbers at the end of the text.
    pub(super) fn may_end(&self) -> bool {
        self.depth == 0
            && matches!(
                self.state,
                State::Zero | State::Integer | State::Fraction | State::ExponentDigits
            )
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn value(&mut self, c: char) -> Result<State, &'static str> {
        Ok(match c {
            '{' | '[' => {
                if self.depth == DEEPEST {
                    return Err("no deeper nesting than 100 levels");
                }
                self.depth += 1;
                self.objects = self.objects << 1 | u128::from(c == '{');
                if c == '{' {
                    State::KeyOrEnd
                } else {
                    State::ValueOrEnd
                }
            }
            '"' => {
                self.key = false;
                State::Text
            }
            '-' => State::Minus,
            '0' => State::Zero,
            '1'..='9' => State::Integer,
            't' => State::Word("rue"),
            'f' => State::Word("alse"),
            'n' => State::Word("ull"),
            _ => return Err("a JSON value"),
        })
    }

    fn close(&mut self, c: char, out: &mut String) -> Scan {
        out.push(c);
        self.depth -= 1;
        self.objects >>= 1;
        self.after_value()
    }

    fn after_string(&mut self) -> Scan {
        if !self.key {
            return self.after_value();
        }
        self.state = State::Colon;
        Scan::More
    }

    fn after_value(&mut self) -> Scan {
        self.state = State::CommaOrEnd;
        if self.depth == 0 {
            Scan::End
        } else {
            Scan::More
        }
    }
}

fn unicode(left: u8, code: u32, low: bool) -> Result<State, &'static str> {
    let pair = "both halves of a surrogate pair";
    Ok(match (left, code) {
        (0, 0xd800..=0xdbff) if !low => State::LowBackslash,
        (0, 0xdc00..=0xdfff) if low => State::Text,
        (0, 0xd800..=0xdfff) => return Err(pair),
        (0, _) if low => return Err(pair),
        (0, _) => State::Text,
        _ => State::Unicode { left, code, low },
    })
}

/// The next state within a number; `None` if the number ended before `c`.
fn digits(state: State, c: char) -> Result<Option<State>, &'static str> {
    let digit = c.is_ascii_digit();
    let exponent = matches!(c, 'e' | 'E');
    Ok(Some(match state {
        State::Minus if c == '0' => State::Zero,
        State::Minus | State::Integer if digit => State::Integer,
        State::Zero | State::Integer if c == '.' => State::Point,
        State::Zero | State::Integer | State::Fraction if exponent => State::Exponent,
        State::Point | State::Fraction if digit => State::Fraction,
        State::Exponent if matches!(c, '+' | '-') => State::ExponentSign,
        State::Exponent | State::ExponentSign | State::ExponentDigits if digit => {
            State::ExponentDigits
        }
        State::Integer | State::Fraction | State::ExponentDigits => return Ok(None),
        State::Zero if !digit => return Ok(None),
        State::Zero => return Err("no digit after a leading zero"),
        _ => return Err("a digit"),
    }))
}

/// Appends a character of a string; control characters as escapes.
fn push_escaped_control(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// Appends a character of a plain text to the inside of a JSON string.
pub(super) fn push_escaped(c: char, out: &mut String) {
    if matches!(c, '"' | '\\') {
        out.push('\\');
    }
    push_escaped_control(c, out);
}

/// A text as a JSON string, with quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        push_escaped(c, &mut out);
    }
    out.push('"');
    out
}

/// Strict JSON for a text that is one JSON value, white space around it aside.
pub(super) fn whole(text: &str) -> Option<String> {
    let (mut scanner, mut out) = (JsonScanner::new(), String::new());
    let mut chars = text.trim().chars();
    while let Some(c) = chars.next() {
        match scanner.step(c, &mut out).ok()? {
            Scan::More => {}
            Scan::End => return chars.next().is_none().then_some(out),
            Scan::Before => return None,
        }
    }
    scanner.may_end().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_and_nothing_else() {
        for text in [
            "{}",
            "[]",
            "[[], {}]",
            "{\"a\": {}, \"b\": [1, \"x\"]}",
            "true",
            "false",
            "null",
            "\"\"",
            "0",
            "-0",
            "10",
            "-12.5",
            "0.0",
            "1e5",
            "1E+5",
            "1.5e-05",
            "0e0",
            "[0,1.5,2e1]",
            "{\"a\":0}",
            "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
            "\"\\u0041\\uAbCd\"",
            "\"\\ud7ff\\ue000\"",
            "\"\\ud800\\udc00\\udbff\\udfff\"",
            "{\"\\u0041\": 1}",
            "[ true , null ]",
        ] {
            assert_eq!(whole(text).as_deref(), Some(text));
            let padded = format!(" \t{text}\r\n");
            assert_eq!(whole(&padded).as_deref(), Some(text));
            assert!(
                serde_json::from_str::<serde_json::Value>(text).is_ok(),
                "{text}"
            );
        }
        for text in [
            "",
            "{",
            "[",
            "]",
            "}",
            "[}",
            "{]",
            "[1",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\" 1}",
            "{\"a\":}",
            "{1: 2}",
            "{\"a\": 1,}",
            "{\"a\": 1 \"b\": 2}",
            "{,}",
            "[,]",
            "tru",
            "trux",
            "nul",
            "True",
            "01",
            "-",
            "-a",
            "1.",
            "1.e1",
            ".5",
            "1e",
            "1e+",
            "+1",
            "--1",
            "1e5.0",
            "1.5.5",
            "0x1",
            "1 2",
            "{} {}",
            "\"",
            "\"a",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\ud800x\"",
            "\"\\ud800\\n\"",
            "\"\\ud800\\u0041\"",
            "\"\\ud800\\ud800\"",
            "\"\\udc00\"",
            "\"\\udfff\"",
        ] {
            assert_eq!(whole(text), None, "{text}");
            assert!(
                serde_json::from_str::<serde_json::Value>(text).is_err(),
                "{text}"
            );
        }
    }

    /// What was expected instead of the last character.
    #[test]
    fn the_first_wrong_character_is_named() {
        for (text, expected) in [
            ("{1", "a key in double quotes"),
            ("{\"a\":1,}", "a key in double quotes"),
            ("{\"a\",", "':' after a key"),
            ("{\"a\":1 \"", "',' or '}' after a value"),
            ("{\"a\":1]", "',' or '}' after a value"),
            ("[1 2", "',' or ']' after a value"),
            ("[[]}", "',' or ']' after a value"),
            ("[x", "a JSON value"),
            ("tx", "'true', 'false' or 'null'"),
            ("\"\\x", "one of \"\\/bfnrtu after a backslash"),
            ("\"\\u00g", "a hexadecimal digit"),
            ("\"\\ud800x", "the second half of a surrogate pair"),
            ("\"\\ud800\\n", "the second half of a surrogate pair"),
            ("\"\\ud800\\u0041", "both halves of a surrogate pair"),
            ("\"\\udc00", "both halves of a surrogate pair"),
            ("00", "no digit after a leading zero"),
            ("-x", "a digit"),
            ("1.e", "a digit"),
            ("1e+-", "a digit"),
        ] {
            let (mut scanner, mut out) = (JsonScanner::new(), String::new());
            let all: Vec<_> = text.chars().map(|c| scanner.step(c, &mut out)).collect();
            let (last, before) = all.split_last().unwrap();
            assert!(before.iter().all(|step| *step == Ok(Scan::More)), "{text}");
            assert_eq!(*last, Err(expected), "{text}");
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(whole(&nested(DEEPEST)), Some(nested(DEEPEST)));
        assert_eq!(whole(&nested(DEEPEST + 1)), None);
    }

    /// A number may end with the text, unless it lies in something.
    #[test]
    fn numbers_end_before_the_next_character() {
        let steps = |text: &str| {
            let (mut scanner, mut out) = (JsonScanner::new(), String::new());
            let last = text.chars().map(|c| scanner.step(c, &mut out)).last();
            (last.unwrap(), scanner.may_end())
        };
        for number in ["0", "12", "1.5", "1e5"] {
            assert_eq!(steps(number), (Ok(Scan::More), true), "{number}");
            assert_eq!(steps(&format!("{number},")).0, Ok(Scan::Before));
            assert_eq!(steps(&format!("[{number}")), (Ok(Scan::More), false));
            assert_eq!(steps(&format!("[{number}]")).0, Ok(Scan::End));
        }
        for begun in ["-", "1.", "1e", "1e+", "tru", "\"1", "[1"] {
            assert!(!steps(begun).1, "{begun}");
        }
        assert_eq!(steps("{\"a\": 1}").0, Ok(Scan::End));
        assert_eq!(steps("[\"a\"").0, Ok(Scan::More));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            quoted("\"\\\n\r\t\u{1}\u{1f} é"),
            "\"\\\"\\\\\\n\\r\\t\\u0001\\u001f é\""
        );
        assert_eq!(whole("\"a\u{1}\"").as_deref(), Some("\"a\\u0001\""));
    }
}
