//! Ollama's API.

use super::endpoint::{Endpoint, Field, LINES, get, post};

const OLLAMA: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("stream", "boolean", "false: send the whole answer at once"),
    ("think", "boolean|string", "whether to think, or how much"),
    ("options", "Options", "sampling; num_predict and num_ctx"),
    (
        "format",
        "=json \"\"|object",
        "json, or a JSON schema of the answer",
    ),
    (
        "logprobs",
        "boolean",
        "send the probabilities of the answer's tokens",
    ),
    (
        "top_logprobs",
        "integer[0,20]",
        "and of this many of the likeliest tokens, at most 20",
    ),
    ("keep_alive", "Time", "how long the model stays loaded"),
];

const OLLAMA_CHAT: &[Field] = &[
    (
        "messages",
        "OllamaMessage[]",
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
        "text after the answer, for models that fill in the middle",
    ),
    ("system", "string", "the system message"),
    ("raw", "boolean", "use no chat template"),
    ("template", "=\"\"", "the empty string"),
    (
        "images",
        "Images",
        "images as base64, if the model takes some",
    ),
    ("context", "=[]", "none"),
];

const OLLAMA_EMBED: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("input", "!string|string+[]", "the texts"),
    (
        "truncate",
        "boolean",
        "cut texts that are longer than the context; on by default",
    ),
    (
        "dimensions",
        "integer[1,]",
        "keep the first values only, and scale them to length 1",
    ),
    ("options", "Context", "num_ctx"),
    ("keep_alive", "Time", "how long the model stays loaded"),
];

const OLLAMA_EMBEDDINGS: &[Field] = &[
    ("model", "!string", "the model's name"),
    ("prompt", "!string", "the text"),
    ("options", "Context", "num_ctx"),
    ("keep_alive", "Time", "how long the model stays loaded"),
];

const OLLAMA_MANAGED: &[Field] = &[
    ("model", "!string+", "the model's name"),
    ("name", "string", "another name of model"),
];

const OLLAMA_PULL: &[Field] = &[
    ("stream", "boolean", "false: answer when the model is there"),
    ("insecure", "boolean", "false"),
];

const OLLAMA_CREATE: &[Field] = &[
    (
        "from",
        "!string",
        "the model to start from, one of this server's",
    ),
    (
        "system",
        "string",
        "the system message of conversations without one",
    ),
    (
        "template",
        "string",
        "a chat template in Jinja, in place of the model's own",
    ),
    (
        "parameters",
        "object",
        "settings of requests that do not choose their own",
    ),
    (
        "messages",
        "object[]",
        "what every conversation begins with: role and content",
    ),
    ("license", "any", "a text or several"),
    ("stream", "boolean", "false: answer when the model is there"),
];

pub(super) const ENDPOINTS: &[Endpoint] = &[
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
        answer: &[
            ("details", "object", ""),
            ("model_info", "object", ""),
            ("capabilities", "string[]", ""),
        ],
        ..post(
            "/api/show",
            "Ollama",
            "Facts about a model",
            &[OLLAMA_MANAGED, &[("verbose", "boolean", "changes nothing")]],
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
        stream: LINES,
        answer: &[("status", "string", "")],
        ..post(
            "/api/create",
            "Ollama",
            "Create a model from another one",
            &[OLLAMA_MANAGED, OLLAMA_CREATE],
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
];
