//! llama.cpp's grammar language, translated to Lark.

use super::measure::MOST_RULES;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The deepest nesting of groups.
const DEEPEST: usize = 100;

/// Translates a grammar. The error names the line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser {
        text,
        at: 0,
        names: HashMap::new(),
        defined: HashSet::new(),
        depth: 0,
    };
    let mut lark = String::new();
    loop {
        parser.skip(true);
        if parser.rest().is_empty() {
            break;
        }
        let rule = parser.rule()?;
        lark.push_str(&rule);
    }
    let missing = parser
        .names
        .iter()
        .filter(|(name, _)| !parser.defined.contains(*name));
    match missing.min_by_key(|(_, number)| **number) {
        Some((name, _)) => Err(format!("the rule {name:?} is not defined")),
        None if parser.defined.contains("root") => {
            let root = parser.number("root");
            Ok(format!("start: r{root}\n{lark}"))
        }
        None => Err("there is no rule \"root\"".into()),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// All names that occur, numbered; the rule of name `i` is `r<i>` in Lark.
    names: HashMap<&'a str, usize>,
    defined: HashSet<&'a str>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn problem<T>(&self, what: &str) -> Result<T, String> {
        let line = 1 + self.text[..self.at].matches('\n').count();
        Err(format!("line {line}: {what}"))
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        if self.rest().starts_with(wanted) {
            self.at += wanted.len()
        } else {
            return self.problem(&format!("expected {wanted:?}"));
        }
        Ok(())
    }

    /// Skips spaces and comments, and line breaks if these do not end the rule.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => {
                    let line = self.rest().find('\n').unwrap_or(self.rest().len());
                    self.at += line;
                }
                '\n' | '\r' if !lines => return,
                _ if next.is_whitespace() => self.at += next.len_utf8(),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let part = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let end = self.rest().find(part).unwrap_or(self.rest().len());
        if end == 0 {
            return self.problem("expected the name of a rule");
        }
        let name = &self.rest()[..end];
        self.at += end;
        Ok(name)
    }

    fn number(&mut self, name: &'a str) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    fn rule(&mut self) -> Result<String, String> {
        let name = self.name()?;
        if self.defined.contains(name) {
            return self.problem(&format!("the rule {name:?} is defined twice"));
        }
        if self.defined.len() >= MOST_RULES {
            return self.problem(&format!("there are more than {MOST_RULES} rules"));
        }
        let number = self.number(name);
        self.defined.insert(name);
        self.skip(false);
        self.expect("::=")?;
        self.skip(true);
        let body = self.alternatives(false)?;
        self.skip(false);
        match self.peek() {
            None | Some('\n' | '\r') => Ok(format!("r{number}: {body}\n")),
            Some(other) => self.problem(&format!("unexpected {other:?}")),
        }
    }

    /// Alternatives. In a group they may take several lines.
    fn alternatives(&mut self, group: bool) -> Result<String, String> {
        let mut all = self.sequence(group)?;
        loop {
            self.skip(group);
            if self.peek() != Some('|') {
                return Ok(all);
            }
            self.at += 1;
            self.skip(true);
            all.push_str(" | ");
            all.push_str(&self.sequence(group)?);
        }
    }

    fn sequence(&mut self, group: bool) -> Result<String, String> {
        let mut all = Vec::new();
        loop {
            self.skip(group);
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    "/(?s:.)/".to_string()
                }
                Some('(') => {
                    self.at += 1;
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        return self.problem("groups are nested too deeply");
                    }
                    self.skip(true);
                    let body = self.alternatives(true)?;
                    self.skip(true);
                    self.expect(")")?;
                    self.depth -= 1;
                    format!("({body})")
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                    let name = self.name()?;
                    format!("r{}", self.number(name))
                }
                // An empty alternative.
                _ if all.is_empty() => return Ok("\"\"".to_string()),
                _ => return Ok(all.join(" ")),
            };
            let repeated = self.repetition(&item)?;
            all.push(repeated);
        }
    }

    fn repetition(&mut self, item: &str) -> Result<String, String> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.at += 1;
                Ok(format!("{item}{c}"))
            }
            Some('{') => {
                let end = self.rest().find('}');
                let Some(end) = end else {
                    return self.problem("a '{' without '}'");
                };
                let inside = self.rest()[1..end].to_string();
                let number = |text: &str| text.trim().parse::<u32>().ok();
                let bounds = match inside.split_once(',') {
                    None => number(&inside).map(|n| format!("{n}")),
                    Some((least, most)) if most.trim().is_empty() => {
                        number(least).map(|n| format!("{n},"))
                    }
                    Some((least, most)) => {
                        let (least, most) = (number(least), number(most));
                        let bounds = least.zip(most).filter(|(least, most)| least <= most);
                        bounds.map(|(least, most)| format!("{least},{most}"))
                    }
                };
                let Some(bounds) = bounds else {
                    return self.problem(&format!("{{{inside}}} is not a repetition"));
                };
                self.at += end + 1;
                Ok(format!("{item}{{{bounds}}}"))
            }
            _ => Ok(item.to_string()),
        }
    }

    fn literal(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return self.problem("a string without its closing '\"'"),
                Some('"') => return Ok(super::kinds::quoted(&text)),
                Some('\\') => text.push(self.escape()?),
                Some(other) => text.push(other),
            }
        }
    }

    /// A class of characters, as a regular expression.
    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut class = String::from("/[");
        if self.peek() == Some('^') {
            self.at += 1;
            class.push('^');
        }
        let mut any = false;
        loop {
            let low = match self.next() {
                None | Some('\n') => return self.problem("a class without its closing ']'"),
                Some(']') if any => break,
                Some(']') => return self.problem("an empty class"),
                Some('\\') => self.escape()?,
                Some(other) => other,
            };
            any = true;
            let _ = write!(class, "\\x{{{:x}}}", u32::from(low));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let high = match self.next() {
                    None | Some('\n') => return self.problem("a class without its closing ']'"),
                    Some('\\') => self.escape()?,
                    Some(other) => other,
                };
                if high < low {
                    return self.problem(&format!("the range {low:?}-{high:?} is empty"));
                }
                let _ = write!(class, "-\\x{{{:x}}}", u32::from(high));
            }
        }
        class.push_str("]/");
        Ok(class)
    }

    /// A character after a backslash.
    fn escape(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return self.problem("an unknown escape"),
        };
        let code = self.rest().get(..digits);
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.problem("an escape without a character's number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DEEPEST, to_lark};

    #[test]
    fn a_grammar_becomes_lark() {
        let text = r#"
# The answer.
root ::= "a\"b" item* ( [^a-c\]] |
   "x"{2,3} ) # of this form
my-item ::= [\x41-Z\u00e9-] . | "" | item{2} item{1,}
item ::= "\n" |
"#;
        let lark = r#"start: r0
r0: "a\"b" r1* (/[^\x{61}-\x{63}\x{5d}]/ | "x"{2,3})
r2: /[\x{41}-\x{5a}\x{e9}\x{2d}]/ /(?s:.)/ | "" | r1{2} r1{1,}
r1: "\n" | ""
"#;
        assert_eq!(to_lark(text).unwrap(), lark);
    }

    #[test]
    fn groups_nest_so_deep_and_no_deeper() {
        let nested = |depth: usize| {
            let text = format!("root ::= {}\"a\"{}", "(".repeat(depth), ")".repeat(depth));
            to_lark(&text).map(drop)
        };
        assert_eq!(nested(DEEPEST), Ok(()));
        let error = nested(DEEPEST + 1).unwrap_err();
        assert!(error.contains("nested too deeply"), "{error}");
        // Beside each other there may be any number.
        let beside = format!("root ::= {}", "(\"a\") ".repeat(2 * DEEPEST));
        assert!(to_lark(&beside).is_ok());
    }

    #[test]
    fn errors_name_the_line() {
        for (text, problem) in [
            ("root ::= \"a\"\n\nitem = 3", "line 3: expected \"::=\""),
            ("root ::= (\"a\"", "line 1: expected \")\""),
            ("root ::= [a", "line 1: a class without its closing ']'"),
            ("root ::= \"\\q\"", "line 1: an unknown escape"),
            (
                "root ::= \"\\ud800\"",
                "line 1: an escape without a character's number",
            ),
            ("root ::= \"a\"{x}", "line 1: {x} is not a repetition"),
            ("root ::= \"a\" }", "line 1: unexpected '}'"),
            ("root ::= a", "the rule \"a\" is not defined"),
            (
                "root ::= \"a\"\nroot ::= \"b\"",
                "line 2: the rule \"root\" is defined twice",
            ),
            ("", "there is no rule \"root\""),
        ] {
            assert_eq!(to_lark(text).unwrap_err(), problem, "{text}");
        }
    }
}
