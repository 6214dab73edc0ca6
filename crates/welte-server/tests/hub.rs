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

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_created_asked_and_deleted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().as_os_str().to_os_string();
    let settings = Settings::from_variables(&|name| (name == "HF_HOME").then(|| home.clone()));
    let mut load = LoadOptions::default();
    (load.context, load.threads) = (512, Some(2));
    load.device = "cpu".parse().unwrap();
    let mut catalog = Catalog::new(load);
    assert!(catalog.add("demo", path));
    let mut options = ServerOptions::default();
    let short = |name: &str| (name == "qwen").then_some("org/qwen");
    let access = HubAccess::from(Hub::new(settings.unwrap()));
    options.hub = Some(access.with_short_names(short));
    let server = router(catalog, options).unwrap();
    let create = json!({
        "model": "fox", "from": "demo", "system": "You are a fox.", "stream": false,
        "parameters": { "num_predict": 4, "temperature": 0 },
        "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yip." }],
    });
    let created = post(&server, "/api/create", create.clone()).await;
    assert_eq!(
        created.json(),
        json!({ "status": "success" }),
        "{}",
        created.text
    );
    // Every API gives the same prompt: ours before the client's.
    let user = json!({ "role": "user", "content": "Who are you?" });
    let count = |answer: Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let openai = json!({ "model": "fox", "messages": [user] });
    let openai = post(&server, "/v1/chat/completions", openai).await.json();
    assert_eq!(openai["usage"]["completion_tokens"], 4, "{openai}");
    let whole = json!({ "model": "demo", "max_tokens": 1, "messages": [
        { "role": "system", "content": "You are a fox." }, { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": "Yip." }, user,
    ] });
    let whole = post(&server, "/v1/chat/completions", whole).await.json();
    assert_eq!(count(openai), count(whole));
    let ask = json!({ "model": "fox:latest", "messages": [user], "stream": false, "options": { "num_predict": 6 } });
    let ollama = post(&server, "/api/chat", ask.clone()).await.json();
    assert_eq!(ollama["eval_count"], 6, "{ollama}");
    let shown = post(&server, "/api/show", json!({ "model": "fox" }))
        .await
        .json();
    assert_eq!(shown["system"], "You are a fox.");
    let modelfile = shown["modelfile"].as_str().unwrap();
    assert!(
        modelfile.starts_with("FROM demo\n") && modelfile.contains("MESSAGE user Hi"),
        "{modelfile}"
    );
    // One over the other, and over itself. It keeps its place, and what was loaded is not served any more.
    let other = json!({ "model": "vixen", "from": "fox", "stream": false });
    assert_eq!(post(&server, "/api/create", other).await.status, 200);
    let names = async || {
        let tags = get(&server, "/api/tags").await.json();
        let names = tags["models"].as_array().unwrap().iter();
        names
            .map(|model| model["name"].to_string())
            .collect::<String>()
    };
    let before = names().await;
    let second = json!({ "model": "fox", "from": "fox", "parameters": { "num_predict": 2 }, "stream": false });
    assert_eq!(post(&server, "/api/create", second).await.status, 200);
    let shown = post(&server, "/api/show", json!({ "model": "fox" }))
        .await
        .json();
    assert_eq!(shown["parameters"], "num_predict 2\ntemperature 0");
    assert_eq!(
        (names().await, before.as_str()),
        (before.clone(), "\"demo\"\"fox\"\"vixen\"")
    );
    let ask_again = json!({ "model": "fox", "messages": [user] });
    let again = post(&server, "/v1/chat/completions", ask_again)
        .await
        .json();
    assert_eq!(again["usage"]["completion_tokens"], 2, "{again}");
    for (field, value, status) in [
        ("from", json!("nowhere"), 404),
        ("model", json!("../fox"), 400),
        ("model", json!("demo"), 400),
        ("model", json!("qwen:latest"), 400),
        ("adapters", json!({ "a": "b" }), 400),
        ("parameters", json!({ "temperature": "hot" }), 400),
        ("template", json!("{{ .Prompt }}"), 400),
    ] {
        let mut wrong = create.clone();
        wrong[field] = value;
        let refused = post(&server, "/api/create", wrong).await;
        assert_eq!(refused.status, status, "{field}: {}", refused.text);
    }
    assert_eq!(delete(&server, json!({ "model": "fox" })).await.status, 200);
    assert_eq!(post(&server, "/api/chat", ask).await.status, 404);
}

#[tokio::test]
async fn models_are_managed_only_if_that_is_offered() {
    let server = server();
    let body = json!({ "model": "org/model" });
    assert_eq!(post(&server, "/api/pull", body.clone()).await.status, 403);
    assert_eq!(post(&server, "/api/create", body.clone()).await.status, 403);
    assert_eq!(delete(&server, body).await.status, 403);
}
