//! A GGUF file as a Hugging Face directory: weights, configuration, vocabulary, template and end tokens.

use crate::licence::readme_of_licence;
use crate::text::TextSide;
use crate::{Error, open};
use serde_json::{Value as Json, json};
use std::path::Path;
use welte_formats::checkpoint::{Metadata, Value};
use welte_formats::quantize::{Quantisation, write_weights};

/// Writes the model of a GGUF file as a Hugging Face directory: `config.json`, `model.safetensors` in F32, F16 or BF16, `tokenizer.json`,
/// `tokenizer_config.json` with the chat template, and `generation_config.json`. The folder must not have a model yet. A model that such a
/// directory would describe differently is refused before a byte is written. `progress` receives the bytes of tensors written and their
/// total.
pub fn write_directory(
    source: &str,
    folder: &Path,
    to: &Quantisation,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let checkpoint = open(source)?;
    let side = TextSide::of(&*checkpoint)?;
    let tokenizer = side.tokenizer.as_ref();
    let (bos, eos) = (
        tokenizer.and_then(|t| t.bos()),
        tokenizer.and_then(|t| t.eos()),
    );
    let mut extra = Metadata::new();
    let dtype = match to.recipe.name() {
        "F16" => "float16",
        "BF16" => "bfloat16",
        _ => "float32",
    };
    extra.insert("dtype".into(), Value::String(dtype.into()));
    for (key, id) in [("bos_token_id", bos), ("eos_token_id", eos)] {
        if let Some(id) = id {
            extra.insert(key.into(), Value::U64(id.into()));
        }
    }
    let metadata = checkpoint.metadata();
    // Without this key transformers takes the padding of the published model.
    let padding = match metadata.get("tokenizer.ggml.padding_token_id") {
        Some(Value::U64(id)) => tokenizer
            .filter(|t| *id < t.vocab_size() as u64)
            .map(|_| *id),
        _ => None,
    };
    let readme = readme_of_licence(metadata);
    let directory = welte_models::as_directory(checkpoint, &extra)?;
    let fail = |path: &Path, problem: String| Error::File {
        path: path.display().to_string(),
        problem,
    };
    let config = folder.join("config.json");
    if config.exists() {
        return Err(fail(
            &config,
            "is there already; name another folder".into(),
        ));
    }
    std::fs::create_dir_all(folder).map_err(|e| fail(folder, e.to_string()))?;
    write_weights(&directory, folder, to, progress)?;
    let write = |name: &str, json: &Json| {
        let path = folder.join(name);
        let text = format!("{json:#}\n");
        std::fs::write(&path, text).map_err(|e| fail(&path, e.to_string()))
    };
    if let Some(tokenizer) = tokenizer {
        write("tokenizer.json", &tokenizer.to_json())?;
        let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
        write(
            "tokenizer_config.json",
            &json!({
                "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": text(bos), "eos_token": text(eos),
                "chat_template": side.template, "clean_up_tokenization_spaces": false,
            }),
        )?;
        write(
            "generation_config.json",
            &json!({ "bos_token_id": bos, "eos_token_id": side.end_tokens }),
        )?;
    }
    if let Some(text) = readme {
        let path = folder.join("README.md");
        std::fs::write(&path, text).map_err(|e| fail(&path, e.to_string()))?;
    }
    // A folder with a configuration is a model, so it comes last.
    let mut config = nested(checkpoint_keys(&directory));
    config["pad_token_id"] = padding.into();
    write("config.json", &config)
}

/// The keys of the configuration.
fn checkpoint_keys(
    directory: &dyn welte_formats::Checkpoint,
) -> impl Iterator<Item = (&str, &Value)> {
    let all = directory.metadata().iter();
    let own = all.filter(|(key, _)| !key.starts_with("general."));
    own.map(|(key, value)| (key.as_str(), value))
}

/// Keys with dots as objects.
fn nested<'a>(keys: impl Iterator<Item = (&'a str, &'a Value)>) -> Json {
    let mut all = json!({});
    for (key, value) in keys {
        let place = key
            .split('.')
            .fold(&mut all, |place, part| &mut place[part]);
        *place = crate::card::as_json(value);
    }
    all
}
