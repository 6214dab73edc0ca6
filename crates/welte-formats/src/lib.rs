//! Weights on disk behind one trait: GGUF, Hugging Face directories, synthetic.

pub mod checkpoint;
pub mod quant;

pub use checkpoint::{Checkpoint, Error, Metadata, TensorInfo, Value};
