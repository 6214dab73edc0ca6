//! What the grammar compiler reads for a constraint.

use super::form::{self, Controls};
use super::kinds::{Constraint, Source, quoted};
use super::{gbnf, measure, schema};
use crate::Error;

impl Constraint {
    /// Checks what can be checked without a model: sizes and keywords. Compiling finds the rest.
    pub fn check(&self) -> Result<(), Error> {
        self.measure()?;
        self.source(&Controls::default()).map(|_| ())
    }

    /// What the grammar compiler reads, for a vocabulary with these control tokens.
    pub(super) fn source(&self, controls: &Controls) -> Result<Source, Error> {
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
