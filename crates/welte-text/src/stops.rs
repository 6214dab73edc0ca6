//! Finds the token at which a text meets a stop string, without keeping the text.

/// Follows the bytes of a text's tokens. It meets a stop string with the same token as [`Splitter`](crate::Splitter):
/// both decode bytes in the same way, with U+FFFD in place of bytes that are not UTF-8. Memory is allocated when it is
/// made: about five bytes for each byte of the stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// An incomplete character.
    character: [u8; 4],
    /// Its bytes so far.
    begun: usize,
    /// Bytes of the text before it.
    length: u64,
}

/// A stop string, and how much of it the text ends with (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Stop {
    text: Box<[u8]>,
    /// For the first `n + 1` bytes: the longest beginning that is also their end, but not all of them.
    borders: Box<[u32]>,
    matched: u32,
}

impl StopMatcher {
    /// A matcher of these stop strings at the start of a text. Empty ones are never met.
    pub fn new(stops: &[String]) -> StopMatcher {
        StopMatcher {
            stops: stops.iter().map(|stop| Stop::new(stop)).collect(),
            character: [0; 4],
            begun: 0,
            length: 0,
        }
    }

    /// Takes the bytes of a token. Returns which stop string the text has met: the one that begins first, and of several
    /// at one place the longest.
    pub fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        // Where the best match begins, and the rest of its order.
        let mut best: Option<(u64, u64, usize)> = None;
        for &byte in bytes {
            self.decode(byte, &mut best);
        }
        best.map(|(_, _, which)| which)
    }

    /// Takes a byte, and then every character that is complete.
    fn decode(&mut self, byte: u8, best: &mut Option<(u64, u64, usize)>) {
        self.character[self.begun] = byte;
        self.begun += 1;
        while self.begun > 0 {
            let bytes = self.character;
            match std::str::from_utf8(&bytes[..self.begun]) {
                Ok(character) => {
                    self.follow(character.as_bytes(), best);
                    self.begun = 0;
                }
                Err(error) => {
                    // More bytes may complete it.
                    let Some(wrong) = error.error_len() else {
                        return;
                    };
                    self.follow("\u{fffd}".as_bytes(), best);
                    self.character.copy_within(wrong..self.begun, 0);
                    self.begun -= wrong;
                }
            }
        }
    }

    fn follow(&mut self, character: &[u8], best: &mut Option<(u64, u64, usize)>) {
        for &byte in character {
            self.length += 1;
            for (which, stop) in self.stops.iter_mut().enumerate() {
                if stop.is_met_by(byte) {
                    let length = stop.text.len() as u64;
                    let found = (self.length - length, u64::MAX - length, which);
                    *best = Some(best.map_or(found, |best| best.min(found)));
                }
            }
        }
    }
}

impl Stop {
    fn new(stop: &str) -> Stop {
        let text: Box<[u8]> = stop.as_bytes().into();
        let mut borders = vec![0u32; text.len()];
        let mut border = 0;
        for at in 1..text.len() {
            while border > 0 && text[at] != text[border] {
                border = borders[border - 1] as usize;
            }
            border += usize::from(text[at] == text[border]);
            borders[at] = border as u32;
        }
        Stop {
            text,
            borders: borders.into(),
            matched: 0,
        }
    }

    /// Takes the next byte of the text. True if the text ends with the stop string now.
    fn is_met_by(&mut self, byte: u8) -> bool {
        let mut matched = self.matched as usize;
        if matched == self.text.len() {
            let Some(border) = self.borders.last() else {
                return false;
            };
            matched = *border as usize;
        }
        while matched > 0 && self.text[matched] != byte {
            matched = self.borders[matched - 1] as usize;
        }
        matched += usize::from(self.text[matched] == byte);
        self.matched = matched as u32;
        matched == self.text.len()
    }
}
