//! Converts text to tokens and back.

use crate::bpe::{Bpe, Known, Spellings};
use crate::channels::MARKS;
use crate::token::{InfillTokens, TokenType};
use crate::{Error, Rendered};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{
    AddedToken, AddedVocabulary, Model, ModelWrapper, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizer, PreTokenizerWrapper,
};

/// SentencePiece's character for a space.
pub(crate) const SPACE: &str = "\u{2581}";

/// Control tokens that always end an answer.
pub(crate) const END_MARKERS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eot|>",
    "<|return|>",
    "<|call|>",
    "<|endofturn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<start_function_response>",
    "<|observation|>",
    "<EOT>",
    "_<EOT>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<eos>",
    "</s>",
];

/// Ends a message in vocabularies with channels, where another message may follow. Elsewhere it ends the answer.
const MESSAGE_END: &str = "<|end|>";

/// Words in the marks of reasoning and calls, such as `</think>` and `<tool_response>`.
const STRUCTURE: [&str; 4] = ["think", "tool", "arg_key", "arg_value"];

/// Whether a user-defined token marks structure: many files list the marks of turns, reasoning and calls as such. Other
/// user-defined tokens are ordinary text, such as runs of spaces and tags of HTML.
fn is_mark(text: &str) -> bool {
    let inner = text
        .strip_prefix('<')
        .and_then(|text| text.strip_suffix('>'));
    let is_structure = |inner: &str| {
        inner.starts_with(['|', '｜'])
            || inner.ends_with(['|', '｜'])
            || STRUCTURE.iter().any(|word| inner.contains(word))
    };
    inner.is_some_and(is_structure) || text == "<start_of_turn>" || END_MARKERS.contains(&text)
}

/// The spelling of bytes in a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every byte has a printable character.
    ByteLevel,
    /// Plain text with a mark for spaces; `<0x0A>` for single bytes.
    SentencePiece,
    /// Plain text. Continuations of words begin with `##`; in GGUF, beginnings of words have the space mark.
    WordPiece,
}

/// Divides words into tokens.
pub(crate) enum Words {
    Merges(Bpe),
    Backend(Box<ModelWrapper>),
}

/// The stages of encoding, and the tokens around a text.
pub(crate) struct Parts {
    pub(crate) kind: Kind,
    pub(crate) model: Words,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) space_prefix: bool,
}

/// The tokenizer of one vocabulary.
pub struct Tokenizer {
    parts: Parts,
    /// Recognises control and user-defined tokens in a text.
    special: AddedVocabulary,
    /// Recognises user-defined tokens only, and of these no marks.
    plain: AddedVocabulary,
    /// Recognises marks only.
    marks: AddedVocabulary,
    spellings: Spellings,
    bytes: Vec<Box<[u8]>>,
    pub(crate) types: Vec<TokenType>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: Vec<u32>,
    /// The vocabulary has the marks of channels.
    channels: bool,
    /// The marks of a prompt with a gap.
    pub(crate) infill: Option<InfillTokens>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("kind", &self.parts.kind)
            .field("tokens", &self.vocab_size())
            .finish()
    }
}

impl Tokenizer {
    pub(crate) fn assemble(
        parts: Parts,
        added: Vec<AddedToken>,
        spellings: Spellings,
        types: Vec<TokenType>,
        bos: Option<u32>,
        eos: Option<u32>,
        mut ends: Vec<u32>,
    ) -> Result<Tokenizer, Error> {
        let failed = |error: tokenizers::Error| Error::Backend(error.to_string());
        let added = added.into_iter().map(|token| {
            let special = token.special || is_mark(&token.content);
            token.special(special)
        });
        let added: Vec<AddedToken> = added.collect();
        let mut marks = AddedVocabulary::new();
        let of_marks = added.iter().filter(|token| token.special).cloned();
        let of_marks = of_marks.map(|token| token.normalized(false));
        let none = None::<&NormalizerWrapper>;
        let mut special = AddedVocabulary::new();
        let normalizer = parts.normalizer.as_ref();
        match &parts.model {
            Words::Merges(_) => {
                let known = Known(&spellings);
                marks.add_tokens(of_marks, &known, none).map_err(failed)?;
                let all = special.add_tokens(added, &known, normalizer);
                all.map_err(failed)?;
            }
            Words::Backend(model) => {
                marks
                    .add_tokens(of_marks, model.as_ref(), none)
                    .map_err(failed)?;
                let all = special.add_tokens(added, model.as_ref(), normalizer);
                all.map_err(failed)?;
            }
        }
        let mut plain = special.clone();
        plain.set_encode_special_tokens(true);
        let mut bytes = spelled(&spellings.texts, &types, parts.kind);
        // The marks of channels are printed, so that `Channels` can find them.
        let channels: Option<Vec<u32>> = MARKS.iter().map(|mark| spellings.id(mark)).collect();
        let channels = channels.filter(|marks| {
            let kind = |id: &u32| types[*id as usize];
            marks.iter().all(|id| kind(id) == TokenType::Control)
        });
        for id in channels.iter().flatten() {
            bytes[*id as usize] = spellings.texts[*id as usize].as_bytes().into();
        }
        for id in END_MARKERS.iter().filter_map(|marker| spellings.id(marker)) {
            if matches!(
                types[id as usize],
                TokenType::Control | TokenType::UserDefined
            ) {
                ends.push(id);
            }
        }
        let mut tokenizer = Tokenizer {
            parts,
            special,
            plain,
            marks,
            spellings,
            bytes,
            types,
            bos,
            eos,
            ends: Vec::new(),
            channels: channels.is_some(),
            infill: None,
        };
        tokenizer.infill = tokenizer.find_infill();
        tokenizer.add_end_tokens(&ends);
        Ok(tokenizer)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Control and user-defined tokens by their ids.
    pub(crate) fn added(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        let added = self.special.get_added_tokens_decoder().iter();
        added.map(|(id, token)| (*id, token))
    }

    /// The same tokenizer for texts that are made lower case first. Special tokens are recognised before that.
    pub fn lower_cased(mut self) -> Tokenizer {
        let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
        steps.extend(self.parts.normalizer.take());
        self.parts.normalizer = Some(NormalizerWrapper::Sequence(Sequence::new(steps)));
        self
    }

    /// How many tokens [`Tokenizer::encode`] yields for the text of `prompt` and what it puts before a text.
    pub fn count_prompt(&self, prompt: &str) -> Result<usize, Error> {
        Ok(self.parts.prefix.len() + self.encode(prompt, false, true)?.len())
    }

    /// The tokens of `text`. With `add_special`, the tokens that the vocabulary puts around a text are added. With
    /// `parse_special`, control tokens spelt out in the text are recognised.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        // The backend may panic on invalid vocabularies.
        let inner = catch_unwind(AssertUnwindSafe(|| self.encode_text(text, parse_special)))
            .map_err(|_| Error::Backend("the vocabulary is inconsistent".to_owned()))??;
        if !add_special {
            return Ok(inner);
        }
        Ok([self.parts.prefix.as_slice(), &inner, &self.parts.suffix].concat())
    }

    /// The tokens of a prompt. Marks are tokens where the template has written them, and text where a message spells them.
    /// The tokens that the vocabulary puts around a text are added, unless the prompt begins with the first one.
    pub fn encode_rendered(&self, prompt: &Rendered) -> Result<Vec<u32>, Error> {
        let bos = self.bos.map_or("", |bos| self.token_text(bos));
        let begun = prompt.begins_with(bos);
        if prompt.covered().is_empty() {
            return self.encode(prompt, !begun, true);
        }
        let inner = catch_unwind(AssertUnwindSafe(|| self.encode_covered(prompt)));
        let inner =
            inner.map_err(|_| Error::Backend("the vocabulary is inconsistent".into()))??;
        if begun {
            return Ok(inner);
        }
        Ok([self.parts.prefix.as_slice(), &inner, &self.parts.suffix].concat())
    }

    fn encode_covered(&self, prompt: &Rendered) -> Result<Vec<u32>, Error> {
        let text = prompt.text();
        let blank = (1..0x20_u8).find(|blank| {
            let mut spellings = self.marks.get_vocab().keys();
            !blank.is_ascii_whitespace() && spellings.all(|text| !text.contains(*blank as char))
        });
        let problem = "its control tokens have all control characters";
        let blank = blank.ok_or_else(|| Error::Backend(problem.to_owned()))?;
        // Blanks of the same length break the marks that messages spell.
        let mut bytes = text.as_bytes().to_vec();
        for &at in prompt.covered() {
            let length = text[at..].chars().next().map_or(0, char::len_utf8);
            bytes[at..at + length].fill(blank);
        }
        let blanked = String::from_utf8(bytes).map_err(|e| Error::Backend(e.to_string()))?;
        let pieces = self
            .marks
            .extract_and_normalize(None::<&NormalizerWrapper>, &blanked);
        let mut tokens = Vec::new();
        for (_, (from, to), marks) in
            pieces.get_splits(OffsetReferential::Original, OffsetType::Byte)
        {
            match marks {
                Some(marks) => tokens.extend(marks.iter().map(|mark| mark.id)),
                None => tokens.extend(self.encode_text(&text[from..to], false)?),
            }
        }
        Ok(tokens)
    }

    /// The spellings of tokens that mark structure: control tokens, and user-defined ones that look like them. Text from
    /// outside must not become one.
    pub fn marks(&self) -> Vec<String> {
        let mut marks: Vec<String> = self.marks.get_vocab().keys().cloned().collect();
        marks.sort_unstable();
        marks
    }

    fn encode_text(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, Error> {
        let failed = |error: tokenizers::Error| Error::Backend(error.to_string());
        let added = if parse_special {
            &self.special
        } else {
            &self.plain
        };
        let mut pieces = added.extract_and_normalize(self.parts.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.parts.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        pieces
            .tokenize(|piece| match &self.parts.model {
                Words::Merges(model) => Ok(model.tokens(&self.spellings, piece.get())),
                Words::Backend(model) => model.tokenize(piece.get()),
            })
            .map_err(failed)?;
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let tokens = splits
            .iter()
            .filter_map(|(_, _, tokens)| tokens.as_ref())
            .flatten();
        Ok(tokens.map(|token| token.id).collect())
    }

    /// The tokens of two texts and those around them, and where the second text begins.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, usize), Error> {
        let (mut tokens, suffix) = (self.encode(first, true, false)?, &self.parts.suffix);
        // RoBERTa separates texts by two end tokens.
        let doubled = suffix
            .first()
            .is_some_and(|id| self.token_text(*id) == "</s>");
        tokens.extend(suffix.iter().filter(|_| doubled));
        let at = tokens.len();
        tokens.extend(self.encode(second, false, false)?);
        tokens.extend(suffix);
        Ok((tokens, at))
    }

    /// Cuts tokens that [`Tokenizer::encode`] put special tokens around. The ones at the end stay.
    pub fn truncate(&self, tokens: &mut Vec<u32>, max_len: usize) {
        if tokens.len() <= max_len {
            return;
        }
        let suffix = &self.parts.suffix;
        tokens.truncate(max_len.saturating_sub(suffix.len()));
        tokens.extend(suffix.iter().take(max_len));
    }

    /// True if answers come in channels ([`crate::Channels`]). Their marks are printed.
    pub fn has_channels(&self) -> bool {
        self.channels
    }

    /// The bytes that a token prints: none for control tokens (except marks of channels) and ids out of range.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// The token's spelling in the vocabulary; empty for ids out of range.
    pub fn token_text(&self, id: u32) -> &str {
        let text = self.spellings.texts.get(id as usize);
        text.map_or("", String::as_str)
    }

    /// True for tokens that mark structure and are never printed.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.types.get(id as usize), Some(TokenType::Control))
    }

    /// True for tokens that stand for no text: those that mark structure, and the one for what is unknown.
    pub fn is_special(&self, id: u32) -> bool {
        let kind = self.types.get(id as usize);
        matches!(kind, Some(TokenType::Control | TokenType::Unknown))
    }

    /// The id of the token with this spelling.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.spellings.id(text).filter(|_| !text.is_empty())
    }

    /// The number of ids, including gaps.
    pub fn vocab_size(&self) -> usize {
        self.spellings.texts.len()
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-text token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// True if `add_special` adds the beginning-of-text token.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.parts.prefix.first() == self.bos.as_ref()
    }

    /// Tokens that end an answer, in ascending order: those of the metadata, and well-known control tokens.
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Adds tokens that end an answer, for example from `generation_config.json`. Ids out of range are ignored.
    pub fn add_end_tokens(&mut self, ids: &[u32]) {
        let size = self.vocab_size();
        self.ends
            .extend(ids.iter().filter(|&&id| (id as usize) < size));
        if self.channels {
            let message = self.spellings.id(MESSAGE_END);
            self.ends.retain(|id| Some(*id) != message);
        }
        self.ends.sort_unstable();
        self.ends.dedup();
    }

    /// The text of tokens, without control tokens (except marks of channels) and without the space that encoding adds
    /// in front.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| self.token_bytes(id))
            .copied()
            .collect();
        let bytes = match bytes.strip_prefix(b" ") {
            Some(rest) if self.parts.space_prefix => rest,
            _ => &bytes,
        };
        match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(text) => text.to_owned(),
            Cow::Owned(text) => text,
        }
    }
}

/// The name of the token for a byte.
pub(crate) fn byte_token(byte: u32) -> String {
    format!("<0x{byte:02X}>")
}

/// The byte of a character of the byte alphabet. Printable bytes map to themselves, the others in order from U+0100.
pub(crate) fn letter_byte(letter: char) -> Option<u8> {
    match letter as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The bytes that each token prints.
fn spelled(texts: &[String], types: &[TokenType], kind: Kind) -> Vec<Box<[u8]>> {
    let all = texts.iter().zip(types);
    all.map(|(text, token)| spell(text, *token, kind)).collect()
}

/// The bytes that a token prints.
fn spell(text: &str, token: TokenType, kind: Kind) -> Box<[u8]> {
    let plain = || text.as_bytes().into();
    match (token, kind) {
        (TokenType::Control | TokenType::Unknown, _) => Box::default(),
        (TokenType::UserDefined, Kind::ByteLevel) => plain(),
        // A text outside the byte alphabet stands for itself.
        (_, Kind::ByteLevel) => text
            .chars()
            .map(letter_byte)
            .collect::<Option<Box<[u8]>>>()
            .unwrap_or_else(plain),
        (TokenType::Byte, Kind::SentencePiece) => match byte_of(text) {
            Some(byte) => Box::new([byte]),
            None => plain(),
        },
        (_, Kind::SentencePiece) => text.replace(SPACE, " ").into_bytes().into(),
        (_, Kind::WordPiece) => match (text.strip_prefix(SPACE), text.strip_prefix("##")) {
            (Some(word), _) => format!(" {word}").into_bytes().into(),
            (None, Some(rest)) => rest.as_bytes().into(),
            (None, None) => plain(),
        },
    }
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}
