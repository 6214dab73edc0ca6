//! The buffers of a program in the making.

use crate::emit::{HyperSet, LatentBuffers, PerLayerSet, Set, StreamSet};
use crate::{LayerShape, ModelSpec};
use welte_table::{BufferId, BufferRef, BufferSpec, Class};

#[derive(Default)]
pub(crate) struct Buffers(Vec<BufferSpec>);

impl Buffers {
    pub(crate) fn into_list(self) -> Vec<BufferSpec> {
        self.0
    }

    pub(crate) fn add(&mut self, name: &str, class: Class, bytes: u64) -> BufferRef {
        self.0.push(BufferSpec {
            name: name.into(),
            class,
            bytes,
        });
        BufferRef {
            buffer: (self.0.len() - 1) as BufferId,
            offset: 0,
        }
    }

    /// A scratch set: each intermediate once, reused by all layers.
    pub(crate) fn set(&mut self, name: &str, class: Class, rows: u32, spec: &ModelSpec) -> Set {
        let mut add = |what: &str, width: u32| {
            self.add(
                &format!("{name}.{what}"),
                class,
                4 * u64::from(rows) * u64::from(width),
            )
        };
        let widest = |width: &dyn Fn(LayerShape) -> u32| {
            let layers = 0..spec.layers as usize;
            layers.map(|i| width(spec.shape(i))).max().unwrap_or(1)
        };
        let ffn = widest(&|s| s.ffn);
        let beside = spec.experts.filter(|e| e.beside);
        let inputs = match spec.per_layer_width {
            0 => None,
            width => Some(PerLayerSet {
                inputs: add("per_layer", spec.layers * width),
                context: add("per_layer_context", spec.layers * width),
                gate: add("per_layer_gate", width),
            }),
        };
        let streams = spec.altup.map(|a| StreamSet {
            all: add("streams", a.streams * spec.dim),
            router: add("streams_router", a.streams),
            low: add("low", a.rank),
            around: add("around", spec.dim),
            joined: add("joined", (a.streams - 1) * spec.dim),
        });
        let hyper = spec.hyper.map(|h| HyperSet {
            all: add("streams", h.streams * spec.dim),
            mixed: add("mixed_streams", h.streams * spec.dim),
            gates: add("streams_gates", 2 * h.streams),
        });
        let gates = spec.latent.filter(|_| spec.attention_gate.is_some());
        let sums = spec.encoder.as_ref().is_some_and(|e| e.norms_sums);
        let shared = spec.experts.and_then(|e| e.shared);
        let qkv = match spec.latent {
            Some(l) => l.inputs(spec).max(spec.delta.map_or(0, |d| d.width())),
            None => spec.projected_width(),
        };
        Set {
            x: add("x", spec.dim),
            qkv: add("qkv", qkv),
            attn: add("attn", spec.mixed_width()),
            h: add(
                "h",
                spec.experts
                    .map_or(ffn, |e| ffn.max(e.used * e.ffn))
                    .max(shared.map_or(0, |s| s.ffn)),
            ),
            per_layer: inputs,
            streams,
            hyper,
            gates: gates.map(|l| add("gates", spec.heads * l.value)),
            dense: beside.map(|_| add("dense", spec.dim)),
            mixed: spec
                .experts
                .filter(|e| e.beside || spec.post_norm && !sums)
                .map(|_| add("mixed", spec.dim)),
            scaled: spec
                .experts
                .filter(|e| e.on_input)
                .map(|_| add("scaled", spec.dim)),
            latent_expert: spec
                .experts
                .and_then(|e| e.latent)
                .map(|n| [add("latent_in", n), add("latent_out", n)]),
            router: spec.experts.map(|e| add("router", e.count)),
            choice: spec.experts.map(|e| add("choice", 2 * e.used)),
            norm: add(
                "norm",
                spec.latent
                    .and_then(|l| l.query_rank)
                    .map_or(spec.dim, |rank| rank.max(spec.dim)),
            ),
            gate_up: spec.gated.then(|| {
                let ffn = ffn.max(shared.map_or(0, |s| s.ffn));
                add("gate_up", 2 * ffn)
            }),
            expert_gate_up: spec
                .experts
                .filter(|_| spec.limits.iter().any(|l| l.experts.is_some()))
                .map(|e| add("expert_gate_up", 2 * e.used * e.ffn)),
            shared_gate: shared.filter(|s| s.gated).map(|_| add("shared_gate", 1)),
            latent: spec.latent.map(|l| LatentBuffers {
                heads: add("heads", l.heads_width(spec)),
                queries: add("queries", spec.heads * l.width()),
                chosen: match &spec.indexer {
                    Some(indexer) => add("chosen", indexer.used),
                    None => BufferRef::NONE,
                },
            }),
            values: spec.value_dim.map(|value| {
                let kv = widest(&|s| s.kv_heads);
                [add("values", kv * value), add("result", spec.heads * value)]
            }),
            convolved: Some(spec.channels())
                .filter(|n| *n > 0)
                .map(|n| add("convolved", n)),
            sum: add("sum", spec.dim),
        }
    }
}
