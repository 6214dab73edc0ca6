//! Objects in the bodies of requests, by name. They describe the common case; the server takes more.

use super::endpoint::{self, SAMPLING};
use crate::openai::INCLUDES;
use crate::sampling::SAMPLERS;
use serde_json::{Map, Value, json};

/// With images and sounds, if a model takes some.
pub(super) fn schemas(images: bool, sounds: bool) -> Value {
    let roles = json!({ "enum": ["system", "developer", "user", "assistant", "tool"] });
    let text = json!({ "type": "string" });
    let some = json!({ "type": "string", "minLength": 1 });
    let name = text.clone();
    let schema = json!({ "type": "object" });
    // Null stands for a field that is missing.
    let object = |mut fields: Value, required: &[&str]| {
        for (name, field) in fields.as_object_mut().into_iter().flatten() {
            if !required.contains(&name.as_str()) {
                *field = json!({ "anyOf": [field.take(), { "type": "null" }] });
            }
        }
        json!({ "type": "object", "properties": fields, "required": required })
    };
    let content = |parts: &[Value]| {
        let parts = json!({ "type": "array", "minItems": 1, "items": { "anyOf": parts } });
        if images || sounds {
            json!({ "anyOf": [text, parts] })
        } else {
            text.clone()
        }
    };
    let part = |kind: &str, name: &str, value: &Value| {
        object(
            json!({ "type": { "const": kind }, name: value }),
            &["type", name],
        )
    };
    let base64 = json!({ "type": "string", "minLength": 1, "contentEncoding": "base64" });
    let address = json!({ "type": "string", "pattern": "^(data:|https?://)" });
    let rate = json!({ "type": "number", "minimum": 0.01, "maximum": 1000 });
    let media = if images || sounds {
        json!({ "type": "array", "items": base64 })
    } else {
        json!({ "enum": [[]] })
    };
    let place = object(json!({ "url": address }), &["url"]);
    let film = object(json!({ "url": address, "fps": rate }), &["url"]);
    let sound = object(json!({ "data": base64, "format": text }), &["data"]);
    let sound = part("input_audio", "input_audio", &sound);
    let with = |text: Value, of_images: Vec<Value>, of_sounds: Vec<Value>| {
        let of_images = of_images.into_iter().filter(|_| images);
        let of_sounds = of_sounds.into_iter().filter(|_| sounds);
        let parts: Vec<Value> = [text]
            .into_iter()
            .chain(of_images)
            .chain(of_sounds)
            .collect();
        content(&parts)
    };
    let of_chat = with(
        part("text", "text", &text),
        vec![
            part("image_url", "image_url", &place),
            part("video_url", "video_url", &film),
        ],
        vec![sound.clone(), part("audio_url", "audio_url", &place)],
    );
    let of_responses = with(
        part("input_text", "text", &text),
        vec![part("input_image", "image_url", &address)],
        vec![sound],
    );
    let source = json!({ "type": { "const": "base64" }, "media_type": text, "data": base64 });
    let source = object(source, &["type", "media_type", "data"]);
    let of_anthropic = with(
        part("text", "text", &text),
        vec![part("image", "source", &source)],
        Vec::new(),
    );
    let function = object(
        json!({ "name": name, "description": text, "parameters": schema }),
        &["name"],
    );
    let mut options: Map<String, Value> = SAMPLING
        .iter()
        .map(|(name, kind, meaning)| (name.to_string(), endpoint::schema(kind, meaning)))
        .collect();
    options.insert("num_predict".into(), json!({ "type": "integer" }));
    let num_ctx = json!({ "type": "integer", "minimum": 0 });
    options.insert("num_ctx".into(), num_ctx);
    json!({
        "Error": {
            "type": "object", "required": ["error"],
            "description": "The form depends on the API.",
        },
        "Message": object(json!({ "role": roles, "content": of_chat }), &["role"]),
        // Any role: the chat template knows them.
        "OllamaMessage": object(json!({ "role": text, "content": text, "images": media }), &["role"]),
        "Images": media,
        "Time": { "anyOf": [{ "type": "number" }, { "type": "string", "pattern": "^-?[0-9]{1,6}[smh]$" }] },
        "Turn": object(
            json!({ "role": { "enum": ["user", "assistant", "system"] }, "content": of_anthropic }),
            &["role", "content"],
        ),
        "Item": object(
            json!({ "role": { "enum": ["system", "developer", "user", "assistant"] }, "content": of_responses }),
            &["role", "content"],
        ),
        "Tool": object(
            json!({ "type": { "const": "function" }, "function": function }),
            &["function"],
        ),
        "FlatTool": object(
            json!({ "type": { "const": "function" }, "name": name, "description": text, "parameters": schema }),
            &["type", "name"],
        ),
        "SchemaTool": object(
            json!({ "name": name, "description": text, "input_schema": schema }),
            &["name", "input_schema"],
        ),
        "Format": object(json!({ "type": { "enum": ["text", "json_object"] } }), &["type"]),
        "TextOptions": object(json!({ "format": { "$ref": "#/components/schemas/Format" } }), &[]),
        "Bias": {
            "type": "object", "additionalProperties": false,
            "patternProperties": { "^[0-9]{1,3}$": { "anyOf": [{ "type": "number" }, { "const": false }] } },
        },
        "BiasOfTexts": {
            "type": "object", "additionalProperties": { "anyOf": [{ "type": "number" }, { "const": false }] },
        },
        "ResponseStream": object(json!({ "include_obfuscation": { "const": false } }), &[]),
        "Reasoning": object(json!({ "effort": text }), &[]),
        "StreamOptions": object(
            json!({ "include_usage": { "type": "boolean" }, "include_obfuscation": { "const": false } }),
            &[],
        ),
        "Thinking": object(
            json!({ "type": { "enum": ["enabled", "adaptive", "disabled"] } }),
            &["type"],
        ),
        "Choice": object(
            json!({ "type": { "enum": ["auto", "none"] }, "disable_parallel_tool_use": { "type": "boolean" } }),
            &["type"],
        ),
        "Edits": object(json!({ "edits": { "type": "array", "items": object(
            json!({ "type": text, "keep": { "const": "all" } }),
            &["keep"],
        ) } }), &[]),
        "OutputConfig": object(json!({ "effort": text }), &[]),
        "Options": object(options.into(), &[]),
        "Context": object(json!({ "num_ctx": { "type": "integer", "minimum": 0 } }), &[]),
        "File": object(json!({ "filename": text, "text": text }), &["text"]),
        "Sampler": { "enum": SAMPLERS },
        "Include": { "enum": INCLUDES },
        // A text, a list of texts and tokens that follow each other, or a text in an object.
        "Prompt": { "anyOf": [
            some,
            { "type": "array", "minItems": 1, "items": { "anyOf": [some, { "type": "integer", "minimum": 0 }] } },
            object(json!({ "prompt_string": some, "multimodal_data": media }), &["prompt_string"]),
        ] },
        // A text, texts, tokens, or lists of tokens.
        "Prompts": { "anyOf": [
            some,
            { "type": "array", "minItems": 1, "maxItems": 64, "items": some },
            { "type": "array", "minItems": 1, "items": { "type": "integer", "minimum": 0 } },
        ] },
        "AdapterScale": object(json!({ "id": { "type": "integer", "minimum": 0 }, "scale": { "type": "number" } }), &["id"]),
        "Document": { "anyOf": [text, object(json!({ "text": text }), &["text"])] },
    })
}
