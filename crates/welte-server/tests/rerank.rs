//! Documents in the order of their relevance.

mod common;

use common::encoder::encoder;
use common::{get, post, with};
use serde_json::json;
use welte::Model;
use welte_server::{ServerOptions, router};

/// Its file says that it is a reranker.
fn reranker() -> Model {
    let words = ["fox", "bear", "snow", "a", "eats", "##s"];
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    encoder("encoders/bert-classifier", special, [2, 3], &words)
}

#[tokio::test]
async fn documents_are_in_order() {
    let mut options = ServerOptions::default();
    options.strict = true;
    let server = router(reranker(), options).unwrap();
    let documents = json!(["a bear", { "text": "a fox eats" }, "snow", "fox fox fox"]);
    let body = json!({ "query": "fox", "documents": documents, "return_documents": true });
    let reply = post(&server, "/v1/rerank", body.clone()).await.json();
    let results = reply["results"].as_array().unwrap();
    let scores: Vec<f64> = results
        .iter()
        .map(|r| r["relevance_score"].as_f64().unwrap())
        .collect();
    assert_eq!(scores.len(), 4, "{reply}");
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)));
    assert!(scores[0] > scores[3], "{scores:?}");
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        let wanted = ["a bear", "a fox eats", "snow", "fox fox fox"][index];
        assert_eq!(result["document"]["text"], wanted);
    }
    // [CLS] fox [SEP] a bear [SEP], and so on.
    assert_eq!(reply["usage"]["prompt_tokens"], 6 + 7 + 5 + 7);
    let mut best = body.clone();
    (best["top_n"], best["return_documents"]) = (json!(1), json!(false));
    let best = post(&server, "/rerank", best).await.json();
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    assert_eq!(best["results"][0]["index"], results[0]["index"]);
    assert!(best["results"][0].get("document").is_none());
    for (field, value) in [
        ("documents", json!([])),
        ("documents", json!([7])),
        ("documents", json!(vec!["a"; 2049])),
        ("query", json!(7)),
        ("colour", json!(1)),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let reply = post(&server, "/v1/rerank", wrong).await;
        assert_eq!(reply.status, 400, "{field}");
        let said = reply.json()["error"]["message"].to_string();
        assert!(said.contains(field), "{said}");
    }
    let body = json!({ "input": "a fox" });
    assert_eq!(post(&server, "/v1/embeddings", body).await.status, 400);
    let described = get(&server, "/openapi.json").await.json();
    let answer = &described["paths"]["/rerank"]["post"]["responses"]["200"]["content"];
    let forms = &answer["application/json"]["schema"]["anyOf"];
    assert_eq!(forms[1], json!({ "type": "array" }), "{answer}");
    assert!(
        forms[0]["required"]
            .as_array()
            .unwrap()
            .contains(&json!("results"))
    );
}

#[tokio::test]
async fn other_models_rerank_nothing() {
    let server = with(|_| ());
    let body = json!({ "query": "a", "documents": ["b"] });
    let reply = post(&server, "/v1/rerank", body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("not a reranker"), "{}", reply.text);
}

#[tokio::test]
async fn texts_get_the_response_of_tei() {
    let server = router(reranker(), ServerOptions::default()).unwrap();
    let texts = ["a bear", "snow", "fox"];
    let documents = json!({ "query": "fox", "documents": texts });
    let documents = post(&server, "/rerank", documents).await.json();
    let body = json!({ "query": "fox", "texts": texts, "return_text": true });
    let reply = post(&server, "/rerank", body).await.json();
    let (reply, results) = (reply.as_array().unwrap(), &documents["results"]);
    assert_eq!(reply.len(), 3);
    for (i, one) in reply.iter().enumerate() {
        assert_eq!(one["index"], results[i]["index"]);
        assert_eq!(one["score"], results[i]["relevance_score"]);
        let index = one["index"].as_u64().unwrap() as usize;
        assert_eq!(one["text"], texts[index]);
    }
    let best = json!({ "query": "fox", "texts": texts, "top_n": 1 });
    let best = post(&server, "/v1/reranking", best).await.json();
    assert_eq!(best.as_array().unwrap().len(), 1);
    assert!(best[0].get("text").is_none());
    let wrong = json!({ "query": "fox", "texts": [1] });
    let wrong = post(&server, "/rerank", wrong).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text.contains("texts[0]"), "{}", wrong.text);
}
