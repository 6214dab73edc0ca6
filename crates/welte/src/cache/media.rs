//! Numbers of media, for the keys of their features.

use super::Sha256;
use std::collections::HashMap;

/// Media that are remembered. A forgotten one gets a new number, and what is cached of it is not found again.
const MOST: usize = 1 << 16;

/// Gives media numbers: one number for equal content, and never the same number for different content.
#[derive(Debug, Default)]
pub(crate) struct MediaNumbers {
    known: HashMap<Sha256, u32>,
    last: u32,
}

impl MediaNumbers {
    /// The number of a medium with this content. `None`: there are no more numbers.
    pub(crate) fn number(&mut self, content: &Sha256) -> Option<u32> {
        if let Some(number) = self.known.get(content) {
            return Some(*number);
        }
        self.last = self.last.checked_add(1)?;
        if self.known.len() == MOST {
            self.known.clear();
        }
        self.known.insert(*content, self.last);
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_one_number_and_other_content_another() {
        let mut numbers = MediaNumbers::default();
        let content = |n: u32| {
            let mut content = [0; 32];
            content[28..].copy_from_slice(&n.to_le_bytes());
            content
        };
        assert_eq!(numbers.number(&content(7)), Some(1));
        assert_eq!(numbers.number(&content(8)), Some(2));
        assert_eq!(numbers.number(&content(7)), Some(1));
        // What was forgotten does not get a number that another one has had.
        for n in 0..=MOST as u32 {
            numbers.number(&content(100 + n));
        }
        let again = numbers.number(&content(7)).unwrap();
        assert!(again > MOST as u32, "{again}");
        numbers.last = u32::MAX;
        assert_eq!(numbers.number(&content(1)), None);
        assert_eq!(numbers.number(&content(7)), Some(again));
    }
}
