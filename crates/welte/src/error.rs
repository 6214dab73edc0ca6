//! What can go wrong, in words that name the model and the request. A caller that knows a remedy matches the variant.

use std::sync::Arc;
use welte_device::DeviceId;
use welte_table::{Format, human};

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The weights' file or directory.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The model's description.
    #[error(transparent)]
    Model(#[from] welte_models::Error),
    /// Tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] welte_text::Error),
    /// A picture of a request.
    #[error(transparent)]
    Picture(#[from] welte_vision::Error),
    /// The sound of a request.
    #[error(transparent)]
    Audio(#[from] welte_audio::Error),
    /// What was asked of a model of speech.
    #[error("{field}: {problem}")]
    Speech {
        /// The option.
        field: &'static str,
        /// What is wrong, and what is taken.
        problem: String,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] welte_device::Error),
    /// A call of the device failed. All requests that took part in it get its error.
    #[error(transparent)]
    Fault(Arc<welte_device::Error>),
    /// The engine has as many requests as it may have.
    #[error("the engine is busy: {queue} requests are waiting already")]
    Busy {
        /// Requests that may wait.
        queue: usize,
    },
    /// The deadline passed before the request could begin.
    #[error("the deadline passed before the request could begin")]
    Deadline,
    /// The model gives no vectors of texts.
    #[error(
        "{origin} gives no embeddings: it was loaded without them, it scores pairs of texts, or its vectors are sparse"
    )]
    NoEmbeddings {
        /// Which model.
        origin: String,
    },
    /// The model gives no sparse vectors of texts.
    #[error("{origin} gives no sparse vectors: {why}")]
    NoSparse {
        /// Which model.
        origin: String,
        /// What it lacks.
        why: &'static str,
    },
    /// The model has no prompt of this name.
    #[error("no prompt is called '{name}'; the model's prompts: {known}")]
    NoSuchPrompt {
        /// The name.
        name: String,
        /// The names that it has.
        known: String,
    },
    /// A pooling was asked for, but a classifier takes the rows that it was trained with.
    #[error("{origin} scores pairs of texts, which --pooling cannot change; leave it out")]
    ScorePooling {
        /// Which model.
        origin: String,
    },
    /// The model leaves prompts out of its vectors, which this program cannot.
    #[error(
        "{origin}: prompts are left out of the vector, which is supported with mean pooling and dense layers without activation only"
    )]
    PromptPooling {
        /// Which model.
        origin: String,
    },
    /// Whoever asked for the load has ended it.
    #[error("the load was ended")]
    LoadEnded,
    /// The model generates no text.
    #[error("{origin} generates no text: it computes vectors of texts, or scores of pairs")]
    NoText {
        /// Which model.
        origin: String,
    },
    /// The model gives no scores of pairs of texts.
    #[error("{origin} gives no scores: it was loaded without them, or it is not a reranker")]
    NoScores {
        /// Which model.
        origin: String,
    },
    /// The engine has ended, and the request with it.
    #[error("the engine has stopped{}", .why.as_ref().map_or(String::new(), |why| format!(": {why}")))]
    EngineStopped {
        /// Why, if nobody asked for it.
        why: Option<String>,
    },
    /// No device has this name.
    #[error("{name:?} is not a device; the devices are {}", .known.join(", "))]
    UnknownDevice {
        /// The name given.
        name: String,
        /// The names that are understood; `cuda:N` stands for any number.
        known: Vec<String>,
    },
    /// A name of a device that can be planned for alone.
    #[error("{name} names a GPU to plan for; to load a model, name a device of this machine")]
    NotHere {
        /// The name given.
        name: &'static str,
    },
    /// The device lacks something that the model needs.
    #[error("{origin}: {device} does not support what this model needs: {what}")]
    Unsupported {
        /// Which model.
        origin: String,
        /// Which device.
        device: DeviceId,
        /// What it lacks.
        what: String,
    },
    /// An adapter cannot be loaded, unloaded or used.
    #[error("adapter '{name}': {problem}")]
    Adapter {
        /// Its name.
        name: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The compiled program breaks a rule: a fault of ours.
    #[error("{origin}: the compiled program is not valid ({problem}); please report this as a bug")]
    Program {
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
        /// What is wrong.
        problem: String,
    },
    /// The model does not fit in the device's memory.
    #[error("{origin}: needs {} of memory, {} available on {device}{}", human(*.need), human(*.have), DealtMemory::said(.dealt))]
    Memory {
        /// Which model.
        origin: String,
        /// Which device.
        device: DeviceId,
        /// Bytes that the plan adds up to.
        need: u64,
        /// Bytes that are available.
        have: u64,
        /// The longest context that would fit, in steps of 256 positions; `None` if none does.
        fits_context: Option<u32>,
        /// The fewest layers whose experts must be on the CPU ([`LoadOptions::cpu_experts`](crate::LoadOptions)) for the
        /// rest to fit; `None` if that does not help.
        fits_cpu_experts: Option<u32>,
        /// What the fullest of several devices would need, if dealing the model to them does not help either.
        dealt: Option<DealtMemory>,
    },
    /// Experts shall be on the CPU, and the model has none.
    #[error("{origin}: has no experts that could be on the CPU")]
    NoExperts {
        /// Which model.
        origin: String,
    },
    /// The model cannot be dealt to ranks in this way.
    #[error("ranks: {why}")]
    Ranks {
        /// Why not.
        why: String,
    },
    /// Experts shall be on the CPU, and all else is there too.
    #[error("the experts are on the CPU already: the device is the CPU")]
    ExpertsOnCpu,
    /// The cache cannot have this format.
    #[error("the cache cannot be in {}; it can be in F16 or Q8_0", .format.name())]
    CacheFormat {
        /// The format given.
        format: Format,
    },
    /// A sampling parameter is out of its range.
    #[error("{field} is {value}; it must be {range}")]
    Sampling {
        /// Field of [`Sampling`](crate::Sampling).
        field: &'static str,
        /// The value given.
        value: f32,
        /// The values that make sense.
        range: welte_table::Range,
    },
    /// The bias of a token is not a number.
    #[error("the bias of token {token} is not a number")]
    Bias {
        /// Which token.
        token: u32,
    },
    /// A constraint that cannot be enforced.
    #[error("{kind}{}: {problem}", .at.as_ref().map_or(String::new(), |at| format!(" at \"{at}\"")))]
    Constraint {
        /// What it is: a JSON schema, say.
        kind: &'static str,
        /// JSON pointer to the part of a schema that cannot be enforced, if it is known.
        at: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
    /// A constraint that was accepted could not be followed to its end.
    #[error("the answer cannot go on within its constraint: {problem}")]
    Guidance {
        /// Why.
        problem: String,
    },
    /// More of something than a slot of the device holds.
    #[error("{count} {what}; a request can have {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// A stop string is empty.
    #[error("a stop string is empty")]
    EmptyStopString,
    /// A sequence breaker of DRY is empty.
    #[error("a sequence breaker of DRY is empty")]
    EmptyBreaker,
    /// More tokens than the context holds.
    #[error(
        "the prompt has {prompt} tokens, which exceeds the available context size of {context} with one token of the answer"
    )]
    ContextFull {
        /// Tokens in all.
        prompt: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A model cannot guess for another one.
    #[error("{draft} cannot draft for {model}: {problem}")]
    Draft {
        /// The draft model.
        draft: String,
        /// The model.
        model: String,
        /// Why not.
        problem: String,
    },
    /// The model cannot guess with a draft layer of its own.
    #[error(
        "{origin}: --spec mtp needs a draft layer in the model and a device that can use it; try --spec auto"
    )]
    NoDraftLayer {
        /// The model.
        origin: String,
    },
    /// No drafter lies beside a model.
    #[error("{origin}: no DFlash drafter lies beside it; name one with -md")]
    NoDrafter {
        /// The model.
        origin: String,
    },
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token that the model does not know.
    #[error("token {token} is outside the vocabulary of {vocab} tokens")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// The checkpoint has no tokenizer.
    #[error("{origin}: has no tokenizer")]
    NoTokenizer {
        /// Which model.
        origin: String,
    },
    /// The checkpoint has no chat template.
    #[error("{origin}: has no chat template")]
    NoChatTemplate {
        /// Which model.
        origin: String,
    },
    /// The vocabulary lacks the marks of a prompt with a gap.
    #[error("{origin}: the vocabulary has no tokens for filling in the middle of a text")]
    NoInfill {
        /// Which model.
        origin: String,
    },
    /// Chunks of this size cannot be scored.
    #[error("chunks of {chunk} tokens cannot be scored; a chunk has 4 to {context}")]
    ChunkSize {
        /// Tokens of a chunk.
        chunk: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The model cannot use its encoder of images or sounds.
    #[error("{origin}: {problem}")]
    Sense {
        /// Which model.
        origin: String,
        /// Why not.
        problem: String,
    },
    /// A prompt does not have a place for each image and sound.
    #[error(
        "the prompt has {places} places for {images} images and sounds: the chat template takes none, or not there"
    )]
    ImagePlaces {
        /// Images and sounds of the request.
        images: usize,
        /// Placeholders in the prompt.
        places: usize,
    },
    /// The features of images in running and waiting requests take all memory that images may.
    #[error("the images and sounds of other requests take {} of memory; try again", welte_table::human(*bytes))]
    ManyImages {
        /// Bytes of their features.
        bytes: u64,
    },
    /// Media of a prompt that the model cannot read.
    #[error("media of the prompt: {problem}")]
    Media {
        /// What is wrong.
        problem: String,
    },
    /// Spans of a prompt cannot attend both ways.
    #[error("spans that attend both ways: {problem}")]
    BothWays {
        /// What is wrong.
        problem: String,
    },
    /// The answer so far cannot be that of the request.
    #[error("answered tokens: {problem}")]
    Answered {
        /// What is wrong.
        problem: String,
    },
    /// The model's caches cannot be kept in host memory or on disk.
    #[error("{origin}: host memory for prefixes and the prefix store cannot keep recurrent state")]
    PrefixStore {
        /// Which model.
        origin: String,
    },
    /// Host memory for prefixes that holds no page.
    #[error(
        "the host memory for prefixes holds no page: it has {}, and a page takes {}",
        welte_table::human(*bytes), welte_table::human(*page)
    )]
    HostCache {
        /// Bytes of host memory.
        bytes: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// The engine shall have a prefix store, and the model was loaded without preparing one.
    #[error(
        "{origin}: the prefix store needs a fingerprint of the weights; load the model with LoadOptions::prefix_store"
    )]
    NoFingerprint {
        /// Which model.
        origin: String,
    },
    /// The text is too short to score.
    #[error("the text has {tokens} tokens; chunks of {chunk} need at least {}", 2 * .chunk)]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// Two models of different vocabularies cannot be compared.
    #[error(
        "the vocabularies have {own} and {base} tokens; only models of one vocabulary can be compared"
    )]
    VocabularyMismatch {
        /// Tokens that the model knows.
        own: u32,
        /// Tokens that the model it is compared with knows.
        base: u32,
    },
}

/// The memory of the fullest of several devices to which a model would be dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DealtMemory {
    /// How many devices.
    pub ranks: u32,
    /// Bytes that the fullest would need.
    pub need: u64,
    /// Bytes that it has.
    pub have: u64,
}

impl DealtMemory {
    fn said(dealt: &Option<DealtMemory>) -> String {
        dealt.map_or(String::new(), |DealtMemory { ranks, need, have }| {
            let (need, have) = (human(need), human(have));
            format!("; dealt to {ranks}, the fullest needs {need} and has {have}")
        })
    }
}

impl Error {
    /// True if a rank has failed, so that a model on several devices could not go on.
    pub fn is_of_rank(&self) -> bool {
        let device = match self {
            Error::Device(error) => error,
            Error::Fault(error) => error.as_ref(),
            _ => return false,
        };
        matches!(device, welte_device::Error::Rank { .. })
    }
}
