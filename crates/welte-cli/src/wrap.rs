//! Wraps text at words while it is written to a terminal, and leaves escape sequences out.

use crate::terminal::Filter;
use std::io::{self, Write};
use unicode_width::UnicodeWidthChar;

/// Writes pieces of text and breaks lines between words. Each piece is shown at once. When a word turns out not to fit, it
/// is erased from the end of its line and written again on the next line. Code blocks between lines of "```" are not
/// wrapped. A file or a pipe gets the text unchanged.
pub(crate) struct Wrapper<W> {
    out: W,
    /// Columns that text can use; `None`: do not wrap.
    width: Option<usize>,
    /// The cursor's column.
    column: usize,
    /// The word at the end of the line so far, and its width.
    word: String,
    word_width: usize,
    /// A space was left out at the end of a full line: the next word begins a new one.
    full: bool,
    /// Backticks at the start of this line; `None` after anything else.
    ticks: Option<u32>,
    in_code: bool,
    filter: Filter,
}

impl<W: Write> Wrapper<W> {
    /// For a terminal with this many columns; `None`: not a terminal.
    pub(crate) fn new(out: W, columns: Option<u16>) -> Wrapper<W> {
        Wrapper {
            out,
            // The last column stays free: terminals differ in where the cursor is after a character there.
            width: columns.map(|columns| usize::from(columns.max(2)) - 1),
            column: 0,
            word: String::new(),
            word_width: 0,
            full: false,
            ticks: Some(0),
            in_code: false,
            filter: Filter::default(),
        }
    }

    /// Writes a piece and flushes.
    pub(crate) fn push(&mut self, text: &str) -> io::Result<()> {
        match self.width {
            None => self.out.write_all(text.as_bytes())?,
            Some(width) => {
                for c in text.chars() {
                    if self.filter.shows(c) {
                        self.character(c, width)?;
                    }
                }
            }
        }
        self.out.flush()
    }

    fn character(&mut self, c: char, width: usize) -> io::Result<()> {
        if c == '\n' {
            self.in_code ^= self.ticks.is_some_and(|ticks| ticks >= 3);
            self.ticks = Some(0);
            return self.new_line();
        }
        self.ticks = match (self.ticks, c) {
            (Some(ticks), '`') => Some(ticks + 1),
            (Some(ticks), _) if ticks >= 3 => Some(ticks),
            (Some(0), ' ') => Some(0),
            _ => None,
        };
        if self.in_code {
            return write!(self.out, "{c}");
        }
        let wide = match c {
            '\t' => 8 - self.column % 8,
            c => c.width().unwrap_or(0),
        };
        if c.is_whitespace() {
            self.end_word();
            self.full |= self.column + wide > width;
            // Whitespace that does not fit is left out.
            if self.full {
                return Ok(());
            }
        } else {
            // A line may also break before a wide character, as in Chinese and Japanese.
            if wide > 1 {
                self.end_word();
            }
            if self.full {
                self.new_line()?;
            } else if self.column + wide > width {
                self.move_word()?;
            }
            self.word.push(c);
            self.word_width += wide;
        }
        self.column += wide;
        write!(self.out, "{c}")
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_width = 0;
    }

    fn new_line(&mut self) -> io::Result<()> {
        self.end_word();
        self.column = 0;
        self.full = false;
        writeln!(self.out)
    }

    /// Continues on a new line, and takes the unfinished word along unless it fills its line.
    fn move_word(&mut self) -> io::Result<()> {
        if self.word_width == 0 || self.word_width == self.column {
            return self.new_line();
        }
        // Cursor back to the start of the word; erase to the end of the line.
        writeln!(self.out, "\x1b[{}D\x1b[K", self.word_width)?;
        self.out.write_all(self.word.as_bytes())?;
        self.column = self.word_width;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a terminal shows, without trailing spaces. It fails if a character lies beyond the last column.
    fn shown(bytes: &[u8], columns: usize) -> Vec<String> {
        let text = std::str::from_utf8(bytes).unwrap();
        let mut lines: Vec<Vec<char>> = vec![Vec::new()];
        let mut cursor = 0;
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            let line = lines.last_mut().unwrap();
            match c {
                '\n' => {
                    lines.push(Vec::new());
                    cursor = 0;
                }
                '\x1b' => {
                    assert_eq!(characters.next(), Some('['));
                    let sequence: Vec<char> = characters
                        .by_ref()
                        .take_while(|c| c.is_ascii_digit())
                        .collect();
                    // `take_while` has consumed the final letter: D with a number, K without.
                    match sequence.iter().collect::<String>().parse::<usize>() {
                        Ok(back) => cursor -= back,
                        Err(_) => line.truncate(cursor),
                    }
                }
                c => {
                    line.truncate(cursor);
                    // A wide character takes two cells.
                    for _ in 1..c.width().unwrap_or(0) {
                        line.push('\0');
                    }
                    line.push(c);
                    cursor = line.len();
                    assert!(cursor < columns, "{c:?} in the last column");
                }
            }
        }
        let line = |cells: Vec<char>| {
            let text: String = cells.into_iter().filter(|c| *c != '\0').collect();
            text.trim_end().to_string()
        };
        lines.into_iter().map(line).collect()
    }

    fn wrapped(text: &str, columns: u16, piece: usize) -> Vec<String> {
        let mut out = Vec::new();
        let mut wrapper = Wrapper::new(&mut out, Some(columns));
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(piece) {
            wrapper.push(&piece.iter().collect::<String>()).unwrap();
        }
        shown(&out, columns.into())
    }

    const STORY: &str =
        "Once upon a time, a fox lived in a forest.\n\nIt was called Reynard and it was clever.";

    #[test]
    fn lines_break_between_words_whatever_the_pieces() {
        let lines = [
            "Once upon a",
            "time, a fox",
            "lived in a",
            "forest.",
            "",
            "It was called",
            "Reynard and it",
            "was clever.",
        ];
        for piece in [1, 2, 3, 5, 100] {
            assert_eq!(wrapped(STORY, 15, piece), lines, "{piece}");
        }
    }

    #[test]
    fn no_word_that_fits_is_split() {
        let words: Vec<String> = (1..=40).map(|i| "x".repeat(1 + i * 7 % 19)).collect();
        for columns in 20..60 {
            let lines = wrapped(&words.join(" "), columns, 3);
            let shown: Vec<&str> = lines.iter().flat_map(|line| line.split(' ')).collect();
            assert_eq!(shown, words, "{columns}");
        }
    }

    #[test]
    fn a_word_longer_than_a_line_is_cut() {
        assert_eq!(
            wrapped("see abcdefghijklmnopqrstuvwxyz now", 11, 4),
            ["see", "abcdefghij", "klmnopqrst", "uvwxyz now"]
        );
    }

    #[test]
    fn no_empty_line_follows_a_full_one() {
        // The text ends exactly at the edge, then a space, then a line break.
        assert_eq!(wrapped("abcd efghi \nnext", 11, 1), ["abcd efghi", "next"]);
        assert_eq!(wrapped("abcd efghi  next", 11, 1), ["abcd efghi", "next"]);
        assert_eq!(wrapped("abcd efghi\nnext", 11, 1), ["abcd efghi", "next"]);
    }

    #[test]
    fn code_blocks_stay_as_they_are() {
        let mut out = Vec::new();
        let mut wrapper = Wrapper::new(&mut out, Some(10));
        let code = "```rust\nfn main() { println!(\"hello\"); }\n```\n";
        wrapper.push(code).unwrap();
        wrapper.push("some words after it").unwrap();
        let text = String::from_utf8(out).unwrap();
        let rest = text.strip_prefix(code).unwrap();
        assert_eq!(shown(rest.as_bytes(), 10), ["some", "words", "after it"]);
        // Backticks within a line begin no block.
        assert_eq!(
            wrapped("an `a` ```b``` c\nwords go on", 9, 1),
            ["an `a`", "```b```", "c", "words go", "on"]
        );
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped("水水水水水水", 9, 1), ["水水水水", "水水"]);
        assert_eq!(wrapped("abc 水水水", 9, 1), ["abc 水水", "水"]);
    }

    #[test]
    fn a_pipe_gets_the_text_unchanged() {
        let mut out = Vec::new();
        let mut wrapper = Wrapper::new(&mut out, None);
        wrapper.push(STORY).unwrap();
        wrapper.push("\x1b[0m ").unwrap();
        assert_eq!(out, format!("{STORY}\x1b[0m ").as_bytes());
    }

    #[test]
    fn answers_have_no_escape_sequences_on_a_terminal() {
        let text = "a \x1b[2J\x1b]0;title\x07red \u{9b}31mfox\n```\n\x1b[31mcode\n```\n";
        for piece in 1..20 {
            let lines = wrapped(text, 40, piece);
            assert_eq!(lines, ["a red fox", "```", "code", "```", ""]);
        }
    }

    #[test]
    fn every_piece_is_shown_at_once() {
        let mut out = Vec::new();
        Wrapper::new(&mut out, Some(80))
            .push("unfinished wo")
            .unwrap();
        assert_eq!(out, b"unfinished wo");
    }
}
