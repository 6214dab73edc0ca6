//! From the bytes of tokens to text that may be shown: whole characters, and nothing that may yet become a stop.

/// What one push gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Text that is final.
    pub text: String,
    /// The stop string that was found; it and what follows it are not part of the text.
    pub stopped: Option<String>,
}

/// Joins the bytes of tokens to text. Holds back an incomplete character, and the beginning of a stop string only as
/// long as it can still become one.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    stops: Vec<String>,
    /// The beginning of a character: at most 3 bytes.
    bytes: Vec<u8>,
    /// Whole characters that may be the beginning of a stop.
    text: String,
    stopped: bool,
    /// Bytes pushed so far that are in no text handed out.
    dropped: usize,
}

impl Splitter {
    /// A splitter that ends at the first of these; empty ones are left out.
    pub fn new(stops: Vec<String>) -> Splitter {
        Splitter {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            ..Splitter::default()
        }
    }

    /// Takes the bytes of a token. After a stop nothing more comes.
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

    /// The rest, at the end of the answer: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let mut rest = std::mem::take(&mut self.text);
        rest.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes)));
        rest
    }

    /// How many bytes are held back, or after a stop: how many of those pushed belong to the stop and what follows it.
    pub fn held(&self) -> usize {
        self.dropped + self.text.len() + self.bytes.len()
    }

    fn release(&mut self) -> Split {
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.text.find(stop.as_str())?, stop)));
        // The first to begin; of those that begin together the longest.
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

/// The longest end of `text` that is the beginning of `stop`, in bytes.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n]) && stop.is_char_boundary(n))
        .unwrap_or(0)
}

/// How many bytes at the end begin a character that later bytes can still complete.
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
