//! Welte: the inference engine as a library.
//!
//! A [`Model`] is loaded once. Its [`Engine`] serves many requests at a time; a [`Session`] is one conversation on it.
//!
//! ```
//! # fn main() -> Result<(), welte::Error> {
//! use std::ops::ControlFlow;
//! let mut options = welte::LoadOptions::default();
//! options.context = 128;
//! let model = welte::Model::load("synthetic:tiny:q4_0", &options, &mut |_progress| ())?;
//! let mut session = model.session()?;
//! let mut options = welte::GenerateOptions::default();
//! options.max_tokens = 16;
//! let outcome = session.generate(&[1, 2, 3], &options, &mut |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! println!("{} tokens, ended by {:?}", outcome.tokens.len(), outcome.stop);
//! # Ok(()) }
//! ```

mod adapter;
mod adapter_source;
mod average;
mod cache;
mod card;
mod constraint;
mod device;
mod devices;
mod directory;
mod divergence;
mod engine;
mod error;
mod fair_lock;
mod fit;
mod generate;
mod hearing;
mod importance;
mod licence;
mod load_options;
mod model;
mod perplexity;
mod pictures;
mod rerank;
mod speech;
mod stepper;
mod text;
mod video;
mod vision;
mod word_encoder;

pub use adapter_source::AdapterSource;
pub use cache::{PrefixChange, PrefixStoreOptions, PrefixStoreStatus};
pub use card::{Abilities, Card, TemplateCard};
pub use constraint::Constraint;
pub use device::{DeviceChoice, Skipped};
#[cfg(feature = "cpu")]
pub use devices::{available_memory, instruction_sets, peak_memory, spare_addresses};
pub use devices::{devices, open_device, read_bandwidth};
pub use directory::write_directory;
pub use divergence::{Divergence, divergence};
#[doc(hidden)]
pub use engine::Driver;
pub use engine::Turns;
pub use engine::{
    Adapter, CancelHandle, Embedding, Engine, EngineOptions, Medium, MediumAt, NodeSnapshot,
    PrefixHostStatus, Request, Session, SlotSnapshot, Snapshot, SparseEmbedding, SparseVector,
    Speculation, Status, Stream, TextToEmbed, WaitingSnapshot,
};
#[doc(hidden)]
pub use engine::{Clock, SyntheticDraft};
pub use error::{DealtMemory, Error};
pub use generate::{GenerateOptions, Outcome, RequestProgress, Speculated, StopReason, Timings};
pub use hearing::{Dictated, Dictation, Hearing, Sound, WrittenWindow};
pub use importance::importance;
pub use load_options::{DEFAULT_CONTEXT, Images, LoadOptions};
pub use model::{Inspection, Model, draft_head_kind, hears, open};
pub use perplexity::{Perplexity, perplexity};
pub use pictures::{Decoded, Encode, Glimpse, MediaEncoder, Prompt, Seen, Sense};
pub use rerank::{Pair, RERANK_INSTRUCTION, Score};
pub use speech::{
    Segment, Speech, SpeechOptions, Task, TranscribeOptions, Transcript, TranscriptFormat, Update,
    Word,
};
pub use stepper::Stepper;
pub use text::{as_gguf, tokenizer};
pub use video::VideoTools;
pub use vision::{Features, Picture, Piece, Vision, VisionOptions, as_mmproj};
pub use welte_audio::Audio;
pub use welte_device::{
    Activations, ChainStart, Context, DeviceId, DeviceInfo, DeviceOptions, DeviceReport, Exchange,
    Logprobs, Phase, Profile, Progress, Replay, ReplayTools, Replaying, Steps, cpu_list, timeline,
};
pub use welte_models::{HeadKind, Pooling, VectorSettings};
pub use welte_table::{Format, Range, Sampling, SamplingOption};
pub use welte_text::{
    Channels, ChatTemplate, Clip, FINAL, Frame, Image, ImageSource, Message, Rendered, Said,
    Tokenizer, Video,
};
pub use welte_vision::{Film, Scene, Words};
#[doc(hidden)]
pub use word_encoder::WordEncoder;
