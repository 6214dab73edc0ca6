//! Several models: loaded on demand, unloaded when idle or when another needs the memory, never while they serve.

mod common;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use common::{DEMO, get, load_options, post};
use serde_json::{Value, json};
use std::time::Duration;
use tower::ServiceExt;
use welte::Model;
use welte_server::{Catalog, Server, ServerOptions, router};

const CONTEXT: u32 = 2048;

fn catalog(names: &[&str]) -> Catalog {
    let mut catalog = Catalog::new(load_options(CONTEXT));
    for name in names {
        assert!(catalog.add(*name, DEMO));
    }
    catalog
}

fn server(names: &[&str], change: impl FnOnce(&mut ServerOptions)) -> Router {
    let mut options = ServerOptions::default();
    change(&mut options);
    router(catalog(names), options).unwrap()
}

/// Bytes of one loaded model.
fn one_model() -> u64 {
    let inspection = Model::inspect(DEMO, &load_options(CONTEXT)).unwrap();
    inspection.plan().total()
}

fn ask(model: &str, seed: u64) -> Value {
    json!({ "model": model, "prompt": "Once upon", "max_tokens": 12, "temperature": 1.0, "seed": seed })
}

/// The names of the loaded models.
async fn loaded(server: &Router) -> Vec<String> {
    let models = get(server, "/v1/models").await.json();
    let all = models["data"].as_array().unwrap();
    all.iter()
        .filter(|model| model["welte"]["loaded"] == true)
        .map(|model| model["id"].as_str().unwrap().to_string())
        .collect()
}

#[tokio::test]
async fn a_model_is_loaded_by_its_first_request() {
    let server = server(&["a", "b"], |_| ());
    assert!(loaded(&server).await.is_empty());
    assert_eq!(get(&server, "/health").await.status, 200);
    assert_eq!(get(&server, "/welte/state").await.status, 409);
    let reply = post(&server, "/v1/completions", ask("b", 1)).await.json();
    assert_eq!(reply["model"], "b");
    assert_eq!(loaded(&server).await, ["b"]);
    // Without a name the first one answers.
    let mut body = ask("", 1);
    body.as_object_mut().unwrap().remove("model");
    let first = post(&server, "/v1/completions", body).await.json();
    assert_eq!(first["model"], "a");
    assert_eq!(first["choices"][0]["text"], reply["choices"][0]["text"]);
    assert_eq!(loaded(&server).await, ["a", "b"]);
    let shown = get(&server, "/api/ps").await.json();
    assert_eq!(shown["models"].as_array().unwrap().len(), 2);
    let metrics = get(&server, "/metrics").await.text;
    for name in ["a", "b"] {
        let line = format!("welte_requests_total{{model_name=\"{name}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn an_unknown_model_is_refused_with_the_known_ones() {
    let server = server(&["a", "b"], |_| ());
    let reply = post(&server, "/v1/completions", ask("c", 1)).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    let message = reply.json()["error"]["message"].clone();
    assert_eq!(message, r#"model "c" is not served here; use "a", "b""#);
    assert!(loaded(&server).await.is_empty());
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_fails_its_own_requests_only() {
    let mut catalog = catalog(&["good"]);
    assert!(catalog.add("bad", "/nowhere/model.gguf"));
    assert!(!catalog.add("bad", "/another/model.gguf"));
    let planned = catalog.plan();
    assert!(planned[0].bytes.is_ok() && planned[1].bytes.is_err());
    let server = router(catalog, ServerOptions::default()).unwrap();
    let reply = post(&server, "/v1/completions", ask("bad", 1)).await;
    assert_eq!(reply.status, 500);
    assert!(reply.text.contains("model.gguf: No such"), "{}", reply.text);
    assert_eq!(
        post(&server, "/v1/completions", ask("good", 1))
            .await
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_makes_room_and_a_busy_one_stays() {
    let server = server(&["a", "b", "c"], |options| {
        options.models_memory = Some(2 * one_model());
        options.timeout = Some(Duration::from_secs(3));
    });
    for (name, left) in [
        ("a", vec!["a"]),
        ("b", vec!["a", "b"]),
        ("a", vec!["a", "b"]),
        ("c", vec!["a", "c"]),
    ] {
        let reply = post(&server, "/v1/completions", ask(name, 1)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(loaded(&server).await, left);
    }
    // Streams whose bodies are not read keep their models busy.
    let mut streams = Vec::new();
    for name in ["a", "c"] {
        let mut body = ask(name, 1);
        body["stream"] = true.into();
        let request = Request::post("/v1/completions").body(Body::from(body.to_string()));
        streams.push(server.clone().oneshot(request.unwrap()).await.unwrap());
    }
    let reply = post(&server, "/v1/completions", ask("b", 1)).await;
    assert_eq!(reply.status, 503, "{}", reply.text);
    assert!(reply.text.contains("beside a, c"));
    assert_eq!(loaded(&server).await, ["a", "c"]);
    streams.remove(0);
    assert_eq!(
        post(&server, "/v1/completions", ask("b", 1)).await.status,
        200
    );
    assert_eq!(loaded(&server).await, ["b", "c"]);
}

#[tokio::test]
async fn a_model_that_never_fits_is_refused() {
    let server = server(&["a"], |options| options.models_memory = Some(1 << 20));
    let reply = post(&server, "/v1/completions", ask("a", 1)).await;
    assert_eq!(reply.status, 503);
    assert!(
        reply.text.contains("0.00 GiB are available"),
        "{}",
        reply.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_for_more_models_than_fit_all_get_their_text() {
    let names = ["a", "b", "c", "d"];
    let server = server(&names, |options| {
        options.models_memory = Some(2 * one_model());
    });
    let alone = common::server();
    let mut tasks = Vec::new();
    for i in 0..24u64 {
        let (server, name) = (server.clone(), names[i as usize * 7 % 4]);
        tasks.push(tokio::spawn(async move {
            post(&server, "/v1/completions", ask(name, i)).await.json()
        }));
    }
    for (i, task) in tasks.into_iter().enumerate() {
        let reply = task.await.unwrap();
        let expected = post(&alone, "/v1/completions", ask("demo", i as u64)).await;
        let expected = expected.json();
        assert_eq!(reply["choices"], expected["choices"], "{reply}");
    }
    assert!(loaded(&server).await.len() <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_is_unloaded_after_its_time() {
    let server = Server::bind(
        catalog(&["a", "b"]),
        ServerOptions::default(),
        "127.0.0.1:0",
    );
    let server = server.await.unwrap();
    let (router, shutdown) = (server.router(), server.shutdown_handle());
    let running = tokio::spawn(server.run());
    for (name, time) in [("a", json!("0s")), ("b", json!(-1))] {
        let body = json!({ "model": name, "prompt": "Once", "keep_alive": time, "stream": false, "options": { "num_predict": 2 } });
        let reply = post(&router, "/api/generate", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    while loaded(&router).await.len() > 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(loaded(&router).await, ["b"]);
    let wrong = json!({ "model": "b", "prompt": "Once", "keep_alive": "soon" });
    assert_eq!(post(&router, "/api/generate", wrong).await.status, 400);
    shutdown.shutdown();
    running.await.unwrap().unwrap();
}

/// Sends a request of a program.
async fn generate(server: &Router, program: &str, model: &str, time: Option<Value>) {
    let mut body = json!({ "model": model, "prompt": "Once", "stream": false, "options": { "num_predict": 2 } });
    if let Some(time) = time {
        body["keep_alive"] = time;
    }
    let headers = [("user-agent", program)];
    let body = body.to_string().into_bytes();
    let reply = common::send(server, Method::POST, "/api/generate", &headers, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

/// As [`generate`], with a key.
async fn generate_with(server: &Router, key: &str, model: &str, time: Option<Value>) {
    let mut body = json!({ "model": model, "prompt": "Once", "stream": false, "options": { "num_predict": 2 } });
    if let Some(time) = time {
        body["keep_alive"] = time;
    }
    let authorization = format!("Bearer {key}");
    let headers = [("user-agent", "same"), ("authorization", &authorization)];
    let body = body.to_string().into_bytes();
    let reply = common::send(server, Method::POST, "/api/generate", &headers, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

/// A server that unloads idle models.
async fn unloading(names: &[&str], keep_alive: Option<Duration>) -> (Router, impl Future) {
    let mut options = ServerOptions::default();
    options.keep_alive = keep_alive;
    let server = Server::bind(catalog(names), options, "127.0.0.1:0");
    let server = server.await.unwrap();
    let (router, shutdown) = (server.router(), server.shutdown_handle());
    let running = tokio::spawn(server.run());
    let end = async move {
        shutdown.shutdown();
        running.await.unwrap().unwrap();
    };
    (router, end)
}

/// Waits until these models are loaded and no others.
async fn until_loaded(server: &Router, names: &[&str]) {
    let mut now = loaded(server).await;
    for _ in 0..3000 {
        if now == names {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        now = loaded(server).await;
    }
    panic!("{now:?} are loaded, not {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_unload_what_another_uses() {
    let (server, end) = unloading(&["a", "b"], None).await;
    generate(&server, "one", "a", Some(json!("1h"))).await;
    generate(&server, "two", "a", Some(json!(0))).await;
    // A model that only this client has used goes, so the look for idle ones has come by.
    generate(&server, "two", "b", Some(json!(0))).await;
    until_loaded(&server, &["a"]).await;
    // A client may take back its own wish.
    generate(&server, "one", "a", Some(json!(0))).await;
    until_loaded(&server, &[]).await;
    // Wishes do not outlive the load.
    generate(&server, "one", "a", Some(json!("1h"))).await;
    generate(&server, "one", "a", Some(json!(0))).await;
    until_loaded(&server, &[]).await;
    end.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_is_that_of_its_key_and_of_no_other() {
    let (server, end) = unloading(&["a", "b"], None).await;
    // The second client does not say, so the model stays for it.
    generate_with(&server, "one", "a", Some(json!(0))).await;
    generate_with(&server, "two", "a", None).await;
    generate_with(&server, "one", "b", Some(json!(0))).await;
    until_loaded(&server, &["a"]).await;
    generate_with(&server, "two", "a", Some(json!("1h"))).await;
    generate_with(&server, "one", "a", Some(json!(0))).await;
    generate_with(&server, "one", "b", Some(json!(0))).await;
    until_loaded(&server, &["a"]).await;
    end.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flag_counts_for_clients_that_do_not_say() {
    let (server, end) = unloading(&["a", "b"], Some(Duration::from_millis(1))).await;
    generate(&server, "one", "a", Some(json!("1h"))).await;
    generate(&server, "two", "a", None).await;
    generate(&server, "two", "b", None).await;
    until_loaded(&server, &["a"]).await;
    end.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_counts_from_the_end_of_the_last_answer() {
    let (server, end) = unloading(&["a", "b"], Some(Duration::from_millis(1))).await;
    // A stream whose body is not read is an answer that has not ended.
    let mut body = ask("a", 1);
    body["stream"] = true.into();
    let request = Request::post("/v1/completions").body(Body::from(body.to_string()));
    let stream = server.clone().oneshot(request.unwrap()).await.unwrap();
    // Others come and go meanwhile, also while the look for idle models goes on.
    for _ in 0..2 {
        generate(&server, "two", "b", Some(json!(0))).await;
        until_loaded(&server, &["a"]).await;
    }
    drop(stream);
    until_loaded(&server, &[]).await;
    end.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_be_unloaded_while_another_loads() {
    let (server, end) = unloading(&["a", "b", "c"], Some(Duration::ZERO)).await;
    let alone = common::server();
    let expected = post(&alone, "/v1/completions", ask("demo", 3)).await.json();
    let mut tasks = Vec::new();
    for i in 0..12 {
        let (server, name) = (server.clone(), ["a", "b", "c"][i % 3]);
        tasks.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50 * i as u64)).await;
            post(&server, "/v1/completions", ask(name, 3)).await.json()
        }));
    }
    for task in tasks {
        let reply = task.await.unwrap();
        assert_eq!(reply["choices"], expected["choices"], "{reply}");
    }
    until_loaded(&server, &[]).await;
    end.await;
}

#[tokio::test]
async fn a_model_is_shown_under_both_names_of_the_field() {
    let server = server(&["a"], |_| ());
    for field in ["model", "name"] {
        let reply = post(&server, "/api/show", json!({ field: "a" })).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.json()["details"].is_object());
    }
    for wrong in [json!({}), json!({ "name": 1 })] {
        assert_eq!(post(&server, "/api/show", wrong).await.status, 400);
    }
}

#[tokio::test]
async fn a_failed_load_names_the_file_without_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, b"GGUF?").unwrap();
    let folder = folder.path().to_str().unwrap();
    for verbose in [false, true] {
        let mut catalog = catalog(&["a"]);
        assert!(catalog.add("broken", path.to_str().unwrap()));
        let mut options = ServerOptions::default();
        options.verbose = verbose;
        let server = router(catalog, options).unwrap();
        let reply = post(&server, "/v1/completions", ask("broken", 1)).await;
        assert!(!reply.status.is_success());
        assert!(reply.text.contains("broken.gguf"), "{}", reply.text);
        assert_eq!(reply.text.contains(folder), verbose, "{}", reply.text);
    }
}
