//! The weights of a model's own draft layer.

use super::{Collector, Layer, NormWeights, RopeConstants, Weights, layer};
use crate::Error;
use crate::draft::DraftSpec;
use crate::names::Names;
use crate::weights::EncoderWeights;
use welte_formats::checkpoint::Checkpoint;
use welte_table::{Usage, WeightId};

/// The weights of the draft layer, and those around it.
pub(crate) struct DraftWeights {
    /// The layer, with the embedding that it reads, its last norm and its head.
    pub(crate) model: Weights,
    /// The norm of what the embedding yields.
    pub(crate) embedding_norm: NormWeights,
    /// The norm of the hidden state that it reads.
    pub(crate) hidden_norm: NormWeights,
    /// From both, one after the other, to the stream.
    pub(crate) join: WeightId,
}

/// What it shares with the model.
pub(crate) struct Shared {
    pub(crate) embed: WeightId,
    pub(crate) head: WeightId,
    pub(crate) final_norm: Option<NormWeights>,
    /// Of all layers, and of windowed ones.
    pub(crate) ropes: [RopeConstants; 2],
}

/// Rows of a table that are compared with those of another one.
const SAMPLES: usize = 16;

/// Collects them. The layer is layer 0 of the draft's spec.
pub(super) fn collect(
    c: &mut Collector<'_>,
    draft: &DraftSpec,
    names: &Names,
    shared: Shared,
) -> Result<DraftWeights, Error> {
    let (spec, own) = (&draft.spec, &draft.names);
    let norm = |c: &mut Collector<'_>, what: &str, name: &str| {
        c.norm(&format!("draft {what}"), name, 0, spec)
    };
    let embedding_norm = norm(c, "embedding norm", &own.embedding_norm)?;
    let hidden_norm = norm(c, "hidden norm", &own.hidden_norm)?;
    let join = c.matrix(
        "draft join",
        Usage::Matrix,
        &format!("{}.weight", own.join),
        spec.dim,
        2 * spec.dim,
    )?;
    let first = c.list.len();
    c.draft = Some(own.layer.clone());
    let layer = layer(c, spec, names, 0);
    c.draft = None;
    let layer: Layer = layer?;
    for weight in &mut c.list[first..] {
        weight.name = weight.name.replacen("layer 0", "draft", 1);
    }
    let final_norm = if c.has(&format!("{}.weight", own.head_norm)) {
        Some(norm(c, "head norm", &own.head_norm)?)
    } else {
        shared.final_norm
    };
    let mut table = |what: &str, name: &str, usage: Usage, model: WeightId| {
        let name = format!("{name}.weight");
        if !c.has(&name) {
            return Ok(model);
        }
        let tensor = c.tensor(&name, spec.vocab, spec.dim)?;
        // Files of several exporters repeat the model's own table.
        if is_copy(c.checkpoint, &c.list[model as usize], &tensor.name) {
            return Ok(model);
        }
        c.matrix(&format!("draft {what}"), usage, &name, spec.vocab, spec.dim)
    };
    let embed = table("embedding", &own.embed, Usage::Lookup, shared.embed)?;
    let head = table("head", &own.head, Usage::Matrix, shared.head)?;
    Ok(DraftWeights {
        embedding_norm,
        hidden_norm,
        join,
        model: Weights {
            embed,
            rope_constants: shared.ropes[0],
            local_rope_constants: shared.ropes[1],
            per_layer: None,
            altup: None,
            layers: vec![layer],
            final_norm,
            head,
            scores: None,
            encoder: EncoderWeights::default(),
            head_bias: Vec::new(),
            draft: None,
        },
    })
}

/// True if a tensor repeats a weight of the model, as far as a sample of its rows tells. A wrong answer costs right guesses only.
fn is_copy(checkpoint: &dyn Checkpoint, weight: &welte_table::WeightSpec, name: &str) -> bool {
    let welte_table::Source::Parts(parts) = &weight.source else {
        return false;
    };
    let tensors = parts.first().map(|part| checkpoint.tensor(&part.tensor));
    let (Some(Some(known)), Some(other)) = (tensors, checkpoint.tensor(name)) else {
        return false;
    };
    if parts.len() != 1 || (known.format, known.n, known.k) != (other.format, other.n, other.k) {
        return false;
    }
    let mut rows = (0..SAMPLES).map(|at| at * (known.n - 1) / (SAMPLES - 1));
    rows.all(|row| {
        let rows = [known, other].map(|tensor| checkpoint.rows(tensor, row, 1));
        matches!(&rows, [Ok(one), Ok(two)] if one == two)
    })
}
