//! Answers that must be a call: how they begin, and what follows as JSON.

use super::Format;
use super::body::Start;
use serde_json::{Value, json};

/// The frame of a call that the model must make.
#[derive(Clone, Debug, PartialEq)]
pub struct CallFrame {
    /// The end of the prompt. [`CallParser`](super::CallParser) takes it as the beginning of the answer.
    pub opening: String,
    /// A JSON Schema of the rest of the answer.
    pub schema: Value,
}

impl Format {
    /// The frame of a call of one of these functions, given by names and schemas of their arguments, after this prompt.
    /// `None`: this syntax has no JSON at the right place, or it has room for the arguments of one function only.
    pub fn call_frame(&self, prompt: &str, functions: &[(&str, &Value)]) -> Option<CallFrame> {
        let mut frame = self.bare_frame(functions)?;
        frame.opening.insert_str(0, &self.leave_reasoning(prompt));
        Some(frame)
    }

    fn bare_frame(&self, functions: &[(&str, &Value)]) -> Option<CallFrame> {
        let syntax = self.syntax;
        let mark = syntax.openings.first();
        let frame = |opening: &str, key, list| CallFrame {
            opening: opening.to_string(),
            schema: envelope(functions, key, list),
        };
        if functions.is_empty() {
            return None;
        }
        if syntax.channels {
            let [(name, schema)] = functions else {
                return None;
            };
            return Some(CallFrame {
                opening: format!(
                    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
                ),
                schema: (*schema).clone(),
            });
        }
        match (mark?.start, syntax.bare) {
            (Start::Llama, Some(_)) => Some(frame("", "parameters", false)),
            (Start::Json, _) => Some(frame(&format!("{}\n", mark?.mark), "arguments", false)),
            (Start::Mistral(_), _) => Some(frame(mark?.mark, "arguments", true)),
            (Start::Section(named) | Start::Named(named), _) => {
                let [(name, schema)] = functions else {
                    return None;
                };
                let begin = named.begin.first().copied().unwrap_or_default();
                Some(CallFrame {
                    opening: format!("{}{begin}{name}{}", mark?.mark, named.separator),
                    schema: (*schema).clone(),
                })
            }
            _ => None,
        }
    }

    /// What a prompt must end with so that the answer begins outside the reasoning.
    pub fn answer_opening(&self, prompt: &str) -> String {
        if self.syntax.channels {
            return "<|channel|>final<|message|>".to_string();
        }
        self.leave_reasoning(prompt)
    }

    /// The mark that ends the reasoning, if the prompt has begun it.
    fn leave_reasoning(&self, prompt: &str) -> String {
        match self.opens_reasoning(prompt) {
            true => format!("\n{}\n\n", self.reasoning.close),
            false => String::new(),
        }
    }
}

/// The schema of `{"name": ..., KEY: {...}}`, alone or as the only item of a list.
fn envelope(functions: &[(&str, &Value)], key: &str, list: bool) -> Value {
    let mut definitions = serde_json::Map::new();
    let mut calls = Vec::new();
    for (index, (name, schema)) in functions.iter().enumerate() {
        let mut schema = (*schema).clone();
        let place = format!("#/$defs/{index}");
        move_references(&mut schema, &place);
        definitions.insert(index.to_string(), schema);
        calls.push(json!({
            "type": "object", "properties": { "name": { "const": name }, key: { "$ref": place } },
            "required": ["name", key], "additionalProperties": false,
        }));
    }
    let mut schema = match list {
        true => {
            json!({ "type": "array", "items": { "anyOf": calls }, "minItems": 1, "maxItems": 1 })
        }
        false => json!({ "anyOf": calls }),
    };
    schema["$defs"] = definitions.into();
    schema
}

/// Changes the references within a schema that now lies at `place`.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" && text.starts_with('#') => {
                        text.replace_range(..1, place);
                    }
                    value => move_references(value, place),
                }
            }
        }
        Value::Array(all) => all
            .iter_mut()
            .for_each(|value| move_references(value, place)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallParser, Syntax, Tool};
    use super::*;

    #[test]
    fn a_frame_and_its_json_are_one_call() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        let tools = || {
            ["first", "second"].map(|name| Tool {
                name: name.into(),
                ..Tool::default()
            })
        };
        let mut framed = Vec::new();
        for syntax in Syntax::all() {
            let format = Format::named(syntax.name).unwrap();
            let one = format.call_frame("", &[("second", &schema)]);
            let two = format.call_frame("", &[("first", &schema), ("second", &schema)]);
            framed.push((syntax.name, one.is_some(), two.is_some()));
            for frame in one.into_iter().chain(two) {
                let call = |key: &str| format!(r#"{{"name": "second", "{key}": {{"a": 7}}}}"#);
                let rest = match frame.schema["properties"]["a"].is_null() {
                    false => r#"{"a": 7}"#.to_string(),
                    true if frame.schema["type"] == "array" => format!("[{}]", call("arguments")),
                    true if frame.schema["anyOf"][0]["properties"]["parameters"].is_null() => {
                        call("arguments")
                    }
                    true => call("parameters"),
                };
                let parser = CallParser::new(format, tools().into());
                let answer = parser.parse(&format!("{}{rest}", frame.opening));
                assert_eq!(answer.calls.len(), 1, "{}: {answer:?}", syntax.name);
                assert_eq!(answer.calls[0].name, "second");
                let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
                assert_eq!(arguments, json!({ "a": 7 }));
                assert_eq!(answer.text, "");
            }
        }
        let both = |name: &str| framed.contains(&(name, true, true));
        assert!(
            both("hermes") && both("llama") && both("mistral"),
            "{framed:?}"
        );
        let one = |name: &str| framed.contains(&(name, true, false));
        assert!(
            one("harmony") && one("deepseek") && one("kimi-k2"),
            "{framed:?}"
        );
        assert!(framed.contains(&("qwen-xml", false, false)));
    }

    #[test]
    fn references_stay_within_their_schema() {
        let schema = json!({ "$defs": { "x": { "type": "string" } }, "properties": { "a": { "$ref": "#/$defs/x" } } });
        let format = Format::named("hermes").unwrap();
        let frame = format
            .call_frame("<think>\n", &[("f", &json!({})), ("g", &schema)])
            .unwrap();
        assert_eq!(frame.opening, "\n</think>\n\n<tool_call>\n");
        let pointer = frame.schema["$defs"]["1"]["properties"]["a"]["$ref"].as_str();
        let pointer = pointer.unwrap().strip_prefix('#').unwrap();
        assert_eq!(
            frame.schema.pointer(pointer),
            Some(&json!({ "type": "string" }))
        );
    }
}
