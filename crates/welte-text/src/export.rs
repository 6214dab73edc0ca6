//! A tokenizer as `tokenizer.json`, for programs that read no GGUF.

mod gguf;

use crate::tokenizer::{Kind, SPACE, Tokenizer, Words};
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

impl Tokenizer {
    /// The contents of a `tokenizer.json` of the same vocabulary.
    pub fn to_json(&self) -> Value {
        let (parts, text) = (self.parts(), |id: &u32| self.token_text(*id));
        let model = match &parts.model {
            Words::Merges(bpe) => {
                let ids = 0..self.vocab_size() as u32;
                let known = ids.filter(|id| self.id_of(text(id)) == Some(*id));
                let vocab: Map<String, Value> =
                    known.map(|id| (text(&id).into(), id.into())).collect();
                let merges = bpe.merges().into_iter();
                let merges: Vec<[&str; 2]> = merges.map(|pair| pair.map(|id| text(&id))).collect();
                let unknown = bpe.unknown();
                json!({
                    "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| text(&id)),
                    "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": unknown.is_some(),
                    "byte_fallback": bpe.has_bytes(), "ignore_merges": bpe.takes_whole_words(),
                    "vocab": vocab, "merges": merges,
                })
            }
            Words::Backend(model) => json!(model),
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added_tokens(),
            "normalizer": parts.normalizer, "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": self.around(), "decoder": decoder(parts.kind, parts.space_prefix), "model": model,
        })
    }

    /// Control tokens and user-defined ones.
    fn added_tokens(&self) -> Vec<Value> {
        let mut added: Vec<_> = self.added().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        let token = |(id, token): (u32, &AddedToken)| {
            json!({
                "id": id, "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip,
                "rstrip": token.rstrip, "normalized": token.normalized, "special": self.is_control(id),
            })
        };
        added.into_iter().map(token).collect()
    }

    /// What the vocabulary puts around a text.
    fn around(&self) -> Value {
        let parts = self.parts();
        let ids = || parts.prefix.iter().chain(&parts.suffix);
        if ids().next().is_none() {
            return Value::Null;
        }
        let special =
            |id: &u32| json!({ "SpecialToken": { "id": self.token_text(*id), "type_id": 0 } });
        let around = |texts: &[&str]| {
            let texts = texts
                .iter()
                .map(|text| json!({ "Sequence": { "id": text, "type_id": 0 } }));
            let all = parts.prefix.iter().map(special).chain(texts);
            all.chain(parts.suffix.iter().map(special))
                .collect::<Vec<_>>()
        };
        let entry = |id: &u32| {
            let text = self.token_text(*id);
            (
                text.to_string(),
                json!({ "id": text, "ids": [id], "tokens": [text] }),
            )
        };
        json!({
            "type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]),
            "special_tokens": ids().map(entry).collect::<Map<String, Value>>(),
        })
    }
}

/// From tokens to text.
fn decoder(kind: Kind, space_prefix: bool) -> Value {
    match kind {
        Kind::ByteLevel => {
            json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true })
        }
        Kind::WordPiece => json!({ "type": "WordPiece", "prefix": "##", "cleanup": false }),
        Kind::SentencePiece => {
            let mut steps = vec![
                json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
                json!({ "type": "ByteFallback" }),
                json!({ "type": "Fuse" }),
            ];
            if space_prefix {
                steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
            }
            json!({ "type": "Sequence", "decoders": steps })
        }
    }
}
