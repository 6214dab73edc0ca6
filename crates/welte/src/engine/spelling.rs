//! The bytes that tokens put into a text. Both ends of a request use it: the scheduler to find the stop strings, and the
//! reader to make the text.

use crate::Model;
use std::sync::Arc;
use welte_text::{StopMatcher, Tokenizer};

/// How the tokens of a request are spelt.
#[derive(Clone)]
pub(crate) struct Spelling {
    /// Without one, no token has a text.
    tokenizer: Option<Arc<Tokenizer>>,
    /// Control tokens whose spelling is part of the text. Other control tokens print nothing.
    printed_controls: Vec<u32>,
}

impl Spelling {
    pub(crate) fn new(model: &Model, printed_controls: &[u32]) -> Spelling {
        Spelling {
            tokenizer: model.inner.tokenizer.clone(),
            printed_controls: printed_controls.to_vec(),
        }
    }

    /// The bytes of a token.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        match &self.tokenizer {
            Some(tokenizer) if (token as usize) < tokenizer.vocab_size() => {
                if self.printed_controls.contains(&token) {
                    tokenizer.token_text(token).as_bytes()
                } else {
                    tokenizer.token_bytes(token)
                }
            }
            _ => &[],
        }
    }
}

/// The stop strings of a request, on the scheduler's side: the sequence ends where its text meets one, however slowly its
/// reader reads.
pub(crate) struct Stops {
    spelling: Spelling,
    matcher: StopMatcher,
}

impl Stops {
    /// `None` without stop strings.
    pub(crate) fn new(model: &Model, stops: &[String], printed_controls: &[u32]) -> Option<Stops> {
        (!stops.is_empty()).then(|| Stops {
            spelling: Spelling::new(model, printed_controls),
            matcher: StopMatcher::new(stops),
        })
    }

    /// Takes the next token. Returns which stop string the text has met.
    pub(crate) fn take(&mut self, token: u32) -> Option<usize> {
        self.matcher.push(self.spelling.bytes(token))
    }
}
