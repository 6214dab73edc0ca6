//! What can go wrong, in words that name the place and the remedy.

use crate::Device;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The weights' file or directory.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The model's description.
    #[error(transparent)]
    Model(#[from] welte_models::Error),
    /// The CPU device.
    #[error(transparent)]
    Cpu(#[from] welte_cpu::Error),
    /// The CUDA device.
    #[error(transparent)]
    Cuda(#[from] welte_cuda::Error),
    /// A device was asked for that cannot be used here.
    #[error("--device {device}: {why}; use --device cpu, or auto to take what there is")]
    NoDevice {
        /// Which.
        device: Device,
        /// What is missing.
        why: String,
    },
    /// Tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] welte_text::Error),
    /// A table that breaks the rules: a fault of ours.
    #[error("{origin}: the compiled table is not valid ({problem}); please report this as a bug")]
    Table {
        /// Which model.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// A file beside the weights cannot be used.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// It does not fit.
    #[error("{origin}: needs {need} of memory, {have} available on {device}; {remedy}")]
    Memory {
        /// Which model.
        origin: String,
        /// Where.
        device: Device,
        /// What the plan adds up to.
        need: String,
        /// What the machine has.
        have: String,
        /// What to try.
        remedy: String,
    },
    /// An option's value makes no sense for this model.
    #[error("{option}: {problem}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// More tokens than the context holds.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}, with room needed for at least one more; \
         shorten the prompt or load the model with -c {}", .prompt.saturating_add(256).next_multiple_of(256)
    )]
    ContextFull {
        /// Tokens asked for.
        prompt: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// Nothing to continue.
    #[error("the prompt has no tokens; give at least one (a begin-of-text token will do)")]
    EmptyPrompt,
    /// A token that the model does not know.
    #[error(
        "token {token} is outside the vocabulary of {vocab} tokens; is the tokenizer that of this model?"
    )]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// There is no text side.
    #[error("{0}: has no tokenizer; use a file with a vocabulary, or work with token ids")]
    NoTokenizer(String),
    /// There is no chat template.
    #[error(
        "{0}: has no chat template; give one with --chat-template-file, or complete raw text with --no-chat"
    )]
    NoChatTemplate(String),
    /// Too short a text to score.
    #[error("the text has {tokens} tokens, perplexity over chunks of {context} needs at least {}; use a longer text or a smaller -c", 2 * .context)]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        context: usize,
    },
}

impl Error {
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Error {
        Error::Option {
            option,
            problem: problem.into(),
        }
    }
}
