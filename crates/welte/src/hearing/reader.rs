//! What the tokens of a transcript say, as they come.

use super::dictation::{ASR_TEXT, Dictated};
use welte_text::Tokenizer;

/// How a transcript begins that names its language.
const LANGUAGE: &str = "language ";
/// A language's name, and what stands before it, is not longer in bytes.
const LONGEST_HEAD: usize = 64;

/// Reads a transcript token by token. The text has neither control tokens nor white space around it.
pub(crate) struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    /// The token between the language and the text, which need not be a control token.
    mark: Option<u32>,
    /// What came so far, as long as it may be the language.
    head: Option<String>,
    language: Option<String>,
    /// Tokens so far, and those before the text.
    tokens: usize,
    before_text: usize,
    /// The beginning of a character.
    bytes: Vec<u8>,
    /// White space that belongs to the text if more follows.
    space: String,
    has_text: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Reader<'a> {
        Reader {
            tokenizer,
            mark: tokenizer.id_of(ASR_TEXT),
            head: Some(String::new()),
            language: None,
            tokens: 0,
            before_text: 0,
            bytes: Vec::new(),
            space: String::new(),
            has_text: false,
        }
    }

    /// Takes the next token. Returns the text that is certain now.
    pub(crate) fn push(&mut self, token: u32) -> String {
        self.tokens += 1;
        if self.mark == Some(token) {
            self.bytes.clear();
            let head = self.head.take();
            if let Some(head) = head {
                self.begin(&head);
            }
            return String::new();
        }
        if self.tokenizer.is_control(token) {
            return String::new();
        }
        self.bytes.extend(self.tokenizer.token_bytes(token));
        let text = characters(&mut self.bytes);
        self.take(&text)
    }

    /// The rest of the text. The last character may be damaged.
    pub(crate) fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let text = self.take(&rest);
        match self.head.take() {
            Some(head) => self.trimmed(&head),
            None => text,
        }
    }

    /// The language, if the model has named it.
    pub(crate) fn language(&self) -> Option<&str> {
        self.language.as_deref()
    }

    /// How many tokens came before those of the text.
    pub(crate) fn before_text(&self) -> usize {
        self.before_text
    }

    /// What an answer says as a whole.
    pub(crate) fn whole(tokenizer: &Tokenizer, answer: &[u32]) -> Dictated {
        let mut reader = Reader::new(tokenizer);
        let mut text: String = answer.iter().map(|token| reader.push(*token)).collect();
        text += &reader.finish();
        Dictated {
            language: reader.language,
            text,
        }
    }

    fn take(&mut self, text: &str) -> String {
        let Some(head) = &mut self.head else {
            return self.trimmed(text);
        };
        head.push_str(text);
        if let Some((head, text)) = head.split_once(ASR_TEXT) {
            let (head, text) = (head.to_string(), text.to_string());
            self.head = None;
            self.begin(&head);
            return self.trimmed(&text);
        }
        let begun = head.trim_start();
        let may_be_language = LANGUAGE.starts_with(begun)
            || begun.starts_with(LANGUAGE) && begun.len() < LONGEST_HEAD;
        if may_be_language {
            return String::new();
        }
        let text = self.head.take().unwrap_or_default();
        self.trimmed(&text)
    }

    /// The text begins after this.
    fn begin(&mut self, head: &str) {
        self.before_text = self.tokens;
        let name = head.trim().strip_prefix(LANGUAGE).map(str::trim);
        let name = name.filter(|name| !name.is_empty() && *name != "None");
        self.language = name.map(str::to_string);
    }

    /// More text without the white space at the beginning, and without that at its end until more follows.
    fn trimmed(&mut self, text: &str) -> String {
        let text = if self.has_text {
            text
        } else {
            text.trim_start()
        };
        let end = text.trim_end().len();
        let (text, space) = text.split_at(end);
        if text.is_empty() {
            self.space.push_str(space);
            return String::new();
        }
        self.has_text = true;
        let certain = std::mem::take(&mut self.space) + text;
        self.space.push_str(space);
        certain
    }
}

/// Takes the whole characters at the beginning. Bytes that are none are replaced.
fn characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        let is_begun = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
        if is_begun {
            let begun = invalid.to_vec();
            *bytes = begun;
            return text;
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    bytes.clear();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of single characters; `<asr_text>` is a token.
    fn tokenizer() -> Tokenizer {
        let letters = ('!'..='~').chain(['\u{120}', '\u{10a}', '\u{c3}', '\u{a9}']);
        let vocab: serde_json::Map<String, serde_json::Value> = letters
            .zip(0u32..)
            .map(|(c, id)| (c.to_string(), id.into()))
            .collect();
        let added = |(content, special): (&str, bool), id: usize| {
            serde_json::json!({
                "id": id, "content": content, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        let count = vocab.len();
        let tokenizer = serde_json::json!({
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true },
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true },
            "added_tokens": [added((ASR_TEXT, false), count), added(("<|end|>", true), count + 1)],
        });
        Tokenizer::from_json(&tokenizer.to_string(), None).unwrap()
    }

    /// Pieces come as soon as they are certain, and make the same whole.
    #[test]
    fn a_text_comes_piece_by_piece() {
        let tokenizer = tokenizer();
        let long = format!("language {}", "x".repeat(80));
        for (answer, language, pieces) in [
            (
                "language English<asr_text> Hi. ",
                Some("English"),
                vec!["H", "i", "."],
            ),
            ("language None<asr_text>", None, vec![]),
            ("lap a", None, vec!["lap", " a"]),
            ("  a \n b<|end|>  ", None, vec!["a", " \n b"]),
            ("l\u{e9}", None, vec!["l\u{e9}"]),
            ("lang", None, vec!["lang"]),
            ("", None, vec![]),
        ] {
            let tokens = tokenizer.encode(answer, false, true).unwrap();
            let mut reader = Reader::new(&tokenizer);
            let mut found: Vec<String> = tokens.iter().map(|token| reader.push(*token)).collect();
            found.push(reader.finish());
            found.retain(|piece| !piece.is_empty());
            assert_eq!(found, pieces, "{answer}");
            assert_eq!(reader.language(), language, "{answer}");
            let whole = Reader::whole(&tokenizer, &tokens);
            assert_eq!(whole.text, pieces.concat());
            assert_eq!(whole.language.as_deref(), language);
        }
        let tokens = tokenizer.encode(&long, false, true).unwrap();
        let mut reader = Reader::new(&tokenizer);
        let early: String = tokens[..70]
            .iter()
            .map(|token| reader.push(*token))
            .collect();
        assert_eq!(early, long[..70]);
        assert_eq!(reader.before_text(), 0);
    }

    #[test]
    fn a_character_may_come_in_parts() {
        let mut bytes = "a\u{e9}".as_bytes()[..2].to_vec();
        assert_eq!((characters(&mut bytes), bytes.len()), ("a".into(), 1));
        bytes.push(0xa9);
        assert_eq!((characters(&mut bytes), bytes.len()), ("\u{e9}".into(), 0));
        let mut bytes = vec![b'a', 0xff, b'b'];
        assert_eq!(characters(&mut bytes), "a\u{fffd}b");
    }
}
