//! Encoders of sound, whose features rows of a language model read: what a checkpoint's encoder is, and its programs.

mod compile;
mod conformer;
mod convolutions;
mod fast_conformer;
mod gemma;
mod gguf;
mod granite;
pub(crate) mod names;
mod parts;
mod read;
pub(crate) mod write;

pub use compile::compile_hearing;
pub use conformer::{Conformer, RunningNorms, running_norms};
pub use fast_conformer::FastConformer;
pub use granite::{GraniteSpeech, speech_queries};
pub use read::{hearing_spec, unknown_hearing};

use crate::speech::{Rotation, SpeechLayers};

/// Windows of Qwen3-ASR in a step: about half a minute.
const WINDOWS: u32 = 4;
const MOST_CHANNELS: u32 = 1 << 12;
const MOST_GROUP: u32 = 16;

/// The family of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HearingFamily {
    /// Qwen2-Audio: Whisper's encoder without the silence after the sound; the mean of two states, a norm, a matrix.
    Qwen2Audio,
    /// Voxtral: Whisper's encoder, window by window; four states side by side, two matrices.
    Voxtral,
    /// Qwen3-ASR and Qwen3-Omni: convolutions over pieces of a second, of time and pitch; layers in windows of several pieces; two
    /// matrices.
    Qwen3Asr,
    /// Qwen2.5-Omni: Whisper's encoder in windows of two seconds; the mean of two states, a norm, a matrix.
    Qwen2_5Omni,
    /// Audio Flamingo 3: Qwen2-Audio, window by window, with two matrices.
    AudioFlamingo3,
    /// Ultravox: Whisper's encoder with nothing after the sound; states side by side, a norm, a gated matrix, a norm, a matrix.
    Ultravox,
    /// Gemma 3n: a conformer, of whose states every fourth becomes a feature. All sounds have as many features.
    Gemma3n,
    /// Gemma 4: a conformer whose matrices may have limits.
    Gemma4,
    /// Granite Speech: a conformer of blocks, and queries that look at windows of its states.
    GraniteSpeech,
    /// LFM2-Audio: a FastConformer, whose states become features one by one.
    Lfm2Audio,
    /// GLM-ASR: Whisper's encoder, window by window, with places that turn queries and keys; four states side by side, two matrices.
    GlmAsr,
}

/// What follows a sound in its last window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Silence, whose states become features, too.
    Heard,
    /// Silence, which the sound's states see, and whose own states become no features.
    Seen,
    /// Silence, of which only the frames beside the sound's last one matter.
    Unseen,
    /// Nothing, as before a window's first frame.
    Nothing,
}

impl HearingFamily {
    /// All families, with their names for people.
    pub const ALL: [(HearingFamily, &'static str); 11] = [
        (HearingFamily::Qwen2Audio, "Qwen2-Audio"),
        (HearingFamily::Voxtral, "Voxtral"),
        (HearingFamily::Qwen3Asr, "Qwen3-ASR"),
        (HearingFamily::Qwen2_5Omni, "Qwen2.5-Omni"),
        (HearingFamily::AudioFlamingo3, "Audio Flamingo 3"),
        (HearingFamily::Ultravox, "Ultravox"),
        (HearingFamily::Gemma3n, "Gemma 3n"),
        (HearingFamily::Gemma4, "Gemma 4"),
        (HearingFamily::GraniteSpeech, "Granite Speech"),
        (HearingFamily::Lfm2Audio, "LFM2-Audio"),
        (HearingFamily::GlmAsr, "GLM-ASR"),
    ];

    /// What follows a sound in its last window.
    pub fn rest(self) -> Rest {
        match self {
            HearingFamily::Voxtral => Rest::Heard,
            HearingFamily::GlmAsr => Rest::Seen,
            HearingFamily::Qwen2Audio | HearingFamily::AudioFlamingo3 => Rest::Unseen,
            _ => Rest::Nothing,
        }
    }

    /// The windows of a sound have spectrograms of their own: what is quiet in one does not depend on the others.
    pub fn has_own_windows(self) -> bool {
        matches!(self, HearingFamily::AudioFlamingo3 | HearingFamily::GlmAsr)
    }
}

/// What an encoder of sound is.
#[derive(Clone, Debug, PartialEq)]
pub struct HearingSpec {
    /// Its family.
    pub family: HearingFamily,
    /// Bins of a frame of the spectrogram.
    pub mels: u32,
    /// Width of a hidden state.
    pub dim: u32,
    /// Its layers.
    pub layers: SpeechLayers,
    /// The most rows of a step: a whole number of groups, for the states of a window of Whisper, or of several windows.
    pub positions: u32,
    /// States of a window of Whisper.
    pub window: u32,
    /// Learned places, of which a window has the first ones.
    pub places: u32,
    /// States that become a feature.
    pub group: u32,
    /// Width of a feature.
    pub width: u32,
    /// Rows of Ultravox's first matrix; otherwise 0.
    pub hidden: u32,
    /// How queries and keys turn with their places, if there are no vectors for these.
    pub rotation: Option<Rotation>,
    /// The convolutions of Qwen3-ASR.
    pub pieces: Option<Pieces>,
    /// The conformer of Gemma 3n and Gemma 4.
    pub conformer: Option<Conformer>,
    /// The encoder of Granite Speech.
    pub granite: Option<GraniteSpeech>,
    /// The encoder of LFM2-Audio.
    pub fast: Option<FastConformer>,
}

/// Three convolutions over pieces of a spectrogram, each of which keeps every other place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Frames of a piece.
    pub frames: u32,
    /// Values of a place between two convolutions.
    pub channels: u32,
    /// Pieces whose states see each other.
    pub together: u32,
}

/// Places that a convolution keeps.
fn halved(places: u32) -> u32 {
    places.div_ceil(2)
}

impl Pieces {
    /// Values that a row of the first program reads: a square of the spectrogram around its place, and which neighbours of the first
    /// convolution there are. Padded.
    pub const ROW_VALUES: u32 = 64;
    /// Where the latter are.
    pub const INSIDE: u32 = 52;
    /// The side of that square.
    pub const SIDE: u32 = 7;
    /// Neighbours that a convolution reads.
    pub const TAPS: u32 = 9;

    /// Places of a line after some convolutions.
    pub fn after(places: u32, convolutions: u32) -> u32 {
        (0..convolutions).fold(places, |places, _| halved(places))
    }

    /// States of a piece with so many frames.
    pub fn states(frames: u32) -> u32 {
        Self::after(frames, 3)
    }

    /// States of a whole piece.
    pub fn each(&self) -> u32 {
        Self::states(self.frames)
    }

    /// States that see each other.
    pub fn window(&self) -> u32 {
        self.together * self.each()
    }
}

impl HearingSpec {
    /// Frames of a window of Whisper.
    pub fn frames(&self) -> u32 {
        2 * self.window
    }

    /// Features of a window with so many states of the sound.
    pub fn features_of(&self, states: u32) -> u32 {
        match self.family {
            // What is missing in the last group is zeros.
            HearingFamily::Ultravox => states.div_ceil(self.group),
            _ => states / self.group,
        }
    }

    /// What families there are, in words.
    pub fn families() -> String {
        HearingFamily::ALL.map(|(_, name)| name).join(", ")
    }
}
