//! Token weights: `/embed_sparse` of Text Embeddings Inference.

mod common;

use common::encoder::encoder;
use common::{get, post};
use serde_json::{Value, json};
use welte::Model;
use welte_server::{ServerOptions, router};

fn model(name: &str) -> Model {
    let words = ["fox", "bear", "snow", "a", "eats", "##s", "red", "old"];
    encoder(name, ["<s>", "<pad>", "</s>", "<unk>"], [0, 2], &words)
}

/// Indices of a sparse vector, in order, and their values.
fn entries(vector: &Value) -> Vec<(u64, f64)> {
    let entry = |entry: &Value| {
        let fields = entry.as_object().unwrap();
        assert_eq!(fields.len(), 2, "{entry}");
        (
            entry["index"].as_u64().unwrap(),
            entry["value"].as_f64().unwrap(),
        )
    };
    vector.as_array().unwrap().iter().map(entry).collect()
}

#[tokio::test]
async fn tokens_are_weighed() {
    let mut options = ServerOptions::default();
    options.strict = true;
    let server = router(model("encoders/bge-m3"), options).unwrap();
    let inputs = [
        "a fox eats",
        "snow",
        "",
        "zebra",
        "fox fox fox bear old red",
    ];
    let body = json!({ "inputs": inputs });
    let reply = post(&server, "/embed_sparse", body).await;
    assert_eq!(reply.status, 200);
    let all = reply.json();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 5);
    let known: [&[u64]; 5] = [&[4, 7, 8], &[6], &[], &[], &[4, 5, 10, 11]];
    let mut found = 0;
    for ((vector, known), text) in all.iter().zip(known).zip(inputs) {
        let vector = entries(vector);
        assert!(vector.is_sorted_by(|a, b| a.0 < b.0), "{vector:?}");
        assert!(
            vector
                .iter()
                .all(|entry| entry.1 > 0.0 && known.contains(&entry.0)),
            "{vector:?}"
        );
        found += vector.len();
        let alone = post(&server, "/embed_sparse", json!({ "inputs": text }))
            .await
            .json();
        assert_eq!(entries(&alone[0]), vector, "{text}");
    }
    assert!(found > 1, "{found} tokens weigh something");
    // The same model has vectors, too.
    let models = get(&server, "/v1/models").await.json();
    let dense = json!({ "model": models["data"][0]["id"], "input": "a fox eats" });
    let dense = post(&server, "/v1/embeddings", dense).await.json();
    assert_eq!(
        dense["data"][0]["embedding"].as_array().map(Vec::len),
        Some(48),
        "{dense}"
    );
    // Tokens in place of texts.
    let tokens = json!({ "inputs": [0, 7, 4, 8, 2] });
    let tokens = post(&server, "/embed_sparse", tokens).await.json();
    assert_eq!(entries(&tokens[0]), entries(&all[0]));
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let mut options = ServerOptions::default();
    options.strict = true;
    let server = router(model("encoders/bge-m3"), options).unwrap();
    let long = "fox ".repeat(100);
    for (body, part) in [
        (json!({}), "inputs"),
        (json!({ "inputs": [] }), "inputs"),
        (json!({ "inputs": 7 }), "inputs"),
        (json!({ "inputs": vec!["a"; 2049] }), "2048"),
        (
            json!({ "inputs": "a", "truncation_direction": "Left" }),
            "truncation_direction",
        ),
        (
            json!({ "inputs": "a", "prompt_name": "colour" }),
            "prompt_name",
        ),
        (json!({ "inputs": "a", "colour": 1 }), "colour"),
        (json!({ "inputs": ["a", long] }), "too large"),
        (json!({ "inputs": [7, 96] }), "96"),
    ] {
        let reply = post(&server, "/embed_sparse", body.clone()).await;
        assert_eq!(reply.status, 400, "{body}");
        let said = reply.json()["error"]["message"].to_string();
        assert!(said.contains(part), "{said} lacks {part}");
    }
    let cut = json!({ "inputs": long, "truncate": true, "truncation_direction": "Right" });
    assert_eq!(post(&server, "/embed_sparse", cut).await.status, 200);
    let offered = get(&server, "/openapi.json").await.json();
    assert!(offered["paths"]["/embed_sparse"].is_object());

    // SPLADE weighs other tokens, too, and has no other vectors.
    let splade = router(model("encoders/splade"), ServerOptions::default()).unwrap();
    let reply = post(&splade, "/embed_sparse", json!({ "inputs": ["a fox", ""] })).await;
    assert_eq!(reply.status, 200);
    let all = reply.json();
    assert!(
        entries(&all[0]).len() > 10 && entries(&all[1]).len() > 10,
        "{all}"
    );
    let reply = post(&splade, "/v1/embeddings", json!({ "input": "a" })).await;
    assert_eq!(reply.status, 400);
    let said = reply.json()["error"]["message"].to_string();
    assert!(said.contains("sparse"), "{said}");

    let dense = router(model("encoders/xlm-roberta"), ServerOptions::default()).unwrap();
    // It is told before the text, which does not fit, is looked at.
    let reply = post(&dense, "/embed_sparse", json!({ "inputs": long })).await;
    assert_eq!(reply.status, 400);
    let said = reply.json()["error"]["message"].to_string();
    assert!(said.contains("sparse_linear.pt"), "{said}");
    let offered = get(&dense, "/openapi.json").await.json();
    assert!(offered["paths"]["/embed_sparse"].is_null());
}
