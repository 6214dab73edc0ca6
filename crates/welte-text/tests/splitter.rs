//! The splitter, cut in all ways.

use proptest::prelude::*;
use welte_text::{Splitter, StopMatcher};

fn splitter(stops: &[&str]) -> Splitter {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    Splitter::new(stops)
}

#[test]
fn characters_are_whole() {
    let mut splitter = splitter(&[]);
    let fox = "🦊".as_bytes();
    assert_eq!(splitter.push(&fox[..1]).text, "");
    assert_eq!(splitter.push(&fox[1..3]).text, "");
    assert_eq!(splitter.held(), 3);
    assert_eq!(splitter.push(&fox[3..]).text, "🦊");
    assert_eq!(splitter.push(b"\xf0\x9f").text, "");
    assert_eq!(splitter.push(b"a").text, "\u{fffd}a");
    assert_eq!(splitter.push(b"\xff").text, "\u{fffd}");
    assert_eq!(splitter.push(b"\xe7").text, "");
    assert_eq!(splitter.finish(), "\u{fffd}");
    assert_eq!(splitter.finish(), "");
}

#[test]
fn stops_are_held_back_only_while_they_can_begin() {
    let mut splitter = splitter(&["<end>", "\n\nUser:", ""]);
    assert_eq!(splitter.push(b"one <").text, "one ");
    assert_eq!(splitter.push(b"en").text, "");
    assert_eq!(splitter.push(b"tity").text, "<entity");
    assert_eq!(splitter.push(b" \n").text, " ");
    assert_eq!(splitter.push(b"\n\nUs").text, "\n");
    assert_eq!(splitter.held(), 4);
    let split = splitter.push(b"er: hello");
    assert_eq!(
        (split.text.as_str(), split.stopped.as_deref()),
        ("", Some("\n\nUser:"))
    );
    assert_eq!(splitter.held(), "\n\nUser: hello".len());
    assert_eq!(splitter.push(b"more").text, "");
    assert_eq!(splitter.finish(), "");
}

#[test]
fn of_several_stops_the_first_to_begin_wins() {
    // The later stop is the longer one, and both are in one push.
    for stops in [["rst", "second stop"], ["second stop", "rst"]] {
        let split = splitter(&stops).push(b"the first, then the second stop");
        assert_eq!(
            (split.text.as_str(), split.stopped.as_deref()),
            ("the fi", Some("rst"))
        );
    }
}

#[test]
fn of_stops_that_begin_together_the_longest_wins() {
    for stops in [["ab", "abc", "b"], ["b", "abc", "ab"], ["abc", "ab", "b"]] {
        let split = splitter(&stops).push(b"xabcd");
        assert_eq!(
            (split.text.as_str(), split.stopped.as_deref()),
            ("x", Some("abc"))
        );
    }
}

#[test]
fn an_unfinished_stop_is_text_at_the_end() {
    let mut splitter = splitter(&["end"]);
    assert_eq!(splitter.push(b"an en").text, "an ");
    assert_eq!(splitter.finish(), "en");
}

proptest! {
    #[test]
    fn without_stops_nothing_is_lost(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..40)) {
        let mut splitter = splitter(&[]);
        let mut text: String = pieces.iter().map(|piece| splitter.push(piece).text).collect();
        prop_assert!(splitter.held() <= 3);
        text.push_str(&splitter.finish());
        let whole = pieces.concat();
        prop_assert_eq!(text, String::from_utf8_lossy(&whole));
    }

    #[test]
    fn stops_end_the_text_wherever_it_is_cut(
        text in "[abä🦊]{0,30}",
        stops in prop::collection::vec("[abä🦊]{0,4}", 0..4),
        cuts in prop::collection::vec(1..4_usize, 1..60),
    ) {
        let mut splitter = Splitter::new(stops.clone());
        let (mut out, mut stopped, mut rest) = (String::new(), None, text.as_bytes());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() || stopped.is_some() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            let split = splitter.push(piece);
            out.push_str(&split.text);
            stopped = split.stopped;
            rest = after;
        }
        out.push_str(&splitter.finish());
        match stopped {
            None => {
                prop_assert_eq!(&out, &text);
                prop_assert!(stops.iter().all(|stop| stop.is_empty() || !text.contains(stop.as_str())));
            }
            Some(stop) => {
                prop_assert!(stops.contains(&stop));
                let whole = format!("{out}{stop}");
                prop_assert!(text.starts_with(&whole), "{} does not start {}", whole, text);
                prop_assert!(stops.iter().all(|stop| stop.is_empty() || !out.contains(stop.as_str())));
            }
        }
    }
}

/// Where a text first contains a stop string: the number of the token, and which one.
fn met_by_search(tokens: &[Vec<u8>], stops: &[String]) -> Option<(usize, String)> {
    (0..tokens.len()).find_map(|last| {
        let bytes = tokens[..=last].concat();
        // A character that later bytes may complete is not text yet.
        let open = match bytes.utf8_chunks().last() {
            Some(chunk) => match std::str::from_utf8(chunk.invalid()) {
                Err(error) if error.error_len().is_none() => chunk.invalid().len(),
                _ => 0,
            },
            None => 0,
        };
        let text = String::from_utf8_lossy(&bytes[..bytes.len() - open]).into_owned();
        let found = stops.iter().filter(|stop| !stop.is_empty());
        let found = found.filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
        let first = found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len()))?;
        Some((last, first.1.clone()))
    })
}

/// Tokens of whole texts, of parts of characters, of bytes that are not text, and of none at all.
fn token() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[abä🦊]{0,4}".prop_map(String::into_bytes),
        prop::collection::vec(
            prop::sample::select(b"ab\xc3\xa4\xf0\x9f\xa6\x8a\xff\xe2".to_vec()),
            0..3
        ),
    ]
}

proptest! {
    /// The scheduler ends a sequence with the very token at which its reader meets the stop string, and names the same one.
    #[test]
    fn a_matcher_meets_what_a_splitter_meets(
        tokens in prop::collection::vec(token(), 0..40),
        stops in prop::collection::vec("[abä🦊\u{fffd}]{0,5}", 0..5),
    ) {
        let (mut matcher, mut splitter) = (StopMatcher::new(&stops), Splitter::new(stops.clone()));
        let mut met = None;
        let mut stopped = None;
        for (number, token) in tokens.iter().enumerate() {
            if met.is_none() {
                met = matcher.push(token).map(|which| (number, stops[which].clone()));
            }
            if stopped.is_none() {
                stopped = splitter.push(token).stopped.map(|stop| (number, stop));
            }
        }
        prop_assert_eq!(&met, &met_by_search(&tokens, &stops));
        prop_assert_eq!(met, stopped);
    }
}
