//! `welte create`: models over others, with a system prompt, parameters, a template and first messages of their own.

use crate::args::{Command, RunArgs};
use crate::recipes::{CreateArgs, created, recipes};
use crate::{hub, short, source};
use anyhow::{Context, bail};
use std::path::Path;
use std::process::ExitCode;
use welte::GenerateOptions;
use welte_server::{Recipe, Recipes};

pub(crate) fn run(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let recipes = recipes()?;
    let name = Recipes::plain(&args.name).unwrap_or(&args.name);
    if let Some(other) = short::on_hub(name) {
        bail!("{name}: is the short name of {other}; choose another one");
    }
    let shown = args.file.display();
    let recipe = Recipe::parse(&source::read_text(&args.file)?);
    let mut recipe = recipe.map_err(|problem| anyhow::anyhow!("{shown}: {problem}"))?;
    match created(&recipe.from)? {
        Some(base) if recipe.from != name => recipe = recipe.over(&base),
        _ => {
            let folder = args.file.parent().unwrap_or(Path::new(""));
            recipe.from = base(&recipe.from, folder).with_context(|| format!("{shown}: FROM"))?;
        }
    }
    recipes.put(name, &recipe).map_err(anyhow::Error::msg)?;
    eprintln!("{name}: created; `welte run {name}` starts it");
    Ok(ExitCode::SUCCESS)
}

/// The file or folder of a base. Relative paths start at the describing file.
fn base(from: &str, folder: &Path) -> anyhow::Result<String> {
    if from.starts_with("synthetic:") {
        return Ok(from.to_string());
    }
    let path = folder.join(from);
    if path.exists() {
        let path = std::path::absolute(&path)?;
        return Ok(path.to_str().context("its path is not UTF-8")?.to_string());
    }
    if short::on_hub(from).is_none() && !from.contains('/') {
        bail!("{from}: neither a file, nor a created model, nor a name on the hub");
    }
    let path = std::path::absolute(hub::path(from, true)?)?;
    Ok(path.to_str().context("its path is not UTF-8")?.to_string())
}

/// Replaces the name of a created model by its base, and applies the rest to answers.
pub(crate) fn prepare(command: &mut Command) -> anyhow::Result<()> {
    let model = match command {
        Command::Run(args) | Command::Chat(args) => return prepare_answers(args),
        Command::Inspect(args) => args.load.model.as_mut().or(args.source.as_mut()),
        Command::Profile(args) => args.load.model.as_mut().or(args.source.as_mut()),
        Command::Embed(args) => args.load.model.as_mut(),
        Command::Rerank(args) => args.load.model.as_mut(),
        Command::Tune(args) => args.load.model.as_mut().or(args.source.as_mut()),
        Command::Perplexity(args) => args.load.model.as_mut().or(args.source.as_mut()),
        Command::Imatrix(args) => args.load.model.as_mut().or(args.source.as_mut()),
        Command::Bench(args) => args.model.as_mut().or(args.source.as_mut()),
        Command::Tokenize(args) => args.model.as_mut().or(args.source.as_mut()),
        _ => return Ok(()),
    };
    if let Some(model) = model
        && let Some(recipe) = created(model)?
    {
        *model = recipe.from;
    }
    Ok(())
}

fn prepare_answers(args: &mut RunArgs) -> anyhow::Result<()> {
    // The first word is a model if nothing else names one.
    let in_words = args.load.model.is_none();
    if in_words && args.load.hf_repo.is_some() {
        return Ok(());
    }
    let Some(model) = args.load.model.as_ref().or(args.words.first()) else {
        return Ok(());
    };
    let Some(recipe) = created(model)? else {
        return Ok(());
    };
    if in_words {
        args.words.remove(0);
    }
    args.load.model = Some(recipe.from.clone());
    let mut options = GenerateOptions::default();
    recipe.apply(&mut options);
    args.sampling.underlay(options, recipe.has_seed());
    let context = &mut args.load.place.ctx_size;
    if *context == 0 {
        *context = recipe.context().unwrap_or(0);
    }
    args.recipe = Some(recipe);
    Ok(())
}
