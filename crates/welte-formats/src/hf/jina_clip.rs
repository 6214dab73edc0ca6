//! jina-clip: the configuration of its text model is in another repository, which `text_config.hf_model_name_or_path` names, and
//! `text_config.hf_model_config_kwargs` says what differs. Both become metadata under the plain names of a text model's keys. Jina v3 by
//! itself, as published, has changes for the same tasks.

use crate::{Error, Metadata, Value};
use std::path::Path;

const MODEL: &str = "jina_clip";
/// The repository whose configuration is known.
const KNOWN: &str = "jinaai/jina-embeddings-v3";
const REPOSITORY: &str = "text_config.hf_model_name_or_path";
const CHANGES: &str = "text_config.hf_model_config_kwargs";
const TASK: &str = "text_config.default_lora_task";
/// The task of a Jina v3.
const DEFAULT_TASK: &str = "default_task";
const TASKS: [&str; 5] = [
    "retrieval.query",
    "retrieval.passage",
    "separation",
    "classification",
    "text-matching",
];

/// The task whose change is added to weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) number: usize,
    /// The change is multiplied by this, divided by its rank.
    pub(super) alpha: f32,
}

/// What the configuration of the known repository says. `rotary_emb_base` is the base of rotary positions.
fn known() -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_string());
    vec![
        ("vocab_size", Value::U64(250_002)),
        ("hidden_size", Value::U64(1024)),
        ("num_hidden_layers", Value::U64(24)),
        ("num_attention_heads", Value::U64(16)),
        ("intermediate_size", Value::U64(4096)),
        ("hidden_act", text("gelu")),
        ("max_position_embeddings", Value::U64(8194)),
        ("type_vocab_size", Value::U64(1)),
        ("layer_norm_eps", Value::F64(1e-5)),
        ("pad_token_id", Value::U64(1)),
        ("position_embedding_type", text("rotary")),
        ("rotary_emb_base", Value::F64(20_000.0)),
        ("lora_alpha", Value::U64(1)),
        ("lora_adaptations", Value::Array(TASKS.map(text).to_vec())),
    ]
}

/// Adds the keys of the text model, how its vectors are made, and the texts that it puts before others.
pub(super) fn add(config: &Path, metadata: &mut Metadata) -> Result<(), Error> {
    if !is_one(metadata) {
        return Ok(());
    }
    let wrong = |key: &str, problem: String| Err(Error::malformed(config, key, problem));
    match metadata.get(REPOSITORY) {
        Some(Value::String(name)) if name == KNOWN => {}
        Some(Value::String(name)) => {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            let problem = format!(
                "is {name}, whose configuration is not in this directory; only that of {KNOWN} (jina-clip v2) is known"
            );
            return wrong(REPOSITORY, problem);
        }
        _ => {
            let problem = format!("is missing; it must name the text model, {KNOWN}");
            return wrong(REPOSITORY, problem);
        }
    }
    for key in ["text_config.proj_type", "truncate_dim"] {
        if metadata.contains_key(key) {
            return wrong(key, "is not supported; it must be null".into());
        }
    }
    if metadata.get("add_projections") == Some(&Value::Bool(true)) {
        return wrong(
            "add_projections",
            "is not supported; it must be false".into(),
        );
    }
    for (key, value) in known() {
        let own = metadata.get(&format!("{CHANGES}.{key}")).cloned();
        let key = if key == "rotary_emb_base" {
            "rope_theta"
        } else {
            key
        };
        metadata.insert(key.into(), own.unwrap_or(value));
    }
    let (width, own) = (metadata.get("hidden_size"), "text_config.embed_dim");
    if metadata.get(own).is_some_and(|own| Some(own) != width) {
        let problem = "differs from the width of the text model, which is not supported".into();
        return wrong(own, problem);
    }
    let pooling = match metadata.get("text_config.pooler_type") {
        None => "mean",
        Some(Value::String(name)) if name == "mean_pooler" => "mean",
        Some(Value::String(name)) if name == "cls_pooler" => "cls",
        Some(_) => {
            let problem = "is not supported; supported are mean_pooler and cls_pooler".into();
            return wrong("text_config.pooler_type", problem);
        }
    };
    let put = |metadata: &mut Metadata, key: &str, value: Value| {
        metadata.insert(format!("sentence_transformers.{key}"), value);
    };
    put(metadata, "pooling", Value::String(pooling.into()));
    let instructions = format!("{CHANGES}.task_instructions.");
    let prompts = metadata.range(instructions.clone()..);
    let prompts = prompts.map_while(|(key, value)| Some((key.strip_prefix(&instructions)?, value)));
    let prompts: Vec<(String, Value)> = prompts
        .map(|(name, text)| (format!("prompts.{name}"), text.clone()))
        .collect();
    for (name, text) in prompts {
        put(metadata, &name, text);
    }
    if let Some(name) = metadata
        .get("text_config.default_instruction_task")
        .cloned()
    {
        put(metadata, "default_prompt_name", name);
    }
    Ok(())
}

/// Leaves out the prompts of tasks whose changes are not added to the weights of a Jina v3: with these weights they make other vectors than
/// the model was trained for.
pub(super) fn leave_out_prompts(metadata: &mut Metadata) {
    let Some(Value::Array(tasks)) = metadata.get("lora_adaptations") else {
        return;
    };
    if is_one(metadata) {
        return;
    }
    let chosen = metadata.get(DEFAULT_TASK);
    let others = tasks.iter().filter(|task| Some(*task) != chosen);
    let keys: Vec<String> = others
        .filter_map(|task| match task {
            Value::String(task) => Some(format!("sentence_transformers.prompts.{task}")),
            _ => None,
        })
        .collect();
    let default = "sentence_transformers.default_prompt_name";
    let is_default = |key: &String| {
        let name = key.strip_prefix("sentence_transformers.prompts.");
        matches!(metadata.get(default), Some(Value::String(chosen)) if Some(chosen.as_str()) == name)
    };
    if keys.iter().any(is_default) {
        metadata.remove(default);
    }
    for key in keys {
        metadata.remove(&key);
    }
}

/// True if weights may have a change for each of several tasks.
pub(super) fn has_tasks(metadata: &Metadata) -> bool {
    is_one(metadata) || metadata.contains_key("lora_adaptations")
}

fn is_one(metadata: &Metadata) -> bool {
    matches!(metadata.get("model_type"), Some(Value::String(name)) if name == MODEL)
}

/// The task whose change is added to weights that have some; `None`: none is.
pub(super) fn task(config: &Path, metadata: &Metadata) -> Result<Option<Task>, Error> {
    let key = if is_one(metadata) { TASK } else { DEFAULT_TASK };
    let Some(name) = metadata.get(key) else {
        return Ok(None);
    };
    let number = match metadata.get("lora_adaptations") {
        Some(Value::Array(tasks)) => tasks.iter().position(|task| task == name),
        _ => None,
    };
    let section = match is_one(metadata) {
        true => format!("{CHANGES}."),
        false => String::new(),
    };
    let number = number.ok_or_else(|| {
        let problem = format!("is not one of {section}lora_adaptations");
        Error::malformed(config, key, problem)
    })?;
    let alpha = match metadata.get("lora_alpha") {
        Some(Value::U64(alpha)) => Some(*alpha as f32),
        Some(Value::F64(alpha)) => Some(*alpha as f32),
        _ => None,
    };
    let alpha = alpha.filter(|alpha| alpha.is_finite()).ok_or_else(|| {
        Error::malformed(config, format!("{section}lora_alpha"), "is not a number")
    })?;
    Ok(Some(Task { number, alpha }))
}
