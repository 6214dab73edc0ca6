//! Constraints: what an answer must look like. A constraint is compiled before its request is accepted; what cannot be
//! enforced is refused.

mod closed;
mod compile;
mod form;
mod gbnf;
mod grammar;
mod measure;
mod schema;

pub(crate) use compile::{compile, spawn};
pub(crate) use grammar::{Grammars, Matching, Progress};

use crate::Error;
use form::Controls;
use serde_json::Value;

/// What an answer must look like. Text before or after it is not allowed; the answer ends with an end token as soon as
/// nothing else may follow.
///
/// ```
/// use serde_json::json;
/// let schema = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}});
/// let constraint = welte::Constraint::JsonSchema(schema);
/// assert!(constraint.check().is_ok());
/// let schema = json!({"properties": {"age": {"not": {"type": "string"}}}});
/// let error = welte::Constraint::JsonSchema(schema).check().unwrap_err();
/// assert!(error.to_string().contains("/properties/age"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// A JSON value that a JSON Schema accepts (draft 2020-12, or what `$schema` names).
    JsonSchema(Value),
    /// Any JSON object.
    Json,
    /// A text that a regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// A text of a grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A text of a grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Exactly this text. Where it spells a control token, the answer has this token.
    Text(String),
    /// Any text up to the first mark, and the mark. A mark may be a control token.
    Until {
        /// The mark.
        mark: String,
        /// Marks that the text must not contain.
        without: Vec<String>,
    },
    /// Any text that contains none of these marks.
    Without(Vec<String>),
    /// One after the other.
    Sequence(Vec<Constraint>),
    /// One of these.
    OneOf(Vec<Constraint>),
    /// Any number of times, also never.
    Repeated(Box<Constraint>),
}

impl Constraint {
    /// A grammar in Lark or GBNF. GBNF has rules with `::=`.
    pub fn grammar(text: String) -> Constraint {
        if text.contains("::=") {
            Constraint::Gbnf(text)
        } else {
            Constraint::Lark(text)
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Constraint::JsonSchema(_) => "JSON schema",
            Constraint::Json => "JSON object",
            Constraint::Regex(_) => "regular expression",
            Constraint::Lark(_) => "Lark grammar",
            Constraint::Gbnf(_) => "GBNF grammar",
            Constraint::Choice(_) => "choice",
            Constraint::Text(_)
            | Constraint::Until { .. }
            | Constraint::Without(_)
            | Constraint::Sequence(_)
            | Constraint::OneOf(_)
            | Constraint::Repeated(_) => "form",
        }
    }

    /// Checks what can be checked without a model: sizes and keywords. Compiling finds the rest.
    pub fn check(&self) -> Result<(), Error> {
        self.measure()?;
        self.source(&Controls::default()).map(|_| ())
    }

    fn refused(&self, problem: impl Into<String>) -> Error {
        Error::Constraint {
            kind: self.kind(),
            at: None,
            problem: problem.into(),
        }
    }

    /// What the grammar compiler reads, for a vocabulary with these control tokens.
    fn source(&self, controls: &Controls) -> Result<Source, Error> {
        Ok(match self {
            Constraint::JsonSchema(schema) => Source::Schema(schema::checked(schema)?),
            Constraint::Json => Source::Schema(schema::object()),
            Constraint::Regex(text) if text.is_empty() => {
                return Err(self.refused("it is empty"));
            }
            Constraint::Regex(text) => Source::Regex(text.clone()),
            Constraint::Lark(text) if text.trim().is_empty() => {
                return Err(self.refused("it is empty"));
            }
            Constraint::Lark(text) => Source::Lark(text.clone()),
            Constraint::Gbnf(text) => {
                let lark = gbnf::to_lark(text).map_err(|problem| self.refused(problem))?;
                measure::grammar(&lark).map_err(|problem| self.refused(problem))?;
                Source::Lark(lark)
            }
            Constraint::Choice(texts) => Source::Lark(self.alternatives(texts)?),
            Constraint::Text(_)
            | Constraint::Until { .. }
            | Constraint::Without(_)
            | Constraint::Sequence(_)
            | Constraint::OneOf(_)
            | Constraint::Repeated(_) => Source::Lark(form::to_lark(self, controls)?),
        })
    }

    /// A grammar of alternatives.
    fn alternatives(&self, texts: &[String]) -> Result<String, Error> {
        if texts.is_empty() {
            return Err(self.refused("it has no texts"));
        }
        if texts.iter().any(String::is_empty) {
            return Err(self.refused("one of its texts is empty"));
        }
        let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        Ok(format!("start: {}\n", quoted.join(" | ")))
    }
}

/// A text as a literal of Lark, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A checked constraint in a language of the compiler.
enum Source {
    Schema(Value),
    Regex(String),
    Lark(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_model_is_needed_for_is_checked() {
        let refused = |constraint: Constraint| constraint.check().unwrap_err().to_string();
        for (constraint, why) in [
            (Constraint::Regex(String::new()), "it is empty"),
            (Constraint::Lark(" \n".into()), "it is empty"),
            (Constraint::Regex("a".repeat(200_000)), "the most are"),
            (
                Constraint::Gbnf("root ::= b".into()),
                "\"b\" is not defined",
            ),
            (Constraint::Choice(Vec::new()), "it has no texts"),
            (
                Constraint::Choice(vec!["a".into(), String::new()]),
                "one of its texts is empty",
            ),
            (
                Constraint::JsonSchema(serde_json::json!({ "not": {} })),
                "/not",
            ),
        ] {
            let said = refused(constraint);
            assert!(said.contains(why), "{said}");
        }
        for constraint in [
            Constraint::Json,
            Constraint::Regex("a".into()),
            Constraint::Lark("start: \"a\"".into()),
            Constraint::Gbnf("root ::= \"b\"".into()),
            Constraint::Choice(vec!["a".into()]),
            Constraint::Text("a".into()),
            Constraint::JsonSchema(serde_json::json!({})),
        ] {
            constraint.check().unwrap();
        }
    }
}
