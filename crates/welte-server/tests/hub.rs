//! Models come from a hub and go again, by Ollama's endpoints.

#![cfg(feature = "hub")]

mod common;
#[path = "../../welte-hub/tests/mock/mod.rs"]
mod mock;

use axum::Router;
use axum::http::Method;
use common::{Reply, get, post, send, server};
use mock::{File, Mock};
use serde_json::{Value, json};
use welte::LoadOptions;
use welte_hub::{Hub, Settings};
use welte_server::{Catalog, HubAccess, ServerOptions, router};

async fn delete(server: &Router, body: Value) -> Reply {
    let body = body.to_string().into_bytes();
    send(server, Method::DELETE, "/api/delete", &[], body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_pulled_used_and_deleted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let bytes = std::fs::read(path).unwrap();
    let hub = Mock::new(
        "org/model",
        vec![File {
            name: "demo.Q8_0.gguf".to_string(),
            tag: welte_hub::sha256(&bytes),
            bytes,
            large: true,
        }],
    );
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().as_os_str().to_os_string();
    let settings = Settings::from_variables(&|name| (name == "HF_HOME").then(|| home.clone()));
    let settings = Settings {
        endpoint: hub.url.clone(),
        ..settings.unwrap()
    };
    let mut load = LoadOptions::default();
    (load.context, load.threads) = (256, Some(2));
    load.device = "cpu".parse().unwrap();
    let mut catalog = Catalog::new(load);
    assert!(catalog.add("other", path));
    let mut options = ServerOptions::default();
    options.hub = Some(HubAccess::from(Hub::new(settings)));
    let server = router(catalog, options).unwrap();
    let ask = json!({
        "model": "org/model", "messages": [{ "role": "user", "content": "Hello" }], "stream": false,
        "options": { "num_predict": 4 },
    });
    assert_eq!(post(&server, "/api/chat", ask.clone()).await.status, 404);
    let pulled = post(&server, "/api/pull", json!({ "model": "org/model" })).await;
    let lines: Vec<Value> = pulled
        .text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["status"], "pulling manifest", "{}", pulled.text);
    assert_eq!(
        lines[lines.len() - 1]["status"],
        "success",
        "{}",
        pulled.text
    );
    assert!(
        lines
            .iter()
            .any(|line| line["status"] == "pulling demo.Q8_0.gguf")
    );
    let names = get(&server, "/api/tags").await.json();
    assert_eq!(names["models"][1]["name"], "org/model");
    let answer = post(&server, "/api/chat", ask.clone()).await;
    assert_eq!(answer.json()["eval_count"], 4, "{}", answer.text);
    let again = json!({ "name": "org/model", "stream": false });
    let again = post(&server, "/api/pull", again).await.json();
    assert_eq!(again, json!({ "status": "success" }));
    let unknown = json!({ "model": "org/none", "stream": false });
    assert_eq!(post(&server, "/api/pull", unknown).await.status, 404);
    let wrong = post(&server, "/api/pull", json!({ "model": "../x" })).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text);
    assert_eq!(
        delete(&server, json!({ "model": "org/none" })).await.status,
        404
    );
    let deleted = delete(&server, json!({ "model": "org/model" })).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text);
    assert_eq!(post(&server, "/api/chat", ask).await.status, 404);
    let names = get(&server, "/api/tags").await.json();
    assert_eq!(names["models"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn models_are_managed_only_if_that_is_offered() {
    let server = server();
    let body = json!({ "model": "org/model" });
    assert_eq!(post(&server, "/api/pull", body.clone()).await.status, 403);
    assert_eq!(delete(&server, body).await.status, 403);
}
