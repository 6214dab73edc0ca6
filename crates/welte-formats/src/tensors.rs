//! The tensors of a checkpoint, by number and by name.

use crate::{Error, TensorInfo};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

#[derive(Debug, Default)]
pub(crate) struct Tensors {
    list: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Tensors {
    /// The place of a tensor in the list.
    pub(crate) fn number_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Adds a tensor. Returns false if its name is taken.
    #[must_use]
    pub(crate) fn add(&mut self, tensor: TensorInfo) -> bool {
        let is_new = self
            .by_name
            .insert(tensor.name.clone(), self.list.len())
            .is_none();
        self.list.push(tensor);
        is_new
    }

    pub(crate) fn list(&self) -> &[TensorInfo] {
        &self.list
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|i| &self.list[*i])
    }

    /// The number of a tensor and the range of `count` rows from `first` on, if the checkpoint has them.
    pub(crate) fn rows(
        &self,
        origin: &Path,
        tensor: &TensorInfo,
        first: usize,
        count: usize,
    ) -> Result<(usize, Range<usize>), Error> {
        let number = self.by_name.get(&tensor.name).copied();
        let number = number.filter(|i| self.list[*i] == *tensor);
        let end = first.checked_add(count).filter(|end| *end <= tensor.n);
        match (number, end) {
            (Some(number), Some(end)) => Ok((number, first..end)),
            (None, _) => Err(tensor.wrong(origin, "is not in this checkpoint")),
            (_, None) => {
                let problem = format!("has {} rows, not {count} from row {first} on", tensor.n);
                Err(tensor.wrong(origin, problem))
            }
        }
    }
}
