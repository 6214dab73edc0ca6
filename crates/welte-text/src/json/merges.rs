//! A fast way for vocabularies of merges, which most large ones are.
//!
//! The backend reads such a file through several trees and copies the vocabulary twice. This reads both large lists as they
//! are, and leaves the small rest to the backend. Whatever is unusual or wrong is left to the slow way, whose errors say
//! where.

use super::stages::{Built, assemble, kind_of, type_of};
use crate::bpe::{Bpe, Spellings, Table};
use crate::growth;
use crate::token::TokenType;
use crate::tokenizer::{Tokenizer, Words, byte_token};
use crate::vocabulary::Vocabulary;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use std::fmt::Formatter;
use tokenizers::AddedToken;

/// A `tokenizer.json`: the large lists, and the rest as trees.
#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Tokens,
    merges: Lines,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The tokens with their ids.
struct Tokens(Vec<(String, u32)>);

/// Pairs of tokens with a space between.
struct Lines(Vec<String>);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tokens, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Tokens;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("tokens with their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tokens, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Tokens(all))
            }
        }
        deserializer.deserialize_map(All)
    }
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lines, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Lines;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lines, A::Error> {
                let mut all = Vec::new();
                let mut line = String::new();
                while list.next_element_seed(Line(&mut line))?.is_some() {
                    if line.matches(' ').count() != 1 {
                        return Err(A::Error::custom("a merge is not two tokens"));
                    }
                    all.push(line.as_str().to_owned());
                    line.clear();
                }
                Ok(Lines(all))
            }
        }
        deserializer.deserialize_seq(All)
    }
}

/// Reads a merge: a line, or a list of two tokens.
struct Line<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("two tokens")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        list.next_element_seed(Line(self.0))?;
        self.0.push(' ');
        list.next_element_seed(Line(self.0))?;
        while list.next_element_seed(Line(self.0))?.is_some() {
            // Too many spaces are noticed.
            self.0.push_str("  ");
        }
        Ok(())
    }
}

/// The tokenizer of a file, if it is of the usual kind.
pub(super) fn read(source: &str, config: &Value) -> Option<Tokenizer> {
    let File { model, mut rest } = serde_json::from_str(source).ok()?;
    let options = model.rest;
    let text = |name: &str| options.get(name).and_then(Value::as_str);
    let is_set = |name: &str| options.get(name) == Some(&Value::Bool(true));
    let is_plain = options.get("dropout").is_none_or(Value::is_null)
        && text("continuing_subword_prefix").is_none_or(str::is_empty)
        && text("end_of_word_suffix").is_none_or(str::is_empty);
    if text("type") != Some("BPE") || !is_plain {
        return None;
    }
    let added = added_tokens(rest.get("added_tokens"))?;
    let tokens = model.vocab.0;
    let ids = || tokens.iter().map(|(_, id)| *id);
    let last = ids().chain(added.iter().map(|(id, _)| *id)).max()? as usize;
    if last > 4 * tokens.len() + 100_000 {
        return None;
    }
    rest.insert("added_tokens".into(), json!([]));
    // The rest is tried on a letter.
    let letter = json!({ "type": "BPE", "vocab": { "a": last + 1 }, "merges": [] });
    rest.insert("model".into(), letter);
    let json = Value::Object(rest);
    growth::check(&json).ok()?;
    let kind = kind_of(&json);

    let size = tokens.len();
    let mut texts = vec![String::new(); last + 1];
    let mut types = vec![TokenType::Unused; last + 1];
    for (text, id) in tokens {
        let place = &mut texts[id as usize];
        if text.is_empty() || !place.is_empty() {
            return None;
        }
        types[id as usize] = type_of(kind, &text);
        *place = text;
    }
    let mut next = size as u32;
    for (id, token) in &added {
        let place = &mut texts[*id as usize];
        if place.is_empty() {
            // The model itself does not know it.
            let content = &token.content;
            let is_word =
                content.chars().nth(1).is_none() || content.chars().all(char::is_alphanumeric);
            if *id != next || is_word {
                return None;
            }
            next += 1;
            place.clone_from(content);
        } else if *place != token.content {
            return None;
        }
        types[*id as usize] = if token.special {
            TokenType::Control
        } else {
            TokenType::UserDefined
        };
    }
    let (table, twice) = Table::new(&texts);
    if twice.is_some() {
        return None;
    }
    let vocabulary = Vocabulary {
        tokens: texts,
        merges: model.merges.0,
        ..Vocabulary::default()
    };
    let merges = vocabulary.listed_merges(&table).ok()?;
    let texts = vocabulary.tokens;
    let bpe = Bpe::new(&merges, is_set("ignore_merges"));
    if bpe.len() != vocabulary.merges.len() {
        return None;
    }
    let spellings = Spellings::new(texts, Some(table));
    let bytes = is_set("byte_fallback").then(|| {
        let ids = (0..=255).map(|byte| spellings.id(&byte_token(byte)));
        ids.collect::<Option<Vec<u32>>>()
    });
    let unknown = match (&bytes, text("unk_token")) {
        (Some(None), _) => return None,
        (Some(_), _) | (None, None) => None,
        (None, Some(unknown)) => Some(spellings.id(unknown).filter(|_| is_set("fuse_unk"))?),
    };
    let mut stages = tokenizers::Tokenizer::from_bytes(json.to_string()).ok()?;
    stages.with_truncation(None).ok()?;
    stages.with_padding(None);
    let built = Built {
        kind,
        model: Words::Merges(bpe.with_unknown(bytes.flatten(), unknown)),
        spellings,
        types,
        added: added.into_iter().map(|(_, token)| token).collect(),
    };
    assemble(&stages, built, &json, config).ok()
}

/// The added tokens with their ids, in the order of these.
fn added_tokens(list: Option<&Value>) -> Option<Vec<(u32, AddedToken)>> {
    let list = match list {
        Some(list) => list.as_array()?.as_slice(),
        None => &[],
    };
    let token = |value: &Value| {
        let id = u32::try_from(value["id"].as_u64()?).ok()?;
        let token = AddedToken::deserialize(value).ok()?;
        (!token.content.is_empty()).then_some((id, token))
    };
    let mut added: Vec<(u32, AddedToken)> = list.iter().map(token).collect::<Option<_>>()?;
    added.sort_by_key(|(id, _)| *id);
    let twice = added.windows(2).any(|pair| pair[0].0 == pair[1].0);
    (!twice).then_some(added)
}
