//! Graphs of draft steps.

use crate::graph::Graph;
use std::collections::BTreeMap;

/// Draft steps by their numbers of rows and of output rows.
#[derive(Default)]
pub(super) struct DraftGraphs(BTreeMap<[u32; 2], Graph>);

impl DraftGraphs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, size: [u32; 2], graph: Graph) {
        self.0.insert(size, graph);
    }

    pub(super) fn get(&self, size: [u32; 2]) -> Option<&Graph> {
        self.0.get(&size)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Graph> {
        self.0.values()
    }
}
