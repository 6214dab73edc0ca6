//! Checkpoints: GGUF files, Hugging Face directories and synthetic models behind one trait.

mod adapter;
pub mod checkpoint;
mod control;
mod draft;
pub mod files;
mod ggml;
pub mod gguf;
pub mod hf;
pub mod importance;
mod lora;
mod mapped;
mod narrowed;
mod open;
pub mod quant;
pub mod quantize;
mod source;
pub mod synthetic;
mod tensors;
mod torch;
mod weight;

pub use adapter::{AdapterFile, AdapterTensor, MOST_RANK};
pub use checkpoint::{Checkpoint, Dialect, Error, Metadata, Overlay, TensorInfo, TextFiles, Value};
pub use control::{Direction, control_vectors};
pub use draft::{DRAFT, WithDraft};
pub use ggml::{GgmlWhisper, WHISPER_ENGLISH, WHISPER_LANGUAGES};
pub use narrowed::Narrowed;
pub use open::open;
pub use source::Source;
pub use weight::WeightRows;
