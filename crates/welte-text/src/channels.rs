//! Answers in channels: `<|channel|>NAME<|message|>TEXT<|end|>`, with `<|start|>ROLE` before the next message. Such
//! models reason in one channel and answer in another.

use crate::splitter::overlap;

/// The channel of the answer to the user.
pub const FINAL: &str = "final";

/// The marks, as vocabularies with channels spell them.
pub(crate) const MARKS: [&str; 5] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
];

/// Longer channel names are truncated to this many bytes.
const LONGEST_NAME: usize = 64;
/// Longer headers are truncated to this many bytes. A header names the role, the channel and the recipient.
const LONGEST_HEADER: usize = 512;
/// Comes before the recipient in a header.
const RECIPIENT: &str = "to=";

/// A piece of text and its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `final`, `analysis`, `commentary` …
    pub channel: String,
    /// The text.
    pub text: String,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessagePiece {
    /// Number of the message in the answer.
    pub(crate) message: usize,
    pub(crate) channel: String,
    /// The tool that the message is for: `functions.weather`.
    pub(crate) recipient: Option<String>,
    /// Empty at the beginning of a message.
    pub(crate) text: String,
}

/// The part of a message that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The beginning of the answer, as long as it may be ` to=RECIPIENT`. The prompt ends with `<|start|>assistant`.
    Begin,
    /// After `<|start|>`: the role, then perhaps the recipient.
    Role,
    /// Between two messages. Text here is dropped.
    Outside,
    /// The channel's name.
    Name,
    /// Between the channel's name and the text.
    Rest,
    /// The text.
    Body,
}

/// Separates a text by channels. The text may come in pieces of any size.
#[derive(Clone, Debug)]
pub struct Channels {
    part: Part,
    message: usize,
    channel: String,
    recipient: Option<String>,
    /// The header's text since the last mark.
    header: String,
    /// Text that may be the beginning of a mark.
    held: String,
    /// The final message is the last one: it contains no marks.
    ends_with_final: bool,
}

impl Default for Channels {
    /// The state at the beginning of an answer. Text without a channel belongs to `final`.
    fn default() -> Channels {
        Channels {
            part: Part::Begin,
            message: 0,
            channel: FINAL.to_owned(),
            recipient: None,
            header: String::new(),
            held: String::new(),
            ends_with_final: false,
        }
    }
}

impl Channels {
    /// Takes more text and returns what is complete.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        said(self.push_pieces(text))
    }

    /// Returns the rest at the end of the answer.
    pub fn finish(&mut self) -> Vec<Said> {
        said(self.finish_pieces())
    }

    /// From now on the final message is the last one, whatever it contains.
    pub(crate) fn end_with_final(&mut self) {
        self.ends_with_final = true;
    }

    /// As [`Channels::push`], with the messages told apart.
    pub(crate) fn push_pieces(&mut self, text: &str) -> Vec<MessagePiece> {
        if self.ends_with_final
            && self.part == Part::Body
            && self.channel == FINAL
            && self.message > 0
        {
            let mut pieces = Vec::new();
            self.take(text, &mut pieces);
            return pieces;
        }
        self.held.push_str(text);
        let mut pieces = Vec::new();
        loop {
            let marks = MARKS
                .into_iter()
                .filter_map(|mark| Some((self.held.find(mark)?, mark)));
            let Some((at, mark)) = marks.min() else { break };
            let rest = self.held.split_off(at + mark.len());
            self.held.truncate(at);
            let text = std::mem::replace(&mut self.held, rest);
            self.take(&text, &mut pieces);
            self.pass(mark, &mut pieces);
        }
        let beginning = MARKS.into_iter().map(|mark| overlap(&self.held, mark));
        let keep = self.held.len() - beginning.max().unwrap_or(0);
        let held = self.held.split_off(keep);
        let text = std::mem::replace(&mut self.held, held);
        self.take(&text, &mut pieces);
        pieces
    }

    /// As [`Channels::finish`], with the messages told apart.
    pub(crate) fn finish_pieces(&mut self) -> Vec<MessagePiece> {
        let (text, mut pieces) = (std::mem::take(&mut self.held), Vec::new());
        self.take(&text, &mut pieces);
        self.end_beginning(&mut pieces);
        pieces
    }

    /// How many bytes are held back as the possible beginning of a mark.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    fn take(&mut self, text: &str, pieces: &mut Vec<MessagePiece>) {
        match self.part {
            Part::Begin => self.begin(text, pieces),
            Part::Role | Part::Name => self.push_header(text),
            Part::Body if !text.is_empty() => self.say(text, pieces),
            _ => {}
        }
    }

    fn begin(&mut self, text: &str, pieces: &mut Vec<MessagePiece>) {
        for (at, c) in text.char_indices() {
            self.header.push(c);
            let header = self.header.trim_start();
            let may_be_recipient = header.starts_with(RECIPIENT) || RECIPIENT.starts_with(header);
            if !may_be_recipient || self.header.len() >= LONGEST_HEADER {
                self.end_beginning(pieces);
                return self.take(&text[at + c.len_utf8()..], pieces);
            }
        }
    }

    fn push_header(&mut self, text: &str) {
        for c in text.chars() {
            if self.header.len() < LONGEST_HEADER {
                self.header.push(c);
            }
        }
    }

    /// The answer begins without a header.
    fn end_beginning(&mut self, pieces: &mut Vec<MessagePiece>) {
        if self.part == Part::Begin {
            self.part = Part::Body;
            let text = std::mem::take(&mut self.header);
            if !text.is_empty() {
                self.say(&text, pieces);
            }
        }
    }

    fn say(&self, text: &str, pieces: &mut Vec<MessagePiece>) {
        pieces.push(MessagePiece {
            message: self.message,
            channel: self.channel.clone(),
            recipient: self.recipient.clone(),
            text: text.to_owned(),
        });
    }

    fn pass(&mut self, mark: &str, pieces: &mut Vec<MessagePiece>) {
        if self.part == Part::Begin && recipient(&self.header).is_none() {
            self.end_beginning(pieces);
        }
        let header = std::mem::take(&mut self.header);
        let in_header = matches!(
            self.part,
            Part::Begin | Part::Role | Part::Name | Part::Rest
        );
        if self.part == Part::Name {
            // `commentary to=functions.weather`: the channel is the first word.
            let name = header.split_whitespace().next().unwrap_or(FINAL);
            self.channel = first_bytes(name, LONGEST_NAME).to_owned();
        }
        self.recipient = recipient(&header).or(self.recipient.take().filter(|_| in_header));
        self.part = match mark {
            "<|start|>" => {
                self.channel = FINAL.to_owned();
                self.recipient = None;
                Part::Role
            }
            "<|channel|>" => Part::Name,
            "<|constrain|>" if self.part == Part::Body => Part::Body,
            "<|constrain|>" => Part::Rest,
            "<|message|>" => {
                self.message += 1;
                self.say("", pieces);
                Part::Body
            }
            _ => Part::Outside,
        };
    }
}

fn said(pieces: Vec<MessagePiece>) -> Vec<Said> {
    let pieces = pieces.into_iter().filter(|piece| !piece.text.is_empty());
    pieces
        .map(|MessagePiece { channel, text, .. }| Said { channel, text })
        .collect()
}

/// The recipient in `assistant to=functions.weather json`.
fn recipient(header: &str) -> Option<String> {
    let words = header.split_whitespace();
    let name = words
        .filter_map(|word| word.strip_prefix(RECIPIENT))
        .next()?;
    Some(name.to_owned())
}

fn first_bytes(text: &str, max_len: usize) -> &str {
    let end = (0..=max_len.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(channels: &mut Channels, text: &str) -> Vec<(usize, String, Option<String>, String)> {
        let mut all = channels.push_pieces(text);
        all.extend(channels.finish_pieces());
        let piece =
            |piece: MessagePiece| (piece.message, piece.channel, piece.recipient, piece.text);
        all.into_iter().map(piece).collect()
    }

    #[test]
    fn the_beginning_of_a_mark_is_held_back() {
        let mut channels = Channels::default();
        assert_eq!(channels.push_pieces("a<|cha").len(), 1);
        assert_eq!(channels.held(), 5);
        channels.push_pieces("t");
        assert_eq!(channels.held(), 0);
    }

    /// JSON of a schema may contain marks. Before a message they are marks as ever.
    #[test]
    fn a_final_message_that_is_the_last_contains_no_marks() {
        let answer = "<|channel|>final<|message|>a<|end|><|start|>";
        let mut channels = Channels::default();
        channels.end_with_final();
        channels.push_pieces("<|channel|>final<|message|>");
        let piece = |text: &str| (1, FINAL.to_owned(), None, text.to_owned());
        assert_eq!(
            pieces(&mut channels, "a<|end|><|start|>"),
            [piece("a<|end|><|start|>")]
        );
        // Nothing is said about nothing.
        assert_eq!(pieces(&mut channels, ""), []);
        assert_eq!(
            pieces(&mut Channels::default(), answer),
            [piece(""), piece("a")]
        );
        let mut text = Channels::default();
        text.end_with_final();
        text.push_pieces("b ");
        assert_eq!(pieces(&mut text, "c<|channel|>final")[0].3, "c");
        let mut other = Channels::default();
        other.end_with_final();
        other.push_pieces("<|channel|>analysis<|message|>");
        assert_eq!(pieces(&mut other, "a<|end|>b")[0].3, "a");
    }

    #[test]
    fn headers_have_a_longest() {
        // Five bytes are left for `to=` and the name.
        let header = format!("c{}to=abc", " ".repeat(LONGEST_HEADER - 6));
        let said = pieces(
            &mut Channels::default(),
            &format!("<|channel|>{header}<|message|>x"),
        );
        assert_eq!(
            said[0],
            (1, "c".to_owned(), Some("ab".to_owned()), String::new())
        );
        let begin = |name: usize| {
            let text = format!(" to={}<|channel|>c<|message|>x", "n".repeat(name));
            pieces(&mut Channels::default(), &text)
        };
        let longest = LONGEST_HEADER - 1 - " to=".len();
        assert_eq!(begin(longest)[0].2.as_ref().map(String::len), Some(longest));
        // A longer one is text.
        let text = &begin(longest + 1)[0];
        assert_eq!((text.0, text.3.len()), (0, LONGEST_HEADER));
        let name = |length: usize| {
            let text = format!("<|channel|>{}<|message|>x", "é".repeat(length));
            pieces(&mut Channels::default(), &text)[0].1.len()
        };
        assert_eq!(
            (name(31), name(32), name(33)),
            (62, LONGEST_NAME, LONGEST_NAME)
        );
        let odd = format!("<|channel|>x{}<|message|>x", "é".repeat(40));
        assert_eq!(
            pieces(&mut Channels::default(), &odd)[0].1.len(),
            LONGEST_NAME - 1
        );
    }
}
