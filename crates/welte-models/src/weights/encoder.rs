//! The weights that only encoders have.

use super::{Collector, NormWeights};
use crate::encoder::{EncoderNames, step_name};
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
    /// What a token weighs.
    pub(crate) token_weight: Option<Step>,
    /// What scores lose for each row of distance, by head.
    pub(crate) slopes: Option<WeightId>,
    /// The matrices of the head of a masked language model.
    pub(crate) masked_head: Vec<Step>,
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
    embed: WeightId,
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
        token_weight: None,
        slopes: encoder
            .slopes
            .then(|| c.constant("slopes of distances", slopes(spec.heads))),
        masked_head: Vec::new(),
    };
    if options.scores {
        own.steps = scores(c, spec, encoder, names)?;
        return Ok(own);
    }
    if options.pools_vocabulary() {
        own.masked_head = masked_head(c, spec, names, embed)?;
        return Ok(own);
    }
    if options.weighs_tokens(spec) {
        let (name, label) = (names.token_weight, "token weight".to_string());
        own.token_weight = Some(Step {
            matrix: c.matrix(&label, Usage::Matrix, &weight(name, 0), 1, dim)?,
            n: 1,
            k: dim,
            bias: if c.has(&bias(name, 0)) {
                Some(c.vector("token weight bias", &[(bias(name, 0), 1)], 0.0)?)
            } else {
                None
            },
            act: None,
            norm: None,
            label,
        });
    }
    let mut k = dim;
    for (i, dense) in encoder.dense.iter().enumerate() {
        let name = step_name(c.is_gguf(), encoder.projects, i as u32);
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

/// The slopes of ALiBi: powers of `2^(-8/n)` for n heads, n being a power of two. Of other numbers, the heads above the next lower power
/// have every second slope of twice that power, from the first on.
fn slopes(heads: u32) -> Vec<f32> {
    let whole = 1 << heads.ilog2();
    let slope = |n: u32, nth: u32| (-8.0 * f64::from(nth) / f64::from(n)).exp2() as f32;
    let first = (1..=whole).map(|nth| slope(whole, nth));
    let rest = (0..heads - whole).map(|nth| slope(2 * whole, 2 * nth + 1));
    first.chain(rest).collect()
}

/// ModernBERT and nomic-bert have other names for it.
fn embedding_norm(c: &Collector<'_>, names: &EncoderNames) -> &'static str {
    let others = ["embeddings.norm", "emb_ln"];
    let found = others.into_iter().find(|name| c.has(&weight(name, 0)));
    found.unwrap_or(names.embedding_norm)
}

/// The matrices of the head of a masked language model. The last one is that of the embeddings unless the checkpoint has one.
fn masked_head(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    names: &EncoderNames,
    embed: WeightId,
) -> Result<Vec<Step>, Error> {
    let (dim, vocab) = (spec.dim, spec.vocab);
    let mut families = names.masked_heads.iter();
    let Some([first, norm, last, last_bias]) = families.find(|f| c.has(&weight(f[0], 0))) else {
        return Ok(Vec::new());
    };
    let vector = |c: &mut Collector<'_>, label: &str, name: String, n: u32| {
        let there = c.has(&name);
        let vector = there.then(|| c.vector(label, &[(name, n)], 0.0));
        vector.transpose()
    };
    let inner = Step {
        label: "masked head".into(),
        matrix: c.matrix("masked head", Usage::Matrix, &weight(first, 0), dim, dim)?,
        n: dim,
        k: dim,
        bias: vector(c, "masked head bias", bias(first, 0), dim)?,
        act: Some(spec.act),
        norm: Some(c.norm("masked head norm", norm, 0, spec)?),
    };
    let label = "masked head logits".to_string();
    let own = weight(last, 0);
    let matrix = match c.has(&own) {
        true => c.matrix(&label, Usage::Matrix, &own, vocab, dim)?,
        false => embed,
    };
    let shift = "masked head logits bias";
    let outer = Step {
        bias: match vector(c, shift, (*last_bias).to_string(), vocab)? {
            None => vector(c, shift, bias(last, 0), vocab)?,
            shift => shift,
        },
        label,
        matrix,
        n: vocab,
        k: dim,
        act: None,
        norm: None,
    };
    Ok(vec![inner, outer])
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
            problem: if c.has(&weight("pre_classifier", 0)) {
                "does not go with the classifier of DistilBERT (`pre_classifier`), which is not supported"
            } else {
                "needs a model with a classifier"
            }
            .into(),
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

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_are_those_of_the_paper() {
        assert_eq!(slopes(1), [0.00390625]);
        assert_eq!(slopes(8)[..3], [0.5, 0.25, 0.125]);
        let twelve = slopes(12);
        assert_eq!(twelve[..8], slopes(8));
        let halves = [0.5f64, 1.5, 2.5, 3.5].map(|power| (-power).exp2() as f32);
        assert_eq!(twelve[8..], halves);
    }
}
