//! OpenAI's API.

use super::endpoint::{EVENTS, Endpoint, Field, GRAMMAR, SAMPLING, get, post};
use super::llama::{ENDING, EXTRAS};

const OPENAI: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "n",
        "integer[1,64]",
        "answers to each prompt, 1 to 64 in all; answer i has the seed seed + i",
    ),
    ("stream", "boolean", "send the answer as it is written"),
    (
        "stream_options",
        "StreamOptions",
        "include_usage: send the usage at the end",
    ),
];

const CACHE: &[Field] = &[(
    "cache_prompt",
    "boolean",
    "reuse what earlier requests computed; on by default",
)];

const TOKENS: &[Field] = &[(
    "return_token_ids",
    "boolean",
    "choices have the tokens since the chunk before",
)];

/// Fields that OpenAI's endpoints share.
const LABELS: &[Field] = &[
    ("user", "string", "changes nothing"),
    ("metadata", "object", "changes nothing"),
    ("safety_identifier", "string", "changes nothing"),
    ("prompt_cache_key", "string", "changes nothing"),
    ("prompt_cache_retention", "string", "changes nothing"),
    ("service_tier", "string", "changes nothing"),
];

const TOOLS: &[Field] = &[
    (
        "tool_choice",
        "=auto none",
        "auto, none, required, or a function that must be called",
    ),
    (
        "parallel_tool_calls",
        "boolean",
        "false: end the answer after the first call",
    ),
];

const CHAT_TOOLS: &[Field] = &[("tools", "Tool[]", "functions that the model may call")];

const RESPONSE_TOOLS: &[Field] = &[(
    "tools",
    "FlatTool[]",
    "functions that the model may call, and namespaces of functions",
)];

const CHAT: &[Field] = &[
    ("messages", "!Message[+]", "the conversation"),
    ("max_tokens", "integer[0,]", "the most tokens of the answer"),
    (
        "max_completion_tokens",
        "integer[0,]",
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
        "Format",
        "type: text, json_object or json_schema",
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
    ("store", "=false", "false"),
    ("modalities", "=[\"text\"]", "text"),
];

const COMPLETION: &[Field] = &[
    (
        "prompt",
        "!Prompts",
        "a string, a list of tokens, or a list of these",
    ),
    (
        "max_tokens",
        "integer[0,]",
        "the most tokens of each answer; 16 by default",
    ),
    ("echo", "boolean", "begin the answer with the prompt"),
    (
        "suffix",
        "string",
        "text after the answer, for models that fill in the middle",
    ),
    (
        "logprobs",
        "integer[0,20]",
        "send the probabilities of the tokens, and of this many of the likeliest",
    ),
    ("best_of", "integer[1,1]", "1"),
    ("n_predict", "integer", "another name of max_tokens"),
];

const CONVERSATION: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    ("input", "!string|Item[+]", "text, or a list of items"),
    ("instructions", "string", "the system message"),
    (
        "previous_response_id",
        "string",
        "the stored response to continue",
    ),
    (
        "reasoning",
        "Reasoning",
        "effort: passed to the chat template",
    ),
    (
        "text",
        "TextOptions",
        "format: type text, json_object or json_schema",
    ),
    ("truncation", "=disabled", "disabled"),
];

const RESPONSES: &[Field] = &[
    (
        "max_output_tokens",
        "integer[0,]",
        "the most tokens of the answer",
    ),
    ("stream", "boolean", "send the answer as it is written"),
    (
        "stream_options",
        "ResponseStream",
        "include_obfuscation: false",
    ),
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
    ("include", "Include[]", "further parts of the output"),
    (
        "max_tool_calls",
        "integer[0,]",
        "changes nothing: there are no built-in tools",
    ),
    (
        "top_logprobs",
        "integer[0,20]",
        "send the probabilities of this many of the likeliest tokens",
    ),
    ("prompt_cache_options", "any", "changes nothing"),
];

const SPEECH: &[Field] = &[
    ("file", "!binary", "WAV, FLAC, MP3, Ogg Vorbis, AAC or ALAC"),
    ("model", "string", "the model of speech, or whisper-1"),
    (
        "prompt",
        "string",
        "names, spellings and style that come before the text",
    ),
    (
        "response_format",
        "=json text srt verbose_json vtt",
        "what the answer looks like",
    ),
    (
        "temperature",
        "number[0,1]",
        "0: rises until the text is good enough",
    ),
];

const SPEECH_MORE: &[Field] = &[
    (
        "language",
        "string",
        "the language: a code or an English name",
    ),
    (
        "timestamp_granularities[]",
        "=segment word[]",
        "segments or words in verbose_json",
    ),
    (
        "include[]",
        "=logprobs[]",
        "the probabilities of tokens, in json",
    ),
    (
        "chunking_strategy",
        "=auto",
        "windows are cut where it is quiet, and written together",
    ),
    (
        "stream",
        "boolean",
        "the text in events, segment by segment",
    ),
];

const EMBEDDINGS: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    (
        "input",
        "Prompts",
        "a string, a list of tokens, an object with a text and images, or a list of these; needed without messages",
    ),
    (
        "messages",
        "Message[+]",
        "a conversation in place of the input: it has one vector; images as in conversations",
    ),
    (
        "chat_template_kwargs",
        "object",
        "variables of the chat template",
    ),
    ("encoding_format", "=float base64", "float or base64"),
    (
        "dimensions",
        "integer[1,]",
        "keep the first values only, and scale them to length 1",
    ),
    (
        "prompt_name",
        "string",
        "the model's prompt to put before every text",
    ),
    (
        "input_type",
        "=query document passage",
        "query, document or passage: the model's prompt for these, if it has one",
    ),
    ("user", "string", "changes nothing"),
];

pub(super) const ENDPOINTS: &[Endpoint] = &[
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
            &[
                OPENAI, CHAT, ENDING, CHAT_TOOLS, TOOLS, SAMPLING, GRAMMAR, CACHE, TOKENS, LABELS,
                EXTRAS,
            ],
        )
    },
    Endpoint {
        answer: &[("input_tokens", "integer", "")],
        ..post(
            "/v1/chat/completions/input_tokens",
            "llama.cpp",
            "Count the tokens of a conversation's prompt",
            &[OPENAI, CHAT, ENDING, CHAT_TOOLS, TOOLS],
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
            &[
                OPENAI, COMPLETION, SAMPLING, GRAMMAR, CACHE, TOKENS, LABELS, EXTRAS,
            ],
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
            &[
                CONVERSATION,
                RESPONSE_TOOLS,
                TOOLS,
                RESPONSES,
                SAMPLING,
                CACHE,
                LABELS,
            ],
        )
    },
    Endpoint {
        answer: &[("input_tokens", "integer", "")],
        ..post(
            "/v1/responses/input_tokens",
            "OpenAI",
            "Count the tokens of a prompt",
            &[CONVERSATION, RESPONSE_TOOLS, TOOLS],
        )
    },
    Endpoint {
        answer: &[("id", "string", ""), ("output", "object[]", "")],
        ..post(
            "/v1/responses/compact",
            "OpenAI",
            "Put a conversation into few words",
            &[CONVERSATION, RESPONSE_TOOLS, TOOLS, LABELS],
        )
    },
    Endpoint {
        query: &[
            ("include", "string", "changes nothing"),
            ("stream", "=\"false\"", "false"),
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
            ("limit", "integer[1,100]", "1 to 100; 20 by default"),
            ("order", "=asc desc", "asc or desc, which is the default"),
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
            "Vectors of texts and images",
            &[EMBEDDINGS, ENDING],
        )
    },
    Endpoint {
        answer: &[("text", "string", "")],
        stream: EVENTS,
        ..post(
            "/v1/audio/transcriptions",
            "OpenAI",
            "The text of what is said in a file",
            &[SPEECH, SPEECH_MORE],
        )
    },
    Endpoint {
        answer: &[("text", "string", "")],
        ..post(
            "/v1/audio/translations",
            "OpenAI",
            "The English text of what is said in a file in any language",
            &[SPEECH],
        )
    },
    Endpoint {
        query: &[
            (
                "intent",
                "=transcription",
                "required: what the session is for",
            ),
            ("model", "string", "the model that writes down speech"),
        ],
        ..get(
            "/v1/realtime",
            "OpenAI",
            "A websocket: sound goes in, and the text of what is said comes out",
        )
    },
    Endpoint {
        answer: &[("data", "object[]", "")],
        ..get("/v1/models", "OpenAI", "The models")
    },
    Endpoint {
        answer: &[("id", "string", "")],
        ..get("/v1/models/{id}", "OpenAI", "A model")
    },
];
