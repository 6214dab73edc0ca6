//! Layers with the gated delta rule: GGUF stores queries, keys and values apart from the gate, the decay itself and, for Qwen3.5, the
//! heads of values in another order.

use super::OfModel;
use super::translated::{Change, Order, Source, Translated};
use crate::names::weight;
use crate::weights::DeltaNames;
use crate::{Error, LayerKind, ModelSpec};
use welte_formats::checkpoint::Checkpoint;
use welte_table::Format;

impl OfModel {
    /// The tensors of such a layer, if this is one.
    pub(super) fn delta(&mut self, from: &dyn Checkpoint, spec: &ModelSpec, layer: u32) {
        let kind = spec.layer_kinds.get(layer as usize);
        let Some(delta) = spec.delta.filter(|_| kind == Some(&LayerKind::Delta)) else {
            return;
        };
        let [hf, gguf] = DeltaNames::both();
        let own = [
            (hf.qkv, gguf.qkv),
            (hf.gate, gguf.gate),
            (hf.b, gguf.b),
            (hf.a, gguf.a),
            (hf.grouped_ba, gguf.grouped_ba),
            (hf.norm, gguf.norm),
            (hf.out, gguf.out),
        ];
        for (hf, gguf) in own {
            self.pair(from, hf, gguf, layer);
        }
        self.ungrouped(
            from,
            [delta.key_heads, delta.heads],
            layer,
            [delta.key_dim, delta.value_dim],
        );
        let full = |name: &str| name.replace("{}", &layer.to_string());
        self.one(from, &full(hf.dt_bias), &full(gguf.dt_bias));
        self.one(from, &full(hf.decay), &full(gguf.decay));
        if let Some(Source::Rows { change, .. }) = self.last_named(&full(gguf.decay)) {
            *change = Change::Decay;
        }
        let kernel = weight(gguf.kernel, layer);
        self.one(from, &weight(hf.kernel, layer), &kernel);
        // A convolution computes with F32.
        if let Some(info) = self.all.infos.last_mut().filter(|info| info.name == kernel) {
            info.format = Format::F32;
        }
    }

    /// Queries, keys, values and gates of a key head after each other, as two tensors.
    fn ungrouped(
        &mut self,
        from: &dyn Checkpoint,
        [key_heads, heads]: [u32; 2],
        layer: u32,
        [key_dim, value_dim]: [u32; 2],
    ) {
        let [hf, gguf] = DeltaNames::both();
        let Some(info) = self.find(from, &weight(hf.grouped, layer)).cloned() else {
            return;
        };
        let values = heads / key_heads * value_dim;
        let sizes = [key_dim, key_dim, values, values].map(|size| size as usize);
        let group: usize = sizes.iter().sum();
        if group * key_heads as usize != info.n {
            // It stays unused and is refused.
            return;
        }
        for (name, these) in [(gguf.qkv, 0..3), (gguf.gate, 3..4)] {
            let mut parts = Vec::new();
            for at in these {
                let before: usize = sizes[..at].iter().sum();
                for head in 0..key_heads as usize {
                    parts.push(self.all.part(&info, head * group + before, sizes[at]));
                }
            }
            let rows = parts.iter().map(|part| part.rows as usize).sum();
            self.all.push(&weight(name, layer), &info, rows, 1, parts);
        }
    }

    /// The source of the last tensor, if it has this name.
    fn last_named(&mut self, name: &str) -> Option<&mut Source> {
        let last = self.all.infos.last().filter(|info| info.name == name);
        self.all.sources.last_mut().filter(|_| last.is_some())
    }
}

impl Translated {
    /// Puts the heads of values into the order in which neighbours have different key heads.
    pub(super) fn tile(&mut self, spec: &ModelSpec, read_back: &ModelSpec) -> Result<(), Error> {
        let (Some(delta), Some(written)) = (spec.delta, read_back.delta) else {
            return Ok(());
        };
        if !written.tiled || delta.tiled || delta.heads == delta.key_heads {
            return Ok(());
        }
        let [_, gguf] = DeltaNames::both();
        let keys = 2 * delta.key_heads * delta.key_dim;
        let order = |first: u32, size: u32| Order::Tiled {
            first: first as usize,
            groups: delta.key_heads as usize,
            heads: delta.heads as usize,
            size: size as usize,
        };
        for layer in 0..spec.layers {
            let full = |name: &str| name.replace("{}", &layer.to_string());
            let rows = [
                (weight(gguf.qkv, layer), order(keys, delta.value_dim)),
                (weight(gguf.kernel, layer), order(keys, delta.value_dim)),
                (weight(gguf.gate, layer), order(0, delta.value_dim)),
                (weight(gguf.b, layer), order(0, 1)),
                (weight(gguf.a, layer), order(0, 1)),
                (full(gguf.decay), order(0, 1)),
                (full(gguf.dt_bias), order(0, 1)),
            ];
            for (name, by) in rows {
                if let Some(Source::Rows { order, .. }) = self.source_mut(&name) {
                    *order = Some(by);
                }
            }
            let out = weight(gguf.out, layer);
            let Some(info) = self.tensor(&out) else {
                continue;
            };
            if info.format.bytes(delta.value_dim as usize).is_none() {
                return Err(Error::Tensor {
                    origin: self.origin().into(),
                    name: out,
                    problem: format!(
                        "cannot be written as GGUF: heads of {} elements are not whole blocks of {}; use the unquantised model",
                        delta.value_dim,
                        info.format.name()
                    ),
                });
            }
            if let Some(Source::Rows { columns, .. }) = self.source_mut(&out) {
                *columns = Some(order(0, delta.value_dim));
            }
        }
        Ok(())
    }
}
