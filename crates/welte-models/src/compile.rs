//! From a spec to a program: options, weights, buffers, and a table for each shape.

use crate::arch::{Architecture, unsupported};
use crate::emit::{Emitter, Set};
use crate::weights::{Weights, collect};
use crate::{Error, ModelSpec};
use welte_formats::Checkpoint;
use welte_table::{BufferId, BufferRef, BufferSpec, Class, Format, KvLayout, Program, Shape, cost};

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// The most positions a sequence may have.
    pub context: u32,
    /// Sequences that may exist at a time.
    pub sequences: u32,
    /// Positions in a page of the KV cache.
    pub page: u32,
    /// `F16` or `Q8_0`.
    pub kv_format: Format,
    /// The most rows of a prompt in one step.
    pub prefill_rows: u32,
    /// The most rows of a batch; 0 for no batch table.
    pub batch_rows: u32,
    /// The longest chain: tokens of one submission.
    pub max_chain: u32,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            context: 4096,
            sequences: 1,
            page: 64,
            kv_format: Format::F16,
            prefill_rows: 512,
            batch_rows: 16,
            max_chain: 256,
        }
    }
}

/// Compiles the forward pass: tables for decode, prefill and (unless `batch_rows` is 0) batch, over the same weights
/// and buffers. Fused ops are used throughout; legalize splits those that a device lacks.
pub fn compile(
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    options: &CompileOptions,
) -> Result<Program, Error> {
    let arch = Architecture::by_name(&spec.architecture)
        .ok_or_else(|| unsupported(checkpoint, &spec.architecture))?;
    let kv = kv_layout(spec, options)?;
    let names = arch.names(checkpoint.dialect());
    let (weights, list) = collect(spec, checkpoint, names, options.context)?;
    let mut buffers = Buffers::default();
    let tokens = options
        .max_chain
        .saturating_add(1)
        .max(options.prefill_rows)
        .max(options.batch_rows);
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(tokens));
    let kv_bytes = kv.bytes().ok_or(Error::Option {
        option: "context",
        problem: "the cache is too large".into(),
    })?;
    let kv_buffer = buffers.add("kv", Class::Kv, kv_bytes);
    let logits = 4 * u64::from(options.batch_rows.max(1)) * u64::from(spec.vocab);
    let logits = buffers.add("logits", Class::ScratchDecode, logits);
    let decode = buffers.set("decode", Class::ScratchDecode, 1, spec, &weights);
    let rows = options.prefill_rows.max(options.batch_rows);
    let prefill = buffers.set("prefill", Class::ScratchPrefill, rows, spec, &weights);
    let last = buffers.add(
        "prefill.last",
        Class::ScratchPrefill,
        4 * u64::from(spec.dim),
    );

    let mut shapes = vec![
        (Shape::Decode, &decode),
        (Shape::Prefill(options.prefill_rows), &prefill),
    ];
    if options.batch_rows > 0 {
        shapes.push((Shape::Batch(options.batch_rows), &prefill));
    }
    let emit = |(shape, set)| {
        Emitter::new(spec, &weights, &list, shape, set).table(tokens, kv_buffer, logits, last)
    };
    let tables = shapes.into_iter().map(emit).collect();
    let mut program = Program {
        weights: list,
        buffers: buffers.0,
        kv,
        vocab: spec.vocab,
        tokens: tokens.buffer,
        tables,
    };
    cost::fill(&mut program);
    Ok(program)
}

fn kv_layout(spec: &ModelSpec, options: &CompileOptions) -> Result<KvLayout, Error> {
    let bounded = |option, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Error::Option {
            option,
            problem: format!("is {value}; must be from {least} to {most}"),
        })
    };
    bounded("context", options.context, 1, 1 << 26)?;
    bounded("sequences", options.sequences, 1, 4096)?;
    bounded("page", options.page, 1, 1 << 16)?;
    bounded("prefill_rows", options.prefill_rows, 1, 1 << 16)?;
    bounded("batch_rows", options.batch_rows, 0, 4096)?;
    bounded("max_chain", options.max_chain, 1, 1 << 20)?;
    let problem = match options.kv_format {
        Format::F16 => None,
        Format::Q8_0 if spec.head_dim.is_multiple_of(32) => None,
        Format::Q8_0 => Some(format!(
            "Q8_0 needs heads of a multiple of 32, these have {}",
            spec.head_dim
        )),
        other => Some(format!("is {}; must be F16 or Q8_0", other.name())),
    };
    if let Some(problem) = problem {
        return Err(Error::Option {
            option: "kv_format",
            problem,
        });
    }
    let pages = u64::from(options.context.div_ceil(options.page)) * u64::from(options.sequences);
    let pages = u32::try_from(pages).map_err(|_| Error::Option {
        option: "sequences",
        problem: format!(
            "{} of {} positions need more pages than can be counted",
            options.sequences, options.context
        ),
    })?;
    Ok(KvLayout {
        format: options.kv_format,
        layers: spec.layers,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        page: options.page,
        pages,
        sequences: options.sequences,
        context: options.context,
    })
}

#[derive(Default)]
struct Buffers(Vec<BufferSpec>);

impl Buffers {
    fn add(&mut self, name: &str, class: Class, bytes: u64) -> BufferRef {
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

    /// A scratch set: every intermediate once, reused by all layers.
    fn set(
        &mut self,
        name: &str,
        class: Class,
        rows: u32,
        spec: &ModelSpec,
        weights: &Weights,
    ) -> Set {
        let mut add = |what: &str, width: u32| {
            self.add(
                &format!("{name}.{what}"),
                class,
                4 * u64::from(rows) * u64::from(width),
            )
        };
        // Parts of different formats cannot be one fused command: their norm and their result need a place.
        let mixed = |l: &crate::weights::Layer| l.qkv.len() > 1 || l.gate_up.len() > 1;
        let open = |l: &crate::weights::Layer| {
            l.gate_up.len() > 1 || !l.gate_up_bias.is_empty() || l.ffn_norm.is_none()
        };
        Set {
            x: add("x", spec.dim),
            qkv: add("qkv", (spec.heads + 2 * spec.kv_heads) * spec.head_dim),
            attn: add("attn", spec.heads * spec.head_dim),
            h: add(
                "h",
                spec.experts
                    .map_or(spec.ffn, |e| spec.ffn.max(e.used * e.ffn)),
            ),
            router: spec.experts.map(|e| add("router", e.count)),
            choice: spec.experts.map(|e| add("choice", 2 * e.used)),
            norm: (spec.post_norm || spec.experts.is_some() || weights.layers.iter().any(mixed))
                .then(|| add("norm", spec.dim)),
            gate_up: weights
                .layers
                .iter()
                .any(open)
                .then(|| add("gate_up", 2 * spec.ffn)),
        }
    }
}
