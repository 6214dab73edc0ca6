//! Weights that only Gemma 4 has: embeddings per layer, factors of layers, and experts beside a dense part.

use super::{Collector, NormWeights};
use crate::names::{self, weight};
use crate::{Error, Experts, ModelSpec};
use welte_formats::checkpoint::Dialect;
use welte_formats::quant;
use welte_table::{Part, Source, Usage, WeightId};

/// The weights of embeddings per layer that all layers share.
pub(crate) struct PerLayerWeights {
    /// For each token, the embeddings of all layers one after the other. Without it, inputs are projections alone.
    pub(crate) embed: Option<WeightId>,
    /// From the stream to the inputs of all layers.
    pub(crate) projection: WeightId,
    /// The norm of a layer's part of that.
    pub(crate) norm: WeightId,
}

/// The weights of one layer's embedding.
pub(crate) struct PerLayerLayer {
    pub(crate) gate: WeightId,
    pub(crate) projection: WeightId,
    /// The norm of the output, before it is added.
    pub(crate) norm: NormWeights,
}

/// The weights around experts that run beside a dense part.
pub(crate) struct Beside {
    /// The weight of the router's norm.
    pub(crate) router_norm: NormWeights,
    /// A factor per expert.
    pub(crate) scales: WeightId,
    /// The norm of the experts' input.
    pub(crate) norm: NormWeights,
    /// The norm of the dense part's output.
    pub(crate) dense_norm: NormWeights,
    /// The norm of the experts' output.
    pub(crate) mixed_norm: NormWeights,
}

/// The names in one dialect.
struct Names {
    embed: &'static str,
    projection: &'static str,
    projection_norm: &'static str,
    gate: &'static str,
    output: &'static str,
    output_norm: &'static str,
    /// The names from here to `scales` are complete.
    scalar: &'static str,
    router_norm: &'static str,
    scales: &'static str,
    experts_norm: &'static str,
    dense_norm: &'static str,
    mixed_norm: &'static str,
}

const GGUF: Names = Names {
    embed: "per_layer_token_embd",
    projection: "per_layer_model_proj",
    projection_norm: "per_layer_proj_norm",
    gate: "blk.{}.inp_gate",
    output: "blk.{}.proj",
    output_norm: "blk.{}.post_norm",
    scalar: "blk.{}.layer_output_scale.weight",
    router_norm: "blk.{}.ffn_gate_inp.scale",
    scales: "blk.{}.ffn_down_exps.scale",
    experts_norm: "blk.{}.pre_ffw_norm_2",
    dense_norm: "blk.{}.post_ffw_norm_1",
    mixed_norm: "blk.{}.post_ffw_norm_2",
};

/// EmbeddingGemma 2, which has no table.
const HUGGING_FACE_PROJECTED: Names = Names {
    embed: "",
    projection: "model.ple.per_layer_model_projection",
    projection_norm: "model.ple.per_layer_projection_norm",
    gate: "model.layers.{}.ple_block.per_layer_input_gate",
    output: "model.layers.{}.ple_block.per_layer_projection",
    output_norm: "model.layers.{}.ple_block.post_per_layer_input_norm",
    ..HUGGING_FACE
};

const HUGGING_FACE: Names = Names {
    embed: "model.embed_tokens_per_layer",
    projection: "model.per_layer_model_projection",
    projection_norm: "model.per_layer_projection_norm",
    gate: "model.layers.{}.per_layer_input_gate",
    output: "model.layers.{}.per_layer_projection",
    output_norm: "model.layers.{}.post_per_layer_input_norm",
    scalar: "model.layers.{}.layer_scalar",
    router_norm: "model.layers.{}.router.scale",
    scales: "model.layers.{}.router.per_expert_scale",
    experts_norm: "model.layers.{}.pre_feedforward_layernorm_2",
    dense_norm: "model.layers.{}.post_feedforward_layernorm_1",
    mixed_norm: "model.layers.{}.post_feedforward_layernorm_2",
};

/// The name of a layer's factor.
pub(crate) fn scalar_name(dialect: Dialect, layer: u32) -> String {
    let names = of(dialect);
    names.scalar.replace("{}", &layer.to_string())
}

fn of(dialect: Dialect) -> &'static Names {
    match dialect {
        Dialect::Gguf => &GGUF,
        Dialect::HuggingFace => &HUGGING_FACE,
    }
}

/// A norm without a bias.
fn plain(weight: WeightId) -> NormWeights {
    NormWeights { weight, bias: None }
}

impl Collector<'_> {
    fn gemma4(&self) -> &'static Names {
        let names = of(self.checkpoint.dialect());
        match self.has(&weight(HUGGING_FACE_PROJECTED.projection, 0)) {
            true => &HUGGING_FACE_PROJECTED,
            false => names,
        }
    }

    /// What all layers share of their embeddings.
    pub(super) fn per_layer(&mut self, spec: &ModelSpec) -> Result<Option<PerLayerWeights>, Error> {
        let (names, width) = (self.gemma4(), spec.per_layer_width);
        if width == 0 {
            return Ok(None);
        }
        let all = spec.layers * width;
        let projection = weight(names.projection, 0);
        let norm = [(weight(names.projection_norm, 0), width)];
        let embed = match names.embed {
            "" => None,
            name => {
                let (label, name) = ("embeddings per layer", weight(name, 0));
                Some(self.token_rows(label, &name, spec.vocab, all)?)
            }
        };
        let label = "projection to all layers";
        let projection = self.matrix(label, Usage::Matrix, &projection, all, spec.dim)?;
        Ok(Some(PerLayerWeights {
            embed,
            projection,
            norm: self.vector("norm of the projection to all layers", &norm, 0.0)?,
        }))
    }

    /// A table with a row for each token. If it has fewer rows, the others are those of token 0.
    fn token_rows(
        &mut self,
        label: &str,
        name: &str,
        vocab: u32,
        k: u32,
    ) -> Result<WeightId, Error> {
        let stored = names::resolve(self.checkpoint, name);
        let stored = self.checkpoint.tensor(&stored).map(|info| info.n);
        let rows = stored.and_then(|n| u32::try_from(n).ok()).unwrap_or(vocab);
        let rows = rows.clamp(1, vocab);
        let table = self.matrix(label, Usage::Lookup, name, rows, k)?;
        let spec = &mut self.list[table as usize];
        if let Source::Parts(parts) = &mut spec.source {
            let first = Part {
                rows: 1,
                ..parts[0].clone()
            };
            parts.extend((rows..vocab).map(|_| first.clone()));
        }
        spec.n = vocab;
        Ok(table)
    }

    /// What a layer does with its embedding.
    pub(super) fn per_layer_of(
        &mut self,
        label: &dyn Fn(&str) -> String,
        layer: u32,
        spec: &ModelSpec,
    ) -> Result<Option<PerLayerLayer>, Error> {
        let (names, width, dim) = (self.gemma4(), spec.per_layer_width, spec.dim);
        if width == 0 {
            return Ok(None);
        }
        let mut matrix = |what: &str, template: &str, n, k| {
            let name = weight(template, layer);
            self.matrix(&label(what), Usage::Matrix, &name, n, k)
        };
        let gate = matrix("gate of its embedding", names.gate, width, dim)?;
        let projection = matrix("projection of its embedding", names.output, dim, width)?;
        let norm = [(weight(names.output_norm, layer), dim)];
        let norm = self.vector(&label("norm of its embedding"), &norm, 0.0)?;
        Ok(Some(PerLayerLayer {
            gate,
            projection,
            norm: plain(norm),
        }))
    }

    /// The norms and scales around experts beside a dense part.
    pub(super) fn beside(
        &mut self,
        label: &dyn Fn(&str) -> String,
        layer: u32,
        spec: &ModelSpec,
        e: Experts,
    ) -> Result<Beside, Error> {
        let (names, dim) = (self.gemma4(), spec.dim);
        let full = |name: &str| name.replace("{}", &layer.to_string());
        let mut vector =
            |what: &str, name: String, k: u32| self.vector(&label(what), &[(name, k)], 0.0);
        Ok(Beside {
            router_norm: plain(vector("router norm", full(names.router_norm), dim)?),
            scales: vector("experts' scales", full(names.scales), e.count)?,
            norm: plain(vector(
                "experts' norm",
                weight(names.experts_norm, layer),
                dim,
            )?),
            dense_norm: plain(vector(
                "norm after dense",
                weight(names.dense_norm, layer),
                dim,
            )?),
            mixed_norm: plain(vector(
                "norm after experts",
                weight(names.mixed_norm, layer),
                dim,
            )?),
        })
    }

    /// The factor of a layer's output: a parameter of a command, so it is read here.
    pub(super) fn scalar(&mut self, layer: u32) -> Result<f32, Error> {
        let name = scalar_name(self.checkpoint.dialect(), layer);
        let info = self.tensor(&name, 1, 1)?;
        let bytes = self.checkpoint.rows(&info, 0, 1)?;
        let mut value = [0.0];
        quant::decode(info.format, &bytes, &mut value);
        if value[0].is_finite() {
            Ok(value[0])
        } else {
            let name = names::resolve(self.checkpoint, &name);
            Err(self.fault(&name, "is not a finite number".into()))
        }
    }
}
