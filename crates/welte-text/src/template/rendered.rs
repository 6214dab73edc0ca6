//! A prompt that a template has written.

/// A prompt: a text, and what in it came from outside the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub(super) text: String,
    /// Where the characters begin that keep marks in messages from being tokens, in ascending order.
    pub(super) covered: Vec<usize>,
}

impl Rendered {
    pub(super) fn new((text, covered): (String, Vec<usize>)) -> Rendered {
        Rendered { text, covered }
    }

    /// The text. It does not tell a mark of the template from one that is spelt in a message.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where characters begin that belong to no mark, in ascending order.
    pub fn covered(&self) -> &[usize] {
        &self.covered
    }

    /// Adds text that may have marks.
    pub fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds text that has no marks, whatever it spells.
    pub fn push_plain(&mut self, text: &str) {
        let from = self.text.len();
        let places = text.char_indices().map(|(at, _)| from + at);
        self.covered.extend(places);
        self.text.push_str(text);
    }

    /// Cuts it after a number of bytes, which must be a border of characters.
    pub fn truncate(&mut self, bytes: usize) {
        self.text.truncate(bytes);
        self.covered.retain(|at| *at < bytes);
    }

    /// Whether it begins with this mark.
    pub fn begins_with(&self, mark: &str) -> bool {
        let outside = self.covered.first().is_some_and(|at| *at < mark.len());
        !mark.is_empty() && !outside && self.text.starts_with(mark)
    }
}

/// A text whose marks are all tokens.
impl From<String> for Rendered {
    fn from(text: String) -> Rendered {
        Rendered {
            text,
            covered: Vec::new(),
        }
    }
}

impl std::ops::Deref for Rendered {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Rendered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq<str> for Rendered {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for Rendered {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_marks() {
        let mut prompt = Rendered::default();
        prompt.push_str("<s>");
        prompt.push_plain("é<");
        assert_eq!(
            (prompt.to_string().as_str(), prompt.covered()),
            ("<s>é<", &[3, 5][..])
        );
        // A mark ends where plain text begins.
        assert!(prompt.begins_with("<s>") && !prompt.begins_with("<s>é"));
        assert!(!prompt.begins_with("") && !prompt.begins_with("<t>"));
        assert!(prompt == "<s>é<" && prompt != "<s>" && prompt == *"<s>é<");
        let mut cut = prompt.clone();
        cut.truncate(5);
        assert_eq!((cut.text(), cut.covered()), ("<s>é", &[3][..]));
        cut.truncate(3);
        assert_eq!((cut.text(), cut.covered()), ("<s>", &[][..]));
        let mut plain = Rendered::default();
        plain.push_plain("<s>");
        assert!(!plain.begins_with("<s>") && Rendered::from("<s>".to_owned()).begins_with("<s>"));
    }
}
