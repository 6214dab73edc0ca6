//! Models that write down speech: Whisper and those that are built like it.
//!
//! A model is two programs. The encoder turns frames of a window into states: a pass without caches, like that of pictures. The
//! decoder has an embed pass, whose rows read these states and store keys and values of every layer for cross attention, and the
//! decode and prompt passes of a language model.

mod compile;
pub(crate) mod parts;
mod read;
pub(crate) mod tower;

pub use compile::{SpeechPrograms, compile_speech};
pub use read::speech_spec;
pub(crate) use read::{MOST_DIM, MOST_MELS, MOST_POSITIONS};
pub use tower::Rotation;

/// What a model of speech is.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSpec {
    /// Bins of a frame of the spectrogram.
    pub mels: u32,
    /// States of a window. A state covers two frames.
    pub positions: u32,
    /// The most tokens of a window.
    pub tokens: u32,
    /// Width of a hidden state.
    pub dim: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Embeddings of tokens are multiplied by the root of the width.
    pub scaled: bool,
    /// The part that listens.
    pub encoder: SpeechLayers,
    /// The part that writes.
    pub decoder: SpeechLayers,
}

/// The layers of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeechLayers {
    /// Layers.
    pub count: u32,
    /// Heads of attention.
    pub heads: u32,
    /// Width of the feed-forward parts.
    pub ffn: u32,
}

/// What checkpoints call the architecture.
pub(crate) const ARCHITECTURE: &str = "whisper";
/// Positions of a page of keys and values.
pub(crate) const PAGE: u32 = 64;

impl SpeechSpec {
    /// Pages of the cache for cross attention that a window takes.
    pub fn window_pages(&self) -> u32 {
        self.positions.div_ceil(PAGE)
    }

    /// Frames of a window.
    pub fn frames(&self) -> u32 {
        2 * self.positions
    }
}
