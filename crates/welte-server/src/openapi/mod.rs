//! `/openapi.json`: every endpoint with its fields. A test compares it with the router.

mod anthropic;
mod llama;
mod ollama;
mod openai;
mod welte;

use crate::error::ok;
use axum::response::Response;
use serde_json::{Map, Value, json};

/// A field of a body or of a URL: name, type, meaning. The type of a required field begins with `!`.
type Field = (&'static str, &'static str, &'static str);

/// An endpoint.
struct Endpoint {
    method: &'static str,
    path: &'static str,
    /// The API that it belongs to.
    api: &'static str,
    summary: &'static str,
    /// Groups of fields of the body; none: it takes no body.
    body: &'static [&'static [Field]],
    query: &'static [Field],
    /// Fields of the response that are always there.
    answer: &'static [Field],
    /// The content type of a streamed response, if there is one.
    stream: Option<&'static str>,
}

const EVENTS: Option<&str> = Some("text/event-stream");
const LINES: Option<&str> = Some("application/x-ndjson");

const SAMPLING: &[Field] = &[
    ("temperature", "number", "0 chooses the most likely token"),
    (
        "top_p",
        "number",
        "keep the most likely tokens of this total probability",
    ),
    ("top_k", "integer", "keep this many tokens; 0: all"),
    (
        "min_p",
        "number",
        "drop tokens less likely than this share of the most likely one",
    ),
    (
        "repeat_penalty",
        "number",
        "divide the logits of recent tokens by it",
    ),
    (
        "repetition_penalty",
        "number",
        "another name of repeat_penalty",
    ),
    (
        "repeat_last_n",
        "integer",
        "how many tokens count as recent",
    ),
    (
        "presence_penalty",
        "number",
        "subtracted from the logit of every recent token",
    ),
    (
        "frequency_penalty",
        "number",
        "subtracted for each occurrence of a recent token",
    ),
    (
        "seed",
        "integer",
        "the same seed gives the same text; negative: a random one",
    ),
    ("stop", "string|string[]", "texts that end the answer"),
    (
        "logit_bias",
        "object|any[]",
        "numbers by token, added to the logits; false forbids a token",
    ),
    ("ignore_eos", "boolean", "never choose an end token"),
    (
        "min_tokens",
        "integer",
        "no end token is chosen before so many tokens",
    ),
    ("stop_token_ids", "integer[]", "tokens that end the answer"),
    (
        "typical_p",
        "number",
        "keep tokens of typical information up to this probability",
    ),
    (
        "top_n_sigma",
        "number",
        "keep tokens within so many deviations of the likeliest one",
    ),
    (
        "xtc_probability",
        "number",
        "how often the likeliest tokens are dropped",
    ),
    (
        "xtc_threshold",
        "number",
        "the least probability of tokens to drop",
    ),
    (
        "dynatemp_range",
        "number",
        "how far the temperature follows the entropy",
    ),
    ("dynatemp_exponent", "number", "how it follows the entropy"),
    (
        "dry_multiplier",
        "number",
        "penalty of repeated sequences; 0: none",
    ),
    (
        "dry_base",
        "number",
        "how the penalty grows with the length of the repetition",
    ),
    (
        "dry_allowed_length",
        "integer",
        "the longest repetition without a penalty",
    ),
    (
        "dry_penalty_last_n",
        "integer",
        "how many tokens are searched for repetitions",
    ),
    (
        "dry_sequence_breakers",
        "string|string[]",
        "texts that end a repetition",
    ),
];

const GRAMMAR: &[Field] = &[
    (
        "json_schema",
        "object|boolean",
        "a JSON schema of the answer",
    ),
    (
        "grammar",
        "string",
        "a grammar of the answer in GBNF or Lark",
    ),
];

const ERROR: &str = "#/components/schemas/Error";

/// An endpoint without a body.
const fn get(path: &'static str, api: &'static str, summary: &'static str) -> Endpoint {
    Endpoint {
        method: "get",
        path,
        api,
        summary,
        body: &[],
        query: &[],
        answer: &[],
        stream: None,
    }
}

/// An endpoint with a body.
const fn post(
    path: &'static str,
    api: &'static str,
    summary: &'static str,
    body: &'static [&'static [Field]],
) -> Endpoint {
    Endpoint {
        method: "post",
        body,
        ..get(path, api, summary)
    }
}

/// A list for each API.
const ENDPOINTS: [&[Endpoint]; 5] = [
    openai::ENDPOINTS,
    anthropic::ENDPOINTS,
    ollama::ENDPOINTS,
    llama::ENDPOINTS,
    welte::ENDPOINTS,
];

/// The endpoints of this build.
fn offered() -> impl Iterator<Item = &'static Endpoint> {
    let of_hub = |endpoint: &&Endpoint| ["/api/pull", "/api/delete"].contains(&endpoint.path);
    let all = ENDPOINTS.iter().copied().flatten();
    all.filter(move |endpoint| cfg!(feature = "hub") || !of_hub(endpoint))
}

/// The methods and paths of all endpoints.
#[cfg(test)]
pub(crate) fn endpoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    offered().map(|endpoint| (endpoint.method, endpoint.path))
}

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    ok(&document())
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in offered() {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Welte", "version": env!("CARGO_PKG_VERSION"),
            "description": "The APIs of OpenAI, Anthropic, Ollama and llama.cpp. Unknown fields are refused.",
        },
        "security": [{}, { "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": {
                "type": "object", "required": ["error"],
                "description": "The form depends on the API.",
            }},
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
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
    if !endpoint.body.is_empty() {
        operation["requestBody"] = json!({
            "required": true, "content": { "application/json": { "schema": body(endpoint) } },
        });
    }
    operation
}

fn body(endpoint: &Endpoint) -> Value {
    let (mut fields, mut required) = (Map::new(), Vec::new());
    for (name, kind, meaning) in endpoint.body.iter().copied().flatten() {
        let kind = kind.strip_prefix('!').map_or_else(
            || format!("{kind}|null"),
            |kind| {
                required.push(*name);
                kind.to_string()
            },
        );
        fields.insert(name.to_string(), schema(&kind, meaning));
    }
    json!({
        "type": "object", "properties": fields, "required": required, "additionalProperties": false,
    })
}

fn answer(endpoint: &Endpoint) -> Value {
    match endpoint.path {
        "/metrics" => return json!({ "type": "string" }),
        "/slots" => return json!({ "type": "array" }),
        _ => {}
    }
    let field = |(name, kind, _): &Field| (name.to_string(), schema(kind, ""));
    let fields: Map<String, Value> = endpoint.answer.iter().map(field).collect();
    let required: Vec<&str> = endpoint.answer.iter().map(|field| field.0).collect();
    json!({ "type": "object", "properties": fields, "required": required })
}

/// The schema of a type in words: alternatives by `|`, `[]` for lists.
fn schema(kind: &str, meaning: &str) -> Value {
    let one = |kind: &str| match kind.strip_suffix("[]") {
        Some("any") => json!({ "type": "array" }),
        Some(kind) => json!({ "type": "array", "items": { "type": kind } }),
        None => json!({ "type": kind }),
    };
    let mut schema = match kind.split('|').collect::<Vec<_>>()[..] {
        ["any", ..] => json!({}),
        [kind] => one(kind),
        ref kinds => json!({ "anyOf": kinds.iter().map(|kind| one(kind)).collect::<Vec<_>>() }),
    };
    if !meaning.is_empty() {
        schema["description"] = meaning.into();
    }
    schema
}
