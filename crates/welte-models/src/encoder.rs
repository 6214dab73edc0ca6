//! Encoders: models that read a whole text at once and yield its vector or a score.

mod read;

pub(crate) use read::{
    EncoderNames, classifier, dense, is_spare, masked_head, must_be, projection, step_name,
    weighs_tokens,
};

use crate::buffers::Buffers;
use crate::emit::{Emitter, Places, Set};
use crate::names::Names;
use crate::weights::{Weights, collect};
use crate::{CompileOptions, Error, ModelSpec};
use welte_formats::Checkpoint;
use welte_table::{BufferRef, Class, PassKind, Program, cost};

/// The floats before the hidden state in an output row of an encoder that weighs tokens ([`Encoder::weighs_tokens`]): the weight of
/// the row's token, and others that mean nothing. Such a pass pools nothing: the chosen rows are those that the pooling takes.
///
/// [`Encoder::weighs_tokens`]: crate::Encoder::weighs_tokens
pub const TOKEN_WEIGHT_FLOATS: u32 = 4;

/// Compiles the one pass of an encoder. It has no caches.
pub(crate) fn compile(
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    names: &Names,
    options: &CompileOptions,
) -> Result<Program, Error> {
    let rows = options.embed_rows.max(1);
    let table = spec.encoder.as_ref().and_then(|e| e.positions);
    if let Some(table) = table.filter(|table| options.period(spec) > table.count) {
        return Err(Error::Option {
            option: "context",
            problem: format!(
                "is {}; the model knows {} positions",
                options.period(spec),
                table.count
            ),
        });
    }
    options.check_pooling(spec)?;
    let (weights, list) = collect(spec, checkpoint, names, options)?;
    let mut buffers = Buffers::default();
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let (name, class) = PassKind::Embed.scratch();
    let set: Set = buffers.set(name, class, rows, spec);
    let weighs = options.weighs_tokens(spec);
    // Every row of a text may be one whose weight is wanted.
    let outputs = if weighs {
        rows
    } else {
        options.slots.min(rows)
    };
    let mut add = |name: &str, width: u32| {
        let bytes = 4 * u64::from(outputs) * u64::from(width);
        buffers.add(name, Class::ScratchPrompt, bytes)
    };
    let width = match (weighs, options.pools_vocabulary()) {
        (true, _) => TOKEN_WEIGHT_FLOATS + spec.dim,
        (_, true) => spec.vocab,
        _ => spec.dim,
    };
    let chosen = add("prompt.chosen", width);
    let steps = |weights: &Weights| {
        let widths = weights.encoder.steps.iter().map(|step| step.n);
        widths.collect::<Vec<_>>()
    };
    let results: Vec<BufferRef> = steps(&weights)
        .into_iter()
        .enumerate()
        .map(|(i, n)| add(&format!("prompt.dense {i}"), n))
        .collect();
    let logits = if options.pools_vocabulary() {
        let bytes = 4 * u64::from(rows) * u64::from(spec.vocab);
        buffers.add("prompt.logits", Class::ScratchPrompt, bytes)
    } else {
        BufferRef::NONE
    };
    let places = Places {
        tokens,
        caches: &[],
        logits,
        chosen,
        features: false,
        pooling: options.pooling,
        scores: None,
        results: &results,
        taps: None,
        captured: None,
        stored: None,
        context: options.period(spec),
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
        adapters: None,
        block: None,
        passes: vec![pass],
    };
    cost::fill(&mut program);
    Ok(program)
}
