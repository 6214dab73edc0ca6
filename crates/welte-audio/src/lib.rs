//! Sound: from the bytes of a file to what a model of speech reads.
//!
//! [`decode`] makes samples of one channel at 16 kHz from a file, within [`Limits`]. [`Mel`] makes the spectrogram of Whisper of
//! them, [`LogMel`] those of other encoders. [`speech`] finds the spans that are not silent, and [`windows`] cuts them. Sound
//! that comes in pieces is decoded by a [`StreamDecoder`], and a [`VoiceDetector`] says when somebody speaks.
//!
//! ```
//! use welte_audio::{Mel, RATE, speech};
//!
//! let second: Vec<f32> = (0..RATE).map(|i| (i as f32 * 0.2).sin()).collect();
//! let spectrogram = Mel::new(80).spectrogram(&second, 0);
//! assert_eq!((spectrogram.bins, spectrogram.frames()), (80, 100));
//! assert_eq!(speech(&second).len(), 1);
//! ```

mod decode;
mod detector;
mod error;
mod log_mel;
mod mel;
mod resample;
mod stream;
mod voice;

pub use decode::{Audio, Limits, decode, decode_while};
pub use detector::{Turn, VoiceDetector, VoiceSettings};
pub use error::Error;
pub use log_mel::{LogMel, Recipe};
pub use mel::{HOP, Mel, Spectrogram, WINDOW};
pub use resample::Resampler;
pub use stream::{StreamDecoder, StreamFormat};
pub use voice::{cut, speech, windows};

/// Samples per second that models of speech read.
pub const RATE: u32 = 16_000;
