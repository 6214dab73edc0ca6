//! Layers with the state space model of Mamba-1.

use super::OfModel;
use crate::names::weight;
use crate::weights::MambaNames;
use crate::{LayerKind, ModelSpec};
use welte_formats::checkpoint::Checkpoint;

impl OfModel {
    /// The tensors of such a layer, if this is one.
    pub(super) fn mamba(&mut self, from: &dyn Checkpoint, spec: &ModelSpec, layer: u32) {
        let kind = spec.layer_kinds.get(layer as usize);
        let here = kind == Some(&LayerKind::Mamba);
        let selective = spec.mamba.and_then(|m| m.selective);
        if !here || selective.is_none() {
            return;
        }
        let [hf, gguf] = MambaNames::both(spec.alone);
        let full = |name: &str| name.replace("{}", &layer.to_string());
        self.kernel(from, &weight(hf.kernel, layer), &weight(gguf.kernel, layer));
        for (hf, gguf) in [
            (hf.project, gguf.project),
            (hf.kernel, gguf.kernel),
            (hf.parts, gguf.parts),
            (hf.time, gguf.time),
            (hf.out, gguf.out),
        ]
        .into_iter()
        .chain(hf.norms.into_iter().zip(gguf.norms))
        {
            self.pair(from, hf, gguf, layer);
        }
        self.one(from, &full(hf.skip), &full(gguf.skip));
        self.decays(from, &full(hf.decay), &full(gguf.decay));
    }
}
