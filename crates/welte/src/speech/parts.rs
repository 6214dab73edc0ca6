//! What the work on a sound shares: the model on its device, its spectrogram and its vocabulary.

use super::machine::Machine;
use super::tokens::{Tokens, language_code};
use crate::Error;
use crate::fair_lock::{FairGuard, FairLock};
use std::sync::Arc;
use welte_audio::Mel;
use welte_models::SpeechSpec;
use welte_text::Tokenizer;

/// The parts of a model that is ready to run.
pub(super) struct Parts {
    pub(super) spec: SpeechSpec,
    pub(super) mel: Mel,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) tokens: Tokens,
    /// Tokens of symbols.
    pub(super) symbols: Vec<u32>,
    /// Layer and head of the heads that look at the sound of the next token.
    pub(super) alignment_heads: Vec<[u32; 2]>,
    pub(super) machine: FairLock<Machine>,
    /// The most windows that are heard together.
    pub(super) windows: u32,
}

impl Parts {
    /// The codes of the languages that the model knows; a model of English knows no other.
    pub(super) fn languages(&self) -> Vec<&'static str> {
        match self.tokens.multilingual() {
            true => self
                .tokens
                .languages
                .iter()
                .map(|(code, _)| *code)
                .collect(),
            false => vec!["en"],
        }
    }

    /// The machine, however long it takes to get it.
    pub(super) fn machine(&self) -> FairGuard<'_, Machine> {
        loop {
            if let Some(turn) = self.machine.take(&mut || true) {
                return turn;
            }
        }
    }

    /// The code of a language that was asked for.
    pub(super) fn language(&self, asked: &str) -> Result<&'static str, Error> {
        let known = self.languages();
        let code = language_code(asked).filter(|code| known.contains(code));
        code.ok_or_else(|| Error::Speech {
            field: "language",
            problem: format!(
                "'{}' is not a language of this model; it knows {}",
                asked
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(40)
                    .collect::<String>(),
                known.join(", ")
            ),
        })
    }
}
