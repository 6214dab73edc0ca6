//! Constraints that consist of others, translated to one Lark grammar.

use super::kinds::{Constraint, Source, quoted};
use crate::Error;
use std::fmt::Write;

/// A part of a mark.
#[derive(Debug, PartialEq)]
pub(super) enum MarkPart<'a> {
    Text(&'a str),
    /// A control token, which is not text to the matcher.
    Control(u32),
}

/// Spellings of control tokens.
#[derive(Default)]
pub(super) struct Controls(Vec<(String, u32)>);

impl Controls {
    pub(super) fn new(mut all: Vec<(String, u32)>) -> Controls {
        all.retain(|(text, _)| !text.is_empty());
        // A spelling may begin with another one: the longest counts.
        all.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Controls(all)
    }

    /// Splits a text at the control tokens that it spells.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<MarkPart<'a>> {
        let mut pieces = Vec::new();
        let (mut from, mut at) = (0, 0);
        while at < text.len() {
            let rest = &text[at..];
            let control = self
                .0
                .iter()
                .find(|(spelling, _)| rest.starts_with(spelling.as_str()));
            let Some((spelling, token)) = control else {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            };
            if from < at {
                pieces.push(MarkPart::Text(&text[from..at]));
            }
            pieces.push(MarkPart::Control(*token));
            at += spelling.len();
            from = at;
        }
        if from < at {
            pieces.push(MarkPart::Text(&text[from..at]));
        }
        pieces
    }
}

/// The grammar of a constraint.
pub(super) fn to_lark(constraint: &Constraint, controls: &Controls) -> Result<String, Error> {
    let mut writer = Writer {
        controls,
        rules: String::new(),
        count: 0,
    };
    let start = writer.expression(constraint)?;
    Ok(format!("start: {start}\n{}", writer.rules))
}

struct Writer<'a> {
    controls: &'a Controls,
    rules: String,
    /// Numbers the rules.
    count: usize,
}

impl Writer<'_> {
    fn expression(&mut self, constraint: &Constraint) -> Result<String, Error> {
        Ok(match constraint {
            Constraint::Text(text) => self.pieces(&self.controls.split(text)),
            Constraint::Until { mark, without } => {
                let pieces = self.controls.split(mark);
                let Some((first, rest)) = pieces.split_first() else {
                    return Err(constraint.refused("its mark is empty"));
                };
                let begin = match first {
                    // The mark's last character ends the text, whatever the rest of its token is.
                    MarkPart::Text(text) => {
                        let body = format!("(?s:.*){}", escaped(text));
                        let terminal = self.terminal(&body, without);
                        let rule = terminal.to_lowercase();
                        let _ = writeln!(self.rules, "{rule}[lazy]: {terminal}");
                        rule
                    }
                    MarkPart::Control(token) => {
                        let mut without = without.clone();
                        without.push(mark.clone());
                        let terminal = self.terminal("(?s:.+)", &without);
                        format!("{terminal}? <[{token}]>")
                    }
                };
                format!("{begin} {}", self.pieces(rest))
            }
            Constraint::Without(marks) => {
                let terminal = self.terminal("(?s:.+)", marks);
                format!("{terminal}?")
            }
            Constraint::Sequence(parts) => {
                let parts: Result<Vec<String>, Error> =
                    parts.iter().map(|part| self.rule(part)).collect();
                format!("\"\" {}", parts?.join(" "))
            }
            Constraint::OneOf(parts) => {
                if parts.is_empty() {
                    return Err(constraint.refused("it has no alternatives"));
                }
                let parts: Result<Vec<String>, Error> =
                    parts.iter().map(|part| self.rule(part)).collect();
                parts?.join(" | ")
            }
            Constraint::Repeated(part) => format!("{}*", self.rule(part)?),
            leaf => match leaf.source(self.controls)? {
                Source::Schema(schema) => format!("%json {schema}"),
                Source::Regex(regex) => format!("/{}/", llguidance::regex_to_lark(&regex, "")),
                Source::Lark(lark) => format!("%lark {{\n{lark}\n}}"),
            },
        })
    }

    /// A rule for a constraint. Returns its name.
    fn rule(&mut self, constraint: &Constraint) -> Result<String, Error> {
        let expression = self.expression(constraint)?;
        self.count += 1;
        let name = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{name}: {expression}");
        Ok(name)
    }

    /// A terminal for text without these marks. Returns its name.
    fn terminal(&mut self, body: &str, without: &[String]) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        let _ = write!(self.rules, "{name}: /{body}/");
        let marks: Vec<String> = without.iter().map(|mark| escaped(mark)).collect();
        if !marks.is_empty() {
            let marks = marks.join("|");
            let _ = write!(self.rules, " & ~/(?s:.*)({marks})(?s:.*)/");
        }
        self.rules.push('\n');
        name
    }

    fn pieces(&self, pieces: &[MarkPart]) -> String {
        let piece = |piece: &MarkPart| match piece {
            MarkPart::Text(text) => quoted(text),
            MarkPart::Control(token) => format!("<[{token}]>"),
        };
        match pieces {
            [] => "\"\"".to_string(),
            pieces => pieces.iter().map(piece).collect::<Vec<_>>().join(" "),
        }
    }
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| format!("\\x{{{:x}}}", u32::from(c)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_split_at_control_tokens() {
        let controls = Controls::new(vec![
            ("<|a".into(), 1),
            ("<|a|>".into(), 2),
            (String::new(), 3),
        ]);
        assert_eq!(
            controls.split("<|a|>thought<|a\n"),
            [
                MarkPart::Control(2),
                MarkPart::Text("thought"),
                MarkPart::Control(1),
                MarkPart::Text("\n")
            ]
        );
        assert_eq!(controls.split("ä<"), [MarkPart::Text("ä<")]);
        assert!(controls.split("").is_empty());
    }
}
