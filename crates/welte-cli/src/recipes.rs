//! The models that were created from others, as this user has them.

use crate::source;
use std::path::PathBuf;
use welte_server::{Recipe, Recipes};

#[derive(clap::Args)]
pub(crate) struct CreateArgs {
    /// The new model's name, such as pirate or pirate:small
    pub(crate) name: String,
    /// The file that describes it (-: standard input): FROM, SYSTEM, PARAMETER, TEMPLATE, MESSAGE and LICENSE, as Ollama's
    #[arg(short, long, value_name = "FILE", default_value = "Modelfile")]
    pub(crate) file: PathBuf,
}

/// The folder with the created models.
pub(crate) fn recipes() -> anyhow::Result<Recipes> {
    let settings = welte_hub::Settings::from_env()?;
    Ok(Recipes::new(settings.created))
}

/// The created model of this name, if there is one and no file is called so.
pub(crate) fn created(name: &str) -> anyhow::Result<Option<Recipe>> {
    if source::is_model(name) || Recipes::plain(name).is_none() {
        return Ok(None);
    }
    // Without a home there is no folder.
    let Ok(recipes) = recipes() else {
        return Ok(None);
    };
    recipes.get(name).map_err(anyhow::Error::msg)
}
