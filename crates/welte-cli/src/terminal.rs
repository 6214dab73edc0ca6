//! Keeps escape sequences out of what a terminal shows.
//!
//! Answers, names in files and chat templates come from elsewhere. A terminal that prints them as they are would let them
//! move the cursor, set its title or type into its input. A file or a pipe gets everything unchanged.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};

/// The longest escape sequence that is left out as a whole. The rest of a longer one is shown.
const LONGEST_SEQUENCE: usize = 256;

/// Lets the characters through that a terminal only shows. A sequence may come in pieces of any size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    state: State,
    /// Characters of the sequence so far.
    length: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`: parameters, then a letter.
    Control,
    /// After `ESC ]` and the like: a text up to BEL or `ESC \`.
    Message,
    /// After ESC within such a text.
    MessageEscape,
}

impl Filter {
    /// Whether a character is shown.
    pub(crate) fn shows(&mut self, c: char) -> bool {
        self.length += 1;
        if self.length > LONGEST_SEQUENCE {
            self.state = State::Text;
        }
        let (state, shown) = match (self.state, c) {
            // A line break ends every sequence.
            (_, '\n') => (State::Text, true),
            (State::MessageEscape, '\\') => (State::Text, false),
            (State::Message | State::MessageEscape, '\x07' | '\u{9c}') => (State::Text, false),
            (State::Message | State::MessageEscape, '\x1b') => (State::MessageEscape, false),
            (State::Message, _) => (State::Message, false),
            (State::Escape | State::MessageEscape, '[') | (_, '\u{9b}') => (State::Control, false),
            (State::Escape | State::MessageEscape, ']' | 'P' | 'X' | '^' | '_')
            | (_, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => (State::Message, false),
            (_, '\x1b') => (State::Escape, false),
            (State::Escape, ' '..='/') => (State::Escape, false),
            (State::Escape | State::MessageEscape, '0'..='~') => (State::Text, false),
            (State::Control, ' '..='?') => (State::Control, false),
            (State::Control, '@'..='~') => (State::Text, false),
            (_, '\t') => (State::Text, true),
            (_, c) => (State::Text, !c.is_control()),
        };
        if state == State::Text || self.state == State::Text {
            self.length = 0;
        }
        self.state = state;
        shown
    }
}

/// A text as a terminal may show it.
pub(crate) fn plain(text: &str) -> String {
    let mut filter = Filter::default();
    text.chars().filter(|c| filter.shows(*c)).collect()
}

/// Standard output. A terminal gets no escape sequences.
pub(crate) fn stdout() -> Plain<io::StdoutLock<'static>> {
    let out = io::stdout().lock();
    let filter = out.is_terminal().then(Filter::default);
    Plain::new(out, filter)
}

/// Writes text through a filter, if there is one.
pub(crate) struct Plain<W> {
    out: W,
    filter: Option<Filter>,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<W: Write> Plain<W> {
    fn new(out: W, filter: Option<Filter>) -> Plain<W> {
        Plain {
            out,
            filter,
            held: Vec::new(),
        }
    }
}

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(filter) = &mut self.filter else {
            return self.out.write(bytes);
        };
        self.held.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.held) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.held.len(),
        };
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, rest);
        let text = String::from_utf8_lossy(&text);
        let shown: String = text.chars().filter(|c| filter.shows(*c)).collect();
        self.out.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Prints a line to standard error.
pub(crate) fn error_line(text: Arguments) {
    let stderr = io::stderr();
    let text = if stderr.is_terminal() {
        plain(&text.to_string())
    } else {
        text.to_string()
    };
    // There is nowhere to report it.
    let _ = writeln!(stderr.lock(), "{text}");
}

/// The standard library's macro, without escape sequences on a terminal.
macro_rules! eprintln {
    () => { eprintln!("") };
    ($($arguments:tt)*) => { $crate::terminal::error_line(format_args!($($arguments)*)) };
}

/// True if the reader of our output has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What must not reach a terminal, and what is left of it.
    const CASES: [(&str, &str); 16] = [
        ("plain, 水 é\tand\nlines", "plain, 水 é\tand\nlines"),
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b[2J\x1b[1;1Hb", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;aGk=\x1b\\b", "ab"),
        ("a\x1bP1$r\x1b\\b", "ab"),
        ("a\x1b(0b\x1b7c\x1b", "abc"),
        ("a\u{9b}31mb\u{9d}0;t\u{9c}c\u{85}d", "abcd"),
        ("a\rb\x08c\x7fd\x00e\x0ef", "abcdef"),
        ("a\r\nb", "a\nb"),
        ("a\x1b]no end\nb", "a\nb"),
        ("a\x1b[31\nb", "a\nb"),
        ("a\x1b[31\x1b[32mb", "ab"),
        ("a\x1b]x\x1b[31mb\x07c", "abc"),
        ("a\x1b[3é1mb", "aé1mb"),
        ("\x1b\x1b[31mb", "b"),
    ];

    #[test]
    fn a_terminal_gets_no_escape_sequences() {
        for (text, shown) in CASES {
            assert_eq!(plain(text), shown, "{text:?}");
        }
        // A sequence without an end hides little.
        let long = format!("\x1b]{}", "x".repeat(1000));
        assert!(plain(&long).len() > 700);
        assert!(plain(&format!("\x1b[{}", "1".repeat(1000))).len() > 700);
    }

    #[test]
    fn sequences_are_left_out_whatever_the_pieces() {
        for (text, shown) in CASES {
            for cut in 0..text.len() {
                let mut out = Vec::new();
                let mut plain = Plain::new(&mut out, Some(Filter::default()));
                plain.write_all(&text.as_bytes()[..cut]).unwrap();
                plain.write_all(&text.as_bytes()[cut..]).unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), shown, "{text:?} at {cut}");
            }
        }
    }

    #[test]
    fn a_file_gets_everything() {
        let mut out = Vec::new();
        let text = b"\x1b[31m\xff\x00";
        Plain::new(&mut out, None).write_all(text).unwrap();
        assert_eq!(out, text);
    }
}
