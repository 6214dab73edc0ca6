//! Calls whose arguments are literals of Python.

use super::{calls, check, in_pieces, parser};

/// All that a literal of Python may be, and what it is in JSON.
#[test]
fn values_of_python() {
    for (written, json) in [
        ("True", "true"),
        ("false", "false"),
        ("None", "null"),
        ("-1.5e+3", "-1.5e+3"),
        ("0", "0"),
        ("[]", "[]"),
        ("[1, 'a', ]", r#"[1, "a"]"#),
        ("(1, (2, ), [])", "[1, [2], []]"),
        ("{}", "{}"),
        (
            "{'a': 1, \"b\": {'c': []}, }",
            r#"{"a": 1, "b": {"c": []}}"#,
        ),
        ("'it\\'s' ", r#""it's""#),
        ("\"'\\\"\"", r#""'\"""#),
        ("'\\n\\t\\r\\\\'", r#""\n\t\r\\""#),
        ("'\\x41\\u0141\\U0001F600'", "\"AŁ😀\""),
        ("'\\d'", r#""\\d""#),
        ("'a\\\nb'", r#""ab""#),
        ("'Łódź, (x=1)'", "\"Łódź, (x=1)\""),
    ] {
        let expected = format!("weather{{\"more\": {json}}}");
        let source = format!("```tool_code\nprint( weather( more = {written} ) )\n```");
        let answer = parser("gemma").parse(&source);
        assert_eq!(calls(&answer), [expected.as_str()], "{written}");
        assert_eq!(in_pieces(parser("gemma"), &source, 0..source.len()), answer);
    }
    let both = "weather{\"place\": \"a\", \"days\": 1}";
    check(
        "gemma",
        "```tool_code\nweather(place = 'a', days=1,)\n```",
        "",
        "",
        &[both],
    );
    check(
        "lfm2",
        "<|tool_call_start|>[weather(place='a', days=1), time()]<|tool_call_end|>",
        "",
        "",
        &[both, "time{}"],
    );
}

/// A call is complete with its own bracket, and what follows it is text.
#[test]
fn brackets_around_a_call_must_close() {
    let answer = parser("gemma").parse("```tool_code\nprint(time()]\n```");
    assert_eq!(calls(&answer), ["time{}"]);
    assert_eq!(answer.text, "]\n```");
    assert_eq!(answer.problems[0].expected, "')'");
}
