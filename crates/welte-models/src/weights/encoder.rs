//! The weights that only encoders have.

use super::{Collector, NormWeights};
use crate::encoder::{EncoderNames, dense_name};
use crate::names::{bias, weight};
use crate::spec::{Act, Encoder, ModelSpec};
use crate::{CompileOptions, Error};
use welte_table::{Usage, WeightId};

/// The weights that only encoders have.
#[derive(Default)]
pub(crate) struct EncoderWeights {
    pub(crate) positions: Option<WeightId>,
    pub(crate) types: Option<WeightId>,
    pub(crate) embedding_norm: Option<NormWeights>,
    /// Matrices after pooling, in order.
    pub(crate) steps: Vec<Step>,
}

/// A matrix after pooling, with what follows it.
pub(crate) struct Step {
    pub(crate) label: String,
    pub(crate) matrix: WeightId,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) bias: Option<WeightId>,
    pub(crate) act: Option<Act>,
    pub(crate) norm: Option<NormWeights>,
}

/// Collects the weights that only encoders have.
pub(crate) fn collect_own(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    encoder: &Encoder,
    options: &CompileOptions,
) -> Result<EncoderWeights, Error> {
    let names = EncoderNames::of(c.checkpoint);
    let dim = spec.dim;
    let positions = match encoder.positions {
        Some(table) => {
            let rows = table.first + table.count;
            let used = table.first + options.period(spec);
            let name = weight(names.positions, 0);
            Some(c.flat("positions", &name, rows, used, dim)?)
        }
        None => None,
    };
    let types = match encoder.types {
        0 => None,
        types => {
            let used = spec.segments(options.scores);
            let name = weight(names.types, 0);
            Some(c.flat("segments", &name, types, used, dim)?)
        }
    };
    let embedding_norm = if encoder.embedding_norm {
        Some(c.norm("embedding norm", embedding_norm(c, names), 0, spec)?)
    } else {
        None
    };
    let mut own = EncoderWeights {
        positions,
        types,
        embedding_norm,
        steps: Vec::new(),
    };
    if options.scores {
        own.steps = scores(c, spec, encoder, names)?;
        return Ok(own);
    }
    let mut k = dim;
    for (i, dense) in encoder.dense.iter().enumerate() {
        let name = dense_name(c.is_gguf(), i as u32);
        let label = format!("dense {i}");
        own.steps.push(Step {
            matrix: c.matrix(&label, Usage::Matrix, &weight(&name, 0), dense.outputs, k)?,
            n: dense.outputs,
            k,
            bias: if dense.bias {
                let tensor = [(bias(&name, 0), dense.outputs)];
                Some(c.vector(&format!("{label} bias"), &tensor, 0.0)?)
            } else {
                None
            },
            act: dense.tanh.then_some(Act::Tanh),
            norm: None,
            label,
        });
        k = dense.outputs;
    }
    Ok(own)
}

/// ModernBERT and nomic-bert have other names for it.
fn embedding_norm(c: &Collector<'_>, names: &EncoderNames) -> &'static str {
    let others = ["embeddings.norm", "emb_ln"];
    let found = others.into_iter().find(|name| c.has(&weight(name, 0)));
    found.unwrap_or(names.embedding_norm)
}

/// The matrices of the classifier.
fn scores(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    encoder: &Encoder,
    names: &EncoderNames,
) -> Result<Vec<Step>, Error> {
    let dim = spec.dim;
    let mut families = names.classifiers.iter();
    let family = families.find(|f| c.has(&weight(f[2], 0)) && c.has(&weight(f[0], 0)));
    let (Some([first, norm, last]), Some(act)) = (family, encoder.classifier) else {
        return Err(Error::Option {
            option: "scores",
            problem: "needs a model with a classifier".into(),
        });
    };
    let mut step = |name: &str, n, act, norm: &str| {
        let label = format!("classifier {name}");
        let shift = [(bias(name, 0), n)];
        Ok::<Step, Error>(Step {
            matrix: c.matrix(&label, Usage::Matrix, &weight(name, 0), n, dim)?,
            n,
            k: dim,
            bias: if c.has(&bias(name, 0)) {
                Some(c.vector(&format!("{label} bias"), &shift, 0.0)?)
            } else {
                None
            },
            act,
            norm: if !norm.is_empty() && c.has(&weight(norm, 0)) {
                Some(c.norm("classifier norm", norm, 0, spec)?)
            } else {
                None
            },
            label,
        })
    };
    Ok(vec![
        step(first, dim, Some(act), norm)?,
        step(last, 1, None, "")?,
    ])
}
