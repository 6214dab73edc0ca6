//! A tokenizer from `tokenizer.json` and `tokenizer_config.json`.

mod merges;

use crate::Error;
use crate::bpe::Spellings;
use crate::growth;
use crate::tokenizer::{Kind, Parts, Tokenizer, Words, byte_of, shortened};
use crate::vocabulary::TokenType;
use serde_json::Value;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::AddedToken;

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

fn bad(problem: impl Into<String>) -> Error {
    Error::Json {
        file: FILE,
        problem: problem.into(),
    }
}

impl Tokenizer {
    /// A tokenizer from the contents of `tokenizer.json` and, if present, `tokenizer_config.json`.
    pub fn from_json(
        tokenizer_json: &str,
        tokenizer_config: Option<&str>,
    ) -> Result<Tokenizer, Error> {
        let config: Value = match tokenizer_config {
            Some(text) => serde_json::from_str(text).map_err(|error| Error::Json {
                file: CONFIG,
                problem: error.to_string(),
            })?,
            None => Value::Null,
        };
        // The backend may panic on invalid files.
        let read = AssertUnwindSafe(|| merges::read(tokenizer_json, &config));
        if let Ok(Some(tokenizer)) = catch_unwind(read) {
            return Ok(tokenizer);
        }
        read_any(tokenizer_json, &config)
    }
}

/// A tokenizer of any kind, read by the backend.
fn read_any(source: &str, config: &Value) -> Result<Tokenizer, Error> {
    let json: Value = serde_json::from_str(source).map_err(|error| bad(error.to_string()))?;
    check_bpe(&json["model"])?;
    growth::check(&json).map_err(bad)?;
    catch_unwind(AssertUnwindSafe(|| build(source, &json, config)))
        .map_err(|_| bad("is inconsistent; download it again"))?
}

/// Checks the merges of a BPE model, which the backend does not check.
fn check_bpe(model: &Value) -> Result<(), Error> {
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array())
    else {
        return Ok(());
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("");
    for (at, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(line) => line.split_once(' '),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let Some((left, right)) = pair else {
            return Err(bad(format!("model.merges[{at}]: is not a pair of tokens")));
        };
        let Some(rest) = right.strip_prefix(prefix) else {
            return Err(bad(format!(
                "model.merges[{at}]: '{}' lacks the prefix '{prefix}'",
                shortened(right)
            )));
        };
        for part in [left, right, &format!("{left}{rest}")] {
            if !vocab.contains_key(part) {
                return Err(bad(format!(
                    "model.merges[{at}]: '{}' is not in model.vocab",
                    shortened(part)
                )));
            }
        }
    }
    Ok(())
}

fn build(source: &str, json: &Value, config: &Value) -> Result<Tokenizer, Error> {
    let mut backend: tokenizers::Tokenizer =
        tokenizers::Tokenizer::from_bytes(source).map_err(|error| bad(error.to_string()))?;
    backend
        .with_truncation(None)
        .map_err(|error| bad(error.to_string()))?;
    backend.with_padding(None);
    let kind = kind_of(json);
    let (texts, types) = token_table(&backend, kind)?;
    let added = backend.get_added_tokens_decoder();
    let mut added: Vec<_> = added.into_iter().collect();
    added.sort_by_key(|(id, _)| *id);
    // An added token that the model lacks gets the next free id, so a gap would shift the ids after it.
    let model = backend.get_model();
    let plain_size = backend.get_vocab_size(false);
    let outside = added
        .iter()
        .filter(|(_, token)| tokenizers::Model::token_to_id(model, &token.content).is_none());
    for (expected, (id, token)) in (plain_size as u32..).zip(outside) {
        if *id != expected {
            let text = shortened(&token.content);
            return Err(bad(format!(
                "added_tokens: '{text}' has the id {id}, but the next id is {expected}; ids must have no gaps"
            )));
        }
    }
    let built = Built {
        kind,
        model: Words::Backend(Box::new(model.clone())),
        spellings: Spellings::new(texts, None),
        types,
        added: added.into_iter().map(|(_, token)| token).collect(),
    };
    assemble(&backend, built, json, config)
}

/// A model and its vocabulary.
struct Built {
    kind: Kind,
    model: Words,
    spellings: Spellings,
    types: Vec<TokenType>,
    /// In the order of their ids.
    added: Vec<AddedToken>,
}

/// Adds the other stages of a file, and what its configuration says.
fn assemble(
    stages: &tokenizers::Tokenizer,
    built: Built,
    json: &Value,
    config: &Value,
) -> Result<Tokenizer, Error> {
    let (mut prefix, mut suffix) = around(stages)?;
    let named = |field: &str| {
        let text = config[field]
            .as_str()
            .or_else(|| config[field]["content"].as_str())?;
        built.spellings.id(text)
    };
    let eos = named("eos_token");
    let bos = named("bos_token").or_else(|| prefix.first().copied());
    let flag = |field: &str| config[field].as_bool();
    if let (Some(true), Some(bos), true) = (flag("add_bos_token"), bos, prefix.is_empty()) {
        prefix.push(bos);
    }
    if let (Some(true), Some(eos), true) = (flag("add_eos_token"), eos, suffix.is_empty()) {
        suffix.push(eos);
    }
    // Only these classes let the configuration override the template in `tokenizer.json`.
    let class = config["tokenizer_class"].as_str().unwrap_or("");
    if ["Llama", "CodeLlama", "Gemma"]
        .iter()
        .any(|family| class.starts_with(family))
    {
        if flag("add_bos_token") == Some(false) {
            prefix.clear();
        }
        if flag("add_eos_token") == Some(false) {
            suffix.clear();
        }
    }
    let parts = Parts {
        kind: built.kind,
        model: built.model,
        normalizer: stages.get_normalizer().cloned(),
        pre_tokenizer: stages.get_pre_tokenizer().cloned(),
        prefix,
        suffix,
        space_prefix: strips_space(json),
    };
    Tokenizer::assemble(
        parts,
        built.added,
        built.spellings,
        built.types,
        bos,
        eos,
        eos.into_iter().collect(),
    )
}

/// The tokens that the post-processor adds before and after a text, found by encoding a sample.
fn around(backend: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let encode = |special| {
        let encoding = backend
            .encode_fast("a", special)
            .map_err(|error| bad(error.to_string()))?;
        Ok::<_, Error>(encoding.get_ids().to_vec())
    };
    let (with, bare) = (encode(true)?, encode(false)?);
    let at = (0..=with.len().saturating_sub(bare.len()))
        .find(|&at| with[at..].starts_with(&bare))
        .unwrap_or(0);
    let end = (at + bare.len()).min(with.len());
    Ok((with[..at].to_vec(), with[end..].to_vec()))
}

/// True if a stage of this type occurs anywhere in this part of the file.
fn has_stage(part: &Value, stage: &str) -> bool {
    match part {
        Value::Object(fields) => {
            fields.get("type").and_then(Value::as_str) == Some(stage)
                || fields.values().any(|v| has_stage(v, stage))
        }
        Value::Array(items) => items.iter().any(|item| has_stage(item, stage)),
        _ => false,
    }
}

fn kind_of(json: &Value) -> Kind {
    if ["decoder", "pre_tokenizer", "normalizer"]
        .iter()
        .any(|part| has_stage(&json[*part], "ByteLevel"))
    {
        Kind::ByteLevel
    } else if json["model"]["type"] == "WordPiece" {
        Kind::WordPiece
    } else {
        Kind::SentencePiece
    }
}

fn strips_space(json: &Value) -> bool {
    let decoder = &json["decoder"];
    let strips = has_stage(decoder, "Strip") && has_stage(decoder, "Replace");
    let metaspace = has_stage(decoder, "Metaspace") && !decoder.to_string().contains("\"never\"");
    strips || metaspace
}

/// The type of a token of the model.
fn type_of(kind: Kind, text: &str) -> TokenType {
    match kind {
        Kind::SentencePiece if byte_of(text).is_some() => TokenType::Byte,
        Kind::SentencePiece | Kind::WordPiece if ["<unk>", "[UNK]"].contains(&text) => {
            TokenType::Unknown
        }
        _ => TokenType::Normal,
    }
}

/// Texts and types by id. The table has a row for each id, so ids far beyond the number of tokens are refused.
fn token_table(
    backend: &tokenizers::Tokenizer,
    kind: Kind,
) -> Result<(Vec<String>, Vec<TokenType>), Error> {
    let model: HashMap<String, u32> = backend.get_vocab(false);
    let added = backend.get_added_tokens_decoder();
    let count = model.len() + added.len();
    if count == 0 {
        return Err(bad("model.vocab: is empty"));
    }
    let last = model
        .values()
        .chain(added.keys())
        .copied()
        .max()
        .unwrap_or(0) as usize;
    if last > 4 * count + 100_000 {
        return Err(bad(format!(
            "model.vocab: has {count} tokens but ids up to {last}; ids must have no gaps"
        )));
    }
    let mut texts = vec![String::new(); last + 1];
    let mut types = vec![TokenType::Unused; last + 1];
    for (text, id) in model {
        types[id as usize] = type_of(kind, &text);
        texts[id as usize] = text;
    }
    for (id, token) in added {
        types[id as usize] = if token.special {
            TokenType::Control
        } else {
            TokenType::UserDefined
        };
        texts[id as usize] = token.content;
    }
    Ok((texts, types))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fixture(name: &str) -> Value {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn unusual_files_are_left_to_the_backend() {
        let usual = fixture("bpe-qwen2")["tokenizer"].take();
        let is_read = |change: &dyn Fn(&mut Value)| {
            let mut file = usual.clone();
            change(&mut file);
            merges::read(&file.to_string(), &Value::Null).is_some()
        };
        assert!(is_read(&|_| ()));
        assert!(!is_read(&|file| file["model"]["dropout"] = json!(0.1)));
        assert!(!is_read(
            &|file| file["model"]["continuing_subword_prefix"] = json!("##")
        ));
        assert!(!is_read(
            &|file| file["model"]["end_of_word_suffix"] = json!("</w>")
        ));
        assert!(!is_read(
            &|file| file["model"]["byte_fallback"] = json!(true)
        ));
        assert!(!is_read(
            &|file| file["model"]["unk_token"] = json!("nothing")
        ));
        assert!(!is_read(
            &|file| file["model"]["merges"][0] = json!(["a", "b", "c"])
        ));
        assert!(!is_read(&|file| file["model"]["merges"][0] = json!("a b c")));
        assert!(!is_read(
            &|file| file["model"]["merges"][0] = json!(["\u{0}", "a"])
        ));
        assert!(!is_read(
            &|file| file["model"]["merges"][1] = file["model"]["merges"][0].clone()
        ));
        assert!(!is_read(&|file| file["model"]["vocab"]["new"] = json!(3)));
        assert!(!is_read(
            &|file| file["model"]["vocab"]["new"] = json!(4_000_000_000_u32)
        ));
        assert!(!is_read(
            &|file| file["added_tokens"][0]["id"] = json!(100_000)
        ));
        assert!(!is_read(&|file| {
            file["normalizer"] = json!({ "type": "Prepend", "prepend": "x".repeat(1000) });
        }));
    }
}
