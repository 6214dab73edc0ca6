//! Conversations with tools, in the form that each template reads.

use serde_json::{Map, Value, json};
use welte_text::calls::{CallParser, Format, Tool};
use welte_text::{ChatTemplate, Image, ImageSource, Message, RenderOptions, ToolCall};

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

fn result(id: &str, content: &str) -> Message {
    Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::new("tool", content)
    }
}

/// A question, two calls at once, two results in the other order.
fn two_calls() -> Vec<Message> {
    vec![
        Message::new("user", "Rain?"),
        Message {
            reasoning: "Hm.".to_owned(),
            tool_calls: vec![
                call("call_1", "weather", "{\"place\": \"Łódź\"}"),
                call("call_2", "time", ""),
            ],
            ..Message::new("assistant", "")
        },
        result("call_2", "noon"),
        result("call_1", "{\"rain\": 0.2}"),
    ]
}

fn tools() -> Value {
    let function = |name: &str| json!({"type": "function", "function": {"name": name, "description": "", "parameters": {}}});
    json!([function("weather"), function("time")])
}

#[track_caller]
fn check(source: &str, messages: &[Message], expected: &str) {
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let options = RenderOptions {
        variables: Map::from_iter([("tools".to_owned(), tools())]),
        ..RenderOptions::default()
    };
    assert_eq!(template.render_chat(messages, &options).unwrap(), expected);
}

const TOOLS: &str = "{% for t in tools or [] %}{{ t.function.name }}. {% endfor %}";

#[test]
fn arguments_as_objects() {
    let source = TOOLS.to_owned()
        + "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}{% for c in m.tool_calls %}{{ c.id }}={{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{{ m.tool_call_id }}{{ m.name }}|{% endfor %}";
    check(
        &source,
        &two_calls(),
        "weather. time. user:Rain?|assistant:Hm.call_1=weather({\"place\": \"Łódź\"})call_2=time({})|tool:nooncall_2time|tool:{\"rain\": 0.2}call_1weather|",
    );
}

#[test]
fn arguments_as_text_and_content_as_null() {
    let source = "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}{{ c.function.name + ' ' + c.function.arguments }};{% endfor %}{% else %}{{ m.content }}|{% endif %}{% endfor %}";
    let mut messages = two_calls();
    messages[1].tool_calls[1].arguments = "{ }".to_owned();
    check(
        source,
        &messages,
        "Rain?|weather {\"place\": \"Łódź\"};time { };noon|{\"rain\": 0.2}|",
    );
}

#[test]
fn one_call_in_a_message() {
    let refusing = "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}{{ m.tool_calls[0].function | tojson }};{% else %}{{ m.content }}|{% endif %}{% endfor %}";
    // gpt-oss and others drop all calls but the first.
    let dropping = refusing.replace("!= 1", "== 0");
    for source in [refusing, &dropping] {
        check(
            source,
            &two_calls(),
            "Rain?|{\"name\": \"weather\", \"arguments\": {\"place\": \"Łódź\"}};{\"rain\": 0.2}|{\"name\": \"time\", \"arguments\": {}};noon|",
        );
    }
}

#[test]
fn short_identifiers() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}{{ c.function | tojson }}{{ c.id }}|{% endfor %}{{ m.content }}{{ m.tool_call_id }}|{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let mut messages = two_calls();
    messages[1].tool_calls[1].id = "aB3456789".to_owned();
    messages[2].tool_call_id = Some("aB3456789".to_owned());
    let text = template.render(&messages, false).unwrap();
    let ids: Vec<&str> = text
        .split(['|', '}'])
        .filter(|part| part.len() == 9)
        .collect();
    assert_eq!(ids.len(), 3, "{text}");
    assert_eq!(ids[0], ids[2]);
    assert_eq!(ids[1], "aB3456789");
    // A call and its result keep the same identifier, and the good one is unchanged.
    assert!(
        text.ends_with(&format!("noonaB3456789|{{\"rain\": 0.2}}{}|", ids[0])),
        "{text}"
    );
}

#[test]
fn content_in_parts() {
    let source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}|{% endfor %}";
    check(source, &[Message::new("user", "Rain?")], "Rain?|");
}

#[test]
fn reasoning_as_thinking() {
    let source = "{% for m in messages %}{% if m.tool_calls and m.thinking and m.content %}{{ raise_exception('either') }}{% endif %}{{ m.thinking }}{{ m.content }}{{ m.tool_calls[0].function | tojson if m.tool_calls }}|{% endfor %}";
    let mut messages = two_calls();
    messages[1].content = "I look.".to_owned();
    messages[1].tool_calls.pop();
    messages.remove(2);
    check(
        source,
        &messages,
        "Rain?|Hm.\nI look.{\"name\": \"weather\", \"arguments\": {\"place\": \"Łódź\"}}|{\"rain\": 0.2}|",
    );
}

#[test]
fn results_in_the_message_with_the_calls() {
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }};{% endfor %}{% for r in m.tool_responses %}{{ r.name }}={{ r.response | tojson }};{% endfor %}|{% endfor %}";
    check(
        source,
        &two_calls(),
        "Rain?|{\"name\": \"weather\", \"arguments\": {\"place\": \"Łódź\"}};{\"name\": \"time\", \"arguments\": {}};time=\"noon\";weather={\"rain\": 0.2};|",
    );
}

#[test]
fn results_in_messages_of_their_own() {
    let source = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.tool_responses }}{% endif %}{{ m.content }}{{ m.tool_calls[0].function | tojson if m.tool_calls }}|{% endfor %}";
    let mut messages = two_calls();
    messages[1].tool_calls.pop();
    messages.remove(2);
    check(
        source,
        &messages,
        "Rain?|{\"name\": \"weather\", \"arguments\": {\"place\": \"Łódź\"}}|{\"rain\": 0.2}|",
    );
}

#[test]
fn templates_without_tools_are_known() {
    let supports = |source: &str| ChatTemplate::new(source, "", "").unwrap().supports_tools();
    let messages = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert!(!supports(messages));
    assert!(supports(&(messages.to_owned() + TOOLS)));
}

#[test]
fn tools_are_explained_in_text_where_the_template_has_none() {
    let alternating = "{% for m in messages %}{% if (m.role == 'assistant') != (loop.index0 % 2 == 1) %}{{ raise_exception('alternate') }}{% endif %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role }}:{{ m.content }}|{% endfor %}";
    let with_system = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}";
    let dropping =
        "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }}|{% endfor %}";
    let tools = tools();
    for (source, begin) in [
        (alternating, "user:Be brief.\n\nYou can call"),
        (with_system, "system:Be brief.\n\nYou can call"),
        (dropping, "user:Be brief.\n\nYou can call"),
    ] {
        let template = ChatTemplate::new(source, "", "").unwrap();
        let mut messages = two_calls();
        messages.insert(0, Message::new("system", "Be brief."));
        let prompt = template
            .render_generic(
                &messages,
                tools.as_array().unwrap(),
                &RenderOptions::default(),
            )
            .unwrap();
        assert!(prompt.starts_with(begin), "{prompt}");
        assert!(
            prompt.contains("\n{\"name\":\"weather\",\"description\":\"\",\"parameters\":{}}\n"),
            "{prompt}"
        );
        let calls = "assistant:<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"place\":\"Łódź\"}}\n</tool_call>\n<tool_call>\n{\"name\":\"time\",\"arguments\":{}}\n</tool_call>|";
        let results = "user:<tool_response>\nnoon\n</tool_response>\n<tool_response>\n{\"rain\": 0.2}\n</tool_response>|";
        assert!(
            prompt.ends_with(&format!("Rain?|{calls}{results}")),
            "{prompt}"
        );
        // What the parser makes of a call is the call.
        let answer = prompt
            .split("assistant:")
            .nth(1)
            .unwrap()
            .split('|')
            .next()
            .unwrap();
        let known = ["weather", "time"].map(|name| Tool {
            name: name.to_owned(),
            ..Tool::default()
        });
        let format = Format::of_template(source).generic();
        let answer = CallParser::new(format, known.to_vec()).parse(answer);
        assert_eq!(answer.calls.len(), 2, "{answer:?}");
    }
}

/// Images of a system message stay before its explanation of tools, wherever it goes.
#[test]
fn explained_tools_lose_no_images() {
    let parts = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}";
    for condition in ["", " if m.role != 'system'"] {
        let source =
            format!("{{% for m in messages{condition} %}}{{{{ m.role }}}}:{parts}|{{% endfor %}}");
        let template = ChatTemplate::new(&source, "", "").unwrap();
        let image = |at| Image {
            at,
            source: ImageSource::Url("u".into()),
            name: "u".into(),
        };
        let message = |role, text, at| Message {
            images: vec![image(at)],
            ..Message::new(role, text)
        };
        let messages = [message("system", "See.", 4), message("user", "What?", 0)];
        let options = RenderOptions::default();
        let prompt = template.render_generic(&messages, tools().as_array().unwrap(), &options);
        let prompt = prompt.unwrap().to_string();
        assert!(prompt.contains(":See.<image>\n\nYou can call"), "{prompt}");
        assert!(prompt.contains("<image>What?"), "{prompt}");
    }
}

#[test]
fn errors_are_those_of_the_conversation() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let error = template.render(&two_calls(), false).unwrap_err();
    assert!(error.to_string().contains("no tools"), "{error}");
    assert_eq!(template.render(&two_calls()[..1], false).unwrap(), "Rain?");
}

/// Prompts of real templates against transformers (tools/text-fixtures/conversations.py).
#[test]
#[ignore = "needs a file of prompts in WELTE_CONVERSATIONS"]
fn templates_of_models() {
    let path = std::env::var("WELTE_CONVERSATIONS").unwrap();
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let messages: Vec<Message> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| Message {
                role: text(&message["role"]),
                content: text(&message["content"]),
                images: Vec::new(),
                marks: Vec::new(),
                reasoning: text(&message["reasoning"]),
                tool_calls: message["tool_calls"]
                    .as_array()
                    .unwrap_or(&vec![])
                    .iter()
                    .map(|one| {
                        let function = &one["function"];
                        call(
                            &text(&one["id"]),
                            &text(&function["name"]),
                            &text(&function["arguments"]),
                        )
                    })
                    .collect(),
                tool_call_id: message["tool_call_id"].as_str().map(str::to_owned),
                name: message["name"].as_str().map(str::to_owned),
            })
            .collect();
        let options = RenderOptions {
            add_generation_prompt: true,
            variables: Map::from_iter([("tools".to_owned(), case["tools"].clone())]),
            ..RenderOptions::default()
        };
        let template = ChatTemplate::new(&text(&case["template"]), "<s>", "</s>").unwrap();
        let prompts: Vec<String> = case["prompts"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        let name = format!("{number} {}", text(&case["name"]));
        match template.render_chat(&messages, &options) {
            Err(error) if !prompts.is_empty() => wrong.push(format!("{name}: {error}")),
            Err(_) => {}
            Ok(prompt) => {
                let prompt = prompt.text().to_owned();
                // Reasoning that any form shows must be shown, and arguments not as text within text.
                let reasoning = "I need the weather.";
                let lost = !prompt.contains(reasoning)
                    && prompts.iter().any(|other| other.contains(reasoning));
                let escaped = |prompt: &String| prompt.contains("\\\"place");
                let twice = escaped(&prompt) && !prompts.iter().all(escaped);
                if lost || twice || (!prompts.contains(&prompt) && !prompts.is_empty()) {
                    wrong.push(format!(
                        "{name}: {prompt}\n-- not --\n{}",
                        prompts.join("\n--\n")
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n====\n")
    );
}
