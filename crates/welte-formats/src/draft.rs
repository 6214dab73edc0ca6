//! A model together with a head that drafts for it, which has a checkpoint of its own.

use crate::checkpoint::{Checkpoint, Error, Overlay, TensorInfo};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// What the names of the head's tensors begin with.
pub const DRAFT: &str = "draft:";

/// The model's checkpoint with the tensors of a draft head besides, which only their names find.
pub struct WithDraft {
    model: Arc<dyn Checkpoint>,
    draft: Arc<dyn Checkpoint>,
    tensors: HashMap<String, TensorInfo>,
}

impl WithDraft {
    /// Puts both together.
    pub fn new(model: Arc<dyn Checkpoint>, draft: Arc<dyn Checkpoint>) -> WithDraft {
        let named = draft.tensors().iter().map(|tensor| {
            let name = format!("{DRAFT}{}", tensor.name);
            let info = TensorInfo {
                name: name.clone(),
                ..tensor.clone()
            };
            (name, info)
        });
        let tensors = named.collect();
        WithDraft {
            model,
            draft,
            tensors,
        }
    }
}

impl Overlay for WithDraft {
    fn base(&self) -> &dyn Checkpoint {
        &*self.model
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).or_else(|| self.model.tensor(name))
    }
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        match tensor
            .name
            .strip_prefix(DRAFT)
            .map(|name| self.draft.tensor(name))
        {
            Some(Some(own)) => self.draft.rows(own, first, rows),
            _ => self.model.rows(tensor, first, rows),
        }
    }
    fn release(&self) {
        self.model.release();
        self.draft.release();
    }
    fn draft(&self) -> Option<&dyn Checkpoint> {
        Some(&*self.draft)
    }
}
