//! The weights of several streams of hidden states.

use super::{Collector, NormWeights, OutputPart, Rows};
use crate::names::weight;
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Dialect;
use welte_table::{Usage, WeightId};

/// The weights that begin and end the streams.
pub(crate) struct AltUpWeights {
    /// From the embedding to all streams but the first.
    pub(crate) split: Vec<OutputPart>,
    /// From each stream but the first to the result.
    pub(crate) join: Vec<Vec<OutputPart>>,
}

/// The weights of one layer.
pub(crate) struct AltUpLayer {
    pub(crate) router: WeightId,
    pub(crate) router_norm: WeightId,
    pub(crate) predictions: WeightId,
    pub(crate) corrections: WeightId,
    /// Factors of the corrected stream, before it meets the layer's embedding.
    pub(crate) factors: WeightId,
    /// The path around attention: to a low rank and back, and the norm of its output.
    pub(crate) down: WeightId,
    pub(crate) up: WeightId,
    pub(crate) norm: NormWeights,
}

/// The names in one dialect.
struct Names {
    /// Complete names: one tensor for all streams, or `{}` for a stream's number.
    split: &'static str,
    join: &'static str,
    router: &'static str,
    router_norm: &'static str,
    predictions: &'static str,
    corrections: &'static str,
    /// The complete name.
    factors: &'static str,
    down: &'static str,
    up: &'static str,
    norm: &'static str,
}

const GGUF: Names = Names {
    split: "altup_proj.weight",
    join: "altup_unembd_proj.weight",
    router: "blk.{}.altup_router",
    router_norm: "blk.{}.altup_router_norm",
    predictions: "blk.{}.altup_predict_coef",
    corrections: "blk.{}.altup_correct_coef",
    factors: "blk.{}.altup_correct_scale.weight",
    down: "blk.{}.laurel_l",
    up: "blk.{}.laurel_r",
    norm: "blk.{}.laurel_post_norm",
};

const HUGGING_FACE: Names = Names {
    split: "model.altup_projections.{}.weight",
    join: "model.altup_unembed_projections.{}.weight",
    router: "model.layers.{}.altup.modality_router",
    router_norm: "model.layers.{}.altup.router_norm",
    predictions: "model.layers.{}.altup.prediction_coefs",
    corrections: "model.layers.{}.altup.correction_coefs",
    factors: "model.layers.{}.altup.correct_output_scale",
    down: "model.layers.{}.laurel.linear_left",
    up: "model.layers.{}.laurel.linear_right",
    norm: "model.layers.{}.laurel.post_laurel_norm",
};

impl Collector<'_> {
    fn altup_names(&self) -> &'static Names {
        match self.checkpoint.dialect() {
            Dialect::Gguf => &GGUF,
            Dialect::HuggingFace => &HUGGING_FACE,
        }
    }

    /// What begins and ends the streams.
    pub(super) fn altup(&mut self, spec: &ModelSpec) -> Result<Option<AltUpWeights>, Error> {
        let (names, dim) = (self.altup_names(), spec.dim);
        let Some(altup) = spec.altup else {
            return Ok(None);
        };
        let others = altup.streams - 1;
        let rows = |name: &str| {
            let one = |stream: u32| {
                if name.contains("{}") {
                    Rows::all(name.replace("{}", &stream.to_string()), dim)
                } else {
                    Rows {
                        tensor: name.to_string(),
                        of: others * dim,
                        first: stream * dim,
                        rows: dim,
                    }
                }
            };
            (0..others).map(one).collect::<Vec<_>>()
        };
        let split = self.joined_rows("embedding to streams", &rows(names.split), dim)?;
        let mut join = Vec::new();
        for (stream, rows) in (1..).zip(rows(names.join)) {
            let label = format!("stream {stream} to the result");
            join.push(self.joined_rows(&label, &[rows], dim)?);
        }
        Ok(Some(AltUpWeights { split, join }))
    }

    /// What a layer does with the streams.
    pub(super) fn altup_of(
        &mut self,
        label: &dyn Fn(&str) -> String,
        layer: u32,
        spec: &ModelSpec,
    ) -> Result<Option<AltUpLayer>, Error> {
        let (names, dim) = (self.altup_names(), spec.dim);
        let Some(altup) = spec.altup else {
            return Ok(None);
        };
        let (streams, rank) = (altup.streams, altup.rank);
        let w = |template: &str| weight(template, layer);
        let router_norm = [(w(names.router_norm), dim)];
        let factors = [(names.factors.replace("{}", &layer.to_string()), dim)];
        let norm = [(w(names.norm), dim)];
        let mut matrix = |what: &str, template: &str, n, k| {
            self.matrix(&label(what), Usage::Matrix, &w(template), n, k)
        };
        let router = matrix("streams' router", names.router, streams, dim)?;
        let down = matrix("path around attention, down", names.down, rank, dim)?;
        let up = matrix("path around attention, up", names.up, dim, rank)?;
        let square = streams * streams;
        let (predictions, corrections) = (w(names.predictions), w(names.corrections));
        Ok(Some(AltUpLayer {
            router,
            router_norm: self.vector(&label("norm of the streams' router"), &router_norm, 0.0)?,
            predictions: self.flat(&label("predictions"), &predictions, square, square, streams)?,
            corrections: self.flat(
                &label("corrections"),
                &corrections,
                streams,
                streams,
                streams,
            )?,
            factors: self.vector(&label("factors of the corrected stream"), &factors, 0.0)?,
            down,
            up,
            norm: NormWeights {
                weight: self.vector(&label("norm of the path around attention"), &norm, 0.0)?,
                bias: None,
            },
        }))
    }
}
