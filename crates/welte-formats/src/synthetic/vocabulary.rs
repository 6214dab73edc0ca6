//! A byte-level vocabulary without training. It encodes any text and decodes to some text.

use crate::{Metadata, Value};

/// A few merges, so that merging is exercised.
const MERGES: [(&str, &str); 6] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("Ġ", "a"),
    ("r", "e"),
    ("Ġt", "he"),
];

/// The last tokens, which are control tokens.
const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// The smallest vocabulary.
pub(super) const LEAST: usize = 256 + MERGES.len() + CONTROL.len();

/// Renders messages as ChatML.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The character that byte-level vocabularies use for a byte: itself if printable, else one from 256 on.
fn character(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if prints(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|b| !prints(*b)).count() as u32;
    char::from_u32(256 + place).unwrap_or(' ')
}

/// Adds a vocabulary of `size` tokens.
pub(super) fn add(metadata: &mut Metadata, pre: &str, size: usize) {
    let bytes = (0..=255).map(|b| character(b).to_string());
    let merged = MERGES.iter().map(|(a, b)| format!("{a}{b}"));
    let filler = (LEAST..size).map(|i| format!("Ġw{i}"));
    let control = CONTROL.iter().map(|s| s.to_string());
    let tokens: Vec<Value> = bytes
        .chain(merged)
        .chain(filler)
        .chain(control)
        .map(Value::String)
        .collect();
    let plain = size - CONTROL.len();
    let types = (0..size)
        .map(|i| Value::I64(if i < plain { 1 } else { 3 }))
        .collect();
    let merges = MERGES
        .iter()
        .map(|(a, b)| Value::String(format!("{a} {b}")))
        .collect();
    let last = Value::U64(size as u64 - 1);
    let text = |s: &str| Value::String(s.to_string());
    for (key, value) in [
        ("model", text("gpt2")),
        ("pre", text(pre)),
        ("tokens", Value::Array(tokens)),
        ("token_type", Value::Array(types)),
        ("merges", Value::Array(merges)),
        ("bos_token_id", last.clone()),
        ("eos_token_id", last.clone()),
        ("padding_token_id", last),
        ("eot_token_id", Value::U64(size as u64 - 2)),
        ("add_bos_token", Value::Bool(false)),
    ] {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    metadata.insert("tokenizer.chat_template".to_string(), text(TEMPLATE));
}
