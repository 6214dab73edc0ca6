//! Tool calls and reasoning in the text of an answer.
//!
//! ```
//! use welte_text::calls::{CallParser, Event, Format, Tool};
//!
//! let format = Format::named("hermes").unwrap();
//! let tools = vec![Tool { name: "weather".into(), ..Tool::default() }];
//! let mut parser = CallParser::new(format, tools);
//! let mut events = parser.push("<think>Rain?</think>\n<tool_call>{\"name\": \"weather\", \"argu");
//! events.extend(parser.push("ments\": {\"place\": \"Bergen\"}}</tool_call>"));
//! events.extend(parser.finish());
//! assert_eq!(events[0], Event::Reasoning("Rain?".into()));
//! assert_eq!(events[1], Event::CallBegin { index: 0, name: "weather".into() });
//! assert_eq!(events[2], Event::CallArguments { index: 0, delta: "{\"place\": \"Bergen\"}".into() });
//! assert_eq!(events[3], Event::CallEnd { index: 0 });
//! ```

mod alone;
mod body;
mod envelope;
mod form;
mod format;
mod gemma;
mod harmony;
mod json;
mod marks;
mod named;
mod output;
mod parser;
mod pythonic;
mod schema;
mod step;
mod validate;
mod xml;

pub use form::{AnswerForm, Contents, Form};
pub use format::{Format, Reasoning, Syntax};
pub use output::{Answer, Call, Event, Problem};
pub use schema::Tool;

use alone::Alone;
use harmony::HarmonyParser;
use output::Output;
use parser::MarkParser;

/// Takes an answer apart while the model writes it.
///
/// Calls are only looked for if there are tools. A malformed call comes back as text, with an [`Event::Problem`].
/// An answer that is nothing but calls of tools is these calls, even if it lacks the marks of its syntax; its text is held
/// back while that is possible. The events do not depend on how the text is cut, apart from the length of their pieces.
#[derive(Clone, Debug)]
pub struct CallParser {
    tools: Vec<Tool>,
    output: Output,
    syntax: SyntaxParser,
    /// The text so far, if the answer can still be a call without marks.
    alone: Option<Alone>,
}

#[derive(Clone, Debug)]
enum SyntaxParser {
    Marks(MarkParser),
    Harmony(HarmonyParser),
}

impl CallParser {
    /// A parser for an answer that begins outside the reasoning.
    pub fn new(format: Format, tools: Vec<Tool>) -> CallParser {
        CallParser::begin(format, tools, false)
    }

    /// A parser for the answer to this rendered prompt. Many templates end the prompt with the mark that opens the
    /// reasoning, so the answer does not contain it.
    pub fn after_prompt(format: Format, tools: Vec<Tool>, prompt: &str) -> CallParser {
        CallParser::begin(format, tools, format.opens_reasoning(prompt))
    }

    fn begin(format: Format, tools: Vec<Tool>, in_reasoning: bool) -> CallParser {
        let calls = !tools.is_empty();
        let syntax = if format.syntax.channels {
            SyntaxParser::Harmony(HarmonyParser::new(calls))
        } else {
            SyntaxParser::Marks(MarkParser::new(format, calls, in_reasoning))
        };
        CallParser {
            alone: calls.then(Alone::new),
            tools,
            output: Output::default(),
            syntax,
        }
    }

    /// Hands out each call only when it is complete, so that a malformed call leaves no events but its problem and text.
    pub fn whole_calls(mut self) -> CallParser {
        self.output.hold_calls();
        self
    }

    /// Takes everything after the first visible text as text: an answer whose text has a form of its own may contain marks.
    pub fn plain_text(mut self) -> CallParser {
        self.alone = None;
        match &mut self.syntax {
            SyntaxParser::Marks(marks) => marks.plain_text(),
            SyntaxParser::Harmony(harmony) => harmony.plain_text(),
        }
        self
    }

    /// Takes more of the answer. Returns everything that is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        match &mut self.syntax {
            SyntaxParser::Marks(marks) => marks.push(text, &self.tools, &mut self.output),
            SyntaxParser::Harmony(harmony) => harmony.push(text, &mut self.output),
        }
        self.ready()
    }

    /// Returns the rest, at the end of the answer. A call that is incomplete is malformed.
    pub fn finish(&mut self) -> Vec<Event> {
        match &mut self.syntax {
            SyntaxParser::Marks(marks) => marks.finish(&mut self.output),
            SyntaxParser::Harmony(harmony) => harmony.finish(&mut self.output),
        }
        let mut ready = self.ready();
        if let Some(alone) = self.alone.take() {
            alone.finish(&mut ready);
        }
        ready
    }

    /// The events that are certain.
    fn ready(&mut self) -> Vec<Event> {
        let mut events = self.output.take().into_iter();
        let mut ready = Vec::new();
        if let Some(mut alone) = self.alone.take() {
            let other = events.find(|event| !alone.take(event, &self.tools, &mut ready));
            let Some(other) = other else {
                self.alone = Some(alone);
                return ready;
            };
            alone.give_up(&mut ready);
            if !matches!(other, Event::Text(_)) {
                ready.push(other);
            }
        }
        ready.extend(events);
        ready
    }

    /// A complete answer.
    pub fn parse(mut self, text: &str) -> Answer {
        let mut answer = Answer::default();
        answer.add(self.push(text));
        answer.add(self.finish());
        answer
    }
}
