//! The syntaxes, and how a chat template tells which one a model uses.

use super::body::Start;
use super::named::Named;
use super::xml::Xml;
use crate::Tokenizer;
use crate::tokenizer::END_MARKERS;

/// A way to write calls.
#[derive(Debug)]
pub struct Syntax {
    /// Names it on a command line or in a configuration.
    pub name: &'static str,
    /// The template must contain all texts of one of these lists.
    pub(super) in_template: &'static [&'static [&'static str]],
    pub(super) openings: &'static [Opening],
    /// Marks after a block of calls. They are dropped.
    pub(super) closings: &'static [&'static str],
    /// An answer that begins with `{` or `[` may be a call.
    pub(super) bare: Option<Start>,
    /// Another call that follows without a mark.
    pub(super) again: Option<Again>,
    /// Answers come in channels.
    pub(super) channels: bool,
}

/// A call that follows another one without a mark.
#[derive(Debug)]
pub(super) struct Again {
    /// Whether it may begin with this character.
    pub(super) begins: fn(char) -> bool,
    pub(super) start: Start,
}

/// A mark that begins a block of calls.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) mark: &'static str,
    pub(super) start: Start,
    /// A token of its own, which no prose contains. It also ends the reasoning.
    pub(super) is_token: bool,
    /// The mark also occurs without a call.
    pub(super) tentative: bool,
}

/// The marks around a model's reasoning.
#[derive(Debug)]
pub struct Reasoning {
    /// Names it on a command line or in a configuration.
    pub name: &'static str,
    /// A template that contains this uses these marks.
    pub(super) in_template: &'static str,
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// The opening mark is a token of its own, which no prose contains.
    pub(super) is_token: bool,
    /// Marks around the text for the user. They are dropped.
    pub(super) ignored: &'static [&'static str],
}

/// How a model writes calls and reasoning.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// How it writes calls.
    pub syntax: &'static Syntax,
    /// How it writes reasoning.
    pub reasoning: &'static Reasoning,
    /// The template contains the mark that opens reasoning, so the model may reason.
    pub template_reasons: bool,
}

const fn token(mark: &'static str, start: Start) -> Opening {
    Opening {
        mark,
        start,
        is_token: true,
        tentative: false,
    }
}

const fn text(mark: &'static str, start: Start) -> Opening {
    Opening {
        is_token: false,
        ..token(mark, start)
    }
}

const fn fence(mark: &'static str) -> Opening {
    Opening {
        tentative: true,
        ..text(mark, Start::Json)
    }
}

const fn syntax(name: &'static str, in_template: &'static [&'static [&'static str]]) -> Syntax {
    Syntax {
        name,
        in_template,
        openings: &[],
        closings: &[],
        bare: None,
        again: None,
        channels: false,
    }
}

const QWEN_XML: Xml = Xml {
    call: "<function=",
    name_end: ">",
    key: "<parameter=",
    key_end: ">",
    value: None,
    value_end: "</parameter>",
    ends: &["</function>", "</tool_call>"],
    lines: true,
};
const SEED_XML: Xml = Xml {
    ends: &["</function>", "</seed:tool_call>"],
    ..QWEN_XML
};
const GLM_XML: Xml = Xml {
    call: "",
    name_end: "\n",
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: Some("<arg_value>"),
    value_end: "</arg_value>",
    ends: &["</tool_call>"],
    lines: false,
};
const MINIMAX_XML: Xml = Xml {
    call: "<invoke name=\"",
    name_end: "\">",
    key: "<parameter name=\"",
    key_end: ">",
    value: None,
    value_end: "</parameter>",
    ends: &["</invoke>", "</minimax:tool_call>"],
    lines: true,
};
const DSML: Xml = Xml {
    call: "<｜DSML｜invoke name=\"",
    name_end: "\">",
    key: "<｜DSML｜parameter name=\"",
    key_end: ">",
    value: None,
    value_end: "</｜DSML｜parameter>",
    ends: &["</｜DSML｜invoke>"],
    lines: false,
};
const MISTRAL: Named = Named {
    begin: &[],
    separator: "[ARGS]",
    id: &["[CALL_ID]"],
    numbered: false,
};
const DEEPSEEK: Named = Named {
    begin: &["<｜tool▁call▁begin｜>"],
    separator: "<｜tool▁sep｜>",
    id: &[],
    numbered: false,
};
const KIMI: Named = Named {
    begin: &["<|tool_call_begin|>"],
    separator: "<|tool_call_argument_begin|>",
    id: &[],
    numbered: true,
};

/// All syntaxes. A template gets the first that fits, so special ones come before general ones.
static SYNTAXES: [Syntax; 21] = [
    Syntax {
        channels: true,
        ..syntax("harmony", &[&["<|channel|>", "<|message|>"]])
    },
    Syntax {
        openings: &[
            token("<｜DSML｜function_calls>", Start::XmlBlock(&DSML)),
            token("<｜DSML｜invoke name=\"", Start::XmlCall(&DSML)),
        ],
        closings: &["</｜DSML｜function_calls>"],
        ..syntax("deepseek-v3.2", &[&["｜DSML｜"]])
    },
    Syntax {
        openings: &[
            token("<｜tool▁calls▁begin｜>", Start::Section(&DEEPSEEK)),
            token("<｜tool▁call▁begin｜>", Start::Named(&DEEPSEEK)),
        ],
        closings: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
        ..syntax("deepseek", &[&["<｜tool▁call▁begin｜>"]])
    },
    Syntax {
        openings: &[
            token("<|tool_calls_section_begin|>", Start::Section(&KIMI)),
            token("<|tool_call_begin|>", Start::Named(&KIMI)),
        ],
        closings: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
        ..syntax("kimi-k2", &[&["<|tool_call_argument_begin|>"]])
    },
    Syntax {
        openings: &[token("<|tool_call>", Start::Gemma("<|\"|>"))],
        closings: &["<tool_call|>", "<|tool_response>"],
        ..syntax("gemma-4", &[&["<|tool_call>"]])
    },
    Syntax {
        openings: &[token("<start_function_call>", Start::Gemma("<escape>"))],
        closings: &["<end_function_call>", "<start_function_response>"],
        ..syntax("function-gemma", &[&["<start_function_call>"]])
    },
    Syntax {
        openings: &[text("<tool_call>", Start::XmlCall(&GLM_XML))],
        closings: &["</tool_call>"],
        ..syntax("glm", &[&["<arg_key>"]])
    },
    Syntax {
        openings: &[
            text("<seed:tool_call>", Start::XmlBlock(&SEED_XML)),
            text("<function=", Start::XmlCall(&SEED_XML)),
        ],
        closings: &["</seed:tool_call>"],
        ..syntax("seed", &[&["<seed:tool_call>"]])
    },
    Syntax {
        openings: &[
            text("<minimax:tool_call>", Start::XmlBlock(&MINIMAX_XML)),
            text("<invoke name=\"", Start::XmlCall(&MINIMAX_XML)),
        ],
        closings: &["</minimax:tool_call>"],
        ..syntax("minimax", &[&["<minimax:tool_call>"]])
    },
    Syntax {
        openings: &[
            text("<tool_call>", Start::XmlBlock(&QWEN_XML)),
            text("<function=", Start::XmlCall(&QWEN_XML)),
        ],
        closings: &["</tool_call>"],
        ..syntax("qwen-xml", &[&["<function=", "<parameter="]])
    },
    Syntax {
        openings: &[token("[TOOL_CALLS]", Start::Mistral(&MISTRAL))],
        ..syntax("mistral", &[&["[TOOL_CALLS]"], &["[INST]"]])
    },
    Syntax {
        openings: &[token("<|START_ACTION|>", Start::Json)],
        closings: &["<|END_ACTION|>"],
        ..syntax("command-r7b", &[&["<|START_ACTION|>"]])
    },
    Syntax {
        openings: &[text("<TOOLCALL>", Start::Json)],
        closings: &["</TOOLCALL>"],
        ..syntax("nemotron", &[&["<TOOLCALL>"]])
    },
    Syntax {
        openings: &[token("<|tool_call_start|>", Start::Llama)],
        closings: &["<|tool_call_end|>"],
        ..syntax(
            "lfm2",
            &[
                &["<|tool_call_start|>"],
                &["<|tool_list_start|>"],
                &["List of tools: "],
            ],
        )
    },
    // Before Llama: fine-tunes of Llama with Hermes calls keep parts of its template.
    Syntax {
        openings: &[text("<tool_call>", Start::Json)],
        closings: &["</tool_call>"],
        again: Some(Again {
            begins: |c| c == '{',
            start: Start::Json,
        }),
        ..syntax("hermes", &[&["<tool_call>"]])
    },
    Syntax {
        openings: &[
            token("<|tool_call|>", Start::Json),
            text("<tool_call>", Start::Json),
        ],
        closings: &["</tool_call>", "<|/tool_call|>"],
        ..syntax("granite", &[&["<|tool_call|>"], &["<|start_of_role|>"]])
    },
    Syntax {
        openings: &[
            token("<|python_tag|>", Start::Llama),
            // Llama 4
            token("<|python_start|>", Start::Llama),
        ],
        closings: &[";", "<|python_end|>"],
        bare: Some(Start::Llama),
        ..syntax(
            "llama",
            &[
                &["<|python_tag|>"],
                &["<|start_header_id|>"],
                &["<|header_start|>"],
            ],
        )
    },
    Syntax {
        openings: &[text("<tool_calls>", Start::Json)],
        closings: &["</tool_calls>"],
        ..syntax("hunyuan", &[&["<tool_calls>", "<answer>"]])
    },
    Syntax {
        openings: &[text("<tool_calls>", Start::Json)],
        closings: &["</tool_calls>"],
        ..syntax("apriel", &[&["<tool_calls>"]])
    },
    Syntax {
        openings: &[
            text("```tool_code", Start::Python),
            fence("```tool_call"),
            fence("```json"),
        ],
        closings: &["```"],
        bare: Some(Start::Llama),
        again: Some(Again {
            begins: |c| c.is_alphabetic() || c == '_',
            start: Start::Python,
        }),
        ..syntax("gemma", &[&["<start_of_turn>"]])
    },
    syntax("none", &[&[]]),
];

const fn reasoning(name: &'static str, open: &'static str, close: &'static str) -> Reasoning {
    Reasoning {
        name,
        in_template: open,
        open,
        close,
        is_token: false,
        ignored: &[],
    }
}

/// All marks around reasoning. A template gets the first that fits.
static REASONINGS: [Reasoning; 11] = [
    Reasoning {
        is_token: true,
        ..reasoning("mistral", "[THINK]", "[/THINK]")
    },
    Reasoning {
        is_token: true,
        ..reasoning("gemma-4", "<|channel>thought", "<channel|>")
    },
    Reasoning {
        is_token: true,
        ..reasoning("command-r7b", "<|START_THINKING|>", "<|END_THINKING|>")
    },
    reasoning("seed", "<seed:think>", "</seed:think>"),
    reasoning("minimax-m3", "<mm:think>", "</mm:think>"),
    reasoning("reasoning", "<reasoning>", "</reasoning>"),
    reasoning("thought", "<thought>", "</thought>"),
    reasoning(
        "granite-3.2",
        "Here is my thought process:",
        "Here is my response:",
    ),
    Reasoning {
        in_template: "<response></response>",
        ignored: &["<response>", "</response>"],
        ..reasoning("granite", "<think>", "</think>")
    },
    Reasoning {
        in_template: "<answer>",
        ignored: &["<answer>", "</answer>"],
        ..reasoning("hunyuan", "<think>", "</think>")
    },
    // Also without a trace in the template: many fine-tunes think without telling it.
    Reasoning {
        in_template: "",
        ..reasoning("think", "<think>", "</think>")
    },
];

impl Syntax {
    /// All syntaxes.
    pub fn all() -> &'static [Syntax] {
        &SYNTAXES
    }

    /// The syntax of this name.
    pub fn named(name: &str) -> Option<&'static Syntax> {
        SYNTAXES.iter().find(|syntax| syntax.name == name)
    }

    fn fits(&self, template: &str) -> bool {
        self.in_template
            .iter()
            .any(|texts| texts.iter().all(|text| template.contains(text)))
    }

    fn marks(&self) -> Vec<&'static str> {
        let mut marks: Vec<&str> = self.closings.to_vec();
        for opening in self.openings {
            marks.push(opening.mark);
            match opening.start {
                Start::Mistral(named) | Start::Section(named) | Start::Named(named) => {
                    marks.push(named.separator);
                    marks.extend(named.begin);
                    marks.extend(named.id);
                }
                Start::XmlBlock(xml) | Start::XmlCall(xml) => {
                    marks.extend([xml.call, xml.key, xml.key_end, xml.value_end]);
                    marks.extend(xml.value);
                    marks.extend(xml.ends);
                }
                Start::Gemma(quote) => marks.push(quote),
                Start::Json | Start::Llama | Start::Python => {}
            }
        }
        marks
    }
}

impl Reasoning {
    /// All marks around reasoning.
    pub fn all() -> &'static [Reasoning] {
        &REASONINGS
    }

    /// The marks of this name.
    pub fn named(name: &str) -> Option<&'static Reasoning> {
        REASONINGS.iter().find(|reasoning| reasoning.name == name)
    }
}

/// In templates whose calls have the outer marks of a known syntax and are written in none: those of MiniMax M3.
const UNKNOWN: &str = "]<]minimax[>[";

impl Format {
    /// The format of a model with this chat template.
    pub fn of_template(template: &str) -> Format {
        let known = !template.contains(UNKNOWN);
        let mut syntaxes = SYNTAXES.iter().filter(|_| known);
        let syntax = syntaxes.find(|syntax| syntax.fits(template));
        let reasoning = REASONINGS.iter().find(|r| template.contains(r.in_template));
        let reasoning = reasoning.unwrap_or(&REASONINGS[REASONINGS.len() - 1]);
        Format {
            syntax: syntax.unwrap_or(&SYNTAXES[SYNTAXES.len() - 1]),
            reasoning,
            template_reasons: template.contains(reasoning.open),
        }
    }

    /// The format for tools that the template does not know and [`ChatTemplate::render_generic`](crate::ChatTemplate) explains.
    pub fn generic(self) -> Format {
        Format {
            syntax: Syntax::named("hermes").unwrap_or(self.syntax),
            ..self
        }
    }

    /// The format with a syntax of this name. Reasoning has the marks of the same name, or else `<think>`.
    pub fn named(name: &str) -> Option<Format> {
        Some(Format {
            syntax: Syntax::named(name)?,
            reasoning: Reasoning::named(name).or_else(|| Reasoning::named("think"))?,
            template_reasons: false,
        })
    }

    /// Whether a rendered prompt ends within the reasoning.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.reasoning.open)
    }

    /// The marks of reasoning and calls, apart from those that end an answer.
    pub(crate) fn own_marks(&self) -> Vec<String> {
        let reasoning = self.reasoning;
        let mut marks = self.syntax.marks();
        marks.extend([reasoning.open, reasoning.close]);
        marks.extend(reasoning.ignored);
        marks.retain(|mark| !END_MARKERS.contains(mark));
        marks.into_iter().map(str::to_owned).collect()
    }

    /// What comes between a rendered prompt and text of an answer: this reasoning, if there is any, and its marks.
    pub fn before_text(&self, prompt: &str, reasoning: &str) -> String {
        let Reasoning { open, close, .. } = self.reasoning;
        match (self.opens_reasoning(prompt), reasoning.is_empty()) {
            (true, _) => format!("{reasoning}{close}\n\n"),
            (false, false) => format!("{open}\n{reasoning}\n{close}\n\n"),
            (false, true) => String::new(),
        }
    }

    /// The end of the reasoning that a rendered prompt begins; empty if it begins none.
    pub fn end_of_reasoning(&self, prompt: &str) -> &'static str {
        if self.opens_reasoning(prompt) {
            self.reasoning.close
        } else {
            ""
        }
    }

    /// The control tokens that the parser must see. Detokenising leaves control tokens out, so whoever feeds the parser
    /// inserts the spelling of these ([`Tokenizer::token_text`]).
    pub fn control_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let reasoning = self.reasoning;
        let mut marks = self.syntax.marks();
        marks.extend([reasoning.open, reasoning.close]);
        marks.extend(reasoning.ignored);
        // Some marks are a token and a word: `<|channel>thought`.
        let mut ids: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| tokenizer.is_control(id))
            .filter(|&id| {
                let text = tokenizer.token_text(id);
                !text.is_empty() && marks.iter().any(|mark| mark.contains(text))
            })
            .collect();
        ids.dedup();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark that begins another one would hide it.
    #[test]
    fn no_mark_begins_another_one() {
        for syntax in Syntax::all() {
            let openings = syntax.openings.iter().map(|opening| opening.mark);
            let closings = syntax.closings.to_vec();
            for marks in [openings.collect(), closings] {
                for mark in &marks {
                    let hidden = marks.iter().filter(|other| other.starts_with(mark));
                    assert_eq!(hidden.count(), 1, "{}: {mark}", syntax.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Syntax::all().iter().map(|syntax| syntax.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
