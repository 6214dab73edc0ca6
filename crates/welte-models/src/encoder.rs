//! Encoders: models that read a whole text at once and yield its vector or a score.

use crate::emit::{Emitter, Places, Set};
use crate::keys::Keys;
use crate::names::{Names, bias, weight};
use crate::spec::Act;
use crate::weights::{Collector, NormWeights, Weights, collect};
use crate::{CompileOptions, Error, ModelSpec};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;
use welte_table::{BufferRef, Class, PassKind, Program, Usage, WeightId, cost};

/// What an encoder has and a decoder has not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoder {
    /// Learned positions; without them, layers have rope.
    pub positions: Option<Positions>,
    /// Entries in the table of segments; 0: no table.
    pub types: u32,
    /// Embeddings are normed.
    pub embedding_norm: bool,
    /// The stream is normed after each part was added to it. Otherwise norms are where decoders have them.
    pub norms_sums: bool,
    /// The stream is normed after the last layer.
    pub final_norm: bool,
    /// The first layer's attention does not norm its input, because the embeddings are normed.
    pub first_is_normed: bool,
    /// Layers between the pooled state and the vector.
    pub dense: Vec<Dense>,
    /// Activation between the two matrices of a classifier, if the checkpoint has one.
    pub classifier: Option<Act>,
}

/// A table of learned positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Entry of the first position.
    pub first: u32,
    /// Positions.
    pub count: u32,
}

/// A dense layer after pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Values that it yields.
    pub outputs: u32,
    /// It adds a bias.
    pub bias: bool,
    /// It ends in the hyperbolic tangent.
    pub tanh: bool,
}

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

/// The names of an encoder's own tensors in one dialect.
struct EncoderNames {
    positions: &'static str,
    types: &'static str,
    embedding_norm: &'static str,
    /// By family: the first matrix of the classifier, its norm, and the second matrix.
    classifiers: &'static [[&'static str; 3]],
}

const GGUF: EncoderNames = EncoderNames {
    positions: "position_embd",
    types: "token_types",
    embedding_norm: "token_embd_norm",
    classifiers: &[["cls", "cls.norm", "cls.output"]],
};

const HUGGING_FACE: EncoderNames = EncoderNames {
    positions: "embeddings.position_embeddings",
    types: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    classifiers: &[
        ["classifier.dense", "", "classifier.out_proj"],
        ["head.dense", "head.norm", "classifier"],
        ["pooler.dense", "", "classifier"],
    ],
};

impl EncoderNames {
    fn of(checkpoint: &dyn Checkpoint) -> &'static EncoderNames {
        match checkpoint.dialect() {
            welte_formats::Dialect::Gguf => &GGUF,
            welte_formats::Dialect::HuggingFace => &HUGGING_FACE,
        }
    }
}

/// The activation of the classifier, if the checkpoint has one.
pub(crate) fn classifier(keys: &Keys<'_>, act: Act) -> Option<Act> {
    let names = EncoderNames::of(keys.checkpoint);
    let has = |name: &str| {
        let name = crate::names::resolve(keys.checkpoint, &weight(name, 0));
        keys.checkpoint.tensor(&name).is_some()
    };
    let mut families = names.classifiers.iter();
    families.find(|f| has(f[2])).map(|_| act)
}

/// The dense layers that follow pooling.
pub(crate) fn dense(keys: &Keys<'_>) -> Result<Vec<Dense>, Error> {
    let outputs = |name: &str| {
        let info = keys.checkpoint.tensor(&weight(name, 0));
        info.and_then(|info| u32::try_from(info.n).ok())
    };
    if keys.is_gguf() {
        let layers = ["dense_2", "dense_3"].into_iter().filter_map(outputs);
        return Ok(layers
            .map(|outputs| Dense {
                outputs,
                bias: false,
                tanh: false,
            })
            .collect());
    }
    let count = keys.u32("sentence_transformers.dense")?.unwrap_or(0);
    (0..count)
        .map(|i| {
            let name = dense_name(keys.is_gguf(), i);
            let outputs = outputs(&name).ok_or_else(|| Error::Tensor {
                origin: keys.checkpoint.origin().into(),
                name: weight(&name, 0),
                problem: "is missing".into(),
            })?;
            let key = format!("sentence_transformers.dense.{i}.activation_function");
            let class = keys
                .text(&key)?
                .unwrap_or("torch.nn.modules.activation.Tanh");
            let tanh = match class.rsplit('.').next() {
                Some("Tanh") => true,
                Some("Identity") => false,
                _ => {
                    let problem = format!("is {class}; supported are Tanh and Identity");
                    return Err(keys.error(&key, problem));
                }
            };
            Ok(Dense {
                outputs,
                bias: keys.checkpoint.tensor(&bias(&name, 0)).is_some(),
                tanh,
            })
        })
        .collect()
}

fn dense_name(gguf: bool, index: u32) -> String {
    match gguf {
        true => format!("dense_{}", index + 2),
        false => format!("sentence_transformers.dense.{index}.linear"),
    }
}

/// Refuses a configuration value other than this one.
pub(crate) fn must_be(keys: &Keys<'_>, key: &str, wanted: &str) -> Result<(), Error> {
    match keys.value(key) {
        None => Ok(()),
        Some(Value::String(said)) if said == wanted => Ok(()),
        Some(_) => Err(keys.error(key, format!("is not supported; it must be {wanted}"))),
    }
}

/// Tensors of heads that yield neither vectors nor scores, and constants that old exporters store.
pub(crate) fn is_spare(name: &str) -> bool {
    let name = ["bert.", "roberta.", "model."]
        .into_iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let heads = [
        "pooler.",
        "cls.",
        "lm_head.",
        "head.",
        "decoder.",
        "classifier.",
        "embeddings.position_ids",
    ];
    name == "cls" || heads.iter().any(|head| name.starts_with(head))
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
            let used = table.first + period(spec, options);
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
    let embedding_norm = match encoder.embedding_norm {
        true => Some(c.norm("embedding norm", embedding_norm(c, names), 0, spec)?),
        false => None,
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
            bias: match dense.bias {
                true => {
                    let tensor = [(bias(&name, 0), dense.outputs)];
                    Some(c.vector(&format!("{label} bias"), &tensor, 0.0)?)
                }
                false => None,
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
            bias: match c.has(&bias(name, 0)) {
                true => Some(c.vector(&format!("{label} bias"), &shift, 0.0)?),
                false => None,
            },
            act,
            norm: match !norm.is_empty() && c.has(&weight(norm, 0)) {
                true => Some(c.norm("classifier norm", norm, 0, spec)?),
                false => None,
            },
            label,
        })
    };
    Ok(vec![
        step(first, dim, Some(act), norm)?,
        step(last, 1, None, "")?,
    ])
}

/// Positions of a segment.
pub(crate) fn period(spec: &ModelSpec, options: &CompileOptions) -> u32 {
    options.context / spec.segments(options.scores)
}

impl ModelSpec {
    /// Segments of a text: a pair of texts has two, if the model distinguishes them.
    pub fn segments(&self, scores: bool) -> u32 {
        match &self.encoder {
            Some(encoder) if scores && encoder.positions.is_some() => encoder.types.clamp(1, 2),
            _ => 1,
        }
    }
}

/// Compiles the one pass of an encoder. It has no caches.
pub(crate) fn compile(
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    names: &Names,
    options: &CompileOptions,
) -> Result<Program, Error> {
    let rows = options.embed_rows.max(1);
    let table = spec.encoder.as_ref().and_then(|e| e.positions);
    if let Some(table) = table.filter(|table| period(spec, options) > table.count) {
        return Err(Error::Option {
            option: "context",
            problem: format!(
                "is {}; the model knows {} positions",
                period(spec, options),
                table.count
            ),
        });
    }
    let (weights, list) = collect(spec, checkpoint, names, options)?;
    let mut buffers = crate::compile::Buffers::default();
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let (name, class) = PassKind::Embed.scratch();
    let set: Set = buffers.set(name, class, rows, spec);
    let outputs = options.slots.min(rows);
    let mut add = |name: &str, width: u32| {
        let bytes = 4 * u64::from(outputs) * u64::from(width);
        buffers.add(name, Class::ScratchPrompt, bytes)
    };
    let chosen = add("prompt.chosen", spec.dim);
    let steps = |weights: &Weights| {
        let widths = weights.encoder.steps.iter().map(|step| step.n);
        widths.collect::<Vec<_>>()
    };
    let results: Vec<BufferRef> = steps(&weights)
        .into_iter()
        .enumerate()
        .map(|(i, n)| add(&format!("prompt.dense {i}"), n))
        .collect();
    let places = Places {
        tokens,
        caches: &[],
        logits: BufferRef::NONE,
        chosen,
        pooling: options.pooling,
        scores: None,
        results: &results,
        context: period(spec, options),
    };
    let pass = Emitter::new(spec, &weights, &list, &set, &places);
    let pass = pass.pass(PassKind::Embed, rows, outputs);
    let mut program = Program {
        weights: list,
        buffers: buffers.into_list(),
        caches: Vec::new(),
        vocab: spec.vocab,
        context: options.context,
        page: options.page,
        slots: options.slots,
        tokens: tokens.buffer,
        features: welte_table::NO_BUFFER,
        passes: vec![pass],
    };
    cost::fill(&mut program);
    Ok(program)
}
