//! Adapters in the APIs: as models, by vLLM's endpoints and llama.cpp's, loaded and removed while requests run.

mod common;

use axum::Router;
use common::{DEMO, get, load_options, post};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use welte::{AdapterSource, LoadOptions, Model};
use welte_server::{Catalog, ServerOptions, router};

/// A directory of PEFT with random pairs for the bundled model's attention.
fn adapter(folder: &Path, seed: u32) {
    let spec = Model::inspect(DEMO, &load_options(256)).unwrap().spec;
    let (rank, dim, heads) = (4, spec.dim as usize, (spec.heads * spec.head_dim) as usize);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    let mut state = seed;
    for layer in 0..spec.layers {
        let module = format!("base_model.model.model.layers.{layer}.self_attn");
        for (name, n, k) in [
            (format!("{module}.q_proj.lora_A.weight"), rank, dim),
            (format!("{module}.q_proj.lora_B.weight"), heads, rank),
            (format!("{module}.o_proj.lora_A.weight"), rank, heads),
            (format!("{module}.o_proj.lora_B.weight"), dim, rank),
        ] {
            let begin = data.len();
            for _ in 0..n * k {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let value = ((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * 0.3;
                data.extend(&value.to_le_bytes());
            }
            let tensor =
                json!({ "dtype": "F32", "shape": [n, k], "data_offsets": [begin, data.len()] });
            header.insert(name, tensor);
        }
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({ "peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none" });
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

struct Tested {
    server: Router,
    folder: TempDir,
}

fn tested(sources: &[&str], change: impl FnOnce(&mut LoadOptions, &mut ServerOptions)) -> Tested {
    let (server, folder) = started(sources, change);
    let server = server.unwrap();
    Tested { server, folder }
}

fn started(
    sources: &[&str],
    change: impl FnOnce(&mut LoadOptions, &mut ServerOptions),
) -> (Result<Router, welte::Error>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (seed, name) in (1..).zip(["fox", "owl"]) {
        adapter(&folder.path().join(name), seed);
    }
    let (mut load, mut options) = (load_options(256), ServerOptions::default());
    let at = folder.path().display().to_string();
    let sources = sources.iter().map(|text| text.replace("DIR", &at));
    load.adapters = sources
        .map(|text| text.parse::<AdapterSource>().unwrap())
        .collect();
    load.max_adapters = 2;
    change(&mut load, &mut options);
    let mut catalog = Catalog::new(load);
    assert!(catalog.add("demo", DEMO));
    (router(catalog, options), folder)
}

#[test]
fn an_adapter_with_a_models_name_is_refused() {
    let (server, _folder) = started(&["demo=DIR/fox"], |_, _| ());
    let said = server.unwrap_err().to_string();
    assert!(said.contains("'demo': is the name of a model"), "{said}");
}

const TOKENS: usize = 16;

/// The text that a model writes, by OpenAI's completions.
async fn text(server: &Router, model: &str, more: Value) -> String {
    let mut body = json!({ "model": model, "prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0 });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let reply = post(server, "/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    // The name of a model with an adapter is the adapter's.
    let named = model.rsplit(':').next();
    assert_eq!(reply.json()["model"].as_str(), named);
    reply.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_string()
}

#[tokio::test]
async fn an_adapter_is_a_model_of_all_apis() {
    let Tested {
        server,
        folder: _folder,
    } = tested(&["fox=DIR/fox", "owl=DIR/owl"], |_, _| ());
    let none = json!({});
    // Before the model is loaded, too.
    let fox = get(&server, "/v1/models/fox").await.json();
    assert_eq!([&fox["id"], &fox["parent"]], ["fox", "demo"]);
    assert_eq!(fox["welte"]["loaded"], false);
    let base = text(&server, "demo", none.clone()).await;
    let fox = text(&server, "fox", none.clone()).await;
    let owl = text(&server, "owl", none.clone()).await;
    assert!(base != fox && fox != owl && base != owl);
    assert_eq!(text(&server, "demo:fox", none.clone()).await, fox);
    assert_eq!(text(&server, "demo", none.clone()).await, base);
    // At once.
    let (a, b, c) = tokio::join!(
        text(&server, "fox", none.clone()),
        text(&server, "owl", none.clone()),
        text(&server, "demo", none.clone())
    );
    assert_eq!([a, b, c], [fox.clone(), owl, base.clone()]);
    let messages = json!([{ "role": "user", "content": "Tell me a story." }]);
    let mut said = Vec::new();
    for model in ["demo", "demo:fox"] {
        let body =
            json!({ "model": model, "messages": messages, "max_tokens": TOKENS, "temperature": 0 });
        let anthropic = post(&server, "/v1/messages", body).await.json();
        let anthropic = anthropic["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_string();
        let body = json!({ "model": model, "messages": messages, "stream": false, "options": { "num_predict": TOKENS, "temperature": 0 } });
        let ollama = post(&server, "/api/chat", body).await.json();
        let ollama = ollama["message"]["content"].as_str().unwrap().to_string();
        assert_eq!(anthropic, ollama, "{model}");
        said.push(anthropic);
    }
    assert_ne!(said[0], said[1]);
    // vLLM's fields.
    let models = get(&server, "/v1/models").await.json();
    let models = models["data"].as_array().unwrap();
    let ids: Vec<_> = models
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["demo", "fox", "owl"]);
    assert_eq!(models[0]["parent"], Value::Null);
    assert_eq!(
        (&models[1]["parent"], &models[1]["root"]),
        (&json!("demo"), &json!("fox"))
    );
    assert_eq!(
        get(&server, "/v1/models/fox").await.json()["parent"],
        "demo"
    );
    // Other names are not the base.
    let body = json!({ "model": "cat", "prompt": "x", "max_tokens": 1 });
    assert_eq!(post(&server, "/v1/completions", body).await.status, 404);
    let body = json!({ "model": "fox", "input": "x" });
    let refused = post(&server, "/v1/embeddings", body).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("fox"), "{}", refused.text);
}

#[tokio::test]
async fn clients_of_vllm_load_and_unload() {
    let Tested { server, folder } = tested(&[], |_, options| options.lora_updates = true);
    let path = folder.path().join("fox").display().to_string();
    let base = text(&server, "demo", json!({})).await;
    let load = json!({ "lora_name": "fox", "lora_path": path });
    let reply = post(&server, "/v1/load_lora_adapter", load.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert!(reply.text.contains("'fox' added"));
    let fox = text(&server, "fox", json!({})).await;
    assert_ne!(fox, base);
    let again = post(&server, "/v1/load_lora_adapter", load.clone()).await;
    assert_eq!(again.status, 400);
    assert!(again.text.contains("loaded already"), "{}", again.text);
    let unload = json!({ "lora_name": "fox" });
    assert_eq!(
        post(&server, "/v1/unload_lora_adapter", unload.clone())
            .await
            .status,
        200
    );
    assert_eq!(
        post(&server, "/v1/unload_lora_adapter", unload)
            .await
            .status,
        404
    );
    let body = json!({ "model": "fox", "prompt": "x", "max_tokens": 1 });
    assert_eq!(post(&server, "/v1/completions", body).await.status, 404);
    // A name of a model, a path without an adapter.
    let wrong = json!({ "lora_name": "demo", "lora_path": path });
    assert_eq!(
        post(&server, "/v1/load_lora_adapter", wrong).await.status,
        400
    );
    let wrong = json!({ "lora_name": "x", "lora_path": folder.path() });
    let reply = post(&server, "/v1/load_lora_adapter", wrong).await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.text.contains("lora_path") && reply.text.contains("adapter_config.json"),
        "{}",
        reply.text
    );
}

#[tokio::test]
async fn an_adapter_is_replaced_by_another_files() {
    let Tested { server, folder } = tested(&["owl=DIR/owl"], |load, options| {
        options.lora_updates = true;
        load.max_adapters = 3;
    });
    let path = |name: &str| folder.path().join(name).display().to_string();
    let load = async |name: &str, path: String| {
        let body = json!({ "lora_name": name, "lora_path": path, "load_inplace": true });
        post(&server, "/v1/load_lora_adapter", body).await
    };
    let base = text(&server, "demo", json!({})).await;
    let owl = text(&server, "owl", json!({})).await;
    // There is none of this name yet.
    assert_eq!(load("fox", path("fox")).await.status, 200);
    let fox = text(&server, "fox", json!({})).await;
    assert!(fox != base && fox != owl);
    // It is that of all requests, and stays it.
    let for_all = json!([{ "id": 1, "scale": 1.0 }]);
    let set = post(&server, "/lora-adapters", for_all).await;
    assert_eq!(set.status, 200);
    assert_eq!(text(&server, "demo", json!({})).await, fox);
    // What cannot be loaded takes nothing away.
    assert_eq!(load("fox", path("none")).await.status, 400);
    assert_eq!(text(&server, "fox", json!({})).await, fox);
    let replaced = load("fox", path("owl")).await;
    assert_eq!(replaced.status, 200, "{}", replaced.text);
    assert_eq!(text(&server, "fox", json!({})).await, owl);
    assert_eq!(text(&server, "demo", json!({})).await, owl);
    let listed = get(&server, "/lora-adapters").await.json();
    let names = [&listed[0]["name"], &listed[1]["name"], &listed[2]["name"]];
    assert_eq!(names, [&json!("owl"), &json!("fox"), &Value::Null]);
    // Without a free place the one before stays.
    assert_eq!(load("third", path("fox")).await.status, 200);
    assert_eq!(text(&server, "third", json!({})).await, fox);
    let full = load("fox", path("fox")).await;
    assert_eq!(full.status, 400);
    assert!(full.text.contains("3 of 3 places"), "{}", full.text);
    assert_eq!(text(&server, "fox", json!({})).await, owl);
}

#[tokio::test]
async fn without_leave_nobody_loads() {
    let Tested { server, folder } = tested(&["fox=DIR/fox"], |_, _| ());
    let path = folder.path().join("owl").display().to_string();
    text(&server, "demo", json!({})).await;
    let load = json!({ "lora_name": "owl", "lora_path": path });
    let reply = post(&server, "/v1/load_lora_adapter", load).await;
    assert_eq!(reply.status, 403);
    assert!(reply.text.contains("--lora-updates"));
    let unload = json!({ "lora_name": "fox" });
    assert_eq!(
        post(&server, "/v1/unload_lora_adapter", unload)
            .await
            .status,
        403
    );
}

#[tokio::test]
async fn llama_cpp_scales_and_chooses() {
    let Tested {
        server,
        folder: _folder,
    } = tested(&["DIR/fox", "owl=DIR/owl"], |_, _| ());
    // The one without a name is for all requests.
    let fox = text(&server, "demo", json!({})).await;
    let listed = get(&server, "/lora-adapters").await.json();
    assert_eq!(listed[0]["id"], 0);
    assert_eq!(
        (&listed[0]["scale"], &listed[1]["scale"]),
        (&json!(1.0), &json!(0.0))
    );
    let lora = |list: Value| json!({ "lora": list });
    let base = text(&server, "demo", lora(json!([]))).await;
    assert_ne!(base, fox);
    let owl = text(&server, "demo", lora(json!([{ "id": 1, "scale": 1.0 }]))).await;
    assert_eq!(owl, text(&server, "owl", json!({})).await);
    let opposite = text(&server, "demo", lora(json!([{ "id": 1, "scale": -1.0 }]))).await;
    assert!(opposite != owl && opposite != base);
    let body = json!({ "prompt": "Once upon a time", "n_predict": TOKENS, "temperature": 0, "lora": [{ "id": 1, "scale": 1.0 }] });
    assert_eq!(
        post(&server, "/completion", body).await.json()["content"],
        owl
    );
    assert_eq!(
        post(
            &server,
            "/lora-adapters",
            json!([{ "id": 1, "scale": 1.0 }])
        )
        .await
        .status,
        200
    );
    assert_eq!(text(&server, "demo", json!({})).await, owl);
    assert_eq!(post(&server, "/lora-adapters", json!([])).await.status, 200);
    assert_eq!(text(&server, "demo", json!({})).await, base);
    for (wrong, status) in [
        (json!({}), 400),
        (json!([{ "id": 7, "scale": 1 }]), 404),
        (json!([{ "scale": 1 }]), 400),
        (json!([{ "id": 0, "scale": "x" }]), 400),
        (
            json!([{ "id": 0, "scale": 1 }, { "id": 1, "scale": 1 }]),
            400,
        ),
    ] {
        let set = post(&server, "/lora-adapters", wrong.clone()).await;
        assert_eq!(set.status, status, "{wrong}");
        let body = json!({ "prompt": "x", "n_predict": 1, "lora": wrong });
        let asked = post(&server, "/completion", body).await;
        assert_eq!(asked.status, status, "{wrong}");
    }
}
