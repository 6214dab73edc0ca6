//! The draft pass, and the hidden states that it reads.

use super::Emitter;
use crate::weights::DraftWeights;
use crate::{ModelSpec, NormKind};
use welte_table::{BufferRef, ModelPart, Op, Pass, PassKind, params as p};

/// The buffers of a draft pass beside its set.
#[derive(Clone, Copy)]
pub(crate) struct DraftPlaces {
    /// A normed embedding, then a normed hidden state.
    pub(crate) joined: BufferRef,
    /// The hidden states of output rows.
    pub(crate) chosen: BufferRef,
}

impl Emitter<'_> {
    /// Leaves the normed hidden states of all rows for the draft pass.
    pub(super) fn tap(&mut self) {
        if let (Some(taps), Some(norm)) = (self.places.taps, self.weights.final_norm) {
            self.norm("tap", norm, self.set.x, taps);
        }
    }

    /// `x = layer(join(norm(embedding), norm(tap)))` of all rows, then the logits of the chosen ones. Their normed hidden states
    /// take the places of the taps. The emitter is that of the draft layer alone.
    pub(crate) fn draft_pass(
        mut self,
        weights: &DraftWeights,
        model: &ModelSpec,
        places: DraftPlaces,
        (rows, outputs): (u32, u32),
    ) -> Pass {
        let (set, spec) = (self.set, self.spec);
        let (dim, taps) = (spec.dim, self.places.taps.unwrap_or(BufferRef::NONE));
        let embed = p::Embed {
            n: spec.vocab,
            k: dim,
            scale: model.embedding_scale / model.residual_scale,
            x_stride: dim,
        };
        let table = [weights.model.embed];
        let buffers = [self.places.tokens, set.norm];
        self.out
            .push("embedding", Op::Embed, &table, &buffers, embed.words());
        let halves = [
            ("embedding norm", weights.embedding_norm, set.norm, 0),
            ("hidden norm", weights.hidden_norm, taps, dim),
        ];
        for (what, norm, x, at) in halves {
            let y = super::at(places.joined, at);
            let rms = spec.norm == NormKind::Rms;
            let strides = [dim, 2 * dim];
            self.out
                .norm_strided(what, (norm, rms), (dim, spec.stream_eps()), [x, y], strides);
        }
        let join = p::Matmul {
            n: dim,
            k: 2 * dim,
            x_stride: 2 * dim,
            y_stride: dim,
        };
        let buffers = [places.joined, set.x];
        self.out
            .push("join", Op::Matmul, &[weights.join], &buffers, join.words());
        if let Some(layer) = weights.model.layers.first() {
            self.layer(0, layer);
        }
        self.out.part = ModelPart::Head;
        let select = p::SelectRows {
            n: dim,
            x_stride: dim,
            y_stride: dim,
        };
        let buffers = [set.x, places.chosen];
        self.out
            .push("chosen rows", Op::SelectRows, &[], &buffers, select.words());
        if let Some(norm) = weights.model.final_norm {
            self.norm("tap", norm, places.chosen, taps);
        }
        let (width, result) = self.head(places.chosen);
        self.out
            .pass(PassKind::Draft, (rows, outputs), (width, result))
    }
}
