//! What a checkpoint is.

use crate::{Error, ModelSpec, head_kind, read};
use welte_formats::Checkpoint;

/// Reads the spec from a checkpoint's metadata and its list of tensors. A head that drafts for a model is none.
pub fn spec(checkpoint: &dyn Checkpoint) -> Result<ModelSpec, Error> {
    if head_kind(checkpoint).is_some() {
        let origin = checkpoint.origin().into();
        return Err(Error::Drafter { origin });
    }
    read::spec(checkpoint)
}
