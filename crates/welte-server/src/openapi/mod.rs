//! `/openapi.json`: every endpoint with its fields. A test compares it with the router.

mod anthropic;
mod endpoint;
mod llama;
mod objects;
mod ollama;
mod openai;
mod welte;

use crate::app::App;
use crate::error::ok;
use crate::models::Served;
use axum::extract::State;
use axum::response::Response;
use endpoint::{Endpoint, Field, schema};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const ERROR: &str = "#/components/schemas/Error";
/// The endpoint that becomes a websocket.
const REALTIME: &str = "/v1/realtime";

/// A list for each API.
const ENDPOINTS: [&[Endpoint]; 5] = [
    openai::ENDPOINTS,
    anthropic::ENDPOINTS,
    ollama::ENDPOINTS,
    llama::ENDPOINTS,
    welte::ENDPOINTS,
];

/// The endpoints of this build.
fn built() -> impl Iterator<Item = Endpoint> {
    let of_hub =
        |endpoint: &Endpoint| ["/api/pull", "/api/create", "/api/delete"].contains(&endpoint.path);
    let all = || ENDPOINTS.iter().copied().flatten().copied();
    let own = all().filter(move |endpoint| cfg!(feature = "hub") || !of_hub(endpoint));
    let aliases = llama::ALIASES.iter().flat_map(move |(alias, path)| {
        all()
            .filter(move |endpoint| endpoint.path == *path)
            .map(move |endpoint| Endpoint {
                path: alias,
                api: "llama.cpp",
                ..endpoint
            })
    });
    own.chain(aliases)
}

/// The methods and paths of all endpoints.
#[cfg(test)]
pub(crate) fn endpoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    built().map(|endpoint| (endpoint.method, endpoint.path))
}

/// Whether one of the server's models can do something. A model that is not loaded may be able to do everything.
fn any(app: &App, can: fn(&Served) -> bool) -> bool {
    let entries = app.models.all();
    entries
        .iter()
        .any(|entry| entry.loaded().is_none_or(|served| can(&served)))
}

/// Whether the server offers an endpoint, as far as it has models that can do it and the flags that it needs.
fn is_offered(app: &App, path: &str) -> bool {
    let any = |can: fn(&Served) -> bool| any(app, can);
    match path {
        "/metrics" => app.options.metrics,
        path if path.starts_with("/v1/audio/") || path == REALTIME => app.options.speech.is_some(),
        path if path.starts_with("/welte/tools") => app.options.mcp.is_some(),
        "/infill" => any(|served| served.model.encode_infill("", "").is_ok()),
        path if path.contains("/rerank") => any(|served| served.model.scores_pairs()),
        "/embed_sparse" => any(|served| served.model.has_sparse_vectors()),
        _ => true,
    }
}

/// `GET /openapi.json`
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Response {
    ok(&document(&app))
}

fn document(app: &App) -> Value {
    let strict = app.options.strict;
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in built().filter(|endpoint| is_offered(app, endpoint.path)) {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method] = operation(&endpoint, strict);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Welte", "version": env!("CARGO_PKG_VERSION"),
            "description": "The APIs of OpenAI, Anthropic, Ollama and llama.cpp. Unknown fields are ignored and named in the header x-welte-ignored.",
        },
        "security": [{}, { "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            // What no model takes is not described: a body that the description allows is answered.
            "schemas": objects::schemas(
                any(app, |served| served.model.eyes().is_some()),
                any(app, |served| served.model.ears().is_some()),
            ),
        },
    })
}

fn operation(endpoint: &Endpoint, strict: bool) -> Value {
    let mut parameters = Vec::new();
    if endpoint.path.contains("{id}") {
        parameters.push(json!({
            "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 },
        }));
    }
    for (name, kind, meaning) in endpoint.query {
        parameters.push(json!({
            "name": name, "in": "query", "schema": schema(kind, ""), "description": meaning,
        }));
    }
    let mut content = Map::new();
    let kind = match endpoint.path {
        "/metrics" => "text/plain",
        _ => "application/json",
    };
    content.insert(kind.into(), json!({ "schema": answer(endpoint) }));
    if let Some(stream) = endpoint.stream {
        content.insert(stream.into(), json!({}));
    }
    let error = json!({ "application/json": { "schema": { "$ref": ERROR } } });
    let mut operation = json!({
        "tags": [endpoint.api], "summary": endpoint.summary, "parameters": parameters,
        "responses": {
            "200": { "description": "The answer", "content": content },
            "4XX": { "description": "The request is at fault", "content": error },
            "5XX": { "description": "The server is at fault, or about to end", "content": error },
        },
    });
    if endpoint.path == REALTIME
        && let Some(responses) = operation["responses"].as_object_mut()
    {
        responses.remove("200");
        let opened = json!({ "description": "The connection is a websocket with events of OpenAI's realtime API" });
        responses.insert("101".into(), opened);
    }
    if !endpoint.body.is_empty() {
        let kind = match endpoint.path.starts_with("/v1/audio/") {
            true => "multipart/form-data",
            false => "application/json",
        };
        operation["requestBody"] = json!({
            "required": true, "content": { kind: { "schema": body(endpoint, strict) } },
        });
    }
    operation
}

fn body(endpoint: &Endpoint, strict: bool) -> Value {
    if let [[("", kind, meaning)]] = endpoint.body {
        return schema(kind, meaning);
    }
    let (mut fields, mut required) = (Map::new(), Vec::new());
    for (name, kind, meaning) in endpoint.body.iter().copied().flatten() {
        let kind = kind.strip_prefix('!').map_or_else(
            || format!("{kind}|null"),
            |kind| {
                required.push(*name);
                kind.to_string()
            },
        );
        let kind = if strict && *name == "model" && needs_model(endpoint.path) {
            required.push(name);
            kind.replace("|null", "")
        } else {
            kind
        };
        fields.insert(name.to_string(), schema(&kind, meaning));
    }
    let counts_top = fields.contains_key("top_logprobs") && fields.contains_key("logprobs");
    let mut body = json!({
        "type": "object", "properties": fields, "required": required, "additionalProperties": !strict,
    });
    if counts_top {
        body["anyOf"] = json!([
            { "properties": { "logprobs": { "const": true } }, "required": ["logprobs"] },
            { "properties": { "top_logprobs": { "enum": [0, null] } } },
        ]);
    }
    body
}

/// Whether the API's specification requires `model`, so that a strict server does.
fn needs_model(path: &str) -> bool {
    let short = path.trim_start_matches("/v1");
    let begins = |begin: &&str| short.starts_with(*begin);
    ["/chat/", "/responses", "/messages"].iter().any(begins)
        || ["/v1/completions", "/v1/embeddings"].contains(&path)
}

fn answer(endpoint: &Endpoint) -> Value {
    match endpoint.path {
        "/metrics" => return json!({ "type": "string" }),
        "/slots" | "/embedding" | "/embeddings" | "/embed_sparse" => {
            return json!({ "type": "array" });
        }
        _ => {}
    }
    if let [("", kind, meaning)] = endpoint.answer {
        return schema(kind, meaning);
    }
    let field = |(name, kind, _): &Field| (name.to_string(), schema(kind, ""));
    let fields: Map<String, Value> = endpoint.answer.iter().map(field).collect();
    let required: Vec<&str> = endpoint.answer.iter().map(|field| field.0).collect();
    let object = json!({ "type": "object", "properties": fields, "required": required });
    match endpoint.path {
        // A list for several prompts, or for the fields of TEI.
        "/completion" | "/completions" => json!({ "anyOf": [object, { "type": "array" }] }),
        path if path.contains("/rerank") => json!({ "anyOf": [object, { "type": "array" }] }),
        _ => object,
    }
}
