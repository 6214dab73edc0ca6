//! Lines of system prompts that agents change with every request: billing headers, times, ids. One such line at the
//! beginning makes the cached prefix useless, so the server names these lines and can leave them out.

use std::borrow::Cow;
use std::ops::Range;
use std::str::FromStr;
use welte::Message;

/// A kind of line that changes with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changing {
    /// `x-anthropic-billing-header: cc_version=2.1; cch=0f3a1;`
    Billing,
    /// `Current time: 2026-11-23 10:41:28`; a date alone is none.
    Times,
    /// `Session ID: 0b9e8ac2-41d7`
    Ids,
}

impl Changing {
    /// Every kind.
    pub const ALL: [Changing; 3] = [Changing::Billing, Changing::Times, Changing::Ids];

    /// Its name in options and responses.
    pub fn name(self) -> &'static str {
        match self {
            Changing::Billing => "billing",
            Changing::Times => "times",
            Changing::Ids => "ids",
        }
    }
}

impl FromStr for Changing {
    type Err = String;

    fn from_str(name: &str) -> Result<Changing, String> {
        let all = Changing::ALL.map(Changing::name).join(", ");
        let found = Changing::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("{name:?} is none of {all}"))
    }
}

/// The kinds that the system prompts of a conversation have.
pub(crate) fn kinds(messages: &[Message]) -> Vec<Changing> {
    let mut kinds: Vec<Changing> = Vec::new();
    for message in messages.iter().filter(|message| message.role == "system") {
        for (kind, _) in find(&message.content) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    kinds
}

/// The conversation without such lines of its system prompts.
pub(crate) fn without<'a>(messages: &'a [Message], drop: &[Changing]) -> Cow<'a, [Message]> {
    let found = kinds(messages);
    if !found.iter().any(|kind| drop.contains(kind)) {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    for message in messages
        .iter_mut()
        .filter(|message| message.role == "system")
    {
        for (kind, range) in find(&message.content).into_iter().rev() {
            if drop.contains(&kind) {
                message.content.replace_range(range, "");
            }
        }
    }
    Cow::Owned(messages)
}

/// The lines that change, each with its line break.
fn find(text: &str) -> Vec<(Changing, Range<usize>)> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if let Some((kind, bytes)) = kind_of(line) {
            found.push((kind, start..start + bytes));
        }
        start += line.len();
    }
    found
}

/// The kind of a line, and how many of its bytes to leave out.
fn kind_of(line: &str) -> Option<(Changing, usize)> {
    // The limit also keeps the search fast in long lines.
    let colon = line.bytes().take(LONGEST_LABEL).position(|b| b == b':')?;
    let (label, value) = (line[..colon].to_ascii_lowercase(), &line[colon + 1..]);
    let label = label.trim().trim_start_matches(['-', '*', ' ', '#']);
    if label.starts_with("x-") && label.contains("billing") {
        return Some((Changing::Billing, line.len() - after_pairs(value).len()));
    }
    let words: Vec<&str> = label.split([' ', '_', '-']).collect();
    let has = |all: &[&str]| words.iter().any(|word| all.contains(word));
    let value = value.get(..LONGEST_VALUE).unwrap_or(value);
    if has(&["time", "timestamp", "datetime", "date", "now"]) && has_time_of_day(value) {
        return Some((Changing::Times, line.len()));
    }
    let owner = [
        "session",
        "request",
        "conversation",
        "trace",
        "correlation",
        "run",
        "turn",
    ];
    let id = has(&["uuid", "nonce"]) || has(&["id"]) && has(&owner);
    (id && has_id(value)).then_some((Changing::Ids, line.len()))
}

/// Bytes that the label of a line can have, with its colon.
const LONGEST_LABEL: usize = 48;
/// Bytes of a value that are looked at.
const LONGEST_VALUE: usize = 256;

/// What follows the pairs `key=value;` of a billing header. Clients join it with the next text without a line break.
fn after_pairs(value: &str) -> &str {
    let mut rest = value;
    loop {
        let pair = rest.trim_start_matches(' ');
        let Some((pair, after)) = pair.split_once(';') else {
            break;
        };
        let key = pair.split_once('=').map_or("", |(key, _)| key);
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if key.is_empty() || !key.chars().all(is_key) || pair.contains(char::is_whitespace) {
            break;
        }
        rest = after;
    }
    if rest.len() == value.len() {
        ""
    } else {
        rest.strip_prefix('\n').unwrap_or(rest)
    }
}

/// `9:41`, `10:41:28`
fn has_time_of_day(value: &str) -> bool {
    value.as_bytes().windows(4).any(|w| {
        let [hour, colon, ten, one] = [w[0], w[1], w[2], w[3]];
        hour.is_ascii_digit() && colon == b':' && ten.is_ascii_digit() && one.is_ascii_digit()
    })
}

/// A word of at least eight characters with a digit.
fn has_id(value: &str) -> bool {
    let words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    words
        .into_iter()
        .any(|word| word.len() >= 8 && word.bytes().any(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(text: &str, drop: &[Changing]) -> String {
        let messages = [Message::new("system", text), Message::new("user", text)];
        let left = without(&messages, drop);
        assert_eq!(left[1].content, text);
        assert_eq!(kinds(&messages), kinds(&messages[..1]));
        assert_eq!(kinds(&messages[1..]), []);
        left[0].content.clone()
    }

    #[test]
    fn lines_that_change_are_left_out() {
        for (text, kind, left) in [
            (
                "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=0f3a1;You are an agent; be kind.",
                Changing::Billing,
                "You are an agent; be kind.",
            ),
            ("x-billing: a=b;\nHello", Changing::Billing, "Hello"),
            ("x-billing: a=b;Stop; now.", Changing::Billing, "Stop; now."),
            ("x-billing-header: 17\nHello", Changing::Billing, "Hello"),
            (
                "You help.\nCurrent time: 2026-11-23 10:41:28 UTC\nBe brief.",
                Changing::Times,
                "You help.\nBe brief.",
            ),
            ("- Timestamp: 9:41 pm", Changing::Times, ""),
            (
                "Session ID: 0b9e8ac2-41d7-4bd7\r\nBe brief.",
                Changing::Ids,
                "Be brief.",
            ),
            ("request_id: req_81jd72k", Changing::Ids, ""),
        ] {
            assert_eq!(dropped(text, &[kind]), left, "{text}");
            assert_eq!(dropped(text, &Changing::ALL), left, "{text}");
            // Without the option the text is untouched.
            assert_eq!(dropped(text, &[]), text);
        }
    }

    #[test]
    fn other_lines_stay() {
        for text in [
            "Today's date: 2026-11-23",
            "Send the header x-api-key: KEY",
            "x-api-key: KEY",
            "The time is up: 3 of 4",
            "User ID: 0b9e8ac2-41d7",
            "session id: none",
            "session id: unassigned",
            "request id: 17",
            "Ratio: 10:41:28",
            "",
            ":",
            "é: 10:41",
        ] {
            assert_eq!(dropped(text, &Changing::ALL), text);
        }
        let long = format!("time: {}", "é".repeat(500));
        assert_eq!(dropped(&long, &Changing::ALL), long);
    }

    #[test]
    fn names_are_read_back() {
        for kind in Changing::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("dates".parse::<Changing>().unwrap_err().contains("times"));
    }
}
