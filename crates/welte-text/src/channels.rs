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

/// Longer channel names are truncated to this many characters.
const LONGEST_NAME: usize = 64;

/// A piece of text and its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `final`, `analysis`, `commentary` …
    pub channel: String,
    /// The text.
    pub text: String,
}

/// The part of a message that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Behind `<|start|>` or between two messages. Text here is dropped.
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
    channel: String,
    /// Text that may be the beginning of a mark.
    held: String,
}

impl Default for Channels {
    /// The state at the beginning of an answer. Text without a channel belongs to `final`.
    fn default() -> Channels {
        Channels {
            part: Part::Body,
            channel: FINAL.to_owned(),
            held: String::new(),
        }
    }
}

impl Channels {
    /// Takes more text and returns what is complete.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        self.held.push_str(text);
        let mut said = Vec::new();
        loop {
            let marks = MARKS
                .into_iter()
                .filter_map(|mark| Some((self.held.find(mark)?, mark)));
            let Some((at, mark)) = marks.min() else { break };
            let rest = self.held.split_off(at + mark.len());
            self.held.truncate(at);
            let text = std::mem::replace(&mut self.held, rest);
            self.take(text, &mut said);
            self.pass(mark);
        }
        let beginning = MARKS.into_iter().map(|mark| overlap(&self.held, mark));
        let keep = self.held.len() - beginning.max().unwrap_or(0);
        let held = self.held.split_off(keep);
        let text = std::mem::replace(&mut self.held, held);
        self.take(text, &mut said);
        said
    }

    /// Returns the rest at the end of the answer.
    pub fn finish(&mut self) -> Vec<Said> {
        let (text, mut said) = (std::mem::take(&mut self.held), Vec::new());
        self.take(text, &mut said);
        said
    }

    fn take(&mut self, text: String, said: &mut Vec<Said>) {
        match self.part {
            Part::Name => {
                let room = LONGEST_NAME.saturating_sub(self.channel.len());
                self.channel.extend(text.chars().take(room));
            }
            Part::Body if !text.is_empty() => said.push(Said {
                channel: self.channel.clone(),
                text,
            }),
            _ => {}
        }
    }

    fn pass(&mut self, mark: &str) {
        self.part = match mark {
            "<|channel|>" => {
                self.channel.clear();
                Part::Name
            }
            "<|constrain|>" if self.part != Part::Body => Part::Rest,
            "<|message|>" => {
                // `commentary to=functions.weather`: the channel is the first word.
                let name = self.channel.split_whitespace().next().unwrap_or(FINAL);
                self.channel = name.to_owned();
                Part::Body
            }
            "<|constrain|>" => Part::Body,
            _ => Part::Outside,
        };
    }
}
