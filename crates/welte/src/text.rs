//! The text side of a checkpoint: vocabulary, chat template and end tokens, wherever they are kept.

use crate::Error;
use std::path::Path;
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, Value};
use welte_text::{ChatTemplate, InfillTokens, Message, Tokenizer, Vocabulary};

/// Larger text files beside the weights are refused, because they are read whole.
const LARGEST_TEXT_FILE: u64 = 256 << 20;

/// The text side of a checkpoint.
#[derive(Default)]
pub(crate) struct TextSide {
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) template: Option<String>,
    pub(crate) end_tokens: Vec<u32>,
}

impl TextSide {
    /// Reads it. A checkpoint without a vocabulary is not an error, because it can still be benchmarked.
    pub(crate) fn of(checkpoint: &dyn Checkpoint) -> Result<TextSide, Error> {
        let mut side = match checkpoint.dialect() {
            Dialect::Gguf => from_metadata(checkpoint)?,
            // whisper.cpp's files have the vocabulary in their metadata, too.
            Dialect::HuggingFace if checkpoint.metadata().contains_key("tokenizer.ggml.model") => {
                from_metadata(checkpoint)?
            }
            Dialect::HuggingFace => from_files(checkpoint)?,
        };
        if let Some(tokenizer) = &mut side.tokenizer {
            let source = side.template.as_deref();
            let of_template = source.and_then(|source| end_in_template(source, tokenizer));
            tokenizer.add_end_tokens(of_template.as_slice());
            side.end_tokens.extend_from_slice(tokenizer.end_tokens());
        }
        side.end_tokens.sort_unstable();
        side.end_tokens.dedup();
        Ok(side)
    }
}

/// A chat template from its source, which may use the tokenizer's begin and end tokens.
pub(crate) fn template(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
    let text = |id: Option<u32>| {
        id.map(|id| tokenizer.token_text(id).to_string())
            .unwrap_or_default()
    };
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    Ok(ChatTemplate::new(source, &bos, &eos)?.with_marks(&tokenizer.marks())?)
}

/// The control or user-defined token that a template writes after an answer. A model that was trained with it ends with it,
/// whether or not the metadata say so.
fn end_in_template(source: &str, tokenizer: &Tokenizer) -> Option<u32> {
    const ANSWER: &str = "an answer";
    let messages = [("user", "a question"), ("assistant", ANSWER)];
    let messages = messages.map(|(role, text)| Message::new(role, text));
    let rendered = template(source, tokenizer).ok()?.render(&messages, false);
    let rendered = rendered.ok()?;
    let (_, after) = rendered.text().rsplit_once(ANSWER)?;
    let tokens = tokenizer.encode(after.trim_start(), false, true).ok()?;
    let first = tokens.first().copied()?;
    let text = tokenizer.token_text(first);
    tokenizer
        .marks()
        .iter()
        .any(|mark| mark == text)
        .then_some(first)
}

fn from_metadata(checkpoint: &dyn Checkpoint) -> Result<TextSide, Error> {
    let meta = checkpoint.metadata();
    let Some(vocabulary) = vocabulary(meta) else {
        return Ok(TextSide::default());
    };
    let template = string(meta, "tokenizer.chat_template");
    Ok(TextSide {
        tokenizer: Some(Tokenizer::from_vocabulary(vocabulary)?),
        template,
        end_tokens: Vec::new(),
    })
}

fn from_files(checkpoint: &dyn Checkpoint) -> Result<TextSide, Error> {
    let files = checkpoint.text_files();
    let Some(tokenizer_json) = &files.tokenizer_json else {
        return match &files.tekken_json {
            Some(path) => tekken(path, files.chat_template.as_deref()),
            None => Ok(TextSide::default()),
        };
    };
    let config = files
        .tokenizer_config_json
        .as_deref()
        .map(read_text)
        .transpose()?;
    let mut tokenizer = Tokenizer::from_json(&read_text(tokenizer_json)?, config.as_deref())?;
    let settings = welte_models::vector_settings(checkpoint);
    if settings.is_ok_and(|settings| settings.lower_case) {
        tokenizer = tokenizer.lower_cased();
    }
    let template = match &files.chat_template {
        Some(path) => template_of(path)?,
        None => match (&config, &files.tokenizer_config_json) {
            (Some(text), Some(path)) => template_in_config(text, path)?,
            _ => None,
        },
    };
    let mut end_tokens = Vec::new();
    if let Some(path) = &files.generation_config_json {
        end_tokens = end_tokens_in_config(&read_text(path)?, path)?;
    }
    end_tokens.extend(ids(checkpoint.metadata().get("eos_token_id")));
    Ok(TextSide {
        tokenizer: Some(tokenizer),
        template,
        end_tokens,
    })
}

/// What Mistral's models without a template were trained with, since version 7 of their vocabulary.
const TEKKEN_TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% set text = m.content if m.content is string else '' %}\
{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ text }}[/SYSTEM_PROMPT]\
{% elif m.role == 'user' %}[INST]{{ text }}{% if m.content is not string %}{% for p in m.content %}\
{% if p.type == 'audio' %}[AUDIO]{% elif p.type == 'image' %}[IMG]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}[/INST]\
{% elif m.role == 'assistant' %}{{ text }}{{ eos_token }}\
{% else %}{{ raise_exception('roles are system, user and assistant') }}{% endif %}{% endfor %}";

/// The text side of a directory that has Mistral's own file only, such as Voxtral's.
fn tekken(path: &Path, template: Option<&Path>) -> Result<TextSide, Error> {
    let vocabulary = Vocabulary::from_tekken(&read_text(path)?)?;
    let knows = |text: &str| vocabulary.tokens.iter().any(|token| token == text);
    let template = match template {
        Some(path) => template_of(path)?,
        None => knows("[SYSTEM_PROMPT]").then(|| TEKKEN_TEMPLATE.to_string()),
    };
    Ok(TextSide {
        tokenizer: Some(Tokenizer::from_vocabulary(vocabulary)?),
        template,
        end_tokens: Vec::new(),
    })
}

/// Reads a text file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let fail = |problem: String| Error::File {
        path: path.display().to_string(),
        problem,
    };
    let size = std::fs::metadata(path)
        .map_err(|e| fail(e.to_string()))?
        .len();
    if size > LARGEST_TEXT_FILE {
        return Err(fail(format!("{size} bytes is too large for a text file")));
    }
    let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| fail(format!("is not UTF-8 ({e})")))
}

fn json(text: &str, path: &Path) -> Result<serde_json::Value, Error> {
    serde_json::from_str(text).map_err(|e| Error::File {
        path: path.display().to_string(),
        problem: format!("is not JSON: {e}"),
    })
}

/// The template in a file of its own.
fn template_of(path: &Path) -> Result<Option<String>, Error> {
    let text = read_text(path)?;
    if path.extension().is_some_and(|own| own == "json") {
        return template_in_config(&text, path);
    }
    Ok(Some(text))
}

/// The template, or the one named `default` if there are several.
fn template_in_config(text: &str, path: &Path) -> Result<Option<String>, Error> {
    let config = json(text, path)?;
    Ok(match config.get("chat_template") {
        Some(serde_json::Value::String(source)) => Some(source.clone()),
        Some(serde_json::Value::Array(all)) => all
            .iter()
            .find(|t| t.get("name").and_then(|n| n.as_str()) == Some("default"))
            .and_then(|t| {
                t.get("template")
                    .and_then(|s| s.as_str())
                    .map(str::to_string)
            }),
        _ => None,
    })
}

fn end_tokens_in_config(text: &str, path: &Path) -> Result<Vec<u32>, Error> {
    let config = json(text, path)?;
    let id = |v: &serde_json::Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match config.get("eos_token_id") {
        Some(serde_json::Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    })
}

/// The tokenizer's fields of a GGUF file; `None` if it has no vocabulary.
fn vocabulary(meta: &Metadata) -> Option<Vocabulary> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| meta.get(&key(name)).and_then(number);
    let model = string(meta, &key("model"))?;
    let tokens = strings(meta, &key("tokens"));
    // llama.cpp's converters name the vocabulary of a file without one.
    if matches!(model.as_str(), "none" | "no_vocab") || tokens.is_empty() {
        return None;
    }
    // Older files have the second names.
    let mark = |name: &str, old: &str| id(name).or_else(|| id(old));
    let marks = [
        mark("fim_pre_token_id", "prefix_token_id"),
        mark("fim_suf_token_id", "suffix_token_id"),
        mark("fim_mid_token_id", "middle_token_id"),
    ];
    let infill = match marks {
        [Some(prefix), Some(suffix), Some(middle)] => Some(InfillTokens {
            prefix,
            suffix,
            middle,
        }),
        _ => None,
    };
    Some(Vocabulary {
        model,
        pre: string(meta, &key("pre")),
        tokens,
        scores: list(meta, &key("scores"), |v| match v {
            Value::F64(v) => *v as f32,
            other => number(other).map_or(f32::NAN, |v| v as f32),
        }),
        token_types: list(meta, &key("token_type"), |v| match v {
            Value::I64(v) => i32::try_from(*v).unwrap_or(0),
            other => number(other)
                .and_then(|v| i32::try_from(v).ok())
                .unwrap_or(0),
        }),
        merges: strings(meta, &key("merges")),
        bos: id("bos_token_id"),
        cls: id("cls_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        infill,
        unk: id("unknown_token_id"),
        sep: id("seperator_token_id"),
        pad: id("padding_token_id"),
        add_bos: boolean(meta, &key("add_bos_token")),
        add_eos: boolean(meta, &key("add_eos_token")),
        add_space_prefix: boolean(meta, &key("add_space_prefix")),
        remove_extra_whitespaces: boolean(meta, &key("remove_extra_whitespaces")),
        // Converters write signed or unsigned bytes.
        charsmap: list(meta, &key("precompiled_charsmap"), |v| match v {
            Value::I64(v) => *v as u8,
            other => number(other).map_or(0, |v| v as u8),
        }),
    })
}

/// A Hugging Face checkpoint read as the GGUF file of the same model, with vocabulary and template. A GGUF file stays what it is.
pub fn as_gguf(checkpoint: Box<dyn Checkpoint>) -> Result<Box<dyn Checkpoint>, Error> {
    if checkpoint.dialect() == Dialect::Gguf {
        return Ok(checkpoint);
    }
    let mut text = metadata(&TextSide::of(checkpoint.as_ref())?)?;
    text.extend(crate::licence::licence_keys(checkpoint.origin()));
    Ok(Box::new(welte_models::as_gguf(checkpoint, text)?))
}

/// The text side as metadata of a GGUF file.
fn metadata(side: &TextSide) -> Result<Metadata, Error> {
    let mut meta = Metadata::new();
    let Some(tokenizer) = &side.tokenizer else {
        return Ok(meta);
    };
    let v = tokenizer.to_vocabulary()?;
    let text = |text: &String| Value::String(text.clone());
    let list = |all: Vec<Value>| (!all.is_empty()).then_some(Value::Array(all));
    let id = |id: Option<u32>| id.map(|id| Value::U64(id.into()));
    let flag = |flag: Option<bool>| flag.map(Value::Bool);
    // A control token that ends an answer and is not the end of the text.
    let eot = v.eot.or(side
        .end_tokens
        .iter()
        .copied()
        .find(|id| Some(*id) != v.eos));
    let fields = [
        ("model", Some(text(&v.model))),
        ("pre", v.pre.as_ref().map(text)),
        ("tokens", list(v.tokens.iter().map(text).collect())),
        (
            "scores",
            list(
                v.scores
                    .iter()
                    .map(|score| Value::F64((*score).into()))
                    .collect(),
            ),
        ),
        (
            "token_type",
            list(
                v.token_types
                    .iter()
                    .map(|kind| Value::I64((*kind).into()))
                    .collect(),
            ),
        ),
        ("merges", list(v.merges.iter().map(text).collect())),
        ("bos_token_id", id(v.bos)),
        ("eos_token_id", id(v.eos)),
        ("eot_token_id", id(eot)),
        ("fim_pre_token_id", id(v.infill.map(|marks| marks.prefix))),
        ("fim_suf_token_id", id(v.infill.map(|marks| marks.suffix))),
        ("fim_mid_token_id", id(v.infill.map(|marks| marks.middle))),
        ("unknown_token_id", id(v.unk)),
        ("add_bos_token", flag(v.add_bos)),
        ("add_eos_token", flag(v.add_eos)),
        ("add_space_prefix", flag(v.add_space_prefix)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            meta.insert(format!("tokenizer.ggml.{name}"), value);
        }
    }
    if let Some(template) = &side.template {
        meta.insert(
            "tokenizer.chat_template".into(),
            Value::String(template.clone()),
        );
    }
    Ok(meta)
}

fn list<T>(meta: &Metadata, key: &str, one: impl Fn(&Value) -> T) -> Vec<T> {
    let Some(Value::Array(all)) = meta.get(key) else {
        return Vec::new();
    };
    all.iter().map(one).collect()
}

fn string(meta: &Metadata, key: &str) -> Option<String> {
    match meta.get(key) {
        Some(Value::String(s)) => Some(s.clone()),
        _ => None,
    }
}

fn boolean(meta: &Metadata, key: &str) -> Option<bool> {
    match meta.get(key) {
        Some(Value::Bool(b)) => Some(*b),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u32> {
    match value {
        Value::U64(v) => u32::try_from(*v).ok(),
        Value::I64(v) => u32::try_from(*v).ok(),
        _ => None,
    }
}

fn ids(value: Option<&Value>) -> Vec<u32> {
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}

fn strings(meta: &Metadata, key: &str) -> Vec<String> {
    list(meta, key, |v| {
        if let Value::String(s) = v {
            s.clone()
        } else {
            String::new()
        }
    })
}

/// The tokenizer of a checkpoint. The checkpoint need not have weights.
pub fn tokenizer(checkpoint: &dyn Checkpoint) -> Result<Tokenizer, Error> {
    TextSide::of(checkpoint)?
        .tokenizer
        .ok_or_else(|| Error::NoTokenizer {
            origin: checkpoint.origin().to_string(),
        })
}

/// The answers whose logits a generative reranker compares.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// The tokens of the answers, if the vocabulary has the marks of the prompt.
pub(crate) fn score_tokens(tokenizer: Option<&Tokenizer>) -> Option<[u32; 2]> {
    let tokenizer = tokenizer?;
    tokenizer.id_of("<|im_start|>")?;
    let [yes, no] = ANSWERS.map(|answer| tokenizer.id_of(answer));
    Some([yes?, no?])
}
