//! The checkpoint of a head that shares the model's embedding.

use std::borrow::Cow;
use welte_formats::Overlay;
use welte_formats::checkpoint::{Checkpoint, Error as FormatError, Metadata, TensorInfo};

/// Where Speculators keep the keys of a head's layers.
const SECTION: &str = "transformer_layer_config.";

/// A head with a place for the model's embedding, without which no spec is read. Keys of Speculators lie in a section.
pub(crate) struct Placed<'a> {
    base: &'a dyn Checkpoint,
    metadata: Metadata,
    embedding: TensorInfo,
}

impl<'a> Placed<'a> {
    /// With the name and the shape of the embedding.
    pub(crate) fn new(
        base: &'a dyn Checkpoint,
        embedding: String,
        (rows, width): (u32, u32),
    ) -> Placed<'a> {
        let mut metadata = base.metadata().clone();
        for (key, value) in base.metadata() {
            if let Some(key) = key.strip_prefix(SECTION) {
                metadata.entry(key.to_string()).or_insert(value.clone());
            }
        }
        Placed {
            base,
            metadata,
            embedding: TensorInfo {
                name: embedding,
                format: welte_table::Format::F32,
                n: rows as usize,
                k: width as usize,
                stack: 1,
            },
        }
    }
}

impl Overlay for Placed<'_> {
    fn base(&self) -> &dyn Checkpoint {
        self.base
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        if name == self.embedding.name {
            return Some(&self.embedding);
        }
        self.base.tensor(name)
    }
    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, FormatError> {
        self.base.rows(tensor, first, rows)
    }
}
