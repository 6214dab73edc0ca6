//! What an answer must look like: the flags, and how they are read.

use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use welte::Constraint;

/// The form of the answer. At most one of these.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// Answer with JSON that this schema accepts
    #[arg(
        short = 'j',
        long,
        value_name = "SCHEMA",
        help_heading = "Form of the answer"
    )]
    json_schema: Option<String>,
    /// File with that schema
    #[arg(long, value_name = "FILE", help_heading = "Form of the answer")]
    json_schema_file: Option<PathBuf>,
    /// Answer with a JSON object
    #[arg(long, help_heading = "Form of the answer")]
    json: bool,
    /// Answer with text that this grammar accepts, in GBNF or Lark
    #[arg(long, value_name = "GRAMMAR", help_heading = "Form of the answer")]
    grammar: Option<String>,
    /// File with that grammar
    #[arg(long, value_name = "FILE", help_heading = "Form of the answer")]
    grammar_file: Option<PathBuf>,
    /// Answer with text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", help_heading = "Form of the answer")]
    regex: Option<String>,
}

impl ConstraintArgs {
    /// The constraint that the flags ask for.
    pub(crate) fn constraint(&self) -> anyhow::Result<Option<Constraint>> {
        let constraint = if let Some(text) = &self.json_schema {
            schema(text, "--json-schema")?
        } else if let Some(path) = &self.json_schema_file {
            schema(&read(path, "--json-schema-file")?, "--json-schema-file")?
        } else if self.json {
            Constraint::Json
        } else if let Some(text) = &self.grammar {
            Constraint::grammar(text.clone())
        } else if let Some(path) = &self.grammar_file {
            Constraint::grammar(read(path, "--grammar-file")?)
        } else if let Some(regex) = &self.regex {
            Constraint::Regex(regex.clone())
        } else {
            return Ok(None);
        };
        constraint.check()?;
        Ok(Some(constraint))
    }
}

fn schema(text: &str, flag: &str) -> anyhow::Result<Constraint> {
    let schema = serde_json::from_str(text);
    let schema = schema.with_context(|| format!("{flag}: the schema is not JSON"))?;
    Ok(Constraint::JsonSchema(schema))
}

fn read(path: &Path, flag: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    text.with_context(|| format!("{flag} {}", path.display()))
}
