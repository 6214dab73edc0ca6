//! The models that `welte serve` knows: those named by the arguments, those in folders, and those in the hub's cache.

use crate::args::ServeArgs;
use crate::{hub, offer, source};
use anyhow::{Context, bail};
use std::path::Path;
use welte::{LoadOptions, Model};
use welte_report::{count, human};
use welte_server::{Catalog, Planned, Recipe, name_of};

/// All models. The first one is loaded if the arguments name it; the others are loaded at their first request.
pub(crate) fn of(args: &ServeArgs, load: &LoadOptions) -> anyhow::Result<(Catalog, Option<Model>)> {
    let named = named(args)?;
    if let Some(alias) = args.alias.get(named.len()) {
        bail!("--alias {alias}: there is no model for it; name the models with -m");
    }
    let mut catalog = Catalog::new(load.clone());
    let mut first = None;
    for (index, Named { name, path, recipe }) in named.into_iter().enumerate() {
        let (name, others) = match args.alias.get(index) {
            Some(alias) => offer::names(alias)?,
            None => (name, Vec::new()),
        };
        let new = match index {
            0 => {
                let mut load = load.clone();
                if load.context == 0 {
                    load.context = recipe.as_ref().and_then(Recipe::context).unwrap_or(0);
                }
                let model = source::load_with(&path, &load)?;
                first = Some(model.clone());
                catalog.add_loaded(&name, model, Some(path))
            }
            _ => catalog.add(&name, path),
        };
        let new = new && others.iter().all(|other| catalog.alias(&name, other));
        if !new {
            bail!("two models have the name {name}; give them names with --alias");
        }
        if let Some(recipe) = recipe {
            catalog.created(&name, recipe);
        }
    }
    for folder in &args.models_dir {
        for (name, path) in in_folder(folder)? {
            if !catalog.add(&name, &path) {
                eprintln!(
                    "{}: another model has the name {name}; not served",
                    shown(&path, args.verbose)
                );
            }
        }
    }
    if args.models_cached {
        for (name, path) in hub::cached()? {
            if !catalog.add(&name, &path) {
                eprintln!(
                    "{}: another model has the name {name}; not served",
                    shown(&path, args.verbose)
                );
            }
        }
        for (name, recipe) in hub::created()? {
            if catalog.add(&name, &recipe.from) {
                catalog.created(&name, recipe);
            }
        }
    }
    if catalog.is_empty() && args.models_cached {
        // A service starts before anything was downloaded.
        let path = source::pick(None, None)?;
        let name = name_of(&path);
        let added = catalog.add(&name, path);
        debug_assert!(added, "the first one has a name of its own");
    }
    if catalog.is_empty() {
        bail!("the folders have no models; a model is a GGUF file, or a folder with config.json");
    }
    Ok((catalog, first))
}

/// How the log shows a model's file: without its folders, which are nobody's business, unless `-v` asks for them.
fn shown(path: &str, verbose: bool) -> &str {
    let name = path.trim_end_matches('/').rsplit('/').next();
    name.filter(|_| !verbose).unwrap_or(path)
}

/// True if more than one model may be loaded.
pub(crate) fn has_several(args: &ServeArgs) -> bool {
    let named = args.source.iter().chain(&args.model).chain(&args.hf_repo);
    named.count() > 1 || !args.models_dir.is_empty() || args.models_cached
}

/// A model that the arguments name.
struct Named {
    name: String,
    path: String,
    /// How it was created from the one at the path.
    recipe: Option<Recipe>,
}

impl Named {
    fn file(name: String, path: String) -> Named {
        Named {
            name,
            path,
            recipe: None,
        }
    }
}

/// The models that the arguments name, or the bundled one if there is nothing else to serve.
fn named(args: &ServeArgs) -> anyhow::Result<Vec<Named>> {
    let mut all = Vec::new();
    for path in args.source.iter().chain(&args.model) {
        #[cfg(feature = "hub")]
        if let Some(recipe) = crate::recipes::created(path)? {
            let (name, path) = (path.clone(), recipe.from.clone());
            all.push(Named {
                name,
                path,
                recipe: Some(recipe),
            });
            continue;
        }
        all.push(Named::file(name_of(path), path.clone()));
    }
    for name in &args.hf_repo {
        all.push(Named::file(
            name.clone(),
            hub::path(name, args.eyes.wants_encoder())?,
        ));
    }
    if all.is_empty() && args.models_dir.is_empty() && !args.models_cached {
        let path = source::pick(None, None)?;
        all.push(Named::file(name_of(&path), path));
    }
    Ok(all)
}

/// The models of a folder, sorted: GGUF files, and folders that hold a model.
fn in_folder(folder: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let shown = folder.display();
    let entries = std::fs::read_dir(folder).with_context(|| format!("--models-dir {shown}"))?;
    let mut all = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("--models-dir {shown}"))?
            .path();
        let found = if !path.is_dir() {
            Some(path).filter(|path| is_gguf(path))
        } else if path.join("config.json").is_file() {
            Some(path)
        } else {
            only_gguf(&path)?
        };
        if let Some(path) = found.as_deref().and_then(Path::to_str) {
            all.push((plain(&name_of(path)).to_string(), path.to_string()));
        }
    }
    all.sort();
    Ok(all)
}

/// The first GGUF file of a folder.
fn only_gguf(folder: &Path) -> anyhow::Result<Option<std::path::PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| is_gguf(path)).min())
}

/// True for a model's file, or the first of several. Projectors of images are not models.
fn is_gguf(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| {
        let part = name.contains("-of-") && !name.contains("-00001-of-");
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !part && path.is_file()
    })
}

/// A name without the number of the first part.
fn plain(name: &str) -> &str {
    name.split_once("-00001-of-").map_or(name, |(name, _)| name)
}

/// Says what every model needs, and what fits together.
pub(crate) fn print_plan(planned: &[Planned], limit: Option<u64>, verbose: bool) {
    let mut available = limit;
    let mut loadable = 0;
    for Planned {
        name,
        bytes,
        available: free,
        path,
    } in planned
    {
        match bytes {
            Ok(bytes) => {
                eprintln!("{:>12}  {name}", human(*bytes));
                loadable += 1;
            }
            Err(error) => {
                let path = path.as_deref().unwrap_or_default();
                let text = if path.is_empty() {
                    error.to_string()
                } else {
                    error.to_string().replace(path, shown(path, verbose))
                };
                eprintln!("{:>12}  {name}: {text}", "-");
            }
        }
        available = available.into_iter().chain(*free).min();
    }
    let all: u64 = planned
        .iter()
        .filter_map(|one| one.bytes.as_ref().ok())
        .sum();
    let models = count(loadable, "model");
    match available {
        Some(have) if all > have => eprintln!(
            "{:>12}  {models} together, more than the {} available; those not used for the longest time make room",
            human(all),
            human(have)
        ),
        Some(have) => eprintln!(
            "{:>12}  {models} together, of {} available",
            human(all),
            human(have)
        ),
        None => eprintln!("{:>12}  {models} together", human(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_show_names_unless_more_is_asked_for() {
        assert_eq!(shown("/home/me/models/a.gguf", false), "a.gguf");
        assert_eq!(shown("/home/me/models/hf/", false), "hf");
        assert_eq!(shown("a.gguf", false), "a.gguf");
        assert_eq!(shown("/home/me/a.gguf", true), "/home/me/a.gguf");
    }

    #[test]
    fn models_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let touch = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        for name in [
            "b.gguf",
            "a-00001-of-00002.gguf",
            "a-00002-of-00002.gguf",
            "mmproj-b.gguf",
            "notes.txt",
            "hf/config.json",
            "hf/model.safetensors",
            "inner/c.gguf",
            "empty/readme",
        ] {
            touch(name);
        }
        let found = in_folder(folder.path()).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "hf"]);
        assert!(in_folder(&folder.path().join("none")).is_err());
    }
}
