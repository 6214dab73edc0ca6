//! Prompts that ask a model to fill in the middle of a text.

use crate::token::{InfillTokens, TokenType};
use crate::{Error, Tokenizer};

/// The spellings of the three tokens, by family of models.
const MARKERS: &[[&str; 3]] = &[
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];

/// Tokens that follow the middle part of files in training.
const FURTHER_ENDS: &[&str] = &[
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
    "<file_sep>",
    "<|file_separator|>",
    "▁<EOT>",
];

impl Tokenizer {
    /// The tokens that mark the parts of a prompt with a gap, if the vocabulary has them.
    pub fn infill_tokens(&self) -> Option<InfillTokens> {
        self.infill
    }

    /// Tokens that end a filling beside [`Tokenizer::end_tokens`].
    pub fn infill_ends(&self) -> Vec<u32> {
        let marks = self.infill.map(|t| [t.prefix, t.suffix, t.middle]);
        let further = FURTHER_ENDS.iter().filter_map(|text| self.mark(text));
        marks.into_iter().flatten().chain(further).collect()
    }

    /// A prompt that makes the model write what is between two texts. `None` if the vocabulary lacks the marks. Control
    /// tokens spelt out in the texts are not recognised.
    pub fn encode_infill(&self, prefix: &str, suffix: &str) -> Result<Option<Vec<u32>>, Error> {
        let Some(marks) = self.infill else {
            return Ok(None);
        };
        let mut tokens = Vec::new();
        tokens.extend(self.bos().filter(|_| self.adds_bos()));
        tokens.push(marks.prefix);
        tokens.extend(self.encode(prefix, false, false)?);
        tokens.push(marks.suffix);
        tokens.extend(self.encode(suffix, false, false)?);
        tokens.push(marks.middle);
        Ok(Some(tokens))
    }

    /// The marks with known spellings.
    pub(crate) fn find_infill(&self) -> Option<InfillTokens> {
        MARKERS.iter().find_map(|[prefix, suffix, middle]| {
            Some(InfillTokens {
                prefix: self.mark(prefix)?,
                suffix: self.mark(suffix)?,
                middle: self.mark(middle)?,
            })
        })
    }

    /// The token of this spelling, if it is not ordinary text.
    fn mark(&self, text: &str) -> Option<u32> {
        let marks = |id: &u32| {
            let kind = self.types.get(*id as usize);
            matches!(kind, Some(TokenType::Control | TokenType::UserDefined))
        };
        self.id_of(text).filter(marks)
    }
}
