//! Turns the bytes of tokens into text: whole characters, without stop strings.

use std::sync::Arc;

/// The result of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Text that can be shown.
    pub text: String,
    /// The stop string that was found. It and everything after it are not part of the text.
    pub stopped: Option<String>,
}

/// Joins the bytes of tokens to text. Holds back incomplete characters and possible beginnings of stop strings.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    stops: Arc<[String]>,
    /// An incomplete character: at most 3 bytes.
    bytes: Vec<u8>,
    /// Whole characters that may begin a stop string.
    text: String,
    stopped: bool,
    /// After a stop: bytes of the stop string and everything after it.
    dropped: usize,
}

impl Splitter {
    /// A splitter with these stop strings. Empty ones are ignored.
    pub fn new(stops: impl Into<Arc<[String]>>) -> Splitter {
        let mut stops = stops.into();
        if stops.iter().any(String::is_empty) {
            let whole = stops.iter().filter(|stop| !stop.is_empty());
            stops = whole.cloned().collect();
        }
        Splitter {
            stops,
            ..Splitter::default()
        }
    }

    /// Takes the bytes of a token. After a stop it returns nothing.
    pub fn push(&mut self, bytes: &[u8]) -> Split {
        if self.stopped {
            self.dropped += bytes.len();
            return Split::default();
        }
        self.bytes.extend_from_slice(bytes);
        let whole = self.bytes.len() - incomplete_tail(&self.bytes);
        self.text
            .push_str(&String::from_utf8_lossy(&self.bytes[..whole]));
        self.bytes.drain(..whole);
        self.release()
    }

    /// Returns the text held back, at the end of the answer.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let mut rest = std::mem::take(&mut self.text);
        rest.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes)));
        rest
    }

    /// The number of bytes held back. After a stop: the number of bytes pushed since the beginning of the stop string.
    pub fn held(&self) -> usize {
        self.dropped + self.text.len() + self.bytes.len()
    }

    fn release(&mut self) -> Split {
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.text.find(stop.as_str())?, stop)));
        // The earliest stop string; of several at one place, the longest.
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len())) {
            let stopped = Some(stop.clone());
            self.stopped = true;
            self.dropped = self.text.len() - at + self.bytes.len();
            self.bytes.clear();
            let mut text = std::mem::take(&mut self.text);
            text.truncate(at);
            return Split { text, stopped };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.text, stop))
            .max()
            .unwrap_or(0);
        let held = self.text.split_off(self.text.len() - keep);
        Split {
            text: std::mem::replace(&mut self.text, held),
            stopped: None,
        }
    }
}

/// The length in bytes of the longest end of `text` that begins `stop`.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n]) && stop.is_char_boundary(n))
        .unwrap_or(0)
}

/// The number of bytes at the end that begin a character which later bytes may complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for at in (from..bytes.len()).rev() {
        if bytes[at] & 0xc0 == 0x80 {
            continue;
        }
        let tail = &bytes[at..];
        return match std::str::from_utf8(tail) {
            Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => tail.len(),
            _ => 0,
        };
    }
    0
}
