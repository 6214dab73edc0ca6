//! How much the stages of a `tokenizer.json` may lengthen a text. Each stage is harmless, but forty that double a text are
//! not. What could take all memory or stop the backend is refused when the file is read.

use regex_syntax::hir::Hir;
use serde_json::Value;

/// The most that all stages together may lengthen a text. SentencePiece needs 24: a space becomes three bytes, one more is
/// prepended, and a byte of UTF-8 becomes two.
const MOST_GROWTH: usize = 64;
/// The most stages.
const MOST_STAGES: usize = 64;
/// The longest text of a replacement, in bytes.
pub(crate) const LONGEST_REPLACEMENT: usize = 256;

/// What the stages seen so far do together.
#[derive(Debug)]
struct Growth {
    factor: usize,
    stages: usize,
}

/// Refuses stages that lengthen a text too much. The error says where.
pub(crate) fn check(json: &Value) -> Result<(), String> {
    let mut growth = Growth {
        factor: 1,
        stages: 0,
    };
    for part in ["normalizer", "pre_tokenizer"] {
        growth.stage(&json[part], part)?;
    }
    Ok(())
}

impl Growth {
    fn stage(&mut self, stage: &Value, path: &str) -> Result<(), String> {
        for list in ["normalizers", "pretokenizers"] {
            for (at, inner) in stage[list].as_array().into_iter().flatten().enumerate() {
                self.stage(inner, &format!("{path}.{list}[{at}]"))?;
            }
        }
        let factor = match stage["type"].as_str() {
            Some("Replace") => replace(stage, path)?,
            Some("Prepend") => 1 + length(&stage["prepend"], path)?,
            Some("ByteLevel") => 2,
            Some("Precompiled") => {
                let map = stage["precompiled_charsmap"].as_str().unwrap_or("");
                let longest = decoded(map).map_or(0, |map| longest_replacement(&map));
                if longest > LONGEST_REPLACEMENT {
                    let problem = format!(
                        "has a replacement of {longest} bytes; the limit is {LONGEST_REPLACEMENT}"
                    );
                    return Err(format!("{path}.precompiled_charsmap: {problem}"));
                }
                1
            }
            None | Some("Sequence") => return Ok(()),
            Some(_) => 1,
        };
        self.stages += 1;
        self.factor = self.factor.saturating_mul(factor);
        if self.stages > MOST_STAGES {
            return Err(format!("{path}: is one of more than {MOST_STAGES} stages"));
        }
        if self.factor > MOST_GROWTH {
            let problem = format!("may make a text {} times as long", self.factor);
            return Err(format!("{path}: {problem}; the limit is {MOST_GROWTH}"));
        }
        Ok(())
    }
}

/// The length of a stage's text.
fn length(text: &Value, path: &str) -> Result<usize, String> {
    let length = text.as_str().unwrap_or("").len();
    if length > LONGEST_REPLACEMENT {
        let problem = format!("has a text of {length} bytes; the limit is {LONGEST_REPLACEMENT}");
        return Err(format!("{path}: {problem}"));
    }
    Ok(length)
}

fn replace(stage: &Value, path: &str) -> Result<usize, String> {
    let new = length(&stage["content"], path)?;
    let pattern = &stage["pattern"];
    let old = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text.len(),
        (None, Some(regex)) => shortest_match(regex).ok_or_else(|| {
            let problem = "is not a regular expression whose matches have a known length";
            format!("{path}.pattern.Regex: {problem}")
        })?,
        // The backend reports it.
        (None, None) => return Ok(1),
    };
    match old {
        0 => Err(format!(
            "{path}.pattern: matches the empty text; it must match at least one character"
        )),
        _ => Ok(new.div_ceil(old).max(1)),
    }
}

/// The bytes of the shortest match; `None` if that is not known. Text around a match counts nothing.
fn shortest_match(regex: &str) -> Option<usize> {
    let plain = without_lookaround(regex)?;
    let hir: Hir = regex_syntax::Parser::new().parse(&plain).ok()?;
    hir.properties().minimum_len()
}

/// The expression without conditions on the text around a match, which only the backend's engine knows.
fn without_lookaround(regex: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = regex;
    while let Some(c) = rest.chars().next() {
        let marks = ["(?=", "(?!", "(?<=", "(?<!"];
        if let Some(mark) = marks.into_iter().find(|mark| rest.starts_with(mark)) {
            rest = &rest[mark.len() + group_end(&rest[mark.len()..])?..];
            plain.push_str("(?:)");
            continue;
        }
        let length = match c {
            '\\' => 1 + rest[1..].chars().next()?.len_utf8(),
            '[' => class_end(rest)?,
            c => c.len_utf8(),
        };
        plain.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Some(plain)
}

/// The length of a group's rest, with its closing bracket.
fn group_end(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 1);
    while depth > 0 {
        let c = text[at..].chars().next()?;
        at += match c {
            '\\' => 1 + text[at + 1..].chars().next()?.len_utf8(),
            '[' => class_end(&text[at..])?,
            c => c.len_utf8(),
        };
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
    }
    Some(at)
}

/// The length of a class of characters.
fn class_end(text: &str) -> Option<usize> {
    let start = 1 + usize::from(text[1..].starts_with('^'));
    // A bracket at the beginning stands for itself.
    let mut at = start + usize::from(text[start..].starts_with(']'));
    loop {
        let c = text[at..].chars().next()?;
        at += match c {
            ']' => return Some(at + 1),
            '\\' => 1 + text[at + 1..].chars().next()?.len_utf8(),
            '[' => class_end(&text[at..])?,
            c => c.len_utf8(),
        };
    }
}

/// The longest replacement in a map of characters as SentencePiece writes it.
pub(crate) fn longest_replacement(map: &[u8]) -> usize {
    let texts = map.split_first_chunk().and_then(|(size, rest)| {
        let size = u32::from_le_bytes(*size) as usize;
        rest.get(size..)
    });
    let texts = texts.unwrap_or_default().split(|byte| *byte == 0);
    texts.map(<[u8]>::len).max().unwrap_or(0)
}

/// The bytes of base64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn matches_have_a_length() {
        for (regex, length) in [
            ("", Some(0)),
            ("a*", Some(0)),
            ("a|", Some(0)),
            ("(?=a)", Some(0)),
            (r"(?<!\n[)(])^(?!\()", Some(0)),
            (" {2,}", Some(2)),
            (r"(?<=[)\]])\s+(?!b)", Some(1)),
            ("[^]a]b", Some(2)),
            (r"\(?=a", Some(2)),
            ("(a", None),
            ("(?=a", None),
            (r"(a)\1", None),
        ] {
            assert_eq!(shortest_match(regex), length, "{regex}");
        }
    }

    #[test]
    fn a_map_of_characters_has_short_replacements() {
        let map = |text: &str| {
            let mut bytes = vec![4, 0, 0, 0, 1, 2, 3, 4];
            bytes.extend(text.as_bytes());
            bytes
        };
        assert_eq!(longest_replacement(&map("a\0bcd\0")), 3);
        assert_eq!(longest_replacement(&[9, 0, 0, 0, 1]), 0);
        assert_eq!(decoded("BAAAAAECAwRh"), Some(map("a")));
        let stage = |text: &str| {
            let mut base64 = String::from("BAAAAAECAwRh");
            base64.push_str(&text.repeat(LONGEST_REPLACEMENT));
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64}})
        };
        assert_eq!(check(&stage("")), Ok(()));
        let problem = check(&stage("YWFh")).unwrap_err();
        assert!(
            problem.starts_with("normalizer.precompiled_charsmap"),
            "{problem}"
        );
    }

    #[test]
    fn groups_and_classes_have_an_end() {
        for (text, end) in [
            (")", Some(1)),
            ("a(b)c)d)", Some(6)),
            ("((a)(b)))", Some(9)),
            (r"\))", Some(3)),
            (r"a\\)b)", Some(4)),
            ("[)])x", Some(4)),
            ("é)", Some(3)),
            ("(a)", None),
            ("", None),
        ] {
            assert_eq!(group_end(text), end, "{text}");
        }
        for (text, end) in [
            ("[a]b", Some(3)),
            ("[^]]x", Some(4)),
            ("[]a]x", Some(4)),
            ("[^a]]", Some(4)),
            (r"[\]]x", Some(4)),
            (r"[\\]x]", Some(4)),
            ("[[a]]x", Some(5)),
            ("[é]", Some(4)),
            ("[a", None),
        ] {
            assert_eq!(class_end(text), end, "{text}");
        }
    }

    #[test]
    fn base64_becomes_bytes() {
        assert_eq!(decoded(""), Some(vec![]));
        assert_eq!(decoded("AAECAwQ="), Some(vec![0, 1, 2, 3, 4]));
        assert_eq!(decoded("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        assert_eq!(decoded("09az"), Some(vec![0xd3, 0xd6, 0xb3]));
        assert_eq!(decoded("Zm94"), Some(b"fox".to_vec()));
        assert_eq!(decoded("a-b"), None);
    }
}
