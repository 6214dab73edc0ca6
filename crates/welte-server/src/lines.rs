//! What editors ask of a completion: it ends where the indentation falls, or when it takes too long.

use std::time::{Duration, Instant};

/// Limits of a completion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineLimits {
    /// The least indentation of all lines after the first one.
    pub(crate) indent: usize,
    /// The longest time once the first line is complete.
    pub(crate) time: Option<Duration>,
}

/// A text that grows up to its limits.
#[derive(Debug)]
pub(crate) struct LimitedText {
    limits: LineLimits,
    begun: Option<Instant>,
    /// The first line is complete.
    has_line: bool,
    /// White space at the beginning of the line at hand, until its first letter comes.
    indent: Option<String>,
    over: bool,
}

impl LimitedText {
    pub(crate) fn new(limits: LineLimits) -> LimitedText {
        LimitedText {
            limits,
            begun: None,
            has_line: false,
            indent: None,
            over: false,
        }
    }

    /// A limit was reached.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Adds a piece that came at this time. Returns the text that is certain.
    pub(crate) fn push(&mut self, piece: &str, now: Instant) -> String {
        let mut certain = String::new();
        for c in piece.chars() {
            if self.over {
                break;
            }
            if let Some(indent) = &mut self.indent {
                if matches!(c, ' ' | '\t') {
                    indent.push(c);
                    continue;
                }
                self.over = indent.len() < self.limits.indent;
                if self.over {
                    break;
                }
                certain.push_str(indent);
                self.indent = None;
            }
            certain.push(c);
            if c == '\n' {
                self.has_line = true;
                self.indent = Some(String::new());
            }
        }
        let begun = *self.begun.get_or_insert(now);
        let late = |time| self.has_line && now.duration_since(begun) >= time;
        self.over |= self.limits.time.is_some_and(late);
        certain
    }

    /// The rest of the text.
    pub(crate) fn finish(&mut self) -> String {
        let rest = self.indent.take().filter(|_| !self.over);
        rest.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(indent: usize, pieces: &[&str]) -> (String, bool) {
        let mut text = LimitedText::new(LineLimits { indent, time: None });
        let now = Instant::now();
        let mut all: String = pieces.iter().map(|piece| text.push(piece, now)).collect();
        all.push_str(&text.finish());
        (all, text.is_over())
    }

    #[test]
    fn a_text_ends_where_its_indentation_falls() {
        let whole = "a\n    b\n      c\n  d\n    e";
        let end = ("a\n    b\n      c\n".to_string(), true);
        assert_eq!(cut(4, &[whole]), end);
        let letters: Vec<String> = whole.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(cut(4, &letters), end);
        assert_eq!(cut(0, &[whole]), (whole.to_string(), false));
        // The first line has the indentation of what is before it.
        assert_eq!(cut(2, &["a\n\tb\n\t\t", "c"]), ("a\n".to_string(), true));
        assert_eq!(cut(2, &["a\n\t\t"]), ("a\n\t\t".to_string(), false));
    }

    #[test]
    fn time_counts_once_a_line_is_complete() {
        let time = Some(Duration::from_millis(5));
        let mut text = LimitedText::new(LineLimits { indent: 0, time });
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(text.push("a", at(0)), "a");
        assert_eq!(text.push("b", at(9)), "b");
        assert!(!text.is_over());
        assert_eq!(text.push("c\nd", at(10)), "c\nd");
        assert!(text.is_over());
        assert_eq!(text.push("e", at(11)), "");
    }
}
