//! Layers with the gated delta rule: GGUF stores queries, keys and values apart from the gate, the decay itself and, for Qwen3.5, the
//! heads of values in another order.

use super::OfModel;
use super::translated::{Change, Order, Source, Translated};
use crate::names::weight;
use crate::weights::DeltaNames;
use crate::{Error, LayerKind, ModelSpec};
use welte_formats::checkpoint::Checkpoint;
use welte_formats::quant;
use welte_table::Format;

impl OfModel {
    /// The tensors of such a layer, if this is one.
    pub(super) fn delta(&mut self, from: &dyn Checkpoint, spec: &ModelSpec, layer: u32) {
        let kind = spec.layer_kinds.get(layer as usize);
        let Some(delta) = spec.delta.filter(|_| kind == Some(&LayerKind::Delta)) else {
            return;
        };
        let [hf, gguf] = DeltaNames::both(delta.by_channel);
        let own = [
            (hf.qkv, gguf.qkv),
            (hf.gate, gguf.gate),
            (hf.b, gguf.b),
            (hf.a, gguf.a),
            (hf.grouped_ba, gguf.grouped_ba),
            (hf.norm, gguf.norm),
            (hf.out, gguf.out),
        ];
        let of_ranks = [(hf.low_decay, gguf.low_decay), (hf.low_gate, gguf.low_gate)];
        let of_ranks = of_ranks
            .into_iter()
            .flat_map(|(hf, gguf)| hf.into_iter().zip(gguf));
        let own = own.into_iter().chain(hf.each.into_iter().zip(gguf.each));
        for (hf, gguf) in own.chain(of_ranks) {
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
        if delta.by_channel {
            self.decays(from, &full(hf.decay), &full(gguf.decay));
        } else {
            self.one(from, &full(hf.decay), &full(gguf.decay));
            if let Some(Source::Rows { change, .. }) = self.last_named(&full(gguf.decay)) {
                *change = Change::Decay;
            }
        }
        let kernels = hf.kernels.into_iter().zip(gguf.kernels);
        for (hf, gguf) in kernels.chain([(hf.kernel, gguf.kernel)]) {
            let name = weight(gguf, layer);
            self.kernel(from, &weight(hf, layer), &name);
            if delta.by_channel {
                let taps = delta.taps as usize;
                let channels = (delta.heads * delta.key_dim) as usize;
                self.all.dimensions.insert(name, vec![taps, 1, channels]);
            }
        }
    }

    /// The kernel of a convolution, which computes with F32.
    pub(super) fn kernel(&mut self, from: &dyn Checkpoint, hf: &str, gguf: &str) {
        self.one(from, hf, gguf);
        if let Some(info) = self.all.infos.last_mut().filter(|info| info.name == gguf) {
            info.format = Format::F32;
        }
    }

    /// Decays of several rows. Directories have the logarithms of their negatives. A tensor that cannot be read stays unused and is
    /// refused.
    pub(super) fn decays(&mut self, from: &dyn Checkpoint, hf: &str, gguf: &str) {
        let Some(info) = self.find(from, hf).cloned() else {
            return;
        };
        let Ok(bytes) = from.rows(&info, 0, info.n) else {
            return;
        };
        let mut values = vec![0.0; info.n * info.k];
        quant::decode(info.format, &bytes, &mut values);
        values.iter_mut().for_each(|v| *v = -v.exp());
        self.all.used.insert(info.name);
        self.all.table(gguf, values, info.k);
    }

    /// Queries, keys, values and gates of a key head after each other, as two tensors.
    fn ungrouped(
        &mut self,
        from: &dyn Checkpoint,
        [key_heads, heads]: [u32; 2],
        layer: u32,
        [key_dim, value_dim]: [u32; 2],
    ) {
        let [hf, gguf] = DeltaNames::both(false);
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
        let [_, gguf] = DeltaNames::both(false);
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
