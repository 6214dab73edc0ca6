//! Prompts before texts, lower case and cuts, against sentence-transformers (`tools/goldens/prompts.py`).

use serde_json::Value;
use welte::{Error, LoadOptions, Model};

fn file(name: &str) -> String {
    let path = welte_goldens::folder().join("encoders/prompts").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The model of another golden, with the tokenizer and the settings of this one. `change` edits a file's text.
fn load(change: impl Fn(&str, String) -> String) -> Model {
    let folder = tempfile::tempdir().unwrap();
    welte_goldens::write("encoders/bert", folder.path());
    for name in [
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::write(folder.path().join(name), change(name, file(name))).unwrap();
    }
    let mut options = LoadOptions::default();
    (options.device, options.slots) = ("cpu".parse().unwrap(), 2);
    options.embeddings = true;
    Model::load(&folder.path().display().to_string(), &options, &mut |_| ()).unwrap()
}

fn embed(model: &Model, prompt: Option<&str>, text: &str) -> Vec<f32> {
    let text = model.encode_to_embed(prompt, text).unwrap();
    let vector = model.engine().unwrap().embed(text, None).unwrap();
    vector.unnormalised().wait().unwrap()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let each = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    each.fold(0.0, f32::max) / largest
}

#[test]
fn vectors_agree_with_sentence_transformers() {
    let model = load(|_, text| text);
    let expected: Vec<Value> = serde_json::from_str(&file("expected.json")).unwrap();
    assert_eq!(expected.len(), 9);
    for case in &expected {
        let (prompt, text) = (case["prompt"].as_str(), case["text"].as_str().unwrap());
        let vector: Vec<f32> = serde_json::from_value(case["vector"].clone()).unwrap();
        let found = embed(&model, prompt, text);
        let off = difference(&found, &vector);
        assert!(off < 1e-4, "{prompt:?} {text:?}: {off}");
    }
}

#[test]
fn rows_of_a_prompt_are_pooled_unless_the_model_leaves_them_out() {
    let pooled =
        load(|_, text| text.replace("\"include_prompt\": false", "\"include_prompt\": true"));
    let without = load(|_, text| text);
    let [a, b] = [&pooled, &without].map(|model| embed(model, Some("query"), "a fox"));
    assert!(difference(&a, &b) > 0.01);
    // Without a prompt nothing is left out.
    let [a, b] = [&pooled, &without].map(|model| embed(model, Some("none"), "a fox"));
    assert!(difference(&a, &b) < 1e-5);
    let text = pooled.encode_to_embed(Some("query"), "a fox").unwrap();
    assert_eq!(text.left_out, 0);
}

#[test]
fn texts_are_made_lower_case_if_the_model_says_so() {
    let cased = load(|_, text| text.replace("\"do_lower_case\": true", "\"do_lower_case\": false"));
    let lower = load(|_, text| text);
    assert_eq!(
        lower.encode("A FOX").unwrap(),
        lower.encode("a fox").unwrap()
    );
    assert_ne!(
        cased.encode("A FOX").unwrap(),
        cased.encode("a fox").unwrap()
    );
    // Special tokens are recognised as they are spelt.
    let separator = lower.encode("fox [SEP] fox").unwrap();
    assert_eq!(separator[2], separator[4]);
}

#[test]
fn prompts_that_cannot_be_used_are_named() {
    let model = load(|_, text| text);
    let error = model.encode_to_embed(Some("passage"), "a fox").unwrap_err();
    assert!(matches!(error, Error::NoSuchPrompt { .. }));
    let error = error.to_string();
    assert!(
        error.contains("'passage'") && error.contains("document, none, query"),
        "{error}"
    );
    let first = load(|_, text| text.replace("\"mean\"", "\"cls\""));
    let text = first.encode_to_embed(Some("query"), "a fox").unwrap();
    let error = first.engine().unwrap().embed(text, None).err().unwrap();
    assert!(matches!(error, Error::PromptPooling { .. }), "{error}");
}
