//! Anthropic's API.

use super::endpoint::{EVENTS, Endpoint, Field, SAMPLING, post};

const ANTHROPIC: &[Field] = &[
    (
        "model",
        "string",
        "the model's name; without it, the default model",
    ),
    ("messages", "!Turn[+]", "the conversation"),
    (
        "system",
        "string",
        "the system message; also a list of blocks",
    ),
    ("tools", "SchemaTool[]", "functions that the model may call"),
    (
        "tool_choice",
        "Choice",
        "type: auto, any, tool or none; disable_parallel_tool_use",
    ),
    (
        "thinking",
        "Thinking",
        "type: enabled, adaptive or disabled",
    ),
    ("cache_control", "any", "changes nothing"),
    (
        "context_management",
        "Edits",
        "edits that keep everything: keep \"all\"",
    ),
];

const MESSAGES: &[Field] = &[
    (
        "max_tokens",
        "!integer[0,]",
        "the most tokens of the answer",
    ),
    ("stop_sequences", "string+[]", "texts that end the answer"),
    ("stream", "boolean", "send the answer as it is written"),
    (
        "output_config",
        "OutputConfig",
        "format: type json_schema, and a schema of the answer; effort: goes to the chat template",
    ),
    ("metadata", "any", "changes nothing"),
    ("service_tier", "any", "changes nothing"),
];

pub(super) const ENDPOINTS: &[Endpoint] = &[
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
];
