//! Properties of all syntaxes: no text is lost, and the result does not depend on how the text is cut.

use super::{in_pieces, tools};
use proptest::prelude::*;
use welte_text::calls::{Answer, CallParser, Format, Syntax};

/// Words that make every syntax happen.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "<tool_call>", "</tool_call>", "<function=", "<parameter=", ">", "</parameter>", "</function>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "```json\n", "```",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_call>", "call:", "<tool_call|>", "<|\"|>", "<|tool_call|>",
    "```tool_code\n", "print(", "weather", "time", "(", ")", "=", "'", "\"", "{", "}", "[", "]", ":", ",", ";", "\n",
    " ", "place", "days", "1", "-2.5e3", "true", "None", "\\", "\\u00e9", "é", "狐", "🦊", "<think>", "</think>",
    "[THINK]", "[/THINK]", "<|channel>thought", "<channel|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>",
    "<|constrain|>", "analysis", "commentary", " to=functions.time", "json", "<response>", "</response>",
    "{\"name\": \"weather\", \"arguments\": ", "{\"name\": \"time\"}", "{\"place\": \"", "\"}", "}}",
    "<invoke name=\"", "<minimax:tool_call>", "</invoke>", "<parameter name=\"", "\">", "<｜DSML｜invoke name=\"",
    "\" string=\"true\">",
];

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(WORDS), 0..24).prop_map(|words| words.concat()),
        prop::collection::vec(any::<u8>(), 0..120)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        "\\PC{0,60}",
    ]
}

fn any_syntax() -> impl Strategy<Value = &'static str> {
    (0..Syntax::all().len()).prop_map(|i| Syntax::all()[i].name)
}

/// All text of an answer.
fn letters(answer: &Answer) -> String {
    let mut all = format!("{}{}", answer.text, answer.reasoning);
    for call in &answer.calls {
        all.push_str(&call.name);
        all.push_str(&call.arguments);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing(
        text in any_text(),
        name in any_syntax(),
        cuts in prop::collection::vec(0usize..200, 0..8),
        whole in any::<bool>(),
        prompt in prop::sample::select(vec!["", "<think>\n", "[THINK]"]),
    ) {
        let parser = || {
            let parser = CallParser::after_prompt(Format::named(name).unwrap(), tools(), prompt);
            if whole { parser.whole_calls() } else { parser }
        };
        let answer = parser().parse(&text);
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert_eq!(&in_pieces(parser(), &text, cuts), &answer);
        prop_assert_eq!(&in_pieces(parser(), &text, 0..text.len()), &answer);
        for cut in 0..text.len() {
            prop_assert_eq!(&in_pieces(parser(), &text, [cut]), &answer);
        }
        for call in &answer.calls {
            let object: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&call.arguments);
            prop_assert!(object.is_ok() && call.arguments.starts_with('{'), "{:?}", call);
        }
        for problem in &answer.problems {
            prop_assert!(problem.start <= problem.at && problem.at <= text.len(), "{:?}", problem);
            prop_assert_eq!(problem.found, text[problem.at..].chars().next());
        }
    }

    /// Each numbered word comes out exactly once, whatever the marks around it make of it.
    #[test]
    fn no_text_is_lost(
        words in prop::collection::vec(prop::sample::select(WORDS), 1..16),
        name in any_syntax(),
    ) {
        // The header of a message in channels and the identifier of a call are not part of the answer.
        prop_assume!(name != "harmony" && !words.contains(&"[CALL_ID]"));
        let text: String = words.iter().enumerate().map(|(i, word)| format!("{word}w{i}x")).collect();
        let answer = CallParser::new(Format::named(name).unwrap(), tools()).parse(&text);
        let letters = letters(&answer);
        for i in 0..words.len() {
            let found = letters.matches(&format!("w{i}x")).count();
            prop_assert_eq!(found, 1, "w{}x of {:?} in {:?}", i, text, answer);
        }
    }
}
