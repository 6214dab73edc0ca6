//! What Dynamo's front end must know of a model: a folder as Hugging Face has it, without weights, made from a GGUF file.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use welte::Model;

/// The folder that describes a model: its own, or one in `folder` with the tokenizer, the chat template and the configuration.
pub(crate) fn folder(source: &str, model: &Model, folder: &Path) -> Result<PathBuf> {
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
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let files = [
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", settings),
        ("tokenizer.json", tokenizer.to_json()),
    ];
    for (name, value) in files {
        write(&folder.join(name), &value)?;
    }
    Ok(folder.into())
}

fn write(path: &Path, value: &Value) -> Result<()> {
    std::fs::write(path, value.to_string())
        .with_context(|| format!("{} cannot be written", path.display()))
}
