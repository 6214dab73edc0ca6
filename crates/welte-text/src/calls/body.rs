//! A block of calls, after the mark that begins it.

use super::envelope::Envelope;
use super::gemma::GemmaCall;
use super::json::push_escaped;
use super::named::{Named, NamedCall};
use super::output::Output;
use super::pythonic::PythonCalls;
use super::schema::Tool;
use super::step::{Step, Taken};
use super::xml::{Xml, XmlCall};

/// Tools that take source code. Llama writes it without an envelope.
const CODE_TOOLS: [&str; 3] = ["code_interpreter", "python", "ipython"];

/// How a block begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// JSON objects.
    Json,
    /// JSON objects, a call in Python's form, or source code.
    Llama,
    /// JSON objects, or a name and a JSON object.
    Mistral(&'static Named),
    /// A section of named calls.
    Section(&'static Named),
    /// A named call.
    Named(&'static Named),
    /// A block of XML.
    XmlBlock(&'static Xml),
    /// A call in XML, after the mark before its name.
    XmlCall(&'static Xml),
    /// Gemma 4, with its quotation mark.
    Gemma(&'static str),
    /// Calls in Python's form.
    Python,
}

/// Reads a block.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Json(Envelope),
    Named(NamedCall),
    Xml(XmlCall),
    Gemma(GemmaCall),
    Python(PythonCalls),
    /// Source code up to the end of the answer.
    Code,
    /// The family is not known before more text has come.
    Undecided {
        start: Start,
        tentative: bool,
        text: String,
    },
}

impl Body {
    pub(super) fn new(start: Start, tentative: bool) -> Body {
        match start {
            Start::Json => Body::Json(Envelope::new(tentative)),
            Start::Llama | Start::Mistral(_) => Body::Undecided {
                start,
                tentative,
                text: String::new(),
            },
            Start::Section(syntax) => Body::Named(NamedCall::new(syntax, true)),
            Start::Named(syntax) => Body::Named(NamedCall::new(syntax, false)),
            Start::XmlBlock(syntax) => Body::Xml(XmlCall::new(syntax, true)),
            Start::XmlCall(syntax) => Body::Xml(XmlCall::new(syntax, false)),
            Start::Gemma(quote) => Body::Gemma(GemmaCall::new(quote)),
            Start::Python => Body::Python(PythonCalls::new(tentative)),
        }
    }

    pub(super) fn step(&mut self, c: char, tools: &[Tool], out: &mut Output) -> Taken {
        match self {
            Body::Json(json) => json.step(c, tools, out),
            Body::Named(call) => call.step(c, out),
            Body::Xml(call) => call.step(c, tools, out),
            Body::Gemma(call) => call.step(c, out),
            Body::Python(calls) => calls.step(c, tools, out),
            Body::Code => {
                let mut json = String::new();
                push_escaped(c, &mut json);
                out.arguments(&json);
                Ok(Step::More)
            }
            Body::Undecided {
                start,
                tentative,
                text,
            } => {
                let decided = decide(*start, *tentative, text, c, tools, out);
                text.push(c);
                let Some(body) = decided else {
                    return Ok(Step::More);
                };
                let text = std::mem::take(text);
                *self = body;
                let mut step = Step::More;
                for c in text.chars() {
                    step = self.step(c, tools, out)?;
                }
                Ok(step)
            }
        }
    }

    /// Ends the block at the end of the answer. Returns whether that completes a call.
    pub(super) fn finish(&mut self, out: &mut Output) -> bool {
        let code = matches!(self, Body::Code);
        if code {
            out.arguments("\"}");
            out.end();
        }
        code
    }
}

/// The family of a block that begins with `text` and `c`; `None` if more text is needed.
fn decide(
    start: Start,
    tentative: bool,
    text: &str,
    c: char,
    tools: &[Tool],
    out: &mut Output,
) -> Option<Body> {
    let text = text.trim_start();
    if c.is_whitespace() && matches!(text, "" | "[") {
        return None;
    }
    if let Start::Mistral(syntax) = start {
        return Some(match c {
            '{' | '[' => Body::new(Start::Json, tentative),
            _ => Body::new(Start::Named(syntax), tentative),
        });
    }
    match (text, c) {
        (_, '{') if matches!(text.trim_end(), "" | "[") => Some(Body::new(Start::Json, tentative)),
        ("", '[') => None,
        _ if text.starts_with('[') => Some(Body::new(Start::Python, tentative)),
        _ if c.is_alphanumeric() || matches!(c, '_' | '.') => None,
        _ => {
            let call =
                c == '(' && (text.ends_with(".call") || tools.iter().any(|t| t.name == text));
            let code = tools
                .iter()
                .find(|tool| CODE_TOOLS.contains(&tool.name.as_str()));
            match code {
                Some(tool) if !call => {
                    out.begin(&tool.name);
                    out.arguments("{\"code\": \"");
                    Some(Body::Code)
                }
                _ => Some(Body::new(Start::Python, tentative)),
            }
        }
    }
}
