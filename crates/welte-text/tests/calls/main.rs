//! Tool calls and reasoning, taken out of the text of answers.

mod alone;
mod harmony;
mod properties;
mod python;

use serde_json::{Value, json};
use welte_text::calls::{Answer, CallParser, Event, Format, Tool};
use welte_text::{Tokenizer, Vocabulary};

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": properties,
            "$defs": {"City": {"type": "string"}},
        }),
    };
    vec![
        tool(
            "weather",
            json!({
                "place": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "city": {"$ref": "#/$defs/City"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "kind": {"enum": ["1", "2"]},
                "loop": {"$ref": "#/properties/loop"},
            }),
        ),
        tool("time", json!({})),
        tool("brave_search", json!({"query": {"type": "string"}})),
    ]
}

fn parser(format: &str) -> CallParser {
    CallParser::new(Format::named(format).unwrap(), tools())
}

/// The answer in pieces that end at these bytes, which are moved to the next character.
fn in_pieces(mut parser: CallParser, text: &str, cuts: impl IntoIterator<Item = usize>) -> Answer {
    let mut answer = Answer::default();
    let mut from = 0;
    for cut in cuts {
        let to = (cut..=text.len()).find(|&at| text.is_char_boundary(at));
        let to = to.unwrap_or(text.len()).max(from);
        answer.add(parser.push(&text[from..to]));
        from = to;
    }
    answer.add(parser.push(&text[from..]));
    answer.add(parser.finish());
    answer
}

/// Calls in short form: `name{...}`.
fn calls(answer: &Answer) -> Vec<String> {
    let call = |call: &welte_text::calls::Call| format!("{}{}", call.name, call.arguments);
    answer.calls.iter().map(call).collect()
}

/// Checks an answer, cut at every place, in single characters and with calls held back.
#[track_caller]
fn check(format: &str, source: &str, text: &str, reasoning: &str, expected: &[&str]) {
    let answer = parser(format).parse(source);
    assert_eq!(answer.problems, [], "{source}");
    assert_eq!(answer.text, text, "{source}");
    assert_eq!(answer.reasoning, reasoning, "{source}");
    assert_eq!(calls(&answer), expected, "{source}");
    for call in &answer.calls {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(arguments.is_object());
    }
    for cut in 0..=source.len() {
        assert_eq!(in_pieces(parser(format), source, [cut]), answer, "{cut}");
    }
    assert_eq!(in_pieces(parser(format), source, 0..source.len()), answer);
    assert_eq!(parser(format).whole_calls().parse(source), answer);
}

/// Checks that an answer has no calls and all its text, and what the problem says.
#[track_caller]
fn check_malformed(format: &str, source: &str, text: &str, problem: &str) {
    let answer = parser(format).parse(source);
    assert_eq!(answer.text, text);
    assert_eq!(calls(&answer), [""; 0]);
    let problems: Vec<_> = answer.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, [problem]);
    for cut in 0..=source.len() {
        assert_eq!(in_pieces(parser(format), source, [cut]), answer, "{cut}");
    }
    let mut whole = parser(format).whole_calls();
    let events = [whole.push(source), whole.finish()].concat();
    let is_call = |event: &Event| matches!(event, Event::CallBegin { .. });
    assert!(!events.iter().any(is_call), "{events:?}");
}

#[test]
fn hermes() {
    check(
        "hermes",
        "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Łódź\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
        "I look.",
        "",
        &["weather{\"place\": \"Łódź\", \"days\": 2}", "time{}"],
    );
    // Keys in another order, extra keys, arguments as text, no arguments, a list, a missing end.
    check(
        "hermes",
        r#"<tool_call>{"id": 7.5e1, "arguments": {"place": "a"}, "name": "weather"}</tool_call>"#,
        "",
        "",
        &[r#"weather{"place": "a"}"#],
    );
    check(
        "hermes",
        r#"<tool_call>{"name": "weather", "arguments": "{\"place\": \"\\\"a\\\"\"}"}{"name": "time"}</tool_call>"#,
        "",
        "",
        &[r#"weather{"place": "\"a\""}"#, "time{}"],
    );
    check(
        "hermes",
        r#"<tool_call>[{"function": {"name": "time", "arguments": null}}, {"name": "time"}] Done."#,
        "Done.",
        "",
        &["time{}", "time{}"],
    );
    // Empty lists, exponents and pairs of escapes.
    check(
        "hermes",
        r#"<tool_call>{"name": "weather", "arguments": {"more": [[], {}, 1e+5, 2E-1, "\ud83d\ude00"]}}</tool_call>"#,
        "",
        "",
        &[r#"weather{"more": [[], {}, 1e+5, 2E-1, "\ud83d\ude00"]}"#],
    );
    // A line break within a string is escaped, because JSON does not allow it.
    check(
        "hermes",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"a\n\tb\"}}</tool_call>",
        "",
        "",
        &[r#"weather{"place": "a\n\tb"}"#],
    );
}

#[test]
fn arguments_come_as_soon_as_they_are_certain() {
    let mut parser = parser("hermes");
    let events =
        parser.push("Yes.\n\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"Ber");
    let delta = |delta: &str| Event::CallArguments {
        index: 0,
        delta: delta.to_owned(),
    };
    let begin = Event::CallBegin {
        index: 0,
        name: "weather".to_owned(),
    };
    assert_eq!(
        events,
        [
            Event::Text("Yes.".to_owned()),
            begin,
            delta("{\"place\": \"Ber")
        ]
    );
    assert_eq!(parser.push("gen"), [delta("gen")]);
    assert_eq!(parser.push("\"}"), [delta("\"}")]);
    assert_eq!(parser.push("}"), [Event::CallEnd { index: 0 }]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn xml_of_qwen() {
    check(
        "qwen-xml",
        "<think>\nHm.\n</think>\n\nI look.\n\n<tool_call>\n<function=weather>\n<parameter=place>\nSão \"Paulo\"\n\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\", \"</b>\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
        "I look.",
        "Hm.",
        &[
            r#"weather{"place": "São \"Paulo\"\n", "days": 2, "exact": true, "tags": ["a", "</b>"]}"#,
            "time{}",
        ],
    );
    // Without the outer element, as the smaller models write it.
    check(
        "qwen-xml",
        "<function=weather><parameter=place>1</parameter><parameter=other>1</parameter></function></tool_call>",
        "",
        "",
        &[r#"weather{"place": "1", "other": 1}"#],
    );
}

#[test]
fn the_schema_decides_between_text_and_json() {
    let value = |key: &str, text: &str| {
        let source = format!("<function=weather><parameter={key}>{text}</parameter></function>");
        let answer = parser("qwen-xml").parse(&source);
        let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
        arguments[key].clone()
    };
    assert_eq!(value("place", "2"), json!("2"));
    assert_eq!(value("city", "null"), json!("null"));
    assert_eq!(value("kind", "1"), json!("1"));
    assert_eq!(value("unit", "2"), json!("2"));
    assert_eq!(value("unit", "null"), json!(null));
    assert_eq!(value("unit", "\"C\""), json!("\"C\""));
    assert_eq!(value("days", " 2 "), json!(2));
    assert_eq!(value("days", "two"), json!("two"));
    assert_eq!(value("exact", "False"), json!(false));
    assert_eq!(value("unknown", "[1, {}]"), json!([1, {}]));
    assert_eq!(value("unknown", "[1, {]"), json!("[1, {]"));
    assert_eq!(value("loop", "1.5"), json!(1.5));
}

#[test]
fn xml_of_glm() {
    let expected = [r#"weather{"place": "Łódź\n<a>", "days": 2}"#, "time{}"];
    check(
        "glm",
        "\n<think>Rain?</think>\nI look.\n<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>Łódź\n<a></arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n</tool_call>",
        "I look.",
        "Rain?",
        &expected,
    );
    check(
        "glm",
        "<tool_call>weather<arg_key>place</arg_key><arg_value>Łódź\n<a></arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>time</tool_call>",
        "",
        "",
        &expected,
    );
}

#[test]
fn xml_of_others() {
    check(
        "minimax",
        "<think>Hm.</think>\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"place\">7</parameter>\n<parameter name=\"days\">7</parameter>\n</invoke>\n<invoke name=\"time\">\n</invoke>\n</minimax:tool_call>",
        "",
        "Hm.",
        &[r#"weather{"place": "7", "days": 7}"#, "time{}"],
    );
    check(
        "deepseek-v3.2",
        "A.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "A.",
        "",
        &[r#"weather{"a": "1", "b": 1}"#],
    );
    check(
        "seed",
        "<seed:think>Hm.</seed:think><seed:tool_call>\n<function=time>\n</function>\n</seed:tool_call>",
        "",
        "Hm.",
        &["time{}"],
    );
}

#[test]
fn llama() {
    check(
        "llama",
        r#"{"name": "weather", "parameters": {"place": "a"}}; {"type": "function", "name": "time", "parameters": {}}"#,
        "",
        "",
        &[r#"weather{"place": "a"}"#, "time{}"],
    );
    check(
        "llama",
        r#"<|python_tag|>{"type": "function", "function": "time", "parameters": {}}"#,
        "",
        "",
        &["time{}"],
    );
    check(
        "llama",
        "<|python_tag|>brave_search.call(query=\"rain in 'Łódź'\")",
        "",
        "",
        &[r#"brave_search{"query": "rain in 'Łódź'"}"#],
    );
    check(
        "llama",
        "[weather(place='a\\'b\\u0142\\n', days=-2, tags=['x', 'y',], more={'k': (1, 2.5), }, exact=True, unit=None), time()]",
        "",
        "",
        &[
            r#"weather{"place": "a'bł\n", "days": -2, "tags": ["x", "y"], "more": {"k": [1, 2.5]}, "exact": true, "unit": null}"#,
            "time{}",
        ],
    );
    // Llama 4
    for answer in [
        "<|python_start|>[time()]<|python_end|>",
        r#"<|python_start|>{"name": "time", "parameters": {}}<|python_end|>"#,
    ] {
        check("llama", answer, "", "", &["time{}"]);
    }
    // An answer that is JSON or begins with a bracket is not a call.
    for text in [
        r#"{"name": "Ada", "parameters": {}}"#,
        r#"{"answer": 42}"#,
        "{\"name\": 5}",
        "[1, 2]",
        "[see](weather) there",
        "{",
        "[",
        "As {\"name\": \"time\", \"parameters\": {}} shows",
        " \n [{}]",
    ] {
        check("llama", text, text, "", &[]);
    }
}

#[test]
fn llama_writes_code_without_an_envelope() {
    let mut tools = tools();
    tools.push(Tool {
        name: "code_interpreter".to_owned(),
        ..Tool::default()
    });
    let parse = |text: &str| {
        let format = Format::named("llama").unwrap();
        CallParser::new(format, tools.clone()).parse(text)
    };
    let answer = parse("<|python_tag|>import math\nprint(\"a\")");
    assert_eq!(
        calls(&answer),
        [r#"code_interpreter{"code": "import math\nprint(\"a\")"}"#]
    );
    let answer = parse("<|python_tag|>print(1)");
    assert_eq!(calls(&answer), [r#"code_interpreter{"code": "print(1)"}"#]);
    let answer = parse("<|python_tag|>weather(days=1)");
    assert_eq!(calls(&answer), ["weather{\"days\": 1}"]);
}

#[test]
fn mistral() {
    check(
        "mistral",
        r#"Look: [TOOL_CALLS] [{"name": "weather", "arguments": {"place": "[a]"}, "id": "012345678"}, {"name": "time", "arguments": {}}]"#,
        "Look:",
        "",
        &[r#"weather{"place": "[a]"}"#, "time{}"],
    );
    check(
        "mistral",
        r#"[THINK]Hm.[/THINK]Look.[TOOL_CALLS]weather[ARGS]{"place": "a"}[TOOL_CALLS]time[CALL_ID]012345678[ARGS]{}"#,
        "Look.",
        "Hm.",
        &[r#"weather{"place": "a"}"#, "time{}"],
    );
    check(
        "mistral",
        r#"[TOOL_CALLS]weather{"days": 1}"#,
        "",
        "",
        &[r#"weather{"days": 1}"#],
    );
}

#[test]
fn deepseek() {
    check(
        "deepseek",
        "A.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"place\": \"a```b\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "A.",
        "",
        &[r#"weather{"place": "a```b"}"#, "time{}"],
    );
    check(
        "deepseek",
        "<think>Hm.</think>A.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"place\": \"a\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "A.",
        "Hm.",
        &[r#"weather{"place": "a"}"#, "time{}"],
    );
    // The mark of a section ends the reasoning, because no reasoning contains that token by chance.
    check(
        "deepseek",
        "<think>Hm.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "Hm.",
        &["time{}"],
    );
    check(
        "kimi-k2",
        "A.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "A.",
        "",
        &[r#"weather{"days": 1}"#, "time{}"],
    );
}

#[test]
fn gemma() {
    check(
        "gemma-4",
        "<|channel>thought\nHm.\n<channel|>A.<|tool_call>call:weather{place:<|\"|>\"Łódź\"\n{<|\"|>,days:-2.5,exact:true,tags:[<|\"|>a,<|\"|>,null],more:{<|\"|>k:1<|\"|>:{},l:[]},unit:metric}<tool_call|><|tool_call>call:time{}<tool_call|><|tool_response>",
        "A.",
        "Hm.",
        &[
            r#"weather{"place": "\"Łódź\"\n{", "days": -2.5, "exact": true, "tags": ["a,", null], "more": {"k:1": {}, "l": []}, "unit": "metric"}"#,
            "time{}",
        ],
    );
    check(
        "function-gemma",
        "<start_function_call>call:weather{place:<escape>a<b<escape>,unit: \"x\\n\"}<end_function_call>",
        "",
        "",
        &[r#"weather{"place": "a<b", "unit": "x\n"}"#],
    );
    check(
        "gemma",
        "I look.\n```tool_code\nprint(weather(place=\"a\"))\ntime()\n```",
        "I look.",
        "",
        &[r#"weather{"place": "a"}"#, "time{}"],
    );
    check(
        "gemma",
        "```json\n{\"name\": \"weather\", \"parameters\": {\"place\": \"a\"}}\n```",
        "",
        "",
        &[r#"weather{"place": "a"}"#],
    );
    check("gemma", "[time()]", "", "", &["time{}"]);
    for text in ["```json\n{\"a\": 1}\n```", "```python\ntime()\n```"] {
        check("gemma", text, text, "", &[]);
    }
}

#[test]
fn granite_and_other_lists() {
    check(
        "granite",
        "<think>Hm.</think><response>A.</response><|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"days\": 1}}, {\"name\": \"time\", \"arguments\": {}}]",
        "A.",
        "Hm.",
        &[r#"weather{"days": 1}"#, "time{}"],
    );
    check(
        "nemotron",
        "<TOOLCALL>[{\"name\": \"time\", \"arguments\": {}}]</TOOLCALL> A.",
        "A.",
        "",
        &["time{}"],
    );
    check(
        "command-r7b",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"time\", \"parameters\": {}}\n]<|END_ACTION|>",
        "",
        "Hm.",
        &["time{}"],
    );
    check(
        "lfm2",
        "<|tool_call_start|>[weather(place=\"a\")]<|tool_call_end|>A.",
        "A.",
        "",
        &[r#"weather{"place": "a"}"#],
    );
    check(
        "apriel",
        "<tool_calls>[{\"name\": \"time\", \"arguments\": {}}]</tool_calls>",
        "",
        "",
        &["time{}"],
    );
    check(
        "hunyuan",
        "<think>\nHm.\n</think>\n<answer>\nA.\n<tool_calls>[{\"name\": \"time\", \"arguments\": {}}]</tool_calls>\n</answer>",
        "A.",
        "Hm.",
        &["time{}"],
    );
}

#[test]
fn reasoning_is_only_where_it_can_be() {
    // Prose about the mark.
    check(
        "hermes",
        "The mark <think> opens.",
        "The mark <think> opens.",
        "",
        &[],
    );
    check("hermes", "A </think> alone.", "A </think> alone.", "", &[]);
    check("hermes", "<think>", "", "", &[]);
    check("hermes", "<think>\n\n</think>\n\nA.\n", "A.\n", "", &[]);
    check("hermes", "<think>cut off </th", "", "cut off </th", &[]);
    check("hermes", "  <think> a <b> </think> c", "c", "a <b>", &[]);
    // A call that is only considered is not a call.
    check(
        "hermes",
        "<think>I could <tool_call>{\"name\": \"time\"}</tool_call>.</think>No.",
        "No.",
        "I could <tool_call>{\"name\": \"time\"}</tool_call>.",
        &[],
    );
    // More reasoning after a call.
    check(
        "hermes",
        "<tool_call>{\"name\": \"time\"}</tool_call>\n<think>b</think>\nc",
        "c",
        "b",
        &["time{}"],
    );
}

#[test]
fn the_prompt_may_open_the_reasoning() {
    let format = Format::named("hermes").unwrap();
    let answer = |prompt: &str| {
        CallParser::after_prompt(format, tools(), prompt).parse("\nHm.\n</think>\n\nA.")
    };
    let opened = answer("<|im_start|>assistant\n<think>\n");
    assert_eq!(
        (opened.reasoning.as_str(), opened.text.as_str()),
        ("Hm.", "A.")
    );
    let closed = answer("<|im_start|>assistant\n<think>\n\n</think>\n\n");
    assert_eq!(closed.reasoning, "");
}

#[test]
fn without_tools_there_are_no_calls() {
    let source = "<think>a</think><tool_call>{\"name\": \"time\"}</tool_call>";
    let answer = CallParser::new(Format::named("hermes").unwrap(), vec![]).parse(source);
    assert_eq!(answer.reasoning, "a");
    assert_eq!(answer.text, "<tool_call>{\"name\": \"time\"}</tool_call>");
}

#[test]
fn white_space_is_kept_in_text() {
    let spaces = " ".repeat(1000);
    for text in ["  a  b\n\n", "\n", &format!("a{spaces}b{spaces}")] {
        check("hermes", text, text, "", &[]);
    }
}

/// A call without a mark of its own may only follow one that has not been closed.
#[test]
fn what_follows_a_closed_call_is_text() {
    let call = "<tool_call>{\"name\": \"time\"}";
    let closed = format!("{call}</tool_call>{{\"name\": \"time\"}}");
    check("hermes", &closed, "{\"name\": \"time\"}", "", &["time{}"]);
    let both = format!("{call}\n{{\"name\": \"time\"}}");
    check("hermes", &both, "", "", &["time{}", "time{}"]);
    check("hermes", &format!("{call}\nA."), "A.", "", &["time{}"]);
}

#[test]
fn malformed_calls_are_text() {
    check_malformed(
        "hermes",
        "A. <tool_call>{\"name\": time}</tool_call> B.",
        "A. <tool_call>{\"name\": time}</tool_call> B.",
        "malformed tool call at byte 3 of the answer: expected 'true', 'false' or 'null' at byte 24, found 'i'",
    );
    check_malformed(
        "hermes",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"a\", days: 1}}",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"a\", days: 1}}",
        "malformed tool call at byte 0 of the answer: expected a key in double quotes at byte 60, found 'd'",
    );
    check_malformed(
        "hermes",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"a",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"a",
        "malformed tool call at byte 0 of the answer: expected the rest of the call, but the answer ended at byte 56",
    );
    for (format, source, expected) in [
        ("hermes", "<tool_call>{\"arguments\": {}}", "a key \"name\""),
        (
            "hermes",
            "<tool_call>{\"name\": \"\"}",
            "the name of a function",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": [1]}",
            "an object of arguments",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {}, \"parameters\": {}}",
            "one object of arguments",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": \"x\"}",
            "arguments that are a JSON object",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": 01}}",
            "no digit after a leading zero",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": \"\\d\"}}",
            "one of \"\\/bfnrtu after a backslash",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": \"\\ud800x\"}}",
            "the second half of a surrogate pair",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": \"\\udc00\"}}",
            "both halves of a surrogate pair",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": [1}}}",
            "',' or ']' after a value",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"a\" \"arguments\": {}}",
            "',' or '}' after a value",
        ),
        (
            "qwen-xml",
            "<tool_call>\nweather</tool_call>",
            "'<function='",
        ),
        (
            "qwen-xml",
            "<tool_call><function=weather>place",
            "'<parameter=' or '</function>' or '</tool_call>'",
        ),
        (
            "qwen-xml",
            "<tool_call><function=a b></function>",
            "the name of a function",
        ),
        (
            "glm",
            "<tool_call>weather\nplace</tool_call>",
            "'<arg_key>' or '</tool_call>'",
        ),
        (
            "glm",
            "<tool_call>weather\n<arg_key>place</arg_key>Bergen",
            "'<arg_value>'",
        ),
        ("mistral", "[TOOL_CALLS]weather[ARGS]place", "'{'"),
        (
            "mistral",
            "[TOOL_CALLS]the weather{}",
            "the name of a function",
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜>weather",
            "'<｜tool▁call▁begin｜>'",
        ),
        ("gemma-4", "<|tool_call>weather{}", "'call:'"),
        ("gemma-4", "<|tool_call>call:weather{a}", "':' after a key"),
        ("gemma-4", "<|tool_call>call:weather{a:}", "a value"),
        (
            "gemma",
            "```tool_code\nweather('Bergen')\n```",
            "the name of an argument",
        ),
        ("gemma", "```tool_code\nweather(a=b)\n```", "a literal"),
        ("gemma", "```tool_code\nweather(a=*)\n```", "a literal"),
        (
            "gemma",
            "```tool_code\nweather(a={b: 1})\n```",
            "a key in quotes",
        ),
        (
            "gemma",
            "```tool_code\nweather(a={[]: 1})\n```",
            "a key in quotes",
        ),
        (
            "gemma",
            "```tool_code\nweather(a={'b' 1})\n```",
            "':' after a key",
        ),
        (
            "gemma",
            "```tool_code\nweather(a={'b': 1)\n```",
            "',' or '}' after a value",
        ),
        (
            "gemma",
            "```tool_code\nweather(a=[1)\n```",
            "',' or ']' after a value",
        ),
        (
            "gemma",
            "```tool_code\nweather(a=(1])\n```",
            "',' or ')' after a value",
        ),
        (
            "gemma",
            "```tool_code\nweather(a=1]\n```",
            "',' or ')' after a value",
        ),
        (
            "gemma",
            "```tool_code\nweather(a;)\n```",
            "'=' after an argument's name",
        ),
        (
            "gemma",
            "```tool_code\nweather(a b)\n```",
            "'=' after an argument's name",
        ),
        (
            "gemma",
            "```tool_code\nweather(a:=1)\n```",
            "'=' after an argument's name",
        ),
        (
            "gemma",
            "```tool_code\nwea!ther()\n```",
            "'(' after the name",
        ),
        (
            "gemma",
            "```tool_code\n'weather'()\n```",
            "the name of a function",
        ),
        (
            "gemma",
            "```tool_code\nprint(print(time()))\n```",
            "one 'print('",
        ),
        (
            "gemma",
            "```tool_code\nweather(a='\\x4g')\n```",
            "a hexadecimal digit",
        ),
        (
            "gemma",
            "```tool_code\nweather(a='\\ud800')\n```",
            "the number of a character",
        ),
        (
            "gemma-4",
            "<|tool_call>call:weather{a<|\"|>b<|\"|>:1}",
            "':' after a key",
        ),
        ("gemma-4", "<|tool_call>call:weather{ :1}", "a key"),
        (
            "gemma-4",
            "<|tool_call>call:weather{<|\"|>a<|\"|>1}",
            "':' after a key",
        ),
        (
            "gemma-4",
            "<|tool_call>call:weather{a,b:1}",
            "':' after a key",
        ),
        (
            "gemma-4",
            "<|tool_call>call:weather{a:[1}",
            "',' or the end of the object or list",
        ),
        (
            "gemma-4",
            "<|tool_call>call:weather{a:\"x\" y}",
            "',' or the end of the object or list",
        ),
        ("gemma-4", "<|tool_call>call:{}", "the name of a function"),
    ] {
        let answer = parser(format).parse(source);
        assert_eq!(answer.text, source);
        assert_eq!(answer.calls, [], "{source}");
        assert_eq!(answer.problems.len(), 1, "{source}");
        assert_eq!(answer.problems[0].expected, expected, "{source}");
    }
}

#[test]
fn calls_before_and_behind_a_malformed_one_are_kept() {
    let good = "<tool_call>{\"name\": \"time\"}</tool_call>";
    let bad = "<tool_call>{\"name\": \"weather\", \"arguments\": {]}</tool_call>";
    let source = format!("{good}{bad}{good}");
    let answer = parser("hermes").parse(&source);
    assert_eq!(answer.text, bad);
    // The malformed call had begun, so its index is not used again.
    let indexes: Vec<_> = answer.calls.iter().map(|call| call.index).collect();
    assert_eq!(indexes, [0, 2]);
    assert_eq!(answer.problems[0].index, Some(1));
    // Held back, it never began.
    let answer = parser("hermes").whole_calls().parse(&source);
    let indexes: Vec<_> = answer.calls.iter().map(|call| call.index).collect();
    assert_eq!(indexes, [0, 1]);
    assert_eq!(answer.problems[0].index, None);
}

/// Whole and in pieces, cut at every place.
#[test]
fn a_malformed_call_among_good_ones_is_text() {
    for (format, good, bad) in [
        (
            "hermes",
            "<tool_call>{\"name\": \"time\"}</tool_call>",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {]}</tool_call>",
        ),
        (
            "qwen-xml",
            "<tool_call><function=time></function></tool_call>",
            "<tool_call>weather</tool_call>",
        ),
        (
            "glm",
            "<tool_call>time\n</tool_call>",
            "<tool_call>weather\nplace</tool_call>",
        ),
    ] {
        let source = format!("{good}{bad}{good}");
        let whole = parser(format).parse(&source);
        assert_eq!(whole.text, bad, "{format}");
        assert_eq!(calls(&whole).len(), 2, "{format}");
        assert_eq!(whole.problems.len(), 1, "{format}");
        for cut in 1..source.len() {
            assert_eq!(
                in_pieces(parser(format), &source, [cut]),
                whole,
                "{format} {cut}"
            );
        }
        let letters = in_pieces(parser(format), &source, 1..source.len());
        assert_eq!(letters, whole, "{format}");
    }
}

#[test]
fn problems_name_their_place() {
    let source = r#"{"name": "time", "parameters": {}}; {"name": "time", "parameters": {1"#;
    let problem = &parser("llama").parse(source).problems[0];
    assert_eq!((problem.start, problem.at), (36, 68));
    assert_eq!(problem.found, Some('1'));
}

#[test]
fn deep_nesting_and_long_calls_end() {
    let deep = format!(
        "<tool_call>{{\"name\": \"a\", \"arguments\": {{\"a\": {}",
        "[".repeat(1000)
    );
    let answer = parser("hermes").parse(&deep);
    assert_eq!(answer.text, deep);
    assert_eq!(
        answer.problems[0].expected,
        "no deeper nesting than 100 levels"
    );
    for (format, begin) in [
        (
            "hermes",
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"a\": \"",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.a<|message|>{\"a\": \"",
        ),
    ] {
        let long = "x".repeat((4 << 20) + 1000);
        let answer = parser(format).parse(&format!("{begin}{long}"));
        assert!(answer.text.ends_with(&long));
        assert_eq!(answer.problems[0].expected, "a shorter call");
        assert_eq!(answer.calls, []);
    }
}

#[test]
fn templates_choose_the_syntax() {
    for (template, syntax, reasoning) in [
        (
            "<|start|>assistant<|channel|>final<|message|>",
            "harmony",
            "think",
        ),
        (
            "<tool_call>\n{\"name\"} </tool_call> <think>",
            "hermes",
            "think",
        ),
        (
            "<tool_call>\n<function=x>\n<parameter=y>",
            "qwen-xml",
            "think",
        ),
        ("<tool_call>{name}\n<arg_key>", "glm", "think"),
        ("<|start_header_id|> <|python_tag|>", "llama", "think"),
        ("<|header_start|>user<|header_end|>", "llama", "think"),
        ("<|start_header_id|> <tool_call>", "hermes", "think"),
        ("[INST] [TOOL_CALLS] [THINK]", "mistral", "mistral"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            "deepseek",
            "think",
        ),
        (
            "<|turn> <|tool_call>call: <|channel>thought",
            "gemma-4",
            "gemma-4",
        ),
        ("<start_of_turn>model", "gemma", "think"),
        (
            "<|start_of_role|> <|tool_call|> <response></response>",
            "granite",
            "granite",
        ),
        (
            "content.split('<answer>') <tool_calls>[]</tool_calls>",
            "hunyuan",
            "hunyuan",
        ),
        ("<|im_start|>", "none", "think"),
        (
            "set ns_token = ']<]minimax[>[' '<tool_call>' '<mm:think>'",
            "none",
            "minimax-m3",
        ),
    ] {
        let format = Format::of_template(template);
        assert_eq!(format.syntax.name, syntax, "{template}");
        assert_eq!(format.reasoning.name, reasoning, "{template}");
    }
    assert!(Format::named("unheard-of").is_none());
}

#[test]
fn marks_that_are_control_tokens_are_known() {
    let control = [
        "<s>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[THINK]",
        "[INST]",
        "<|channel>",
    ];
    let tokens: Vec<String> = ["a", "[CALL_ID]"]
        .iter()
        .chain(&control)
        .map(ToString::to_string)
        .collect();
    let tokenizer = Tokenizer::from_vocabulary(Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-4o".into()),
        // `[CALL_ID]` is an ordinary token here, which is printed anyway.
        token_types: tokens
            .iter()
            .map(|token| {
                if control.contains(&token.as_str()) {
                    3
                } else {
                    1
                }
            })
            .collect(),
        tokens,
        ..Vocabulary::default()
    })
    .unwrap();
    let texts = |format: &str| -> Vec<String> {
        let ids = Format::named(format).unwrap().control_tokens(&tokenizer);
        ids.iter()
            .map(|id| tokenizer.token_text(*id).to_owned())
            .collect()
    };
    assert_eq!(texts("mistral"), ["[TOOL_CALLS]", "[ARGS]", "[THINK]"]);
    // A part of the mark `<|channel>thought`.
    assert_eq!(texts("gemma-4"), ["<|channel>"]);
    assert_eq!(texts("hermes"), [""; 0]);
}
