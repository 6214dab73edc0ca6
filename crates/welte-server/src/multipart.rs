//! Bodies of several parts, as forms with files send them.

use crate::error::Failure;
use std::ops::Range;

/// The most parts of a body.
const MOST_PARTS: usize = 64;
/// The most bytes of a part's head.
const LONGEST_HEAD: usize = 8 << 10;

/// A part of a body.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    /// The name of the form's field.
    pub(crate) name: String,
    /// It is a file.
    pub(crate) is_file: bool,
    /// Where its content lies in the body.
    pub(crate) content: Range<usize>,
}

/// The parts of a body with this content type.
pub(crate) fn parts(content_type: &str, body: &[u8]) -> Result<Vec<Part>, Failure> {
    let boundary = boundary(content_type).ok_or_else(|| {
        Failure::request("the body must be multipart/form-data with a boundary of 1 to 70 letters")
    })?;
    let delimiter = format!("--{boundary}");
    let ends = || Failure::request("the form ends early: its last boundary is missing");
    let mut at = find(body, delimiter.as_bytes(), 0).ok_or_else(ends)? + delimiter.len();
    let delimiter = format!("\r\n{delimiter}");
    let mut parts = Vec::new();
    loop {
        if body[at..].starts_with(b"--") {
            return Ok(parts);
        }
        let line = find(body, b"\r\n", at).ok_or_else(ends)? + 2;
        let window = &body[..body.len().min(line + LONGEST_HEAD)];
        // A part without a head begins with an empty line.
        let (head, content) = match body[line..].starts_with(b"\r\n") {
            true => (&body[line..line], line + 2),
            false => {
                let end = find(window, b"\r\n\r\n", line);
                let end = end.ok_or_else(|| Failure::request("a part of the form has no head"))?;
                (&body[line..end], end + 4)
            }
        };
        // An empty part shares the end of its head with the boundary.
        let end = find(body, delimiter.as_bytes(), content - 2).ok_or_else(ends)?;
        if parts.len() == MOST_PARTS {
            return Err(Failure::request(format!(
                "the form has more than {MOST_PARTS} parts"
            )));
        }
        let (name, is_file) =
            disposition(head).ok_or_else(|| Failure::request("a part of the form has no name"))?;
        parts.push(Part {
            name,
            is_file,
            content: content..end.max(content),
        });
        at = end + delimiter.len();
    }
}

fn boundary(content_type: &str) -> Option<String> {
    let (kind, rest) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let found = parameter(rest, "boundary")?;
    let fits = (1..=70).contains(&found.len()) && found.bytes().all(|b| (0x20..0x7f).contains(&b));
    fits.then_some(found)
}

/// Name and kind of a part, by its head.
fn disposition(head: &[u8]) -> Option<(String, bool)> {
    let head = String::from_utf8_lossy(head);
    let line = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim()
            .eq_ignore_ascii_case("content-disposition")
            .then_some(value)
    })?;
    let (_, rest) = line.split_once(';')?;
    let is_file = parameter(rest, "filename").is_some() || parameter(rest, "filename*").is_some();
    Some((parameter(rest, "name")?, is_file))
}

/// A parameter such as `name="file"`. A quoted value may have semicolons and escaped quotes.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_matches([' ', ';', '\t']);
        let after = after.trim_start();
        let mut value = String::new();
        match after.strip_prefix('"') {
            Some(quoted) => {
                let mut letters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((at, letter)) = letters.next() {
                    match letter {
                        '"' => {
                            end = at + 1;
                            break;
                        }
                        '\\' => value.extend(letters.next().map(|(_, escaped)| escaped)),
                        letter => value.push(letter),
                    }
                }
                rest = quoted.get(end..).unwrap_or("");
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                value.push_str(after[..end].trim());
                rest = &after[end..];
            }
        }
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
    }
}

/// Where `wanted` begins, from `from` on.
fn find(bytes: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let (first, rest) = wanted.split_first()?;
    let mut at = from;
    loop {
        let next = bytes.get(at..)?.iter().position(|byte| byte == first)?;
        at += next + 1;
        if bytes.get(at..)?.starts_with(rest) {
            return Some(at - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=\"a b\"";

    fn read(body: &str) -> Result<Vec<(String, bool, String)>, String> {
        let parts = parts(KIND, body.as_bytes()).map_err(|failure| failure.message)?;
        let text = |part: Part| (part.name, part.is_file, body[part.content].to_string());
        Ok(parts.into_iter().map(text).collect())
    }

    #[test]
    fn parts_have_names_and_contents() {
        let body = "preamble\r\n--a b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--a b\r\ncontent-type: audio/wav\r\n\
            Content-Disposition: form-data; filename=\"x; \\\"y\\\".wav\"; name=file\r\n\r\n\r\n--a\r\nb--\r\n--a b\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--a b--\r\n";
        let part = |name: &str, is_file, text: &str| (name.to_string(), is_file, text.to_string());
        let expected = vec![
            part("model", false, "whisper"),
            part("file", true, "\r\n--a\r\nb--"),
            part("empty", false, ""),
        ];
        assert_eq!(read(body), Ok(expected));
        assert_eq!(read("--a b--"), Ok(Vec::new()));
        let short = "--a b\r\nContent-Disposition: form-data; name=x\r\n\r\n--a b--";
        assert_eq!(read(short), Ok(vec![part("x", false, "")]));
    }

    #[test]
    fn damaged_forms_are_refused() {
        for (body, problem) in [
            ("", "ends early"),
            (
                "--a b\r\nContent-Disposition: form-data; name=x\r\n\r\ny",
                "ends early",
            ),
            (
                "--a b\r\nContent-Disposition: form-data; name=x\r\n\r\n--a b",
                "ends early",
            ),
            ("--a b\r\nContent-Disposition: form-data; name=x", "no head"),
            ("--a b\r\n\r\ny\r\n--a b--", "no name"),
            (
                "--a b\r\nContent-Disposition: form-data\r\n\r\ny\r\n--a b--",
                "no name",
            ),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(problem), "{body:?}: {error}");
        }
        for kind in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
        ] {
            assert!(parts(kind, b"--x--").is_err(), "{kind}");
        }
        let one = "--a b\r\nContent-Disposition: form-data; name=x\r\n\r\ny\r\n";
        let many = one.repeat(MOST_PARTS + 1) + "--a b--";
        assert!(read(&many).unwrap_err().contains("more than"));
    }
}
