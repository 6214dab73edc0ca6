//! From a source to a checkpoint.

use crate::Error;
use std::path::Path;
use welte_formats::checkpoint::Checkpoint;
use welte_formats::synthetic::Synthetic;

/// Opens a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`.
pub fn open(source: &str) -> Result<Box<dyn Checkpoint>, Error> {
    match source.strip_prefix("synthetic:") {
        Some(what) => Ok(Box::new(Synthetic::parse(what)?)),
        None => Ok(welte_formats::open(Path::new(source))?),
    }
}
