//! The files that sentence-transformers puts beside a model: which modules follow it, how rows are pooled, and prompts.
//!
//! They become metadata whose keys begin with `sentence_transformers.`:
//!
//! | key | value |
//! |---|---|
//! | `pooling` | `mean`, `cls`, `lasttoken`, `splade`, or the name of a kind that is not supported |
//! | `include_prompt` | false if rows of a prompt are not pooled |
//! | `do_lower_case` | true if texts are made lower case |
//! | `normalize` | true if vectors are scaled to length 1 |
//! | `dense` | the number of dense layers after pooling; the tensors of layer N begin with `sentence_transformers.dense.N.` |
//! | `dense.N.activation_function` | the class of its activation |
//! | `module` | a module that is not supported |
//! | `max_seq_length` | tokens after which texts are cut |
//! | `prompts.NAME`, `default_prompt_name` | texts to put before a text |

use super::files::{Files, read_json};
use super::json::flatten;
use crate::{Error, Metadata, Value};
use serde_json::Value as Json;
use std::path::Path;

const MODULES: &str = "modules.json";
const PREFIX: &str = "sentence_transformers";
const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Adds what the files in `directory` say, and the tensors of dense layers.
pub(super) fn add(
    directory: &Path,
    metadata: &mut Metadata,
    files: &mut Files,
) -> Result<(), Error> {
    let modules = directory.join(MODULES);
    if !modules.is_file() {
        return Ok(());
    }
    let mut dense = 0;
    for (at, module) in list(&modules)?.iter().enumerate() {
        let text = |field: &str| {
            let value = module.get(field).and_then(Json::as_str);
            let field = format!("{at}.{field}");
            value.ok_or_else(|| Error::malformed(&modules, field, "is missing or not text"))
        };
        let class = text("type")?;
        let folder = text("path")?;
        let plain = folder != ".." && !folder.contains(['/', '\\']);
        if !plain {
            let problem = format!("{folder:?} is not the plain name of a folder");
            return Err(Error::malformed(&modules, format!("{at}.path"), problem));
        }
        let folder = directory.join(folder);
        match class.rsplit('.').next().unwrap_or(class) {
            "Transformer" | "MLMTransformer" => {}
            "SpladePooling" => {
                let path = folder.join("config.json");
                let config = read_json(&path)?;
                let strategy = config["pooling_strategy"].as_str().unwrap_or("max");
                let act = config["activation_function"].as_str().unwrap_or("relu");
                let kind = match (strategy, act) {
                    ("max", "relu") => "splade".to_string(),
                    _ => format!("splade with {strategy} and {act}"),
                };
                put(metadata, "pooling", Value::String(kind));
            }
            "Pooling" => {
                let path = folder.join("config.json");
                let config = read_json(&path)?;
                put(metadata, "pooling", Value::String(pooling(&path, &config)?));
                if let Some(include) = config["include_prompt"].as_bool() {
                    put(metadata, "include_prompt", Value::Bool(include));
                }
            }
            "Normalize" => put(metadata, "normalize", Value::Bool(true)),
            "Dense" => {
                let config = folder.join("config.json");
                let key = format!("{PREFIX}.dense.{dense}");
                flatten(&config, key.clone(), &read_json(&config)?, metadata)?;
                let weights = WEIGHTS.map(|name| folder.join(name));
                let there = weights.iter().find(|path| path.is_file());
                let weights = there.unwrap_or(&weights[0]).clone();
                files.add_as(weights, &format!("{key}."))?;
                dense += 1;
            }
            other => put(metadata, "module", Value::String(other.to_string())),
        }
    }
    put(metadata, "dense", Value::U64(dense));
    let limits = directory.join("sentence_bert_config.json");
    if limits.is_file() {
        let json = read_json(&limits)?;
        if let Some(most) = json["max_seq_length"].as_u64() {
            put(metadata, "max_seq_length", Value::U64(most));
        }
        if let Some(lower) = json["do_lower_case"].as_bool() {
            put(metadata, "do_lower_case", Value::Bool(lower));
        }
    }
    let config = directory.join("config_sentence_transformers.json");
    if config.is_file() {
        let json = read_json(&config)?;
        for name in ["prompts", "default_prompt_name"] {
            flatten(&config, format!("{PREFIX}.{name}"), &json[name], metadata)?;
        }
    }
    Ok(())
}

fn put(metadata: &mut Metadata, name: &str, value: Value) {
    metadata.insert(format!("{PREFIX}.{name}"), value);
}

fn list(path: &Path) -> Result<Vec<Json>, Error> {
    match read_json(path)? {
        Json::Array(list) => Ok(list),
        _ => Err(Error::unsupported(path, "is not a JSON list")),
    }
}

/// The kind of pooling. Older files have a flag for each kind.
fn pooling(path: &Path, json: &Json) -> Result<String, Error> {
    if let Some(kind) = json["pooling_mode"].as_str() {
        return Ok(kind.to_string());
    }
    let flags = json.as_object().into_iter().flatten();
    let set: Vec<&str> = flags
        .filter(|(_, value)| value.as_bool() == Some(true))
        .filter_map(|(name, _)| name.strip_prefix("pooling_mode_"))
        .collect();
    match set[..] {
        [one] => {
            let kind = one.strip_suffix("_tokens").unwrap_or(one);
            Ok(kind.strip_suffix("_token").unwrap_or(kind).to_string())
        }
        [] => Err(Error::unsupported(path, "names no kind of pooling")),
        _ => Ok(set.join(" and ")),
    }
}
