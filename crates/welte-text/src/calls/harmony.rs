//! Calls in channels, as gpt-oss writes them: a message to `functions.NAME` is a call.

use super::json::{JsonScanner, Scan};
use super::named::function_name;
use super::output::{LONGEST_CALL, Output, Problem};
use super::schema::is_name;
use crate::channels::{Channels, MessagePiece};

/// The channel of the model's reasoning.
const ANALYSIS: &str = "analysis";

/// The message in progress.
#[derive(Clone, Debug)]
enum Kind {
    Text,
    Reasoning,
    Call(JsonScanner),
    /// After a call's arguments.
    CallEnded,
}

/// Takes an answer in channels apart.
#[derive(Clone, Debug)]
pub(super) struct HarmonyParser {
    channels: Channels,
    /// There are tools to call.
    calls: bool,
    message: usize,
    kind: Kind,
    /// The source of the call in progress, and where it begins.
    source: String,
    start: usize,
    /// Bytes taken so far.
    at: usize,
    /// Text has come.
    has_text: bool,
    /// Reasoning has come.
    has_reasoning: bool,
}

impl HarmonyParser {
    pub(super) fn new(calls: bool) -> HarmonyParser {
        HarmonyParser {
            channels: Channels::default(),
            calls,
            message: 0,
            kind: Kind::Text,
            source: String::new(),
            start: 0,
            at: 0,
            has_text: false,
            has_reasoning: false,
        }
    }

    pub(super) fn plain_text(&mut self) {
        self.channels.end_with_final();
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Output) {
        for c in text.chars() {
            self.at += c.len_utf8();
            let pieces = self.channels.push_pieces(c.encode_utf8(&mut [0; 4]));
            let mut at = self.at - self.channels.held();
            at -= pieces.iter().map(|piece| piece.text.len()).sum::<usize>();
            for piece in pieces {
                at = self.piece(&piece, at, out);
            }
        }
    }

    /// The end of the answer. The end token of a call is not part of the text.
    pub(super) fn finish(&mut self, out: &mut Output) {
        let mut at = self.at - self.channels.held();
        for piece in self.channels.finish_pieces() {
            at = self.piece(&piece, at, out);
        }
        self.end_message(self.at, out);
    }

    /// Takes a piece that begins at byte `at` of the answer. Returns where it ends.
    fn piece(&mut self, piece: &MessagePiece, mut at: usize, out: &mut Output) -> usize {
        if piece.message != self.message {
            self.end_message(at, out);
            self.begin_message(piece, at, out);
        }
        for c in piece.text.chars() {
            self.step(c, at, out);
            at += c.len_utf8();
        }
        at
    }

    fn begin_message(&mut self, piece: &MessagePiece, at: usize, out: &mut Output) {
        self.message = piece.message;
        self.start = at;
        let name = piece.recipient.as_deref().map(function_name);
        self.kind = match name {
            Some(name) if self.calls && is_name(name) => {
                out.begin(name);
                Kind::Call(JsonScanner::new())
            }
            _ if piece.channel == ANALYSIS => Kind::Reasoning,
            _ => Kind::Text,
        };
        // A line between this message and an earlier one.
        match self.kind {
            Kind::Reasoning if self.has_reasoning => out.reasoning("\n"),
            Kind::Text if self.has_text => out.text("\n"),
            _ => {}
        }
    }

    fn step(&mut self, c: char, at: usize, out: &mut Output) {
        let mut bytes = [0; 4];
        let letter: &str = c.encode_utf8(&mut bytes);
        match &mut self.kind {
            Kind::Reasoning => {
                self.has_reasoning = true;
                out.reasoning(letter);
            }
            Kind::Text => {
                self.has_text = true;
                out.text(letter);
            }
            Kind::CallEnded if c.is_whitespace() => {}
            Kind::CallEnded => {
                self.kind = Kind::Text;
                self.step(c, at, out);
            }
            Kind::Call(scanner) => {
                let mut delta = String::new();
                let begins = self.source.trim().is_empty();
                let taken = if self.source.len() >= LONGEST_CALL {
                    Err("a shorter call")
                } else if begins && !c.is_whitespace() && c != '{' {
                    Err("'{'")
                } else {
                    scanner.step(c, &mut delta)
                };
                match taken {
                    Ok(scan) => {
                        self.source.push(c);
                        out.arguments(delta.trim_start_matches(|c| begins && c != '{'));
                        if scan == Scan::End {
                            out.end();
                            self.source.clear();
                            self.kind = Kind::CallEnded;
                        }
                    }
                    Err(expected) => {
                        self.fail(expected, Some(c), at, out);
                        self.step(c, at, out);
                    }
                }
            }
        }
    }

    fn end_message(&mut self, at: usize, out: &mut Output) {
        if matches!(self.kind, Kind::Call(_)) {
            self.fail("the rest of the call", None, at, out);
        }
    }

    fn fail(&mut self, expected: &str, found: Option<char>, at: usize, out: &mut Output) {
        let problem = Problem {
            index: None,
            start: self.start,
            at,
            expected: expected.to_owned(),
            found,
        };
        out.fail(problem, &std::mem::take(&mut self.source));
        self.kind = Kind::Text;
    }
}
