//! The form of a text, as a tree.

use serde_json::Value;

/// The form of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Exactly this text. It may spell control tokens.
    Text(String),
    /// Any text up to the first mark, and the mark.
    Until {
        /// The mark.
        mark: String,
        /// Marks that the text must not contain.
        without: Vec<String>,
    },
    /// Any text without these marks.
    Without(Vec<String>),
    /// A text that this regular expression matches as a whole.
    Pattern(String),
    /// JSON of this schema.
    Json(Value),
    /// The form that the request gives its text.
    Content,
    /// One after the other.
    Sequence(Vec<Form>),
    /// One of these.
    OneOf(Vec<Form>),
    /// Any number of times, also never.
    Repeated(Box<Form>),
}

pub(super) fn text(text: &str) -> Form {
    Form::Text(text.to_string())
}

pub(super) fn optional(form: Form) -> Form {
    Form::OneOf(vec![text(""), form])
}
