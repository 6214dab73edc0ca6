//! How a model of speech is loaded, and how a sound becomes text.

use super::transcript::{Segment, Task};
use crate::DeviceChoice;

/// Seconds from one timestamp to the next.
pub(super) const TICK: f64 = 0.02;
/// Frames of the spectrogram in a second.
pub(super) const FRAMES: f64 = 100.0;

/// How to load a model of speech.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeechOptions {
    /// Where it runs. An automatic choice takes the first device that runs it.
    pub device: DeviceChoice,
    /// Threads of the CPU device, as in [`LoadOptions`](crate::LoadOptions).
    pub threads: Option<usize>,
    /// The processors that these threads are pinned to, as in [`LoadOptions`](crate::LoadOptions).
    pub cpus: Option<Vec<usize>>,
    /// The most texts of a window that are written together ([`TranscribeOptions::best_of`]).
    pub texts: u32,
    /// The most windows that are written together ([`TranscribeOptions::batch`]).
    pub windows: u32,
}

impl Default for SpeechOptions {
    fn default() -> Self {
        SpeechOptions {
            device: DeviceChoice::Auto,
            threads: None,
            cpus: None,
            texts: 5,
            windows: 1,
        }
    }
}

/// How a sound becomes text. Language models heed the language, the prompt, the first temperature, the seed, `skip_silence` and
/// `logprobs`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TranscribeOptions {
    /// What is written.
    pub task: Task,
    /// The language: a code or an English name. `None`: it is detected in the first window.
    pub language: Option<String>,
    /// A text that comes before: names, spellings, style.
    pub prompt: Option<String>,
    /// Words that are likely to be said. Unlike the prompt they are repeated in every window.
    pub hotwords: Option<String>,
    /// The text has timestamps. Without them a window is one segment.
    pub timestamps: bool,
    /// Every word gets a beginning and an end.
    pub word_timestamps: bool,
    /// Temperatures that are tried in turn, until the text is good enough.
    pub temperatures: Vec<f32>,
    /// How many texts are written at a temperature above 0; the likeliest counts.
    pub best_of: u32,
    /// A text that compresses better than this repeats itself, so it is not good enough.
    pub compression_ratio_threshold: Option<f32>,
    /// A text whose mean logarithm of probability is lower is not good enough.
    pub logprob_threshold: Option<f32>,
    /// A window is silent if this is likelier and its text is not likely enough.
    pub no_speech_threshold: Option<f32>,
    /// Windows are cut where it is quiet, know nothing of each other, and are written together as far as the model was loaded
    /// for several. This is faster, and the text may differ.
    pub batch: bool,
    /// The text of earlier windows is the prompt of the next one.
    pub condition_on_previous: bool,
    /// The latest beginning of a window's first segment, in seconds.
    pub max_initial_timestamp: f64,
    /// Symbols that stand for what is not speech are not written.
    pub suppress_symbols: bool,
    /// Windows in which nothing is to be heard are skipped.
    pub skip_silence: bool,
    /// The seed of texts at temperatures above 0.
    pub seed: u64,
    /// Segments have the probabilities of their tokens. Whisper's always do.
    pub logprobs: bool,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        TranscribeOptions {
            task: Task::Transcribe,
            language: None,
            prompt: None,
            hotwords: None,
            timestamps: true,
            word_timestamps: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            best_of: 5,
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            batch: false,
            condition_on_previous: true,
            max_initial_timestamp: 1.0,
            suppress_symbols: true,
            skip_silence: true,
            seed: 0,
            logprobs: false,
        }
    }
}

/// What a caller hears while a sound becomes text.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Update<'a> {
    /// The language is known: its code, and how likely it is.
    Language(&'a str, f32),
    /// A language model begins to write a window, which has this start and end in seconds.
    Window(f64, f64),
    /// More of the window's text, from a language model. All of them together are the text of the segments.
    Text(&'a str),
    /// A segment is written.
    Segment(&'a Segment),
    /// These seconds, from the beginning, are done.
    Done(f64),
    /// Work goes on, or waits for its turn: the caller may end it.
    Working,
}
