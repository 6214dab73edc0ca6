//! llama.cpp's API.

use super::endpoint::{EVENTS, Endpoint, Field, GRAMMAR, SAMPLING, get, post};

/// Further paths of endpoints.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("/models", "/v1/models"),
    ("/chat/completions", "/v1/chat/completions"),
    (
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
    ),
    ("/responses", "/v1/responses"),
    ("/v1/health", "/health"),
    ("/completions", "/completion"),
    ("/embeddings", "/embedding"),
    ("/rerank", "/v1/rerank"),
    ("/reranking", "/v1/rerank"),
    ("/v1/reranking", "/v1/rerank"),
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
        "Sampler[]",
        "the steps of sampling to use, in the order of the names here; others are switched off",
    ),
    (
        "response_fields",
        "string[]",
        "send these fields only; timings/prompt_n is a field within another one",
    ),
    ("n_cmpl", "integer[1,64]", "answers to each prompt"),
    ("n", "integer[1,64]", "another name of n_cmpl"),
    (
        "n_probs",
        "integer[0,20]",
        "send the probabilities of this many of the likeliest tokens",
    ),
    (
        "post_sampling_probs",
        "boolean",
        "of the tokens that sampling left, at most 20",
    ),
    (
        "return_tokens",
        "boolean",
        "send the tokens too; streams always have them",
    ),
    ("n_discard", "integer", "changes nothing"),
];

/// Fields that OpenAI's endpoints take too.
pub(super) const EXTRAS: &[Field] = &[
    (
        "answered_tokens",
        "integer[0,][]",
        "the answer so far, made by another server: the answer goes on after it",
    ),
    (
        "timings_per_token",
        "boolean",
        "streams tell how fast they were so far",
    ),
    (
        "return_progress",
        "boolean",
        "streams tell how much of the prompt is computed",
    ),
    (
        "verbose",
        "boolean",
        "chats also have llama.cpp's response, with the prompt",
    ),
    (
        "lora",
        "AdapterScale[]",
        "id and scale of an adapter: this one in place of the model's",
    ),
    (
        "id_slot",
        "integer",
        "changes nothing: all slots share the prompt cache",
    ),
    ("backend_sampling", "boolean", "changes nothing"),
];

/// How the prompt of a conversation ends.
pub(super) const ENDING: &[Field] = &[
    (
        "add_generation_prompt",
        "boolean",
        "false: the prompt ends with the last message",
    ),
    (
        "continue_final_message",
        "boolean",
        "whether the answer continues the last message, by default if it is the assistant's",
    ),
];

/// In place of the field of the other APIs.
const BIAS: &[Field] = &[(
    "logit_bias",
    "BiasOfTexts",
    "numbers by token or text, added to the logits; false forbids a token",
)];

const EMBEDDING: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "input",
        "!Prompt",
        "texts or tokens; content is another name",
    ),
    (
        "embd_normalize",
        "=2 -1",
        "2: vectors of length 1; -1: as long as the model makes them",
    ),
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
        "Document[+]",
        "texts, or objects whose field `text` is one",
    ),
    (
        "texts",
        "any[]",
        "in place of documents: the response is that of TEI",
    ),
    ("return_text", "boolean", "another name of return_documents"),
    ("top_n", "integer", "return the best documents only"),
    ("return_documents", "boolean", ""),
    (
        "instruction",
        "string",
        "what makes a document relevant, for models that take an instruction",
    ),
];

const SPARSE: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    ("inputs", "!Prompt", "texts or tokens"),
    ("truncate", "boolean", "cut texts that are too long"),
    (
        "truncation_direction",
        "=Right",
        "texts are cut at their ends",
    ),
    (
        "prompt_name",
        "string",
        "the model's prompt to put before texts",
    ),
];

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        answer: &[("results", "object[]", ""), ("usage", "object", "")],
        ..post("/v1/rerank", "llama.cpp", "Order documents", &[RERANK])
    },
    Endpoint {
        ..post("/embedding", "llama.cpp", "Vectors of texts", &[EMBEDDING])
    },
    post(
        "/embed_sparse",
        "Text Embeddings Inference",
        "Token weights of texts",
        &[SPARSE],
    ),
    Endpoint {
        stream: EVENTS,
        ..post(
            "/completion",
            "llama.cpp",
            "Continue a text",
            &[
                LLAMA,
                EXTRAS,
                &[(
                    "prompt",
                    "!Prompt",
                    "a text, its tokens, texts and tokens that follow each other, or a list of these",
                )],
                SAMPLING,
                BIAS,
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
                EXTRAS,
                &[
                    ("input_prefix", "!string", "the text before"),
                    ("input_suffix", "!string", "the text after the middle"),
                    ("input_extra", "object[]", "other files: filename and text"),
                    ("prompt", "string", "the beginning of the middle"),
                ],
                SAMPLING,
                BIAS,
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
                ("content", "string", "the text"),
                (
                    "add_special",
                    "boolean",
                    "begin with the token that begins a text",
                ),
                (
                    "prompt",
                    "string",
                    "the text under vLLM's name; the answer has count and max_model_len",
                ),
                (
                    "add_special_tokens",
                    "boolean",
                    "as add_special for a prompt; on by default",
                ),
                (
                    "messages",
                    "Message[+]",
                    "a conversation in place of a text, as vLLM takes it",
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
        answer: &[("content", "string", ""), ("prompt", "string", "the same")],
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
            &[
                &[
                    ("messages", "!Message[+]", "the conversation"),
                    ("tools", "Tool[]", "functions that the model may call"),
                    ("tool_choice", "=auto none", "none: as without tools"),
                    ("parallel_tool_calls", "boolean", "changes nothing"),
                    (
                        "chat_template_kwargs",
                        "object",
                        "variables of the chat template",
                    ),
                ],
                ENDING,
            ],
        )
    },
    post(
        "/v1/load_lora_adapter",
        "vLLM",
        "Load an adapter",
        &[&[
            (
                "model",
                "string",
                "the model's name; without it, the default model",
            ),
            ("lora_name", "!string", "what requests call the adapter"),
            (
                "lora_path",
                "!string",
                "a GGUF file, or a directory of PEFT, on the server",
            ),
            ("scale", "number", "how strong it is; 1 by default"),
            ("load_inplace", "boolean", "in place of one of this name"),
        ]],
    ),
    post(
        "/v1/unload_lora_adapter",
        "vLLM",
        "Unload an adapter",
        &[&[
            (
                "model",
                "string",
                "the model's name; without it, the default model",
            ),
            ("lora_name", "!string", "the adapter's name"),
        ]],
    ),
    Endpoint {
        answer: &[("", "object[]", "")],
        ..get(
            "/lora-adapters",
            "llama.cpp",
            "The adapters, and how strong each is for requests that choose none",
        )
    },
    post(
        "/lora-adapters",
        "llama.cpp",
        "Choose the adapter of requests that choose none",
        &[&[(
            "",
            "AdapterScale[]",
            "one adapter; the others have a scale of 0",
        )]],
    ),
    get("/props", "llama.cpp", "The model and the default options"),
    get(
        "/tokenizer_info",
        "vLLM",
        "Tokens that begin and end a text, and the chat template",
    ),
    get("/slots", "llama.cpp", "The slots"),
    get("/metrics", "llama.cpp", "Figures for Prometheus"),
    Endpoint {
        answer: &[("status", "string", "")],
        ..get("/health", "llama.cpp", "Whether the scheduler advances")
    },
];
