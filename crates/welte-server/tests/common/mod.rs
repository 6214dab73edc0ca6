//! A server in this process, with the bundled model.

#![allow(dead_code)] // Each test program uses a part.

pub(crate) mod encoder;
pub(crate) mod live;
pub(crate) mod scripted;
pub(crate) mod sound;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::Value;
use std::sync::OnceLock;
use tower::ServiceExt;
use welte::{LoadOptions, Model};
use welte_server::{ServerOptions, router};

/// The bundled model with two slots.
pub(crate) fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| load(512)).clone()
}

/// As [`model`], with a context so long that nothing ends by itself while a test looks.
pub(crate) fn endless_model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| load(8192)).clone()
}

/// The bundled model's file.
pub(crate) const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

/// How the tests load a model.
pub(crate) fn load_options(context: u32) -> LoadOptions {
    let mut options = LoadOptions::default();
    (options.context, options.slots, options.threads) = (context, 2, Some(2));
    (options.device, options.prompt_rows) = ("cpu".parse().unwrap(), 64);
    options.embeddings = true;
    options
}

fn load(context: u32) -> Model {
    Model::load(DEMO, &load_options(context), &mut |_| ()).unwrap()
}

pub(crate) fn server() -> Router {
    with(|_| ())
}

/// A server that refuses fields which it does not know.
pub(crate) fn strict_server() -> Router {
    with(|options| options.strict = true)
}

pub(crate) fn with(change: impl FnOnce(&mut ServerOptions)) -> Router {
    let mut options = ServerOptions::default();
    change(&mut options);
    router(model(), options).unwrap()
}

/// A response that has been read.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The values of server-sent events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let values = data.filter(|data| *data != "[DONE]");
        values
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }
}

pub(crate) async fn send(
    server: &Router,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).unwrap();
    let response = server.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    Reply {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub(crate) async fn get(server: &Router, path: &str) -> Reply {
    send(server, Method::GET, path, &[], Vec::new()).await
}

pub(crate) async fn post(server: &Router, path: &str, body: Value) -> Reply {
    send(
        server,
        Method::POST,
        path,
        &[],
        body.to_string().into_bytes(),
    )
    .await
}
