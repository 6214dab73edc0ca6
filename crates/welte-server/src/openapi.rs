//! `/openapi.json`: every endpoint with its fields. A test compares it with the router.

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

const OPENAI: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "n",
        "integer",
        "answers to each prompt, 1 to 64 in all; answer i has the seed seed + i",
    ),
    ("stream", "boolean", "send the answer as it is written"),
    (
        "stream_options",
        "object",
        "include_usage: send the usage at the end",
    ),
];

/// Fields that OpenAI's endpoints share.
const LABELS: &[Field] = &[
    (
        "cache_prompt",
        "boolean",
        "reuse what earlier requests computed; on by default",
    ),
    ("user", "string", "changes nothing"),
    ("metadata", "object", "changes nothing"),
    ("safety_identifier", "string", "changes nothing"),
    ("prompt_cache_key", "string", "changes nothing"),
    ("prompt_cache_retention", "string", "changes nothing"),
    ("service_tier", "string", "changes nothing"),
];

const TOOLS: &[Field] = &[
    ("tools", "object[]", "functions that the model may call"),
    (
        "tool_choice",
        "any",
        "auto, none, required, or a function that must be called",
    ),
    (
        "parallel_tool_calls",
        "boolean",
        "false: end the answer after the first call",
    ),
];

const CHAT: &[Field] = &[
    ("messages", "!object[]", "the conversation"),
    ("max_tokens", "integer", "the most tokens of the answer"),
    (
        "max_completion_tokens",
        "integer",
        "another name of max_tokens",
    ),
    (
        "reasoning_effort",
        "string",
        "passed to the chat template; none: no thinking",
    ),
    (
        "chat_template_kwargs",
        "object",
        "variables of the chat template",
    ),
    (
        "response_format",
        "object",
        "type: text, json_object or json_schema",
    ),
    (
        "logprobs",
        "boolean",
        "send the probabilities of the answer's tokens",
    ),
    (
        "top_logprobs",
        "integer",
        "and of so many likeliest ones, at most 20",
    ),
    ("store", "boolean", "false"),
    ("modalities", "string[]", "text"),
];

const COMPLETION: &[Field] = &[
    (
        "prompt",
        "!any",
        "a string, a list of tokens, or a list of these",
    ),
    (
        "max_tokens",
        "integer",
        "the most tokens of each answer; 16 by default",
    ),
    ("echo", "boolean", "begin the answer with the prompt"),
    (
        "suffix",
        "string",
        "text behind the answer, for models that fill in the middle",
    ),
    (
        "logprobs",
        "integer",
        "send the probabilities of the tokens, and of so many likeliest ones",
    ),
    ("best_of", "integer", "1"),
];

const CONVERSATION: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    ("input", "string|object[]", "text, or a list of items"),
    ("instructions", "string", "the system message"),
    (
        "previous_response_id",
        "string",
        "the stored response to continue",
    ),
    ("reasoning", "object", "effort: passed to the chat template"),
    (
        "text",
        "object",
        "format: type text, json_object or json_schema",
    ),
    ("truncation", "string", "disabled"),
];

const RESPONSES: &[Field] = &[
    (
        "max_output_tokens",
        "integer",
        "the most tokens of the answer",
    ),
    ("stream", "boolean", "send the answer as it is written"),
    ("stream_options", "object", "include_obfuscation: false"),
    (
        "store",
        "boolean",
        "keep the response for previous_response_id; on by default",
    ),
    (
        "background",
        "boolean",
        "answer at once, and generate in the background",
    ),
    ("include", "string[]", "further parts of the output"),
    (
        "max_tool_calls",
        "integer",
        "changes nothing: there are no built-in tools",
    ),
    (
        "top_logprobs",
        "integer",
        "send the probabilities of so many likeliest tokens",
    ),
    ("prompt_cache_options", "object", "changes nothing"),
];

const EMBEDDINGS: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "input",
        "!any",
        "a string, a list of tokens, or a list of these",
    ),
    ("encoding_format", "string", "float or base64"),
    (
        "dimensions",
        "integer",
        "keep the first values only, and scale them to length 1",
    ),
    ("user", "string", "changes nothing"),
];

const ANTHROPIC: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("messages", "!object[]", "the conversation"),
    ("system", "string|object[]", "the system message"),
    ("tools", "object[]", "functions that the model may call"),
    (
        "tool_choice",
        "object",
        "type: auto, any, tool or none; disable_parallel_tool_use",
    ),
    ("thinking", "object", "type: enabled, adaptive or disabled"),
];

const MESSAGES: &[Field] = &[
    ("max_tokens", "!integer", "the most tokens of the answer"),
    ("stop_sequences", "string[]", "texts that end the answer"),
    ("stream", "boolean", "send the answer as it is written"),
    ("metadata", "object", "changes nothing"),
    ("service_tier", "string", "changes nothing"),
];

const OLLAMA: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("stream", "boolean", "false: send the whole answer at once"),
    ("think", "boolean|string", "whether to think, or how much"),
    ("options", "object", "sampling; num_predict and num_ctx"),
    ("format", "any", "json, or a JSON schema of the answer"),
    (
        "logprobs",
        "boolean",
        "send the probabilities of the answer's tokens",
    ),
    (
        "top_logprobs",
        "integer",
        "and of so many likeliest ones, at most 20",
    ),
    (
        "keep_alive",
        "string|number",
        "how long the model stays loaded",
    ),
];

const OLLAMA_CHAT: &[Field] = &[
    (
        "messages",
        "object[]",
        "the conversation; without messages the model is only loaded",
    ),
    ("tools", "object[]", "functions that the model may call"),
];

const OLLAMA_GENERATE: &[Field] = &[
    (
        "prompt",
        "string",
        "the text to answer; without it the model is only loaded",
    ),
    (
        "suffix",
        "string",
        "text behind the answer, for models that fill in the middle",
    ),
    ("system", "string", "the system message"),
    ("raw", "boolean", "use no chat template"),
    ("template", "string", "the empty string"),
    ("images", "string[]", "none"),
    ("context", "integer[]", "none"),
];

const RERANK: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    ("query", "!string", ""),
    (
        "documents",
        "!any[]",
        "texts, or objects whose field `text` is one",
    ),
    ("top_n", "integer", "return the best documents only"),
    ("return_documents", "boolean", ""),
    (
        "instruction",
        "string",
        "what makes a document relevant, for models that take an instruction",
    ),
];

const OLLAMA_EMBED: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("input", "!string|string[]", "the texts"),
    (
        "truncate",
        "boolean",
        "cut texts that are longer than the context; on by default",
    ),
    (
        "dimensions",
        "integer",
        "keep the first values only, and scale them to length 1",
    ),
    ("options", "object", "num_ctx"),
    (
        "keep_alive",
        "string|number",
        "how long the model stays loaded",
    ),
];

const OLLAMA_EMBEDDINGS: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("prompt", "!string", "the text"),
    ("options", "object", "num_ctx"),
    (
        "keep_alive",
        "string|number",
        "how long the model stays loaded",
    ),
];

const OLLAMA_NAMED: &[Field] = &[("model", "!string", "the model's name")];

const OLLAMA_MANAGED: &[Field] = &[
    ("model", "string", "the model's name"),
    ("name", "string", "another name of model"),
];

const OLLAMA_PULL: &[Field] = &[
    ("stream", "boolean", "false: answer when the model is there"),
    ("insecure", "boolean", "false"),
];

const LLAMA: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "n_predict",
        "integer",
        "the most tokens of the answer; -1: no limit",
    ),
    (
        "cache_prompt",
        "boolean",
        "reuse what earlier requests computed; on by default",
    ),
    ("stream", "boolean", "send the answer as it is written"),
    ("id_slot", "integer", "-1"),
    (
        "n_probs",
        "integer",
        "send the probabilities of so many likeliest tokens",
    ),
    ("return_tokens", "boolean", "false"),
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

const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        stream: EVENTS,
        answer: &[
            ("id", "string", ""),
            ("choices", "object[]", ""),
            ("usage", "object", ""),
        ],
        ..post(
            "/v1/chat/completions",
            "OpenAI",
            "Answer a conversation",
            &[OPENAI, CHAT, TOOLS, SAMPLING, GRAMMAR, LABELS],
        )
    },
    Endpoint {
        stream: EVENTS,
        answer: &[
            ("id", "string", ""),
            ("choices", "object[]", ""),
            ("usage", "object", ""),
        ],
        ..post(
            "/v1/completions",
            "OpenAI",
            "Continue texts",
            &[OPENAI, COMPLETION, SAMPLING, GRAMMAR, LABELS],
        )
    },
    Endpoint {
        stream: EVENTS,
        answer: &[
            ("id", "string", ""),
            ("output", "object[]", ""),
            ("status", "string", ""),
        ],
        ..post(
            "/v1/responses",
            "OpenAI",
            "Answer a conversation, and store it",
            &[CONVERSATION, TOOLS, RESPONSES, SAMPLING, LABELS],
        )
    },
    Endpoint {
        answer: &[("input_tokens", "integer", "")],
        ..post(
            "/v1/responses/input_tokens",
            "OpenAI",
            "Count the tokens of a prompt",
            &[CONVERSATION, TOOLS],
        )
    },
    Endpoint {
        query: &[
            ("include", "string", "changes nothing"),
            ("stream", "string", "false"),
        ],
        answer: &[
            ("id", "string", ""),
            ("output", "object[]", ""),
            ("status", "string", ""),
        ],
        ..get("/v1/responses/{id}", "OpenAI", "A stored response")
    },
    Endpoint {
        method: "delete",
        answer: &[("deleted", "boolean", "")],
        ..get("/v1/responses/{id}", "OpenAI", "Delete a stored response")
    },
    Endpoint {
        method: "post",
        answer: &[("id", "string", ""), ("status", "string", "")],
        ..get(
            "/v1/responses/{id}/cancel",
            "OpenAI",
            "End a background response",
        )
    },
    Endpoint {
        query: &[
            ("limit", "integer", "1 to 100; 20 by default"),
            ("order", "string", "asc or desc, which is the default"),
            ("after", "string", "the id of the item before the first one"),
            ("include", "string", "changes nothing"),
        ],
        answer: &[("data", "object[]", ""), ("has_more", "boolean", "")],
        ..get(
            "/v1/responses/{id}/input_items",
            "OpenAI",
            "The items that a stored response answers",
        )
    },
    Endpoint {
        answer: &[("data", "object[]", ""), ("usage", "object", "")],
        ..post(
            "/v1/embeddings",
            "OpenAI",
            "Vectors of texts",
            &[EMBEDDINGS],
        )
    },
    Endpoint {
        answer: &[("results", "object[]", ""), ("usage", "object", "")],
        ..post("/v1/rerank", "llama.cpp", "Order documents", &[RERANK])
    },
    Endpoint {
        answer: &[("results", "object[]", ""), ("usage", "object", "")],
        ..post("/rerank", "llama.cpp", "Order documents", &[RERANK])
    },
    Endpoint {
        answer: &[("data", "object[]", "")],
        ..get("/v1/models", "OpenAI", "The models")
    },
    Endpoint {
        answer: &[("id", "string", "")],
        ..get("/v1/models/{id}", "OpenAI", "A model")
    },
    Endpoint {
        stream: EVENTS,
        answer: &[
            ("id", "string", ""),
            ("content", "object[]", ""),
            ("usage", "object", ""),
        ],
        ..post(
            "/v1/messages",
            "Anthropic",
            "Answer a conversation",
            &[ANTHROPIC, MESSAGES, SAMPLING],
        )
    },
    Endpoint {
        answer: &[("input_tokens", "integer", "")],
        ..post(
            "/v1/messages/count_tokens",
            "Anthropic",
            "Count the tokens of a prompt",
            &[ANTHROPIC],
        )
    },
    Endpoint {
        stream: LINES,
        answer: &[("message", "object", ""), ("done", "boolean", "")],
        ..post(
            "/api/chat",
            "Ollama",
            "Answer a conversation",
            &[OLLAMA, OLLAMA_CHAT],
        )
    },
    Endpoint {
        stream: LINES,
        answer: &[("response", "string", ""), ("done", "boolean", "")],
        ..post(
            "/api/generate",
            "Ollama",
            "Answer a text",
            &[OLLAMA, OLLAMA_GENERATE],
        )
    },
    Endpoint {
        answer: &[("embeddings", "any[]", "")],
        ..post("/api/embed", "Ollama", "Vectors of texts", &[OLLAMA_EMBED])
    },
    Endpoint {
        answer: &[("embedding", "number[]", "")],
        ..post(
            "/api/embeddings",
            "Ollama",
            "The vector of a text",
            &[OLLAMA_EMBEDDINGS],
        )
    },
    Endpoint {
        answer: &[("models", "object[]", "")],
        ..get("/api/tags", "Ollama", "The models")
    },
    Endpoint {
        answer: &[("models", "object[]", "")],
        ..get("/api/ps", "Ollama", "The loaded models")
    },
    Endpoint {
        answer: &[("version", "string", "")],
        ..get("/api/version", "Ollama", "The server's version")
    },
    Endpoint {
        answer: &[("details", "object", ""), ("capabilities", "string[]", "")],
        ..post(
            "/api/show",
            "Ollama",
            "Facts about a model",
            &[OLLAMA_NAMED, &[("verbose", "boolean", "changes nothing")]],
        )
    },
    Endpoint {
        stream: LINES,
        answer: &[("status", "string", "")],
        ..post(
            "/api/pull",
            "Ollama",
            "Download a model from the hub",
            &[OLLAMA_MANAGED, OLLAMA_PULL],
        )
    },
    Endpoint {
        method: "delete",
        ..post(
            "/api/delete",
            "Ollama",
            "Delete a downloaded model",
            &[OLLAMA_MANAGED],
        )
    },
    Endpoint {
        stream: EVENTS,
        answer: &[("content", "string", ""), ("stop", "boolean", "")],
        ..post(
            "/completion",
            "llama.cpp",
            "Continue a text",
            &[
                LLAMA,
                &[("prompt", "!string|integer[]", "a text or its tokens")],
                SAMPLING,
            ],
        )
    },
    Endpoint {
        stream: EVENTS,
        answer: &[("content", "string", ""), ("stop", "boolean", "")],
        ..post(
            "/infill",
            "llama.cpp",
            "Fill in the middle of a text",
            &[
                LLAMA,
                &[
                    ("input_prefix", "!string", "the text before"),
                    ("input_suffix", "!string", "the text behind"),
                    ("input_extra", "object[]", "other files: filename and text"),
                    ("prompt", "string", "the beginning of the middle"),
                ],
                SAMPLING,
            ],
        )
    },
    Endpoint {
        answer: &[("tokens", "any[]", "")],
        ..post(
            "/tokenize",
            "llama.cpp",
            "The tokens of a text",
            &[&[
                ("content", "!string", "the text"),
                (
                    "add_special",
                    "boolean",
                    "begin with the token that begins a text",
                ),
                (
                    "parse_special",
                    "boolean",
                    "recognise control tokens; on by default",
                ),
                ("with_pieces", "boolean", "also send the tokens' texts"),
            ]],
        )
    },
    Endpoint {
        answer: &[("content", "string", "")],
        ..post(
            "/detokenize",
            "llama.cpp",
            "The text of tokens",
            &[&[("tokens", "!integer[]", "the tokens")]],
        )
    },
    Endpoint {
        answer: &[("prompt", "string", "")],
        ..post(
            "/apply-template",
            "llama.cpp",
            "The prompt of a conversation",
            &[&[
                ("messages", "!object[]", "the conversation"),
                (
                    "chat_template_kwargs",
                    "object",
                    "variables of the chat template",
                ),
            ]],
        )
    },
    get("/props", "llama.cpp", "The model and the default options"),
    get("/slots", "llama.cpp", "The slots"),
    get("/metrics", "llama.cpp", "Figures for Prometheus"),
    Endpoint {
        answer: &[("status", "string", "")],
        ..get("/health", "llama.cpp", "Whether the scheduler advances")
    },
    get("/welte/state", "Welte", "The engine at work"),
    get("/welte/table", "Welte", "The model's commands"),
    get("/openapi.json", "Welte", "This document"),
];

/// The endpoints of this build.
fn offered() -> impl Iterator<Item = &'static Endpoint> {
    let of_hub = |endpoint: &&Endpoint| ["/api/pull", "/api/delete"].contains(&endpoint.path);
    ENDPOINTS
        .iter()
        .filter(move |endpoint| cfg!(feature = "hub") || !of_hub(endpoint))
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
        content.insert(stream.into(), json!({ "schema": { "type": "string" } }));
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
