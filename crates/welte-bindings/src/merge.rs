//! Puts the chunks of a streamed chat or completion together to the response that would have come at once.

use serde_json::{Value, json};

/// The response so far.
#[derive(Default)]
pub(crate) struct Merged {
    whole: Value,
    choices: Vec<Value>,
}

impl Merged {
    /// Adds a chunk. Returns the text that it adds to the first answer.
    pub(crate) fn add(&mut self, mut chunk: Value) -> String {
        let choices = chunk["choices"].take();
        let choices = choices.as_array().cloned().unwrap_or_default();
        let mut first = String::new();
        for choice in choices {
            let index = choice["index"].as_u64().unwrap_or(0) as usize;
            let text = self.add_choice(index.min(1023), choice);
            if index == 0 {
                first.push_str(&text);
            }
        }
        match (&mut self.whole, chunk) {
            (Value::Object(whole), Value::Object(chunk)) => {
                // Later chunks have the usage and the figures.
                whole.extend(chunk.into_iter().filter(|(_, value)| !value.is_null()));
            }
            (whole, chunk) => *whole = chunk,
        }
        first
    }

    /// Ended by the caller.
    pub(crate) fn cancel(&mut self) {
        for choice in &mut self.choices {
            choice["finish_reason"] = "cancelled".into();
        }
    }

    pub(crate) fn finish(mut self) -> Value {
        let object = self.whole["object"].as_str().unwrap_or_default();
        self.whole["object"] = object.trim_end_matches(".chunk").into();
        self.whole["choices"] = self.choices.into();
        self.whole
    }

    fn add_choice(&mut self, index: usize, choice: Value) -> String {
        while self.choices.len() <= index {
            let index = self.choices.len();
            self.choices.push(json!({ "index": index }));
        }
        let to = &mut self.choices[index];
        let mut added = String::new();
        for (name, value) in choice.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                ("index", _) => {}
                ("delta", delta) => {
                    if to.get("message").is_none() {
                        to["message"] = json!({ "role": "assistant", "content": null });
                    }
                    added.push_str(delta["content"].as_str().unwrap_or_default());
                    append(&mut to["message"], delta);
                }
                ("text", text) => {
                    added.push_str(text.as_str().unwrap_or_default());
                    append(to, &json!({ "text": text }));
                }
                ("logprobs", lists) if lists.is_object() => {
                    if !to["logprobs"].is_object() {
                        to["logprobs"] = json!({});
                    }
                    append(&mut to["logprobs"], lists);
                }
                // The last chunk has no probabilities.
                (name, Value::Null) if to.get(name).is_some() => {}
                (name, value) => to[name] = value.clone(),
            }
        }
        added
    }
}

/// Appends texts and lists, and replaces the rest. Calls of tools are matched by their index.
fn append(to: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        let place = &mut to[name];
        match (&mut *place, value) {
            (_, Value::Null) => {}
            (_, value) if name == "role" => *place = value.clone(),
            (_, Value::Array(calls)) if name == "tool_calls" => {
                if !place.is_array() {
                    *place = json!([]);
                }
                calls.iter().for_each(|call| append_call(place, call));
            }
            (Value::String(text), Value::String(more)) => text.push_str(more),
            (Value::Array(list), Value::Array(more)) => list.extend(more.iter().cloned()),
            (_, value) => *place = value.clone(),
        }
    }
}

fn append_call(calls: &mut Value, call: &Value) {
    let index = call["index"].as_u64().unwrap_or(0);
    let Some(calls) = calls.as_array_mut() else {
        return;
    };
    // A server streams the calls in their order.
    if index as usize >= calls.len() {
        let mut call = call.clone();
        if let Some(fields) = call.as_object_mut() {
            fields.remove("index");
        }
        calls.push(call);
    } else {
        append(&mut calls[index as usize]["function"], &call["function"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_chats_become_one_response() {
        let mut merged = Merged::default();
        let chunk = |delta: Value, reason: Value| {
            json!({
                "id": "c", "object": "chat.completion.chunk", "usage": null,
                "choices": [{ "index": 0, "delta": delta, "logprobs": { "content": [1] }, "finish_reason": reason }],
            })
        };
        let call = |name: Value, part: &str| json!({ "tool_calls": [{ "index": 0, "id": "x", "type": "function", "function": { "name": name, "arguments": part } }] });
        let deltas = [
            json!({ "role": "assistant", "content": "" }),
            json!({ "content": "A f" }),
            json!({ "content": "ox" }),
            call("f".into(), "{\"a\""),
            call(Value::Null, ":1}"),
        ];
        let texts = deltas.map(|delta| merged.add(chunk(delta, Value::Null)));
        assert_eq!(texts.concat(), "A fox");
        let mut last = chunk(json!({}), "tool_calls".into());
        last["choices"][0]["logprobs"] = Value::Null;
        merged.add(last);
        merged.add(json!({ "id": "c", "object": "chat.completion.chunk", "choices": [], "usage": { "total_tokens": 7 } }));
        assert_eq!(
            merged.finish(),
            json!({
                "id": "c", "object": "chat.completion", "usage": { "total_tokens": 7 },
                "choices": [{
                    "index": 0, "logprobs": { "content": [1, 1, 1, 1, 1] }, "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant", "content": "A fox",
                        "tool_calls": [{ "id": "x", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } }],
                    },
                }],
            })
        );
    }

    #[test]
    fn completions_of_several_answers_stay_apart() {
        let mut merged = Merged::default();
        let chunk = |index: usize, text: &str| {
            json!({
                "object": "text_completion",
                "choices": [{ "index": index, "text": text, "logprobs": null, "finish_reason": null }],
            })
        };
        let texts = [(1, "b"), (0, "a"), (1, "d"), (0, "c")];
        let texts = texts.map(|(index, text)| merged.add(chunk(index, text)));
        assert_eq!(texts.concat(), "ac");
        merged.cancel();
        let whole = merged.finish();
        assert_eq!(whole["choices"][1]["text"], "bd");
        assert_eq!(whole["choices"][0]["finish_reason"], "cancelled");
    }
}
