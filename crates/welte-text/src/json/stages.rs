//! The stages of a `tokenizer.json` around its model.

use crate::Error;
use crate::bpe::Spellings;
use crate::token::TokenType;
use crate::tokenizer::{Kind, Parts, Tokenizer, Words, byte_of};
use serde_json::Value;
use tokenizers::AddedToken;

const FILE: &str = "tokenizer.json";

pub(super) fn bad(problem: impl Into<String>) -> Error {
    Error::Json {
        file: FILE,
        problem: problem.into(),
    }
}

/// A model and its vocabulary.
pub(super) struct Built {
    pub(super) kind: Kind,
    pub(super) model: Words,
    pub(super) spellings: Spellings,
    pub(super) types: Vec<TokenType>,
    /// In the order of their ids.
    pub(super) added: Vec<AddedToken>,
}

/// Adds the other stages of a file, and what its configuration says.
pub(super) fn assemble(
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

pub(super) fn kind_of(json: &Value) -> Kind {
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
pub(super) fn type_of(kind: Kind, text: &str) -> TokenType {
    match kind {
        Kind::SentencePiece if byte_of(text).is_some() => TokenType::Byte,
        Kind::SentencePiece | Kind::WordPiece if ["<unk>", "[UNK]"].contains(&text) => {
            TokenType::Unknown
        }
        _ => TokenType::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_kind_of_a_file_follows_from_its_stages() {
        let byte_level = json!({ "type": "ByteLevel" });
        let sequence = json!({ "type": "Sequence", "decoders": [{ "type": "Strip" }, byte_level] });
        for part in ["decoder", "pre_tokenizer", "normalizer"] {
            for stage in [&byte_level, &sequence] {
                assert_eq!(kind_of(&json!({ part: stage })), Kind::ByteLevel);
            }
        }
        let piece = json!({ "type": "WordPiece" });
        assert_eq!(kind_of(&json!({ "model": piece })), Kind::WordPiece);
        assert_eq!(
            kind_of(&json!({ "model": piece, "decoder": byte_level })),
            Kind::ByteLevel
        );
        assert_eq!(
            kind_of(&json!({ "post_processor": byte_level })),
            Kind::SentencePiece
        );
        for (stages, strips) in [
            (json!([{ "type": "Replace" }, { "type": "Strip" }]), true),
            (json!([{ "type": "Replace" }]), false),
            (json!([{ "type": "Strip" }]), false),
            (
                json!([{ "type": "Metaspace", "prepend_scheme": "always" }]),
                true,
            ),
            (
                json!([{ "type": "Metaspace", "prepend_scheme": "never" }]),
                false,
            ),
            (
                json!([{ "type": "Replace", "content": "never" }, { "type": "Strip" }]),
                true,
            ),
            (json!([{ "type": "Fuse" }]), false),
        ] {
            let json = json!({ "decoder": { "type": "Sequence", "decoders": stages } });
            assert_eq!(strips_space(&json), strips, "{json}");
        }
    }

    #[test]
    fn tokens_have_a_type() {
        for (kind, text, of) in [
            (Kind::SentencePiece, "<0x0A>", TokenType::Byte),
            (Kind::SentencePiece, "<unk>", TokenType::Unknown),
            (Kind::SentencePiece, "a", TokenType::Normal),
            (Kind::WordPiece, "[UNK]", TokenType::Unknown),
            (Kind::WordPiece, "<0x0A>", TokenType::Normal),
            (Kind::ByteLevel, "<0x0A>", TokenType::Normal),
            (Kind::ByteLevel, "<unk>", TokenType::Normal),
        ] {
            assert_eq!(type_of(kind, text), of, "{text}");
        }
    }
}
