//! Maps the checkpoint's tensors to the weights of commands: checks every shape and joins neighbours.

mod altup;
mod collector;
mod delta;
mod draft;
mod encoder;
mod experts;
mod gemma4;
mod hyper;
pub(crate) mod latent;
mod layer;
mod mamba;
mod values;

pub(crate) use gemma4::{Beside, PerLayerLayer, PerLayerWeights, scalar_name};

use crate::names::{Names, bias, resolve, weight};
use crate::{CompileOptions, Error, ModelSpec};
pub(crate) use altup::{AltUpLayer, AltUpWeights};
pub(crate) use collector::{Collector, NormWeights, OutputPart, RopeConstants, Rows};
pub(crate) use delta::{DeltaNames, DeltaWeights, LowRanks};
pub(crate) use encoder::{EncoderWeights, Step};
pub(crate) use experts::{ExpertWeights, SharedWeights};
pub(crate) use hyper::HyperWeights;
pub(crate) use latent::{IndexWeights, LatentWeights};
pub(crate) use layer::{DraftWeights, Layer, Weights, grouped_rows};
pub(crate) use mamba::{MambaNames, MambaWeights, SelectiveWeights};
pub(crate) use values::{SWAPPED, ValueWeights};
use welte_formats::checkpoint::Checkpoint;
use welte_table::{Usage, WeightSpec};

/// Collects a model's weights.
pub(crate) fn collect(
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    names: &Names,
    options: &CompileOptions,
) -> Result<(Weights, Vec<WeightSpec>), Error> {
    let context = options.context;
    let mut c = Collector::new(checkpoint);
    let is_head = spec.encoder.is_none() || options.pools_vocabulary();
    let usage = if spec.tied && is_head {
        Usage::Both
    } else {
        Usage::Lookup
    };
    // The head may know a part of the tokens.
    let table = weight(names.embed, 0);
    let all = checkpoint.tensor(&resolve(checkpoint, &table));
    let all = all.and_then(|table| u32::try_from(table.n).ok());
    let tokens = [all.unwrap_or(0).max(spec.vocab), spec.vocab];
    let embed = c.first_rows("embedding", usage, &table, tokens, spec.dim)?;
    let rope_constants = c.rope_constants("rope frequencies", &spec.rope, context)?;
    let local_rope_constants = match &spec.local_rope {
        Some(rope) => c.rope_constants("rope frequencies of windowed layers", rope, context)?,
        None => rope_constants,
    };
    let per_layer = c.per_layer(spec)?;
    let altup = c.altup(spec)?;
    let mut layers = Vec::new();
    for i in 0..spec.layers {
        layers.push(layer::layer(&mut c, spec, names, i)?);
    }
    let final_norm = match &spec.encoder {
        Some(encoder) if !encoder.final_norm => None,
        _ => {
            let add = match spec.plain_final_norm {
                true => 0.0,
                false => spec.norm_add,
            };
            Some(c.norm_plus("final norm", (names.final_norm, add), 0, spec)?)
        }
    };
    let encoder = match &spec.encoder {
        Some(encoder) => encoder::collect_own(&mut c, spec, encoder, embed, options)?,
        None => EncoderWeights::default(),
    };
    let hyper = c.hyper_head(spec)?;
    let head = if spec.tied {
        embed
    } else {
        c.matrix(
            "head",
            Usage::Matrix,
            &weight(names.head, 0),
            spec.vocab,
            spec.dim,
        )?
    };
    let scores = match options.score_tokens {
        Some(tokens) => Some(c.scores(spec, names, tokens)?),
        None => None,
    };
    let head_bias = [(spec.biases.head, bias(names.head, 0), spec.vocab)];
    let head_bias = c.biases("head bias", &head_bias)?;
    let shared = draft::Shared {
        embed,
        head,
        final_norm,
        ropes: [rope_constants, local_rope_constants],
        head_bias: head_bias.clone(),
        dim: spec.dim,
        vocab: spec.vocab,
        context,
    };
    let draft = if options.drafts {
        spec.draft(checkpoint)?
    } else {
        None
    };
    let draft = match draft {
        Some(draft) => Some(draft::collect(&mut c, &draft, names, shared)?.into()),
        None => None,
    };
    c.refuse_unused(spec, names)?;
    Ok((
        Weights {
            embed,
            rope_constants,
            local_rope_constants,
            per_layer,
            altup,
            hyper,
            layers,
            final_norm,
            head,
            scores,
            head_bias,
            encoder,
            draft,
        },
        c.list,
    ))
}
