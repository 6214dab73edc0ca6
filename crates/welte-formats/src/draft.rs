//! A model together with a head that drafts for it, which has a checkpoint of its own.

use crate::checkpoint::{Checkpoint, Dialect, Error, Metadata, TensorInfo, TextFiles};
use crate::gguf::Kinds;
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

impl Checkpoint for WithDraft {
    fn origin(&self) -> &str {
        self.model.origin()
    }
    fn dialect(&self) -> Dialect {
        self.model.dialect()
    }
    fn metadata(&self) -> &Metadata {
        self.model.metadata()
    }
    fn tensors(&self) -> &[TensorInfo] {
        self.model.tensors()
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
    fn kinds(&self) -> &Kinds {
        self.model.kinds()
    }
    fn text_files(&self) -> TextFiles {
        self.model.text_files()
    }
    fn draft(&self) -> Option<&dyn Checkpoint> {
        Some(&*self.draft)
    }
}
