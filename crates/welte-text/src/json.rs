//! A tokenizer from `tokenizer.json` and `tokenizer_config.json`.

mod merges;
mod stages;

use self::stages::{Built, assemble, bad, kind_of, type_of};
use crate::Error;
use crate::bpe::Spellings;
use crate::growth;
use crate::token::{TokenType, shortened};
use crate::tokenizer::{Kind, Tokenizer, Words};
use serde_json::Value;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CONFIG: &str = "tokenizer_config.json";

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
        // A token beside the model comes next, and could not be part of a text.
        let count = usual["model"]["vocab"].as_object().unwrap().len();
        let id = |token: &Value| token["id"].as_u64().unwrap();
        let all = usual["added_tokens"].as_array().unwrap();
        let next = all.iter().map(id).max().unwrap().max(count as u64 - 1) + 1;
        let adds = |id: u64, content: &str| {
            is_read(&|file| {
                let mut token = all[0].clone();
                token["id"] = json!(id);
                token["content"] = json!(content);
                file["added_tokens"].as_array_mut().unwrap().push(token);
            })
        };
        assert!(adds(next, "<|new|>") && !adds(next + 1, "<|new|>"));
        for word in ["§", "a1b2", "水"] {
            assert!(!adds(next, word), "{word}");
        }
    }

    /// The table of tokens has a row for each id.
    #[test]
    fn ids_far_beyond_the_tokens_are_refused() {
        let is_read = |last: u32, dropout: Value| {
            let vocab = json!({ "a": 0, "b": last });
            let model = json!({ "type": "BPE", "vocab": vocab, "merges": [], "dropout": dropout });
            let file = json!({ "model": model }).to_string();
            Tokenizer::from_json(&file, None).map(|tokenizer| tokenizer.vocab_size() as u32)
        };
        for dropout in [json!(null), json!(0.0)] {
            assert_eq!(is_read(100_008, dropout.clone()).unwrap(), 100_009);
            let error = is_read(100_009, dropout).map(drop).unwrap_err().to_string();
            assert!(
                error.contains("has 2 tokens but ids up to 100009"),
                "{error}"
            );
        }
    }
}
