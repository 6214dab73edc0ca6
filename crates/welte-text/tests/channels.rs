//! Answers in channels, taken apart.

use proptest::prelude::*;
use welte_text::{Channels, Said, Tokenizer, Vocabulary};

/// What was said, pieces of one channel that follow each other joined.
fn joined(said: Vec<Said>) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for Said { channel, text } in said {
        match all.last_mut() {
            Some((last, so_far)) if *last == channel => so_far.push_str(&text),
            _ => all.push((channel, text)),
        }
    }
    all
}

/// In pieces of `size` characters.
fn split(text: &str, size: usize) -> Vec<(String, String)> {
    let mut channels = Channels::default();
    let letters: Vec<char> = text.chars().collect();
    let mut said = Vec::new();
    for piece in letters.chunks(size) {
        said.extend(channels.push(&piece.iter().collect::<String>()));
    }
    said.extend(channels.finish());
    joined(said)
}

#[track_caller]
fn check(text: &str, expected: &[(&str, &str)]) {
    for size in [1, 2, 5, 1000] {
        let got = split(text, size);
        let got: Vec<_> = got.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(got, expected, "pieces of {size}");
    }
}

#[test]
fn each_channel_by_itself() {
    check(
        "<|channel|>analysis<|message|>They greet me.<|end|><|start|>assistant<|channel|>final<|message|>Hello! 1 <| 2",
        &[("analysis", "They greet me."), ("final", "Hello! 1 <| 2")],
    );
    check(
        " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{\"place\": \"Łódź\"}",
        &[("commentary", "{\"place\": \"Łódź\"}")],
    );
    check(
        "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}<|end|>ignored",
        &[("commentary", "{}")],
    );
}

#[test]
fn text_without_channels_is_final() {
    check("Just text.", &[("final", "Just text.")]);
    check("", &[]);
    check("it ends in <|chan", &[("final", "it ends in <|chan")]);
    check("<|channel|><|message|>unnamed", &[("final", "unnamed")]);
    // Cut off in the middle of a name: nothing was said.
    check("<|channel|>analys", &[]);
}

#[test]
fn names_stay_short() {
    let long = format!("<|channel|>{}<|message|>x", "n".repeat(100_000));
    for (channel, text) in split(&long, 777) {
        assert!(channel.len() <= 64, "{}", channel.len());
        assert_eq!(text, "x");
    }
}

proptest! {
    #[test]
    fn pieces_change_nothing(
        words in prop::collection::vec(prop::sample::select(vec![
            "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "final", "analysis", "<|", "|>", " é", "a",
        ]), 0..20),
        size in 1usize..9,
    ) {
        let text = words.concat();
        prop_assert_eq!(split(&text, size), split(&text, usize::MAX));
    }
}

/// A vocabulary of letters and control tokens.
fn tokenizer(control: &[&str], eot: Option<&str>) -> Tokenizer {
    let letters = ["a", "b", "c"];
    let tokens: Vec<String> = letters
        .iter()
        .chain(control)
        .map(|s| s.to_string())
        .collect();
    let id = |text: &str| tokens.iter().position(|t| t == text).map(|i| i as u32);
    Tokenizer::from_vocabulary(Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-4o".into()),
        token_types: tokens
            .iter()
            .map(|t| if t.len() > 1 { 3 } else { 1 })
            .collect(),
        eos: id("<|return|>"),
        eot: eot.and_then(id),
        tokens,
        ..Vocabulary::default()
    })
    .unwrap()
}

#[test]
fn a_vocabulary_with_channels_prints_the_marks_and_goes_on_after_a_message() {
    let all = [
        "<|return|>",
        "<|call|>",
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
    ];
    for eot in [None, Some("<|end|>")] {
        let with = tokenizer(&all, eot);
        assert!(with.has_channels());
        let ends: Vec<_> = with
            .end_tokens()
            .iter()
            .map(|t| with.token_text(*t))
            .collect();
        assert_eq!(ends, ["<|return|>", "<|call|>"]);
        let id = |text: &str| with.id_of(text).unwrap();
        assert_eq!(with.token_bytes(id("<|channel|>")), b"<|channel|>");
        assert_eq!(with.token_bytes(id("<|return|>")), b"");
    }
    // Without channels it ends the answer, and no control token is printed.
    let without = tokenizer(&["<|return|>", "<|start|>", "<|end|>"], None);
    assert!(!without.has_channels());
    let end = without.id_of("<|end|>").unwrap();
    assert!(without.end_tokens().contains(&end));
    assert_eq!(without.token_bytes(end), b"");
}
