//! What the description of an endpoint consists of.

use serde_json::{Value, json};
use welte::{Range, Sampling};

/// A field of a body or of a URL: name, type, meaning. The type of a required field begins with `!`.
pub(super) type Field = (&'static str, &'static str, &'static str);

/// An endpoint.
#[derive(Clone, Copy)]
pub(super) struct Endpoint {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// The API that it belongs to.
    pub(super) api: &'static str,
    pub(super) summary: &'static str,
    /// Groups of fields of the body; none: it takes no body.
    pub(super) body: &'static [&'static [Field]],
    pub(super) query: &'static [Field],
    /// Fields of the response that are always there.
    pub(super) answer: &'static [Field],
    /// The content type of a streamed response, if there is one.
    pub(super) stream: Option<&'static str>,
}

pub(super) const EVENTS: Option<&str> = Some("text/event-stream");
pub(super) const LINES: Option<&str> = Some("application/x-ndjson");

/// Sampling fields that are not numbers.
const OTHER_SAMPLING: [Field; 7] = [
    (
        "seed",
        "integer",
        "the same seed gives the same text; negative: a random one",
    ),
    ("stop", "string+|string+[]", "texts that end the answer"),
    (
        "logit_bias",
        "Bias",
        "numbers by token, added to the logits; false forbids a token",
    ),
    ("ignore_eos", "boolean", "never choose an end token"),
    (
        "min_tokens",
        "integer[0,]",
        "no end token is chosen before this many tokens",
    ),
    ("stop_token_ids", "integer[]", "tokens that end the answer"),
    (
        "dry_sequence_breakers",
        "string+|string+[]",
        "texts that end a repetition",
    ),
];

/// The numbers among the settings under all their names, then the others.
pub(super) const SAMPLING: &[Field] = &{
    let mut all = [("", "", ""); Sampling::OPTIONS.len() + ALIASES + OTHER_SAMPLING.len()];
    let mut end = 0;
    let mut i = 0;
    while i < Sampling::OPTIONS.len() {
        let option = &Sampling::OPTIONS[i];
        all[end] = (option.name, option.kind, option.meaning);
        end += 1;
        let mut j = 0;
        while j < option.aliases.len() {
            all[end] = (option.aliases[j], option.kind, option.meaning);
            end += 1;
            j += 1;
        }
        i += 1;
    }
    while end < all.len() {
        all[end] = OTHER_SAMPLING[end + OTHER_SAMPLING.len() - all.len()];
        end += 1;
    }
    all
};

/// Further names of settings.
const ALIASES: usize = {
    let mut count = 0;
    let mut i = 0;
    while i < Sampling::OPTIONS.len() {
        count += Sampling::OPTIONS[i].aliases.len();
        i += 1;
    }
    count
};

pub(super) const GRAMMAR: &[Field] = &[
    ("json_schema", "object", "a JSON schema of the answer"),
    (
        "grammar",
        "string",
        "a grammar of the answer in GBNF or Lark",
    ),
];

/// An endpoint without a body.
pub(super) const fn get(path: &'static str, api: &'static str, summary: &'static str) -> Endpoint {
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
pub(super) const fn post(
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

/// The schema of a type in words: alternatives by `|`, `[]` for lists and `[+]` for lists that are not empty, `string+` for texts that
/// are not empty, `=a b` for certain values, [ranges](Range) of numbers, and names of [objects].
pub(super) fn schema(kind: &str, meaning: &str) -> Value {
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

/// The schema of one alternative.
fn one(kind: &str) -> Value {
    if let Some(values) = kind.strip_prefix('=') {
        let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
        return json!({ "enum": values.split(' ').map(value).collect::<Vec<Value>>() });
    }
    for (suffix, least) in [("[]", 0), ("[+]", 1)] {
        if let Some(item) = kind.strip_suffix(suffix) {
            let mut list = json!({ "type": "array" });
            if item != "any" {
                list["items"] = one(item);
            }
            if least > 0 {
                list["minItems"] = least.into();
            }
            return list;
        }
    }
    if kind.starts_with(|c: char| c.is_ascii_uppercase()) {
        return json!({ "$ref": format!("#/components/schemas/{kind}") });
    }
    if kind == "binary" {
        return json!({ "type": "string", "format": "binary" });
    }
    if let Some(kind) = kind.strip_suffix('+') {
        return json!({ "type": kind, "minLength": 1 });
    }
    let (name, range) = Range::of(kind);
    let mut schema = json!({ "type": name });
    let Range {
        min,
        excludes_min,
        max,
    } = range.unwrap_or_default();
    let number = |value: f64| {
        if value.fract() == 0.0 && value.abs() < 1e15 {
            json!(value as i64)
        } else {
            json!(value)
        }
    };
    if let Some(min) = min {
        let bound = if excludes_min {
            "exclusiveMinimum"
        } else {
            "minimum"
        };
        schema[bound] = number(min);
    }
    if let Some(max) = max {
        schema["maximum"] = number(max);
    }
    schema
}
