//! What Dynamo's front end must know of a model: a folder as Hugging Face has it, without weights, made from a GGUF file.

use anyhow::{Context, Result};
use serde_json::json;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use welte::Model;

/// The folder that describes a model: its own, or `folder` with the tokenizer, the chat template and the configuration. All
/// workers of a model must have one at the same path, so the default is named by what it has.
pub(crate) fn folder(source: &str, model: &Model, folder: Option<&Path>) -> Result<PathBuf> {
    if Path::new(source).join("tokenizer.json").exists() {
        return Ok(source.into());
    }
    let tokenizer = model.tokenizer()?;
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    let (spec, context) = (model.spec(), model.context());
    let ends = tokenizer.end_tokens();
    let template = model.chat_template_source();
    let config = json!({
        "model_type": spec.architecture, "architectures": [spec.architecture], "num_hidden_layers": spec.layers,
        "max_position_embeddings": context, "vocab_size": tokenizer.vocab_size(),
        "bos_token_id": tokenizer.bos(), "eos_token_id": ends,
    });
    let generation = json!({ "bos_token_id": tokenizer.bos(), "eos_token_id": ends });
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "chat_template": template,
        "bos_token": text(tokenizer.bos()), "eos_token": text(tokenizer.eos().or(ends.first().copied())),
        "add_bos_token": tokenizer.adds_bos(),
    });
    let files = [
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", settings),
        ("tokenizer.json", tokenizer.to_json()),
    ];
    let files = files.map(|(name, value)| (name, value.to_string()));
    let folder = folder.map_or_else(|| cache().join(name(&files)), Path::to_path_buf);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    for (name, text) in &files {
        write(&folder, name, text)?;
    }
    Ok(folder)
}

/// Where the user's programs keep what they can make again.
fn cache() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(home).unwrap_or_else(std::env::temp_dir);
    cache.join("welte").join("dynamo")
}

/// A name that follows from the contents.
fn name(files: &[(&str, String)]) -> String {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(files);
    format!("{hash:016x}")
}

/// Writes a file so that other workers find the old one or the new one.
fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let (path, new) = (
        folder.join(name),
        folder.join(format!("{name}.{}", std::process::id())),
    );
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, &path))
        .with_context(|| format!("{} cannot be written", path.display()))
}
