//! Dynamo's own tests of an engine, and what Welte adds: the same tokens as without Dynamo.

use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{GenerateContext, LLMEngine, PreprocessedRequest};
use futures::StreamExt;
use serde_json::{Value, json};
use welte::{LoadOptions, Model, Request, Sampling};
use welte_dynamo::Worker;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

fn model() -> Model {
    let mut options = LoadOptions::default();
    (options.context, options.slots, options.threads) = (512, 4, Some(2));
    options.device = "cpu".parse().unwrap();
    Model::load(DEMO, &options, &mut |_| ()).unwrap()
}

fn worker() -> Worker {
    Worker::new("fox".into(), model())
}

#[tokio::test]
async fn the_worker_keeps_dynamos_contract() {
    run_conformance(worker).await.unwrap();
}

/// The tokens of a request, and its last chunk.
async fn ask(worker: &Worker, body: Value) -> (Vec<u32>, Value) {
    let request: PreprocessedRequest = serde_json::from_value(body).unwrap();
    let context = GenerateContext::new(mock_context(), None);
    let chunks: Vec<_> = worker
        .generate(request, context)
        .await
        .unwrap()
        .collect()
        .await;
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| chunk.unwrap()).collect();
    let tokens = chunks
        .iter()
        .flat_map(|chunk| chunk.token_ids.clone())
        .collect();
    (
        tokens,
        serde_json::to_value(chunks.last().unwrap()).unwrap(),
    )
}

/// Dynamo sends a request that lost its worker to another one, with the tokens so far behind the prompt, and a lower limit.
#[tokio::test]
async fn a_migrated_request_goes_on_as_it_would_have() {
    let (first, second) = (worker(), worker());
    first.start(1).await.unwrap();
    second.start(2).await.unwrap();
    let model = model();
    let prompt = model.encode("Once upon a time").unwrap();
    let mut request = Request::new(prompt.clone());
    request.options.sampling = Sampling {
        temperature: 1.2,
        seed: 9,
        ..Sampling::GREEDY
    };
    request.options.max_tokens = 40;
    let alone = model
        .engine()
        .unwrap()
        .submit(request)
        .unwrap()
        .complete()
        .unwrap()
        .1
        .tokens;
    let body = |tokens: &[u32], max: usize| {
        json!({
            "model": "fox", "token_ids": tokens, "sampling_options": { "temperature": 1.2, "seed": 9 },
            "stop_conditions": { "max_tokens": max, "ignore_eos": false },
        })
    };
    let (tokens, last) = ask(&first, body(&prompt, 40)).await;
    assert_eq!(tokens, alone);
    assert_eq!(last["completion_usage"]["completion_tokens"], alone.len());
    for known in [1, 7, 20, alone.len() - 1] {
        let so_far = [&prompt[..], &alone[..known]].concat();
        let (rest, _) = ask(&second, body(&so_far, 40 - known)).await;
        assert_eq!(rest, alone[known..], "after {known}");
    }
    first.cleanup().await.unwrap();
    second.cleanup().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let worker = worker();
    worker.start(1).await.unwrap();
    for body in [
        json!({ "token_ids": [], "sampling_options": {}, "stop_conditions": {} }),
        json!({ "token_ids": [1], "sampling_options": { "n": 2 }, "stop_conditions": {} }),
        json!({ "token_ids": vec![1; 600], "sampling_options": {}, "stop_conditions": {} }),
    ] {
        let request: PreprocessedRequest = serde_json::from_value(body.clone()).unwrap();
        let context = GenerateContext::new(mock_context(), None);
        assert!(worker.generate(request, context).await.is_err(), "{body}");
    }
    worker.cleanup().await.unwrap();
}

/// The front end reads the model's folder with the crate `tokenizers`.
#[test]
fn the_card_has_what_the_front_end_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let arguments = [
        "welte-dynamo",
        "-m",
        DEMO,
        "--device",
        "cpu",
        "-c",
        "256",
        "--card",
        path,
    ];
    let (_, config) = Worker::from_args(arguments).unwrap();
    assert_eq!(
        (
            config.model_name.as_str(),
            config.served_model_name.as_deref()
        ),
        (path, Some("demo"))
    );
    // A second worker finds the same.
    let (_, again) = Worker::from_args(arguments).unwrap();
    assert_eq!(again.model_name, config.model_name);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4);
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
    };
    assert!(
        read("tokenizer_config.json")["chat_template"]
            .as_str()
            .unwrap()
            .contains("message")
    );
    assert_eq!(read("config.json")["max_position_embeddings"], 256);
    assert!(read("generation_config.json")["eos_token_id"][0].is_number());
    assert!(
        read("tokenizer.json")["model"]["merges"]
            .as_array()
            .unwrap()
            .len()
            > 100
    );
}
