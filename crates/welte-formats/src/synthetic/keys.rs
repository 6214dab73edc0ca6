//! Metadata keys of an architecture.

use super::shape::Shape;
use crate::{Metadata, Value};

/// Metadata in the making.
pub(super) struct Keys<'a> {
    pub(super) metadata: Metadata,
    pub(super) shape: &'a Shape,
}

impl Keys<'_> {
    /// Sets a key of the architecture.
    pub(super) fn put(&mut self, key: &str, value: Value) {
        let architecture = self.shape.architecture();
        self.metadata.insert(format!("{architecture}.{key}"), value);
    }

    pub(super) fn numbers(&mut self, keys: &[(&str, usize)]) {
        for (key, value) in keys {
            self.put(key, Value::U64(*value as u64));
        }
    }

    pub(super) fn floats(&mut self, keys: &[(&str, f32)]) {
        for (key, value) in keys {
            self.put(key, Value::F64((*value).into()));
        }
    }

    /// A number of each layer.
    pub(super) fn each(&mut self, key: &str, of: impl Fn(usize) -> usize) {
        self.list(key, |layer| Value::U64(of(layer) as u64));
    }

    /// A value of each layer.
    pub(super) fn list(&mut self, key: &str, of: impl Fn(usize) -> Value) {
        let each = (0..self.shape.layers).map(of);
        self.put(key, Value::Array(each.collect()));
    }

    /// Their number, those used for a token, and their width.
    pub(super) fn experts(&mut self) {
        self.numbers(&[
            ("expert_count", self.shape.experts),
            ("expert_used_count", self.shape.used),
            ("expert_feed_forward_length", self.shape.ffn),
        ]);
    }
}
