//! Attention over latents. Files have the matrices that make keys and values of a latent apart, those of keys transposed.

use super::OfModel;
use super::keys::latents_are_whole;
use crate::ModelSpec;
use crate::names::weight;
use crate::weights::latent::{GGUF, HUGGING_FACE};
use welte_formats::checkpoint::Checkpoint;

impl OfModel {
    /// The matrices of a layer.
    pub(super) fn latent(&mut self, from: &dyn Checkpoint, spec: &ModelSpec, layer: u32) {
        let Some(l) = spec.latent else {
            return;
        };
        let (hf, gguf) = (&HUGGING_FACE, &GGUF);
        for (hf, gguf) in [
            (hf.query, gguf.query),
            (hf.query_down, gguf.query_down),
            (hf.query_norm, gguf.query_norm),
            (hf.query_up, gguf.query_up),
            (hf.down, gguf.down),
            (hf.norm, gguf.norm),
            (hf.index_query, gguf.index_query),
            (hf.index_key, gguf.index_key),
            (hf.index_norm, gguf.index_norm),
            (hf.index_gates, gguf.index_gates),
        ] {
            self.pair(from, hf, gguf, layer);
        }
        if latents_are_whole(spec) {
            return self.pair(from, hf.up, gguf.up, layer);
        }
        let [heads, plain, value] = [spec.heads, l.plain, l.value].map(|n| n as usize);
        let Some(up) = self.find(from, &weight(hf.up, layer)).cloned() else {
            return;
        };
        if up.n != heads * (plain + value) || up.format.bytes(1).is_none() {
            // It stays unused and is refused.
            return;
        }
        let [keys, values] = gguf.split_up.map(|name| weight(name, layer));
        self.columns(&keys, &up, (0, up.k), (heads, plain));
        let first = (0..heads).map(|head| head * (plain + value) + plain);
        let parts = first.map(|first| self.all.part(&up, first, value));
        let parts = parts.collect();
        self.all.push(&values, &up, heads * value, heads, parts);
    }
}
