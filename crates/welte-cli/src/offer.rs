//! Flags of `welte serve` for what the server offers beside the models, and for chat templates.

use crate::flags::pooling;
use crate::source;
use crate::templates;
use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value};
use std::path::Path;
use welte::Pooling;
use welte_server::ServerOptions;

#[derive(clap::Args)]
pub(crate) struct OfferArgs {
    /// Words that clients see with the model, separated by commas
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    tags: Vec<String>,
    /// A chat template that replaces the models' own: its text, or the name of a common one such as chatml
    #[arg(long, value_name = "TEXT", conflicts_with = "chat_template_file")]
    chat_template: Option<String>,
    /// Variables of chat templates that requests do not set, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = variables)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether models reason before they answer, unless a request says (auto: as the template does)
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Reasoning::Auto)]
    reasoning: Reasoning,
    /// Rows that make the vector of a text: last, mean or cls [default: as the model says, else last]
    #[arg(long, value_name = "KIND", value_parser = pooling)]
    pub(crate) pooling: Option<Pooling>,
    /// Do not serve the chat page
    #[arg(long)]
    no_page: bool,
    /// Do not report at /slots which slots are busy
    #[arg(long)]
    no_slots: bool,
}

/// When models reason.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reasoning {
    On,
    Off,
    // As the template says.
    Auto,
}

fn variables(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("use a JSON object: {error}"))
}

/// Sets the options. `template` is a file with a chat template.
pub(crate) fn set(
    offer: &OfferArgs,
    template: Option<&Path>,
    options: &mut ServerOptions,
) -> anyhow::Result<()> {
    options.chat_template = match (&offer.chat_template, template) {
        (Some(text), _) => Some(templates::text(text)?),
        (None, Some(path)) => Some(source::read_text(path)?),
        (None, None) => None,
    };
    options.template_variables = offer.chat_template_kwargs.clone().unwrap_or_default();
    if offer.reasoning != Reasoning::Auto {
        let on = offer.reasoning == Reasoning::On;
        let name = "enable_thinking".to_string();
        options.template_variables.insert(name, on.into());
    }
    options.tags = offer.tags.clone();
    (options.page, options.slots) = (!offer.no_page, !offer.no_slots);
    Ok(())
}

/// The names of a model: the first one, and others.
pub(crate) fn names(alias: &str) -> anyhow::Result<(String, Vec<String>)> {
    let mut names = alias.split(',').map(str::trim).map(str::to_string);
    let first = names.next().filter(|name| !name.is_empty());
    let first = first.with_context(|| format!("--alias {alias:?}: has no name"))?;
    Ok((first, names.filter(|name| !name.is_empty()).collect()))
}
