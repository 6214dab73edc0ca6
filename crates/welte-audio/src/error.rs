//! What can be wrong with a file of sound.

/// An error that says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no bytes.
    #[error("the audio is empty")]
    Empty,
    /// The bytes are of no known kind.
    #[error(
        "the audio is of no supported kind ({0}); supported are WAV, AIFF, FLAC, MP3, Ogg Vorbis, and AAC or ALAC in M4A, MP4 or Matroska"
    )]
    Unknown(String),
    /// The file is known, but what it holds is not.
    #[error(
        "the audio's codec is not supported ({0}); convert it to WAV, FLAC, MP3, Ogg Vorbis or AAC"
    )]
    Codec(String),
    /// The file breaks its own rules.
    #[error("the audio is damaged: {0}")]
    Damaged(String),
    /// Nobody waits for it any more.
    #[error("the audio is not wanted any more")]
    Unwanted,
    /// The file lasts too long.
    #[error("the audio has more than {seconds} seconds; cut it into shorter files")]
    Long {
        /// The most that are taken.
        seconds: u32,
    },
    /// The file has more of something than is taken.
    #[error("the audio has {what}; {limit}")]
    Limit {
        /// What it has too much of.
        what: String,
        /// What is taken.
        limit: String,
    },
}
