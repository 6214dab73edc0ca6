//! Answers that are nothing but a call, without the marks of their syntax. The first ones are of Qwen2.5-Coder 1.5B.

use serde_json::{Value, json};
use welte_text::calls::{Answer, CallParser, Event, Format, Syntax, Tool};

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value, required: Value| Tool {
        name: name.to_owned(),
        parameters: json!({"type": "object", "properties": properties, "required": required}),
    };
    let text = json!({"type": "string"});
    let number = json!({"type": "number"});
    vec![
        tool(
            "get_weather",
            json!({"city": text, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}),
            json!(["city"]),
        ),
        tool("add", json!({"a": number, "b": number}), json!(["a", "b"])),
        tool(
            "search_files",
            json!({"pattern": text, "directory": text}),
            json!(["pattern"]),
        ),
        tool(
            "send_mail",
            json!({"to": text, "subject": text, "body": text}),
            json!(["to", "subject", "body"]),
        ),
        tool(
            "edit_file",
            json!({"path": text, "old": text, "new": text}),
            json!(["path", "old", "new"]),
        ),
        tool("list_directory", json!({"path": text}), json!(["path"])),
    ]
}

/// What the model wrote, and the calls.
const RECORDED: [(&str, &[(&str, &str)]); 11] = [
    (
        "```json\n{\n  \"name\": \"get_weather\",\n  \"arguments\": {\n    \"city\": \"Oslo\",\n    \"unit\": \"celsius\"\n  }\n}\n```",
        &[("get_weather", r#"{"city":"Oslo","unit":"celsius"}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\n    \"a\": 2.5,\n    \"b\": 4\n  }\n}\n```",
        &[("add", r#"{"a":2.5,"b":4}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"search_files\",\n  \"arguments\": {\n    \"pattern\": \".*\\\\.rs\",\n    \"directory\": \"src\"\n  }\n}\n```",
        &[("search_files", r#"{"pattern":".*\\.rs","directory":"src"}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"send_mail\",\n  \"arguments\": {\n    \"to\": \"bob@example.org\",\n    \"subject\": \"Lunch\",\n    \"body\": \"Lunch is at noon.\"\n  }\n}\n```",
        &[(
            "send_mail",
            r#"{"to":"bob@example.org","subject":"Lunch","body":"Lunch is at noon."}"#,
        )],
    ),
    (
        "```json\n{\n  \"name\": \"edit_file\",\n  \"arguments\": {\n    \"path\": \"src/main.rs\",\n    \"old\": \"foo(1)\",\n    \"new\": \"foo(2)\"\n  }\n}\n```",
        &[(
            "edit_file",
            r#"{"path":"src/main.rs","old":"foo(1)","new":"foo(2)"}"#,
        )],
    ),
    (
        "```json\n{\n  \"name\": \"list_directory\",\n  \"arguments\": {\n    \"path\": \"/tmp\"\n  }\n}\n```",
        &[("list_directory", r#"{"path":"/tmp"}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\n    \"a\": 17,\n    \"b\": 25\n  }\n}\n```",
        &[("add", r#"{"a":17,"b":25}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"get_weather\",\n  \"arguments\": {\n    \"city\": \"Paris\",\n    \"unit\": \"celsius\"\n  }\n}\n```",
        &[("get_weather", r#"{"city":"Paris","unit":"celsius"}"#)],
    ),
    (
        "{{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"celsius\"}}",
        &[("get_weather", r#"{"city":"Oslo","unit":"celsius"}"#)],
    ),
    (
        "```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\"a\": 5, \"b\": 0}\n}\n```",
        &[("add", r#"{"a":5,"b":0}"#)],
    ),
    ("Done.", &[]),
];

/// Other ways to write a call and nothing else.
const WRITTEN: [(&str, &[(&str, &str)]); 11] = [
    (
        "{{\"name\": \"add\", \"arguments\": {{\"a\": 1, \"b\": 2}}}}",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "{{\"name\": \"get_weather\", \"arguments\": {\"city\": \"{{Oslo}}\"}}}\n",
        &[("get_weather", r#"{"city":"{{Oslo}}"}"#)],
    ),
    (
        "<tool_call>\n{{\"name\": \"add\", \"arguments\": {{\"a\": 1, \"b\": 2}}}}\n</tool_call>",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "  \n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n ",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "```\n{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}\n```",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "```json\n[{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}, {\"name\": \"list_directory\", \"arguments\": {\"path\": \".\"}}]\n```",
        &[
            ("add", r#"{"a":1,"b":2}"#),
            ("list_directory", r#"{"path":"."}"#),
        ],
    ),
    (
        "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n{\"name\": \"add\", \"arguments\": {\"a\": 3, \"b\": 4}}",
        &[("add", r#"{"a":1,"b":2}"#), ("add", r#"{"a":3,"b":4}"#)],
    ),
    (
        "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n```\n\n```json\n{\"name\": \"add\", \"arguments\": {\"a\": 3, \"b\": 4}}\n```",
        &[("add", r#"{"a":1,"b":2}"#), ("add", r#"{"a":3,"b":4}"#)],
    ),
    (
        "<tools>{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}</tools>",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
    (
        "<think>Hm.</think>\n```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n```",
        &[("add", r#"{"a":1,"b":2}"#)],
    ),
];

/// No calls: other text, other tools, arguments that do not fit, an answer that is cut off.
const TEXTS: [&str; 20] = [
    "Use this: ```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n```",
    "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n```\nThat adds.",
    "```json\n{\"name\": \"sub\", \"arguments\": {\"a\": 1, \"b\": 2}}\n```",
    "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n```",
    "```json\n{\"name\": \"add\", \"arguments\": {\"a\": \"1\", \"b\": 2}}\n```",
    "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"kelvin\"}}\n```",
    "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}",
    "```json\n{\"city\": \"Oslo\"}\n```",
    "```json\n{}\n```",
    "```json\n```",
    "``",
    "{",
    "[1, 2]",
    "{{}}",
    "{{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}}}",
    "{\"name\": \"add\"}",
    "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}}",
    "```python\nadd(1, 2)\n```",
    "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n{\"name\": \"add\"}",
    "\n  ",
];

fn parser(syntax: &str) -> CallParser {
    CallParser::new(Format::named(syntax).unwrap(), tools())
}

/// The answer, from pieces.
fn answer(mut parser: CallParser, pieces: &[&str]) -> Answer {
    let mut answer = Answer::default();
    for piece in pieces {
        answer.add(parser.push(piece));
    }
    answer.add(parser.finish());
    answer
}

fn calls(answer: &Answer) -> Vec<(String, Value)> {
    let call = |call: &welte_text::calls::Call| {
        (
            call.name.clone(),
            serde_json::from_str(&call.arguments).unwrap(),
        )
    };
    answer.calls.iter().map(call).collect()
}

/// The answer whole, character by character and cut at every place.
fn every_cut(syntax: &str, text: &str, check: impl Fn(Answer)) {
    check(answer(parser(syntax), &[text]));
    let characters: Vec<&str> = text.split("").collect();
    check(answer(parser(syntax), &characters));
    for (at, _) in text.char_indices() {
        check(answer(parser(syntax), &[&text[..at], &text[at..]]));
    }
}

#[test]
fn a_call_without_its_marks_is_a_call() {
    for (text, expected) in RECORDED.iter().chain(&WRITTEN) {
        let expected: Vec<(String, Value)> = expected
            .iter()
            .map(|(name, arguments)| ((*name).to_owned(), serde_json::from_str(arguments).unwrap()))
            .collect();
        every_cut("hermes", text, |answer| {
            assert_eq!(calls(&answer), expected, "{text}");
            let shown = if expected.is_empty() { *text } else { "" };
            assert_eq!(answer.text, shown, "{text}");
            assert_eq!(answer.problems, [], "{text}");
        });
    }
}

#[test]
fn other_texts_stay_text() {
    for text in TEXTS {
        for syntax in ["hermes", "none", "mistral"] {
            every_cut(syntax, text, |answer| {
                assert_eq!(answer.calls, [], "{syntax}: {text}");
                assert_eq!(answer.text.trim(), text.trim(), "{syntax}: {text}");
            });
        }
    }
}

#[test]
fn every_syntax_takes_calls_without_marks() {
    for syntax in Syntax::all() {
        // These take everything in a block of calls, or text before channels.
        let (text, expected) = RECORDED[1];
        let answer = parser(syntax.name).parse(text);
        assert_eq!(
            answer.calls.len(),
            expected.len(),
            "{}: {answer:?}",
            syntax.name
        );
    }
}

#[test]
fn other_text_comes_at_once() {
    for (text, at_least) in [
        ("It rains.", 8),
        ("```python\nx = 1", 10),
        ("{\"answer\": 1}", 9),
        ("{{x}}", 2),
    ] {
        let mut parser = parser("hermes");
        let mut shown = String::new();
        for piece in text.split("").take(text.len()) {
            for event in parser.push(piece) {
                if let Event::Text(text) = event {
                    shown.push_str(&text);
                }
            }
        }
        assert!(shown.len() >= at_least, "{text}: {shown}");
    }
}

#[test]
fn text_of_a_form_and_answers_without_tools_are_no_calls() {
    let (text, _) = RECORDED[0];
    let answer = parser("hermes").plain_text().parse(text);
    assert_eq!((answer.calls.len(), answer.text.as_str()), (0, text));
    let parser = CallParser::new(Format::named("hermes").unwrap(), Vec::new());
    let answer = parser.parse(text);
    assert_eq!((answer.calls.len(), answer.text.as_str()), (0, text));
}

#[test]
fn arguments_must_fit_every_rule() {
    let schema = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
            "either": {"anyOf": [{"type": "null"}, {"const": "x"}]},
            "one": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            "not": {"not": {"type": "string"}},
        },
        "additionalProperties": false,
        "$defs": {"item": {"type": ["string", "boolean"], "maxLength": 2}, "self": {"$ref": "#/$defs/self"}},
    });
    let called = |schema: &Value, arguments: Value| {
        let tools = vec![Tool {
            name: "f".into(),
            parameters: schema.clone(),
        }];
        let text = json!({"name": "f", "arguments": arguments}).to_string();
        CallParser::new(Format::named("hermes").unwrap(), tools)
            .parse(&text)
            .calls
            .len()
            == 1
    };
    for (arguments, fits) in [
        (json!({}), true),
        (json!({"n": 1.0}), true),
        (json!({"n": 0}), false),
        (json!({"n": 1.5}), false),
        (json!({"list": ["a", true]}), true),
        (json!({"list": ["abc"]}), false),
        (json!({"list": [1]}), false),
        (json!({"list": ["a", "b", "c"]}), false),
        (json!({"either": null}), true),
        (json!({"either": "y"}), false),
        (json!({"one": 1.5}), true),
        (json!({"one": 1}), false),
        (json!({"not": "x"}), false),
        (json!({"other": 1}), false),
    ] {
        assert_eq!(called(&schema, arguments.clone()), fits, "{arguments}");
    }
    assert!(called(&Value::Null, json!({"any": [1]})));
    let endless =
        json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}});
    assert!(!called(&endless, json!({"a": 1})));
}
