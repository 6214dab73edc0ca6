//! Answers in channels: `<|channel|>NAME<|message|>TEXT<|end|>`, the next one behind `<|start|>ROLE`. Models that write so
//! think in one channel and answer in another.

use crate::splitter::overlap;

/// What is said to the user comes in this channel.
pub const FINAL: &str = "final";

/// The marks, as the vocabularies that have them spell them.
pub(crate) const MARKS: [&str; 5] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
];

/// The longest name of a channel that is kept.
const LONGEST_NAME: usize = 64;

/// A piece of text with the channel that it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `final`, `analysis`, `commentary` …
    pub channel: String,
    /// What was said there.
    pub text: String,
}

/// Where in a message the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Behind `<|start|>`, or between two messages: no text is meant for anybody.
    Outside,
    /// The channel's name.
    Name,
    /// What follows the name.
    Rest,
    /// What is said.
    Body,
}

/// Takes a text apart by channels, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Channels {
    part: Part,
    channel: String,
    /// May be the beginning of a mark.
    held: String,
}

impl Default for Channels {
    /// At the beginning of an answer. Text that no channel is named for is final.
    fn default() -> Channels {
        Channels {
            part: Part::Body,
            channel: FINAL.to_owned(),
            held: String::new(),
        }
    }
}

impl Channels {
    /// Takes more of the text; gives what can be told now.
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

    /// The rest, at the end of the answer.
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
