//! Vectors of texts after the model's prompts.

mod common;

use common::{get, post};
use serde_json::{Value, json};
use welte::{LoadOptions, Model};
use welte_server::{ServerOptions, router};

/// The model of the golden `prompts`. `change` edits what sentence-transformers put beside it.
fn model(change: impl Fn(String) -> String) -> Model {
    let prompts = welte_goldens::folder().join("encoders/prompts");
    let folder = tempfile::tempdir().unwrap();
    welte_goldens::write("encoders/bert", folder.path());
    for file in [
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
    ] {
        let text = std::fs::read_to_string(prompts.join(file)).unwrap();
        std::fs::write(folder.path().join(file), change(text)).unwrap();
    }
    let mut options = LoadOptions::default();
    (options.device, options.slots) = ("cpu".parse().unwrap(), 2);
    options.embeddings = true;
    Model::load(&folder.path().display().to_string(), &options, &mut |_| ()).unwrap()
}

#[tokio::test]
async fn a_prompt_is_chosen_by_name_or_by_the_type_of_input() {
    let server = router(model(|text| text), ServerOptions::default()).unwrap();
    let vector = async |body: Value| {
        let reply = post(&server, "/v1/embeddings", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["data"][0]["embedding"].clone()
    };
    let plain = vector(json!({ "input": "a fox" })).await;
    let query = vector(json!({ "input": "a fox", "prompt_name": "query" })).await;
    let none = vector(json!({ "input": "a fox", "prompt_name": "none" })).await;
    let document = vector(json!({ "input": "a fox", "prompt_name": "document" })).await;
    // `document` is the default.
    assert_eq!(plain, document);
    assert!(plain != query && query != none && plain != none);
    for (kind, expected) in [("query", &query), ("document", &plain), ("passage", &plain)] {
        assert_eq!(
            &vector(json!({ "input": "a fox", "input_type": kind })).await,
            expected
        );
    }
    for (field, value, problem) in [
        ("prompt_name", "passage", "document, none, query"),
        ("input_type", "sparse", "query, document or passage"),
    ] {
        let mut body = json!({ "input": "a fox" });
        body[field] = value.into();
        let reply = post(&server, "/v1/embeddings", body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], field);
        assert!(reply.text.contains(problem), "{}", reply.text);
    }
    let tokens = json!({ "input": [2, 4, 3], "prompt_name": "query" });
    let reply = post(&server, "/v1/embeddings", tokens).await;
    assert_eq!(reply.json()["error"]["param"], "prompt_name");
    let both = json!({ "input": "a", "prompt_name": "query", "input_type": "query" });
    let reply = post(&server, "/v1/embeddings", both).await;
    assert_eq!(reply.json()["error"]["param"], "input_type");
}

#[tokio::test]
async fn a_cut_text_keeps_its_end_token() {
    let plain = |text: String| {
        text.replace("\"document\"}", "null}")
            .replace("\"include_prompt\": false", "\"include_prompt\": true")
    };
    let server = router(model(plain), ServerOptions::default()).unwrap();
    let models = get(&server, "/v1/models").await.json();
    let cut = json!({ "model": models["data"][0]["id"], "input": "fox ".repeat(100) });
    let cut = post(&server, "/api/embed", cut).await;
    assert_eq!(cut.status, 200, "{}", cut.text);
    // [CLS], as many words as the context holds beside the special tokens, [SEP].
    let tokens: Vec<u32> = [vec![2], vec![4; 70], vec![3]].concat();
    let whole = post(&server, "/v1/embeddings", json!({ "input": tokens })).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    assert_eq!(cut.json()["prompt_eval_count"], 72);
    assert_eq!(
        cut.json()["embeddings"][0],
        whole.json()["data"][0]["embedding"]
    );
}
