//! Layers with the state space model of Mamba-2 or Mamba-1.

use super::{Emitter, at};
use crate::weights::{Layer, MambaWeights, SelectiveWeights};
use crate::{Mamba, Selective, SelectiveNorms};
use welte_table::{BufferRef, NO_WEIGHT, Op, WeightId, params as p};

impl Emitter<'_> {
    /// x += output(norm(model(conv(inputs, keys, queries), dt) * silu(gate))), all of norm(x).
    pub(super) fn mamba(&mut self, index: usize, layer: &Layer, weights: &MambaWeights, m: Mamba) {
        let set = self.set;
        let Some(convolved) = set.convolved else {
            return;
        };
        let (channels, values, stride) = (m.channels(), m.values(), m.width());
        // Beside attention the norm is still in its buffer.
        let (project, input) = match &weights.beside {
            Some(beside) => (&beside.project, (set.norm, None)),
            None => (&layer.qkv, (set.x, layer.attn_norm)),
        };
        let joined = m.convolved();
        self.projections("mamba in", project, &[], input, set.qkv, stride);
        if let Some(f) = self.spec.multipliers {
            let keys = m.groups * m.key_dim;
            let sizes = [values, values, keys, keys, m.heads];
            let mut first = 0;
            let parts = sizes.into_iter().zip(f.state_space).map(|(n, factor)| {
                let part = (first, n, factor);
                first += n;
                part
            });
            let parts: Vec<_> = parts.collect();
            self.multiply("mamba in", set.qkv, stride, &parts);
        }
        let cache = self.places.caches[index];
        let kernel = [weights.kernel, weights.conv_bias.unwrap_or(NO_WEIGHT)];
        let (inputs, sizes) = ((at(set.qkv, values), stride), (channels, m.taps, 1));
        self.convolution(index, &kernel, inputs, (convolved, joined), sizes);
        if let (Some(own), Some(s)) = (&weights.selective, m.selective) {
            self.selective(own, (m, s), convolved);
        }
        let model = p::Mamba2 {
            layer: cache.layer,
            groups: m.groups,
            heads: m.heads,
            key_dim: m.key_dim,
            value_dim: m.value_dim,
            x_stride: joined,
            dt_stride: stride,
            y_stride: values,
            by_channel: m.selective.is_some().into(),
        };
        let buffers = [
            convolved,
            at(set.qkv, values + channels),
            set.attn,
            cache.state,
        ];
        let factors = [weights.decay, weights.dt_bias, weights.skip];
        self.out
            .push("state space", Op::Mamba2, &factors, &buffers, model.words());
        self.silu_gate("mamba gate", (set.qkv, stride), set.attn, values);
        if let Some(weight) = weights.norm {
            self.mamba_norm(weight, m);
        }
        if let Some(f) = self.spec.multipliers {
            self.multiply(
                "mamba out",
                set.attn,
                values,
                &[(0, values, f.state_space_out)],
            );
        }
        let out = match &weights.beside {
            Some(beside) => (beside.out, [].as_slice(), None),
            None => (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm),
        };
        self.add_to_stream("mamba out", out, set.attn, values);
    }

    /// Makes keys, queries and time steps of the convolved inputs, which they follow in their rows; the time steps of all inputs follow
    /// the projections.
    fn selective(&mut self, own: &SelectiveWeights, (m, s): (Mamba, Selective), rows: BufferRef) {
        let (values, stride) = (m.values(), m.convolved());
        for piece in &own.project {
            let params = p::Matmul {
                n: piece.n,
                k: values,
                x_stride: stride,
                y_stride: stride,
            };
            let buffers = [rows, at(rows, values + piece.at)];
            let what = "mamba keys, queries, times";
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        let times = values + 2 * m.key_dim;
        if s.norms != SelectiveNorms::None {
            let places = [
                (times, s.rank),
                (values, m.key_dim),
                (values + m.key_dim, m.key_dim),
            ];
            for ((first, dim), weight) in places.into_iter().zip(own.norms) {
                let norm = p::Norm {
                    dim,
                    groups: 1,
                    eps: s.eps,
                    x_stride: stride,
                    y_stride: stride,
                };
                let place = [at(rows, first); 2];
                self.out
                    .push("mamba part norm", Op::Norm, &[weight], &place, norm.words());
            }
        }
        let params = p::Matmul {
            n: values,
            k: s.rank,
            x_stride: stride,
            y_stride: m.width(),
        };
        let to = at(self.set.qkv, values + m.channels());
        let buffers = [at(rows, times), to];
        self.out.push(
            "mamba times",
            Op::Matmul,
            &[own.time],
            &buffers,
            params.words(),
        );
    }

    /// Norms each group of the gated output.
    fn mamba_norm(&mut self, own: WeightId, m: Mamba) {
        let (set, values) = (self.set, m.values());
        let norm = p::Norm {
            dim: values / m.groups,
            groups: m.groups,
            eps: self.spec.eps,
            x_stride: values,
            y_stride: values,
        };
        let buffers = [set.attn, set.attn];
        // A norm's groups would share its weight.
        let weight = match m.groups {
            1 => own,
            _ => NO_WEIGHT,
        };
        self.out
            .push("mamba norm", Op::Norm, &[weight], &buffers, norm.words());
        if m.groups > 1 {
            let factors = p::Multiply {
                n: values,
                x_stride: values,
                y_stride: values,
            };
            let weight = [own];
            let what = "mamba norm's weight";
            self.out
                .push(what, Op::Multiply, &weight, &buffers, factors.words());
        }
    }
}
