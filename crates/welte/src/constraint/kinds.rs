//! The kinds of constraints.

use crate::Error;
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

    pub(super) fn refused(&self, problem: impl Into<String>) -> Error {
        Error::Constraint {
            kind: self.kind(),
            at: None,
            problem: problem.into(),
        }
    }
}

/// A text as a literal of Lark, which has the escapes of JSON.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A checked constraint in a language of the compiler.
pub(super) enum Source {
    Schema(Value),
    Regex(String),
    Lark(String),
}
