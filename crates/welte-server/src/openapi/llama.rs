//! llama.cpp's API.

use super::{EVENTS, Endpoint, Field, GRAMMAR, SAMPLING, get, post};

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
    (
        "id_slot",
        "integer",
        "changes nothing: all slots share the prompt cache",
    ),
    (
        "n_keep",
        "integer",
        "changes nothing: a prompt is never cut",
    ),
    ("t_max_prompt_ms", "integer", "changes nothing"),
    (
        "t_max_predict_ms",
        "integer",
        "end after this time, once a line is complete; -1: no limit",
    ),
    (
        "n_indent",
        "integer",
        "end at the first line that is indented less",
    ),
    (
        "samplers",
        "string[]",
        "the steps of sampling to use; others are switched off",
    ),
    (
        "response_fields",
        "string[]",
        "send these fields only; timings/prompt_n is a field within another one",
    ),
    ("n_cmpl", "integer[1,1]", "1"),
    ("n", "integer[1,1]", "1"),
    (
        "n_probs",
        "integer[0,20]",
        "send the probabilities of so many likeliest tokens",
    ),
    ("return_tokens", "=false", "false"),
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
        "!Document[+]",
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

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        answer: &[("results", "object[]", ""), ("usage", "object", "")],
        ..post("/v1/rerank", "llama.cpp", "Order documents", &[RERANK])
    },
    Endpoint {
        answer: &[("results", "object[]", ""), ("usage", "object", "")],
        ..post("/rerank", "llama.cpp", "Order documents", &[RERANK])
    },
    Endpoint {
        stream: EVENTS,
        ..post(
            "/completion",
            "llama.cpp",
            "Continue a text",
            &[
                LLAMA,
                &[("prompt", "!string+", "a text, or its tokens")],
                SAMPLING,
                GRAMMAR,
            ],
        )
    },
    Endpoint {
        stream: EVENTS,
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
                GRAMMAR,
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
                ("messages", "!Message[+]", "the conversation"),
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
];
