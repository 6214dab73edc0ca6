//! Eyes and ears of tests.

use crate::pictures::{Decoded, MediaEncoder};
use crate::vision::Piece;
use crate::{Dictation, Error};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use welte_audio::RATE;

/// Eyes or ears for tests: a picture or a sound is text, and each of its words becomes a feature between two tokens. Of samples, each
/// second is a word.
#[doc(hidden)]
pub struct WordEncoder {
    pub placeholder: String,
    pub what: &'static str,
    pub dictation: Option<Dictation>,
    pub width: usize,
    /// Pictures encoded so far.
    pub count: Arc<AtomicUsize>,
}

impl MediaEncoder for WordEncoder {
    fn placeholder(&self) -> &str {
        &self.placeholder
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn dictation(&self) -> Option<Dictation> {
        self.dictation
    }

    fn width(&self) -> usize {
        self.width
    }

    fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error> {
        let text = std::str::from_utf8(bytes).ok().filter(|t| !t.is_empty());
        let text = text.ok_or_else(|| Error::Media {
            problem: "the picture is not a text of words".into(),
        })?;
        let mut features = Vec::new();
        for word in text.split_whitespace() {
            let bytes: [u8; 32] = Sha256::digest(word).into();
            let values = bytes.iter().cycle().take(self.width);
            features.extend(values.map(|byte| f32::from(*byte) / 128.0 - 1.0));
        }
        let rows = (features.len() / self.width.max(1)) as u32;
        let row = Piece::Features {
            first: 0,
            axes: (0..rows).map(|row| [row; 3]).collect(),
            advance: rows,
            both_ways: false,
        };
        let mark = || Piece::Text(self.placeholder.clone());
        Ok(Decoded {
            layout: vec![mark(), row, mark()],
            bytes: bytes.len(),
            numbered: true,
            encode: Box::new(|_| {
                self.count.fetch_add(1, Ordering::SeqCst);
                Ok(features.into())
            }),
        })
    }
    fn hear(&self, samples: &[f32]) -> Result<Decoded<'_>, Error> {
        let second = |samples: &[f32]| {
            let sum: f32 = samples.iter().map(|sample| sample.abs()).sum();
            format!("{sum} ")
        };
        let words: String = samples.chunks(RATE as usize).map(second).collect();
        self.look(words.as_bytes())
    }
}
