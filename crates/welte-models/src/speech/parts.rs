//! What encoders and decoders of speech are made of: their tensors, and the commands of both.

use crate::Error;
use crate::commands::{Commands, at};
use crate::names::{bias, resolve, weight};
use crate::weights::{Collector, NormWeights};
use welte_formats::quant;
use welte_table::{
    BufferRef, Format, ModelPart, NO_WEIGHT, Op, Source, Usage, WeightId, WeightSpec, params as p,
};

/// Of all norms.
const EPS: f32 = 1e-5;
/// GELU by erf.
const GELU: u32 = 2;

/// A matrix with its bias, which may cover the rows from one on.
pub(crate) struct Linear {
    pub(crate) weight: WeightId,
    pub(crate) n: u32,
    pub(crate) k: u32,
    /// A bias, its first value, and how many it has.
    pub(crate) biases: Vec<(WeightId, u32, u32)>,
}

/// Attention over the texts' own rows.
pub(crate) struct OwnAttention {
    pub(crate) norm: NormWeights,
    pub(crate) qkv: Linear,
    pub(crate) o: Linear,
}

pub(crate) struct FeedForward {
    pub(crate) norm: NormWeights,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

pub(crate) struct CrossAttention {
    pub(crate) norm: NormWeights,
    pub(crate) q: Linear,
    pub(crate) kv: Linear,
    pub(crate) o: Linear,
}

/// What a layer's parts are called.
pub(crate) struct LayerNames {
    attention_norm: &'static str,
    output: &'static str,
    norm: &'static str,
    up: &'static str,
    down: &'static str,
}

pub(crate) const WHISPER: LayerNames = LayerNames {
    attention_norm: "self_attn_layer_norm",
    output: "out_proj",
    norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
};

pub(crate) const GLM_ASR: LayerNames = LayerNames {
    attention_norm: "input_layernorm",
    output: "o_proj",
    norm: "post_attention_layernorm",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

pub(crate) struct Taker<'a> {
    pub(crate) collector: Collector<'a>,
    pub(crate) dim: u32,
    /// Keys have a bias. Whisper's have none.
    pub(crate) key_bias: bool,
}

impl Taker<'_> {
    pub(crate) fn norm(&mut self, label: &str, name: &str) -> Result<NormWeights, Error> {
        let dim = self.dim;
        Ok(NormWeights {
            weight: self
                .collector
                .vector(label, &[(weight(name, 0), dim)], 0.0)?,
            bias: Some(self.collector.vector(
                &format!("{label} bias"),
                &[(bias(name, 0), dim)],
                0.0,
            )?),
        })
    }

    /// Matrices below each other, each of the width. Those that have a bias say so.
    pub(crate) fn linear(
        &mut self,
        label: &str,
        parts: &[(String, u32, bool)],
        k: u32,
    ) -> Result<Linear, Error> {
        let named = parts.iter().map(|(name, n, _)| (weight(name, 0), *n));
        let named: Vec<_> = named.collect();
        let pieces = self.collector.joined(label, &named, k)?;
        let [piece] = pieces[..] else {
            let problem = "has another format than its neighbours, with which it is multiplied";
            return Err(self.collector.fault(&parts[0].0, problem.to_string()));
        };
        let mut biases = Vec::new();
        let mut first = 0;
        for (name, n, has_bias) in parts {
            if *has_bias {
                let label = format!("{label} bias from row {first}");
                let id = self.collector.vector(&label, &[(bias(name, 0), *n)], 0.0)?;
                biases.push((id, first, *n));
            }
            first += n;
        }
        Ok(Linear {
            weight: piece.weight,
            n: piece.n,
            k,
            biases,
        })
    }

    pub(crate) fn own_attention(
        &mut self,
        label: &str,
        layer: &str,
        names: &LayerNames,
    ) -> Result<OwnAttention, Error> {
        let dim = self.dim;
        let of = |name: &str| format!("{layer}.self_attn.{name}");
        let parts = [
            (of("q_proj"), dim, true),
            (of("k_proj"), dim, self.key_bias),
            (of("v_proj"), dim, true),
        ];
        let norm = format!("{layer}.{}", names.attention_norm);
        Ok(OwnAttention {
            norm: self.norm(&format!("{label} attention norm"), &norm)?,
            qkv: self.linear(&format!("{label} qkv"), &parts, dim)?,
            o: self.linear(
                &format!("{label} attention output"),
                &[(of(names.output), dim, true)],
                dim,
            )?,
        })
    }

    pub(crate) fn cross_attention(
        &mut self,
        label: &str,
        layer: &str,
    ) -> Result<CrossAttention, Error> {
        let dim = self.dim;
        let of = |name: &str| format!("{layer}.encoder_attn.{name}");
        let kv = [(of("k_proj"), dim, false), (of("v_proj"), dim, true)];
        let norm = format!("{layer}.encoder_attn_layer_norm");
        Ok(CrossAttention {
            norm: self.norm(&format!("{label} cross norm"), &norm)?,
            q: self.linear(
                &format!("{label} cross query"),
                &[(of("q_proj"), dim, true)],
                dim,
            )?,
            kv: self.linear(&format!("{label} cross kv"), &kv, dim)?,
            o: self.linear(
                &format!("{label} cross output"),
                &[(of("out_proj"), dim, true)],
                dim,
            )?,
        })
    }

    pub(crate) fn feed_forward(
        &mut self,
        label: &str,
        layer: &str,
        ffn: u32,
        names: &LayerNames,
    ) -> Result<FeedForward, Error> {
        let (dim, of) = (self.dim, |name: &str| format!("{layer}.{name}"));
        Ok(FeedForward {
            norm: self.norm(&format!("{label} feed-forward norm"), &of(names.norm))?,
            up: self.linear(&format!("{label} up"), &[(of(names.up), ffn, true)], dim)?,
            down: self.linear(
                &format!("{label} down"),
                &[(of(names.down), dim, true)],
                ffn,
            )?,
        })
    }

    /// The values of a tensor, which must have as many.
    pub(crate) fn values(&mut self, name: &str, count: u64) -> Result<Vec<f32>, Error> {
        let name = &resolve(self.collector.checkpoint, name);
        let found = self.collector.checkpoint.tensor(name).cloned();
        let info = found.ok_or_else(|| self.collector.fault(name, "is missing".into()))?;
        if info.n as u64 * info.k as u64 != count {
            let problem = format!(
                "has {} values, expected {count} from the metadata",
                info.n as u64 * info.k as u64
            );
            return Err(self.collector.fault(name, problem));
        }
        let row = info.format.bytes(info.k).ok_or_else(|| {
            let problem = format!("rows of {} are not whole blocks", info.k);
            self.collector.fault(name, problem)
        })?;
        let bytes = self.collector.checkpoint.rows(&info, 0, info.n)?;
        let mut values = vec![0.0; count as usize];
        let rows = values.chunks_exact_mut(info.k);
        for (bytes, values) in bytes.chunks_exact(row).zip(rows) {
            quant::decode(info.format, bytes, values);
        }
        Ok(values)
    }

    pub(crate) fn constant(
        &mut self,
        name: &str,
        (n, k): (u32, u32),
        values: Vec<f32>,
    ) -> WeightId {
        self.collector.push(WeightSpec {
            name: name.into(),
            format: Format::F32,
            n,
            k,
            usage: if n == 1 { Usage::Vector } else { Usage::Matrix },
            add: 0.0,
            source: Source::Constant(values),
        })
    }

    /// A convolution of three taps as a matrix over three neighbours: all channels of the first, then of the second, then of
    /// the third. The checkpoint has the taps of a channel side by side.
    pub(crate) fn convolution(
        &mut self,
        label: &str,
        name: &str,
        channels: u32,
    ) -> Result<Linear, Error> {
        let (dim, k) = (self.dim, 3 * channels);
        let count = u64::from(dim) * u64::from(k);
        let stored = self.values(&weight(name, 0), count)?;
        let mut values = Vec::with_capacity(stored.len());
        for row in stored.chunks_exact(k as usize) {
            for tap in 0..3 {
                values.extend(row.iter().skip(tap).step_by(3));
            }
        }
        // GGUF files have it as a column.
        let bias = self.values(&bias(name, 0), dim.into())?;
        let bias = self.constant(&format!("{label} bias"), (1, dim), bias);
        Ok(Linear {
            weight: self.constant(label, (dim, k), values),
            n: dim,
            k,
            biases: vec![(bias, 0, dim)],
        })
    }

    /// Learned positions, as a vector of `rows` entries of which the first `known` are those of the checkpoint.
    pub(crate) fn positions(
        &mut self,
        name: &str,
        known: u32,
        rows: u32,
    ) -> Result<WeightId, Error> {
        let dim = self.dim;
        let mut values = self.values(&weight(name, 0), u64::from(known) * u64::from(dim))?;
        values.resize(rows as usize * dim as usize, 0.0);
        Ok(self.constant("positions", (1, rows * dim), values))
    }
}

/// Commands of both parts.
pub(crate) struct Emitter<'a> {
    pub(crate) dim: u32,
    pub(crate) out: Commands<'a>,
    pub(crate) x: BufferRef,
    pub(crate) norm: BufferRef,
    pub(crate) wide: BufferRef,
}

impl Emitter<'_> {
    pub(crate) fn norm(&mut self, what: &str, norm: NormWeights, x: BufferRef, y: BufferRef) {
        self.out.norm(what, (norm, false), (self.dim, EPS), [x, y]);
    }

    pub(crate) fn linear(
        &mut self,
        what: &str,
        linear: &Linear,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
    ) {
        let params = p::Matmul {
            n: linear.n,
            k: linear.k,
            x_stride,
            y_stride,
        };
        self.out
            .push(what, Op::Matmul, &[linear.weight], &[x, y], params.words());
        let what = format!("{what} bias");
        for (weight, first, n) in &linear.biases {
            let params = p::Bias { n: *n, y_stride };
            self.out.push(
                &what,
                Op::Bias,
                &[*weight],
                &[at(y, *first)],
                params.words(),
            );
        }
    }

    pub(crate) fn gelu(&mut self, what: &str, y: BufferRef, n: u32) {
        let params = p::Act {
            n,
            act: GELU,
            a: 0.0,
            b: 0.0,
            c: 0.0,
            d: 0.0,
            y_stride: n,
        };
        self.out.push(what, Op::Act, &[], &[y], params.words());
    }

    /// x += y
    pub(crate) fn add(&mut self, what: &str, y: BufferRef) {
        let params = p::Add {
            n: self.dim,
            x_stride: self.dim,
            y_stride: self.dim,
        };
        self.out
            .push(what, Op::Add, &[], &[y, self.x], params.words());
    }

    /// x += down(gelu(up(norm(x))))
    pub(crate) fn feed_forward(&mut self, layer: &FeedForward) {
        self.out.part = ModelPart::FeedForward;
        let (dim, ffn) = (self.dim, layer.up.n);
        self.norm("feed-forward norm", layer.norm, self.x, self.norm);
        self.linear("up", &layer.up, (self.norm, dim), (self.wide, ffn));
        self.gelu("activation", self.wide, ffn);
        self.linear("down", &layer.down, (self.wide, ffn), (self.norm, dim));
        self.add("down sum", self.norm);
    }

    pub(crate) fn add_position(&mut self, positions: WeightId, count: u32) {
        let params = p::AddPosition {
            k: self.dim,
            period: count,
            offset: 0,
            x_stride: self.dim,
        };
        let weights = [positions, NO_WEIGHT];
        self.out.push(
            "positions",
            Op::AddPosition,
            &weights,
            &[self.x],
            params.words(),
        );
    }

    pub(crate) fn pool(&mut self, what: &str, x: BufferRef, y: BufferRef, group: u32) {
        let params = p::Pool {
            n: self.dim,
            kind: 0,
            normalise: 0,
            x_stride: self.dim,
            y_stride: self.dim,
            group,
        };
        self.out.push(what, Op::Pool, &[], &[x, y], params.words());
    }
}

pub(crate) fn bytes(rows: u32, width: u32) -> u64 {
    4 * u64::from(rows) * u64::from(width)
}
