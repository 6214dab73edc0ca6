//! What vocabularies and tokenizers say about a token.

/// The type of a token, by GGUF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal = 1,
    /// Stands for text that the vocabulary cannot express.
    Unknown = 2,
    /// Marks structure; never printed.
    Control = 3,
    /// Text that is never split or merged.
    UserDefined = 4,
    /// An unused id.
    Unused = 5,
    /// One byte, such as `<0x0A>`.
    Byte = 6,
}

impl TokenType {
    /// The type of a number. Unknown numbers are treated as unused.
    pub fn of(number: i32) -> TokenType {
        match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            6 => TokenType::Byte,
            _ => TokenType::Unused,
        }
    }
}

/// The tokens that mark the parts of a prompt with a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    /// Before the text in front of the gap.
    pub prefix: u32,
    /// Before the text after the gap.
    pub suffix: u32,
    /// Where the model begins to write.
    pub middle: u32,
}

/// The first 60 characters. Names from a hostile file may be long.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
