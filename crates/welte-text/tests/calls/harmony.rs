//! Calls in channels.

use super::*;

/// Without tools nothing is a call, whatever it is addressed to.
#[test]
fn harmony_without_tools_has_no_calls() {
    let format = Format::named("harmony").unwrap();
    for (channel, expected) in [
        ("commentary", Event::Text("{}".into())),
        ("analysis", Event::Reasoning("{}".into())),
    ] {
        let mut parser = CallParser::new(format, Vec::new());
        let answer = format!("<|channel|>{channel} to=functions.time<|message|>{{}}");
        let mut events = parser.push(&answer);
        events.extend(parser.finish());
        let joined: String = events
            .iter()
            .map(|event| match (event, &expected) {
                (Event::Text(text), Event::Text(_)) => text.as_str(),
                (Event::Reasoning(text), Event::Reasoning(_)) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(joined, "{}");
    }
}

#[test]
fn harmony() {
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"place\": \"Łódź\"}<|end|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}",
        "I look.",
        "Hm.",
        &["weather{\"place\": \"Łódź\"}", "time{}"],
    );
    check(
        "harmony",
        " to=functions.time<|channel|>analysis<|message|> {\n} <|end|><|start|>assistant<|channel|>final<|message|>A.",
        "A.",
        "",
        &["time{\n}"],
    );
    check("harmony", " to", " to", "", &[]);
    check("harmony", "to be", "to be", "", &[]);
    check("harmony", "to=x", "to=x", "", &[]);
    check_malformed(
        "harmony",
        "<|channel|>commentary to=functions.time<|message|>{]<|end|><|start|>assistant<|channel|>final<|message|>A.",
        "{]\nA.",
        "malformed tool call at byte 50 of the answer: expected a key in double quotes at byte 51, found ']'",
    );
    check_malformed(
        "harmony",
        "<|channel|>commentary to=functions.time<|message|>{",
        "{",
        "malformed tool call at byte 50 of the answer: expected the rest of the call, but the answer ended at byte 51",
    );
}
