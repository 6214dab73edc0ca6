//! Answers that must have a form: schemas, grammars, and calls of tools.

mod common;

use axum::Router;
use common::scripted::scripted;
use common::{post, server, strict_server, with};
use serde_json::{Value, json};

/// Writes tools and calls as Hermes and Qwen do.
const TEMPLATE: &str = r#"{%- if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}
Call one by <tool_call>{"name": NAME, "arguments": {}}</tool_call>
{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"#;

fn with_tools() -> Router {
    with(|options| options.chat_template = Some(TEMPLATE.to_string()))
}

fn question() -> Value {
    json!([{ "role": "user", "content": "How many foxes are there?" }])
}

/// A schema that every answer meets after a few tokens.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "animal": { "enum": ["fox", "bear"] },
            "count": { "type": "integer", "minimum": 1, "maximum": 9 },
        },
        "required": ["animal", "count"], "additionalProperties": false,
    })
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(
        value["animal"] == "fox" || value["animal"] == "bear",
        "{text}"
    );
    assert!(
        (1..10).contains(&value["count"].as_u64().unwrap()),
        "{text}"
    );
    assert_eq!(value.as_object().unwrap().len(), 2);
}

fn tools() -> Value {
    let function = |name: &str| {
        json!({ "type": "function", "function": {
            "name": name, "description": "Counts animals.", "parameters": schema(),
        }})
    };
    json!([function("count_animals"), function("count_plants")])
}

#[tokio::test]
async fn answers_meet_their_schema() {
    let server = server();
    for seed in 0..4 {
        let format = json!({ "type": "json_schema", "json_schema": {
            "name": "count", "strict": true, "schema": schema(),
        }});
        let body = json!({
            "messages": question(), "temperature": 1.5, "seed": seed, "max_tokens": 100,
            "response_format": format,
        });
        let chat = post(&server, "/v1/chat/completions", body).await.json();
        let text = chat["choices"][0]["message"]["content"].as_str();
        check(text.unwrap_or_else(|| panic!("{chat}")));
        assert_eq!(chat["choices"][0]["finish_reason"], "stop");
        let format = json!({ "type": "json_schema", "name": "count", "schema": schema() });
        let body = json!({
            "input": question(), "temperature": 1.5, "seed": seed, "max_output_tokens": 100,
            "text": { "format": format },
        });
        let response = post(&server, "/v1/responses", body).await.json();
        assert_eq!(response["output"][0]["content"][0]["text"], text.unwrap());
        assert_eq!(
            (&response["status"], &response["text"]["format"]),
            (&json!("completed"), &format)
        );
        let options = json!({ "temperature": 1.5, "seed": seed, "num_predict": 100 });
        let body = json!({
            "model": "demo", "messages": question(), "options": options, "stream": false, "format": schema(),
        });
        let ollama = post(&server, "/api/chat", body).await.json();
        assert_eq!(ollama["message"]["content"], text.unwrap());
        let body =
            json!({ "prompt": "Foxes: ", "n_predict": 100, "seed": seed, "json_schema": schema() });
        let llama = post(&server, "/completion", body).await.json();
        check(llama["content"].as_str().unwrap());
        let body = json!({ "prompt": "Foxes: ", "max_tokens": 9, "seed": seed, "grammar": "root ::= [a-f]{3}" });
        let completion = post(&server, "/v1/completions", body).await.json();
        let text = completion["choices"][0]["text"].as_str().unwrap();
        assert!(
            text.len() == 3 && text.bytes().all(|b| (b'a'..=b'f').contains(&b)),
            "{text}"
        );
    }
    let body = json!({
        "messages": question(), "temperature": 1.5, "max_tokens": 30,
        "response_format": { "type": "json_object" },
    });
    let chat = post(&server, "/v1/chat/completions", body).await.json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.trim_start().starts_with('{'), "{text}");
}

#[tokio::test]
async fn a_call_that_is_required_is_made() {
    let server = with_tools();
    for (choice, name) in [
        (json!("required"), None),
        (
            json!({ "type": "function", "function": { "name": "count_plants" } }),
            Some("count_plants"),
        ),
    ] {
        let body = json!({
            "messages": question(), "temperature": 1.5, "seed": 3, "max_tokens": 200, "tools": tools(),
            "tool_choice": choice,
        });
        let whole = post(&server, "/v1/chat/completions", body.clone())
            .await
            .json();
        assert_eq!(
            whole["choices"][0]["finish_reason"], "tool_calls",
            "{whole}"
        );
        let calls = &whole["choices"][0]["message"]["tool_calls"];
        assert_eq!(calls.as_array().unwrap().len(), 1);
        let function = calls[0]["function"].clone();
        check(function["arguments"].as_str().unwrap());
        assert!(
            name.is_none_or(|name| function["name"] == name),
            "{function}"
        );
        let mut streamed = body;
        streamed["stream"] = true.into();
        let events = post(&server, "/v1/chat/completions", streamed)
            .await
            .events();
        let parts = |field: &str| -> String {
            let part = |event: &Value| {
                let call = event.pointer("/choices/0/delta/tool_calls/0/function")?;
                Some(call[field].as_str()?.to_string())
            };
            events.iter().filter_map(part).collect()
        };
        assert_eq!(parts("name"), function["name"]);
        assert_eq!(parts("arguments"), function["arguments"]);
    }
    let flat: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut function = tool["function"].clone();
            function["type"] = "function".into();
            function
        })
        .collect();
    let body = json!({
        "input": question(), "temperature": 1.5, "seed": 3, "max_output_tokens": 200, "tools": flat,
        "tool_choice": { "type": "function", "name": "count_plants" },
    });
    let whole = post(&server, "/v1/responses", body.clone()).await.json();
    let call = &whole["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("count_plants"))
    );
    check(call["arguments"].as_str().unwrap());
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = post(&server, "/v1/responses", streamed).await.events();
    let deltas: String = events.iter().filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(deltas, call["arguments"]);
    assert_eq!(events[events.len() - 1]["type"], "response.completed");
    // The result goes back.
    let body = json!({
        "input": [{ "type": "function_call_output", "call_id": call["call_id"], "output": "7" }],
        "previous_response_id": whole["id"], "max_output_tokens": 4, "tools": flat,
    });
    let next = post(&server, "/v1/responses", body).await;
    assert_eq!(next.status, 200, "{}", next.text);
    let tool = |tool: &Value| json!({ "name": tool["name"], "input_schema": tool["parameters"] });
    let own: Vec<Value> = flat.iter().map(tool).collect();
    let body = json!({
        "model": "demo", "messages": question(), "temperature": 1.5, "seed": 3, "max_tokens": 200, "tools": own,
        "tool_choice": { "type": "any" },
    });
    let message = post(&server, "/v1/messages", body).await.json();
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    check(&message["content"][0]["input"].to_string());
}

/// A template with these marks, and with an end of the prompt.
fn template(marks: &str, end: &str) -> String {
    let messages =
        "{%- for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
    let tools =
        "{%- if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}";
    format!("{{#- {marks} -#}}{tools}{messages}assistant: {end}")
}

/// Tokens `{` and `<` of the bundled model.
const BRACE: &str = "93";
const LESS: &str = "30";

/// The model begins a call or not. Once it has, the call is complete and its arguments fit.
#[tokio::test]
async fn strict_calls_fit_whenever_the_model_makes_one() {
    let mut strict = tools();
    strict[0]["function"]["strict"] = true.into();
    strict[1]["function"]["strict"] = true.into();
    let llama = with(|options| options.chat_template = Some(template("<|python_tag|>", "")));
    let (mut calls, mut texts) = (0, 0);
    for seed in 0..6 {
        let mut body = json!({
            "messages": question(), "temperature": 1.5, "seed": seed, "max_tokens": 120, "tools": strict,
        });
        if seed % 2 == 0 {
            body["logit_bias"] = json!({ BRACE: 30 });
        }
        let chat = post(&llama, "/v1/chat/completions", body.clone())
            .await
            .json();
        let message = &chat["choices"][0]["message"];
        match chat["choices"][0]["finish_reason"].as_str().unwrap() {
            "tool_calls" => {
                calls += 1;
                for call in message["tool_calls"].as_array().unwrap() {
                    check(call["function"]["arguments"].as_str().unwrap());
                }
            }
            "length" if seed % 2 == 0 => {}
            _ => {
                texts += 1;
                assert!(message.get("tool_calls").is_none(), "{chat}");
                assert!(
                    !message["content"].as_str().unwrap().starts_with('{'),
                    "{chat}"
                );
            }
        }
        assert!(chat["welte"].get("problems").is_none(), "{chat}");
        body["stream"] = true.into();
        let events = post(&llama, "/v1/chat/completions", body).await.events();
        let arguments: String = events
            .iter()
            .filter_map(|event| {
                let call = event.pointer("/choices/0/delta/tool_calls/0/function")?;
                call["arguments"].as_str()
            })
            .collect();
        let whole = &message["tool_calls"][0]["function"]["arguments"];
        if message["tool_calls"]
            .as_array()
            .is_some_and(|calls| calls.len() == 1)
        {
            assert_eq!(arguments, whole.as_str().unwrap());
        }
    }
    assert!(calls > 0 && texts > 0, "{calls} calls, {texts} texts");
    // In Hermes' syntax the mark may come at any place.
    let hermes = with_tools();
    let body = json!({
        "model": "demo", "messages": question(), "temperature": 1.5, "seed": 1, "max_tokens": 100,
        "tools": [{ "name": "count_animals", "input_schema": schema(), "strict": true }],
    });
    let message = post(&hermes, "/v1/messages", body).await;
    assert_eq!(message.status, 200, "{}", message.text);
}

/// Syntaxes that write values in other ways than JSON.
#[tokio::test]
async fn required_calls_fit_in_syntaxes_without_json() {
    for marks in [
        "<|tool_call>",
        "<start_function_call>",
        "<|tool_call_start|>",
        "<start_of_turn>",
        "<function=<parameter=",
    ] {
        let server = with(|options| options.chat_template = Some(template(marks, "")));
        for seed in 0..2 {
            let body = json!({
                "messages": question(), "temperature": 1.5, "seed": seed, "max_tokens": 200, "tools": tools(),
                "tool_choice": "required",
            });
            let chat = post(&server, "/v1/chat/completions", body).await.json();
            let choice = &chat["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{marks}: {chat}");
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1, "{marks}: {chat}");
            check(calls[0]["function"]["arguments"].as_str().unwrap());
        }
        // Calls that may come fit as well.
        let mut strict = tools();
        strict[0]["function"]["strict"] = true.into();
        let body = json!({ "messages": question(), "max_tokens": 40, "seed": 1, "tools": strict });
        let chat = post(&server, "/v1/chat/completions", body).await;
        assert_eq!(chat.status, 200, "{marks}: {}", chat.text);
        assert!(
            chat.json()["welte"].get("problems").is_none(),
            "{}",
            chat.text
        );
    }
}

/// The answer is a call, or a text that fits the format.
#[tokio::test]
async fn tools_and_a_format_go_together() {
    let server = with_tools();
    let number =
        json!({ "type": "json_schema", "json_schema": { "schema": { "enum": [1, 22, 333] } } });
    let mut strict = tools();
    strict[0]["function"]["strict"] = true.into();
    strict[1]["function"]["strict"] = true.into();
    let (mut calls, mut texts) = (0, 0);
    for seed in 0..8 {
        let mut body = json!({
            "messages": question(), "temperature": 1.0, "seed": seed, "max_tokens": 200, "tools": strict,
            "parallel_tool_calls": false,
            "response_format": number,
        });
        if seed % 2 == 0 {
            body["logit_bias"] = json!({ LESS: 30 });
        }
        let chat = post(&server, "/v1/chat/completions", body).await.json();
        let message = &chat["choices"][0]["message"];
        match chat["choices"][0]["finish_reason"].as_str().unwrap() {
            "tool_calls" => calls += 1,
            "stop" => {
                let text = message["content"].as_str().unwrap();
                assert!(["1", "22", "333"].contains(&text), "{chat}");
                texts += 1;
            }
            _ => assert!(seed % 2 == 0, "{chat}"),
        }
    }
    assert!(calls > 0 && texts > 0, "{calls} calls, {texts} texts");
}

/// Reasoning comes before the form where the template has marks for it.
#[tokio::test]
async fn reasoning_comes_before_a_form() {
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema() } });
    let body = json!({
        "messages": question(), "temperature": 1.0, "seed": 3, "max_tokens": 60, "response_format": format,
    });
    let text = |chat: &Value| {
        chat["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_string()
    };
    // The prompt opens the reasoning: the model does not know how to end it.
    let opens = "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    let thinking = with(|options| options.chat_template = Some(template("", opens)));
    let chat = post(&thinking, "/v1/chat/completions", body.clone())
        .await
        .json();
    assert_eq!(chat["choices"][0]["finish_reason"], "length", "{chat}");
    assert_eq!(text(&chat), "");
    let reasoning = chat["choices"][0]["message"]["reasoning_content"].as_str();
    assert!(reasoning.unwrap().len() > 20, "{chat}");
    // With reasoning off nothing comes before the form.
    let mut off = body.clone();
    off["chat_template_kwargs"] = json!({ "enable_thinking": false });
    let chat = post(&thinking, "/v1/chat/completions", off.clone())
        .await
        .json();
    check(&text(&chat));
    let mut off = body.clone();
    off["chat_template_kwargs"] = json!({ "enable_thinking": false, "thinking": true });
    let chat = post(&thinking, "/v1/chat/completions", off).await.json();
    check(&text(&chat));
    let mut off = body.clone();
    off["reasoning_effort"] = "none".into();
    let chat = post(&thinking, "/v1/chat/completions", off).await.json();
    check(&text(&chat));
    // The model may begin the reasoning itself.
    let may = with(|options| options.chat_template = Some(template("<think></think>", "")));
    for (token, switch, thinks) in [
        (BRACE, json!({}), false),
        (LESS, json!({}), true),
        (LESS, json!({ "enable_thinking": false }), false),
        (LESS, json!({ "thinking": false }), false),
    ] {
        let mut body = body.clone();
        body["logit_bias"] = json!({ token: 30 });
        body["chat_template_kwargs"] = switch;
        let chat = post(&may, "/v1/chat/completions", body).await.json();
        let reasoning = &chat["choices"][0]["message"]["reasoning_content"];
        assert_eq!(reasoning.is_string(), thinks, "{chat}");
        assert!(thinks || text(&chat).starts_with('{'), "{chat}");
        if token == BRACE {
            check(&text(&chat));
        }
    }
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused() {
    let (server, plain) = (with_tools(), server());
    let chat = async |server: &Router, field: &str, value: Value, tools: Value| {
        let mut body = json!({ "messages": question(), "max_tokens": 4, "tools": tools });
        body[field] = value;
        let reply = post(server, "/v1/chat/completions", body).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        reply.json()["error"].clone()
    };
    let schema_of =
        |schema: Value| json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let error = chat(
        &server,
        "response_format",
        schema_of(json!({ "properties": { "a": { "not": { "type": "string" } } } })),
        json!([]),
    )
    .await;
    assert_eq!(error["param"], "response_format.json_schema.schema");
    assert!(
        error["message"].as_str().unwrap().contains("/properties/a"),
        "{error}"
    );
    let error = chat(
        &server,
        "response_format",
        json!({ "type": "yaml" }),
        json!([]),
    )
    .await;
    assert_eq!(error["param"], "response_format.type");
    let error = chat(&server, "grammar", json!("root ::= (\"a\""), json!([])).await;
    assert_eq!(error["param"], "grammar");
    let error = chat(&server, "tool_choice", json!("required"), json!([])).await;
    assert_eq!(error["param"], "tool_choice");
    let other = json!({ "type": "function", "function": { "name": "other" } });
    let error = chat(&server, "tool_choice", other, tools()).await;
    assert_eq!(error["param"], "tool_choice");
    let error = chat(&server, "tool_choice", json!("sometimes"), tools()).await;
    assert_eq!(error["param"], "tool_choice");
    let mut strict = tools();
    strict[1]["function"]["strict"] = true.into();
    strict[1]["function"]["parameters"]["properties"]["count"]["not"] = json!({});
    let error = chat(&server, "tool_choice", json!("auto"), strict.clone()).await;
    assert_eq!(error["param"], "tools[1].function.strict");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("/properties/count/not"), "{message}");
    // Gemma writes strings between marks, so their length cannot be enforced.
    let gemma = with(|options| options.chat_template = Some(template("<|tool_call>", "")));
    strict[1]["function"]["parameters"] = schema();
    strict[1]["function"]["parameters"]["properties"]["animal"] =
        json!({ "type": "string", "maxLength": 4 });
    let error = chat(&gemma, "tool_choice", json!("auto"), strict).await;
    assert_eq!(error["param"], "tools[1].function.strict");
    let mut body = json!({ "prompt": "a", "json_schema": schema() });
    body["grammar"] = "root ::= \"a\"".into();
    let reply = post(&plain, "/completion", body).await;
    assert!(
        reply.text.contains("cannot be combined with json_schema"),
        "{}",
        reply.text
    );
}

/// The bundled model's template has no tools.
#[tokio::test]
async fn tools_are_explained_to_a_model_without_them() {
    let server = server();
    let mut made = 0;
    for choice in ["required", "auto"] {
        for seed in 0..3 {
            let body = json!({
                "messages": question(), "temperature": 0.8, "seed": seed, "max_tokens": 200,
                "tools": [tools()[0]], "tool_choice": choice,
            });
            let chat = post(&server, "/v1/chat/completions", body).await;
            assert_eq!(chat.status, 200, "{}", chat.text);
            let chat = chat.json();
            let calls = chat["choices"][0]["message"]["tool_calls"]
                .as_array()
                .cloned();
            let calls = calls.unwrap_or_default();
            let whole = chat["choices"][0]["finish_reason"] != "length";
            assert!(!calls.is_empty() || choice == "auto" || !whole, "{chat}");
            made += calls.len();
            for call in calls {
                check(call["function"]["arguments"].as_str().unwrap());
            }
            assert!(!whole || chat["welte"].get("problems").is_none(), "{chat}");
        }
    }
    assert!(made > 0);
    // Schemas help such a model, and one that cannot be enforced is no reason to refuse: the client did not ask for that.
    let mut odd = tools();
    odd[0]["function"]["parameters"]["propertyNames"] = json!({ "pattern": "^a" });
    let mut body = json!({ "messages": question(), "max_tokens": 4, "tools": odd });
    let chat = post(&server, "/v1/chat/completions", body.clone()).await;
    assert_eq!(chat.status, 200, "{}", chat.text);
    body["tools"][0]["function"]["strict"] = true.into();
    let chat = post(&server, "/v1/chat/completions", body).await;
    assert_eq!(chat.status, 400, "{}", chat.text);
    // Calls and their results are text for such a model.
    let call = json!({"id": "call_1", "type": "function", "function": {
        "name": "count_animals", "arguments": "{\"animal\": \"fox\", \"count\": 1}"
    }});
    let messages = json!([
        {"role": "user", "content": "How many foxes?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]);
    let body = json!({"model": "demo", "messages": messages, "max_tokens": 20, "tools": tools()});
    let chat = post(&server, "/v1/chat/completions", body.clone()).await;
    assert_eq!(chat.status, 200, "{}", chat.text);
    let refused = post(&strict_server(), "/v1/chat/completions", body).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(
        refused.text.contains("does not support tools"),
        "{}",
        refused.text
    );
}

/// The calls of an answer, the text beside them, and the reason of its end, as an API gives them.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    calls: Vec<(String, Value)>,
    text: String,
    end: String,
}

impl Seen {
    fn call(&mut self, name: &Value, arguments: &str) {
        let arguments =
            serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
        self.calls
            .push((name.as_str().unwrap().to_string(), arguments));
    }

    fn chat(answer: &Value) -> Seen {
        let choice = &answer["choices"][0];
        let mut seen = Seen::default();
        for call in choice["message"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let function = &call["function"];
            seen.call(&function["name"], function["arguments"].as_str().unwrap());
        }
        seen.text = choice["message"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_string();
        seen.end = choice["finish_reason"].as_str().unwrap().to_string();
        seen
    }

    /// Of the chunks of a stream. Calls whose arguments are no JSON are those that the end makes void.
    fn chat_stream(events: &[Value]) -> (Seen, usize) {
        let (mut seen, mut parts) = (Seen::default(), Vec::<(String, String)>::new());
        for event in events {
            let Some(choice) = event["choices"].get(0) else {
                continue;
            };
            seen.text += choice["delta"]["content"].as_str().unwrap_or_default();
            seen.end += choice["finish_reason"].as_str().unwrap_or_default();
            for call in choice["delta"]["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let at = call["index"].as_u64().unwrap() as usize;
                if at == parts.len() {
                    parts.push(Default::default());
                }
                let function = &call["function"];
                parts[at].0 += function["name"].as_str().unwrap_or_default();
                parts[at].1 += function["arguments"].as_str().unwrap_or_default();
            }
        }
        let mut void = 0;
        for (name, arguments) in parts {
            match serde_json::from_str(&arguments) {
                Ok(arguments) => seen.calls.push((name, arguments)),
                Err(_) => void += 1,
            }
        }
        (seen, void)
    }

    fn messages(answer: &Value) -> Seen {
        let mut seen = Seen::default();
        for block in answer["content"].as_array().unwrap() {
            match block["type"].as_str().unwrap() {
                "tool_use" => seen.call(&block["name"], &block["input"].to_string()),
                _ => seen.text += block["text"].as_str().unwrap(),
            }
        }
        seen.end = answer["stop_reason"].as_str().unwrap().to_string();
        seen
    }

    /// As [`Seen::chat_stream`].
    fn message_stream(events: &[Value]) -> (Seen, usize) {
        let (mut seen, mut blocks) = (Seen::default(), Vec::<(Value, String)>::new());
        for event in events {
            match event["type"].as_str().unwrap() {
                "content_block_start" => {
                    blocks.push((event["content_block"]["name"].clone(), String::new()));
                }
                "content_block_delta" => {
                    let delta = &event["delta"];
                    let text = delta["text"].as_str().or(delta["partial_json"].as_str());
                    let at = event["index"].as_u64().unwrap() as usize;
                    assert_eq!(at + 1, blocks.len(), "blocks follow each other");
                    blocks[at].1 += text.unwrap();
                }
                "message_delta" => {
                    seen.end += event["delta"]["stop_reason"].as_str().unwrap();
                }
                _ => {}
            }
        }
        let mut void = 0;
        for (name, text) in blocks {
            match serde_json::from_str(&text) {
                _ if name.is_null() => seen.text += &text,
                Ok(input) => seen.calls.push((name.as_str().unwrap().to_string(), input)),
                Err(_) => void += 1,
            }
        }
        (seen, void)
    }

    fn responses(answer: &Value) -> Seen {
        let mut seen = Seen::default();
        for item in answer["output"].as_array().unwrap() {
            match item["type"].as_str().unwrap() {
                "function_call" if item["status"] != "completed" => {}
                "function_call" => {
                    seen.call(&item["name"], item["arguments"].as_str().unwrap());
                }
                _ => seen.text += item["content"][0]["text"].as_str().unwrap(),
            }
        }
        seen.end = answer["status"].as_str().unwrap().to_string();
        seen
    }

    fn ollama(lines: &[Value]) -> Seen {
        let mut seen = Seen::default();
        for line in lines {
            for call in line["message"]["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let function = &call["function"];
                seen.call(&function["name"], &function["arguments"].to_string());
            }
            seen.text += line["message"]["content"].as_str().unwrap_or_default();
            seen.end += line["done_reason"].as_str().unwrap_or_default();
        }
        seen
    }
}

/// The good calls arrive, the malformed one is text and named, and nobody is told to run it.
#[tokio::test]
async fn a_malformed_call_among_good_ones() {
    let good = [
        ("count_animals", json!({ "animal": "fox", "count": 2 })),
        ("count_plants", json!({ "animal": "bear", "count": 3 })),
    ];
    let source = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let calls = good
        .each_ref()
        .map(|(name, arguments)| source(name, &arguments.to_string()));
    let expected: Vec<(String, Value)> = good
        .map(|(name, arguments)| (name.to_string(), arguments))
        .into();
    for bad in [
        source("count_animals", r#"{"animal": "wolf", "count": }"#),
        source("count_plants", r#"{"animal": "wolf" "count": 1}"#),
        source("count_plants", "[1, 2}"),
    ] {
        for place in 0..3 {
            let mut parts = calls.to_vec();
            parts.insert(place, bad.clone());
            let answer = format!("Let me count.\n{}", parts.join("\n"));
            let server = welte_server::router(scripted(&answer), Default::default()).unwrap();
            let ask = async |path: &str, mut body: Value, stream: bool| {
                body["stream"] = stream.into();
                let reply = post(&server, path, body).await;
                assert_eq!(reply.status, 200, "{}", reply.text);
                reply
            };
            let check = |seen: &Seen, end: &str| {
                assert_eq!(seen.calls, expected, "{answer}");
                assert!(seen.text.starts_with("Let me count."), "{}", seen.text);
                assert!(
                    seen.text.contains(
                        bad.trim_end_matches("</tool_call>")
                            .trim_start_matches("<tool_call>")
                            .trim()
                    ),
                    "{seen:?}"
                );
                assert_eq!(seen.end, end, "{answer}");
            };
            let chat = json!({ "messages": question(), "max_tokens": 400, "tools": tools() });
            let whole = ask("/v1/chat/completions", chat.clone(), false)
                .await
                .json();
            check(&Seen::chat(&whole), "tool_calls");
            assert_eq!(whole["welte"]["problems"].as_array().unwrap().len(), 1);
            let (seen, void) =
                Seen::chat_stream(&ask("/v1/chat/completions", chat, true).await.events());
            // A client that has seen a part of a call must not run it.
            check(&seen, if void > 0 { "stop" } else { "tool_calls" });
            let own: Vec<Value> = tools()
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| {
                    let function = &tool["function"];
                    json!({ "name": function["name"], "input_schema": function["parameters"] })
                })
                .collect();
            let body =
                json!({ "model": "demo", "messages": question(), "max_tokens": 400, "tools": own });
            let whole = ask("/v1/messages", body.clone(), false).await.json();
            check(&Seen::messages(&whole), "tool_use");
            let events = ask("/v1/messages", body, true).await.events();
            let (seen, void) = Seen::message_stream(&events);
            check(&seen, if void > 0 { "end_turn" } else { "tool_use" });
            let flat: Vec<Value> = tools()
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| {
                    let mut function = tool["function"].clone();
                    function["type"] = "function".into();
                    function
                })
                .collect();
            let body = json!({ "input": question(), "max_output_tokens": 400, "tools": flat });
            let whole = ask("/v1/responses", body.clone(), false).await.json();
            check(&Seen::responses(&whole), "completed");
            let events = ask("/v1/responses", body, true).await.events();
            check(
                &Seen::responses(&events.last().unwrap()["response"]),
                "completed",
            );
            let body = json!({ "model": "demo", "messages": question(), "options": { "num_predict": 400 }, "tools": tools() });
            let whole = ask("/api/chat", body.clone(), false).await.json();
            check(&Seen::ollama(&[whole]), "stop");
            let text = ask("/api/chat", body, true).await.text;
            let lines: Vec<Value> = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            check(&Seen::ollama(&lines), "stop");
        }
    }
}

/// The answer of a model that makes two calls ends with the first one.
#[tokio::test]
async fn a_client_may_want_one_call_at_a_time() {
    let call = |name: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"animal\": \"fox\", \"count\": 2}}}}\n</tool_call>"
        )
    };
    let answer = format!("{}\n{}", call("count_animals"), call("count_plants"));
    let server = welte_server::router(scripted(&answer), Default::default()).unwrap();
    for (parallel, count) in [(true, 2), (false, 1)] {
        let mut body = json!({
            "messages": question(), "max_tokens": 400, "tools": tools(), "parallel_tool_calls": parallel,
        });
        let path = "/v1/chat/completions";
        let whole = post(&server, path, body.clone()).await.json();
        assert_eq!(Seen::chat(&whole).calls.len(), count, "{whole}");
        body["stream"] = true.into();
        let events = post(&server, path, body).await.events();
        assert_eq!(Seen::chat_stream(&events).0.calls.len(), count);
    }
}

/// Small models write a call in a fence or with doubled braces, and without its marks.
#[tokio::test]
async fn an_answer_that_is_nothing_but_a_call_is_that_call() {
    let call = r#"{"name": "count_animals", "arguments": {"animal": "fox", "count": 2}}"#;
    let arguments = json!({ "animal": "fox", "count": 2 });
    let expected = [("count_animals".to_string(), arguments)];
    let own = |tool: &Value| {
        let function = &tool["function"];
        json!({ "name": function["name"], "input_schema": function["parameters"] })
    };
    let own: Vec<Value> = tools().as_array().unwrap().iter().map(own).collect();
    for (answer, is_call) in [
        (format!("```json\n{call}\n```"), true),
        (format!("{{{call}"), true),
        (format!("It is ```json\n{call}\n```"), false),
    ] {
        let server = welte_server::router(scripted(&answer), Default::default()).unwrap();
        let check = |seen: &Seen, ends: [&str; 2]| {
            let (calls, text): (&[_], _) = if is_call {
                (&expected, "")
            } else {
                (&[], answer.as_str())
            };
            assert_eq!(
                (&seen.calls[..], seen.text.as_str()),
                (calls, text),
                "{answer}"
            );
            assert_eq!(seen.end, ends[usize::from(is_call)], "{answer}");
        };
        let ask = async |path: &str, mut body: Value, stream: bool| {
            body["stream"] = stream.into();
            post(&server, path, body).await
        };
        let path = "/v1/chat/completions";
        let body = json!({ "messages": question(), "max_tokens": 400, "tools": tools() });
        let whole = ask(path, body.clone(), false).await.json();
        check(&Seen::chat(&whole), ["stop", "tool_calls"]);
        let (seen, void) = Seen::chat_stream(&ask(path, body, true).await.events());
        check(&seen, ["stop", "tool_calls"]);
        assert_eq!(void, 0, "{answer}");
        let body =
            json!({ "model": "demo", "messages": question(), "max_tokens": 400, "tools": own });
        let whole = ask("/v1/messages", body.clone(), false).await.json();
        check(&Seen::messages(&whole), ["end_turn", "tool_use"]);
        let (seen, void) = Seen::message_stream(&ask("/v1/messages", body, true).await.events());
        check(&seen, ["end_turn", "tool_use"]);
        assert_eq!(void, 0, "{answer}");
    }
}
