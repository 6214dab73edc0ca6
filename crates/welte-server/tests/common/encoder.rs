//! Small random encoders with a tokenizer of a few words.

use serde_json::{Map, Value, json};
use welte::{LoadOptions, Model};

/// A golden encoder. `special` are the first tokens, among them what begins a text and what separates; the words follow.
pub(crate) fn encoder(
    golden: &str,
    special: [&str; 4],
    [begins, separates]: [u32; 2],
    words: &[&str],
) -> Model {
    let folder = tempfile::tempdir().unwrap();
    welte_goldens::write(golden, folder.path());
    let vocabulary: Map<String, Value> = special
        .iter()
        .chain(words)
        .zip(0..)
        .map(|(word, id)| (word.to_string(), json!(id)))
        .collect();
    let added = special.iter().zip(0..).map(|(content, id)| json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }));
    let added: Vec<Value> = added.collect();
    let ends = |id: u32| json!([special[id as usize], id]);
    // What is not a word.
    let unknown = special
        .iter()
        .find(|name| name.to_lowercase().contains("unk"));
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ends(separates), "cls": ends(begins) },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary },
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut options = LoadOptions::default();
    (options.device, options.slots) = ("cpu".parse().unwrap(), 2);
    options.embeddings = true;
    Model::load(&folder.path().display().to_string(), &options, &mut |_| ()).unwrap()
}
