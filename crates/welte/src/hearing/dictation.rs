//! How language models that hear are asked for a transcript, and what they answer.

use crate::Error;
use crate::speech::{language_code, language_name};
use welte_text::Tokenizer;

/// How a family is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dictation {
    /// Qwen3-ASR: a chat whose system message has names and spellings. The answer begins with the language, and may be given it.
    Qwen3Asr,
    /// Voxtral: a token in place of a question, before it perhaps the language.
    Voxtral,
    /// Granite Speech: a chat with a question after the sound.
    GraniteSpeech,
    /// GLM-ASR: a chat with a question after the sound.
    GlmAsr,
    /// LFM2-Audio: a chat whose system message asks for it.
    Lfm2Audio,
}

/// What a model has written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dictated {
    /// The English name of the language, if the model says it.
    pub language: Option<String>,
    /// The text.
    pub text: String,
}

/// Between the language and the text of Qwen3-ASR.
pub(super) const ASR_TEXT: &str = "<asr_text>";
/// The languages of Qwen3-ASR.
const OF_QWEN: [&str; 30] = [
    "ar", "yue", "zh", "cs", "da", "nl", "en", "tl", "fi", "fr", "de", "el", "hi", "hu", "id",
    "it", "ja", "ko", "mk", "ms", "fa", "pl", "pt", "ro", "ru", "es", "sv", "th", "tr", "vi",
];

impl Dictation {
    /// The tokens before and after the sound with its own marks. Names and spellings (`prompt`) cannot spell control tokens.
    pub(crate) fn around(
        self,
        tokenizer: &Tokenizer,
        language: Option<&str>,
        prompt: Option<&str>,
    ) -> Result<[Vec<u32>; 2], Error> {
        let marks = |text: &str| tokenizer.encode(text, false, true);
        let language = language.map(|asked| self.language(asked)).transpose()?;
        match self {
            Dictation::Qwen3Asr => {
                let mut before = tokenizer.encode("<|im_start|>system\n", true, true)?;
                before.extend(tokenizer.encode(prompt.unwrap_or_default(), false, false)?);
                before.extend(marks("<|im_end|>\n<|im_start|>user\n")?);
                let begun = language.map(|name| format!("language {name}{ASR_TEXT}"));
                let after = format!(
                    "<|im_end|>\n<|im_start|>assistant\n{}",
                    begun.unwrap_or_default()
                );
                Ok([before, marks(&after)?])
            }
            Dictation::GraniteSpeech => {
                self.takes_no(prompt)?;
                let before = "<|start_of_role|>user<|end_of_role|>";
                let after = "can you transcribe the speech into a written format?<|end_of_text|>\n\
                    <|start_of_role|>assistant<|end_of_role|>";
                Ok([tokenizer.encode(before, true, true)?, marks(after)?])
            }
            Dictation::GlmAsr => {
                self.takes_no(prompt)?;
                let after = "<|user|>\nPlease transcribe this audio into text<|assistant|>\n";
                let before = tokenizer.encode("<|user|>\n", true, true)?;
                Ok([before, marks(after)?])
            }
            Dictation::Lfm2Audio => {
                self.takes_no(prompt)?;
                let before = "<|im_start|>system\nPerform ASR.<|im_end|>\n<|im_start|>user\n";
                let after = "<|im_end|>\n<|im_start|>assistant\n";
                Ok([tokenizer.encode(before, true, true)?, marks(after)?])
            }
            Dictation::Voxtral => {
                self.takes_no(prompt)?;
                let language = language.map(|code| format!("lang:{code}"));
                let after = format!("[/INST]{}[TRANSCRIBE]", language.unwrap_or_default());
                Ok([tokenizer.encode("[INST]", true, true)?, marks(&after)?])
            }
        }
    }

    /// Refuses a prompt.
    fn takes_no(self, prompt: Option<&str>) -> Result<(), Error> {
        match prompt {
            None | Some("") => Ok(()),
            Some(_) => Err(Error::Speech {
                field: "prompt",
                problem: "is not supported by this model; it takes none".into(),
            }),
        }
    }

    /// What the model calls a language.
    fn language(self, asked: &str) -> Result<String, Error> {
        let code = language_code(asked);
        let name = |code: &str| match code {
            "tl" => "Filipino".to_string(),
            code => {
                let name = language_name(code);
                name[..1].to_uppercase() + &name[1..]
            }
        };
        let found = match self {
            Dictation::Voxtral => code.map(str::to_string),
            Dictation::Qwen3Asr => code.filter(|code| OF_QWEN.contains(code)).map(name),
            Dictation::GraniteSpeech | Dictation::GlmAsr | Dictation::Lfm2Audio => None,
        };
        found.ok_or_else(|| {
            let shown: String = asked.chars().filter(|c| !c.is_control()).take(40).collect();
            let known = match self {
                Dictation::Voxtral => "give a code such as en, or an English name".to_string(),
                Dictation::Qwen3Asr => format!("it knows {}", OF_QWEN.map(name).join(", ")),
                Dictation::GraniteSpeech | Dictation::GlmAsr | Dictation::Lfm2Audio => {
                    "leave it out: the model hears it".to_string()
                }
            };
            Error::Speech {
                field: "language",
                problem: format!("'{shown}' is not a language of this model; {known}"),
            }
        })
    }
}

/// The code of a language that a model names in English.
pub(super) fn code_of(name: &str) -> Option<&'static str> {
    match name {
        "Filipino" => Some("tl"),
        name => language_code(name),
    }
}
