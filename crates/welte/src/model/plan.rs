//! From a checkpoint to a plan: which device, which sizes, and what the device will allocate.

use crate::adapter::with_adapters;
use crate::fit::{self, FittedContext};
use crate::{DEFAULT_CONTEXT, Error, LoadOptions};
use std::sync::Arc;
use welte_device::{Device, Plan};
use welte_formats::checkpoint::Checkpoint;
use welte_models::{CompileOptions, ModelSpec, Pooling};
use welte_table::{Pattern, Program};

/// A plan, and the options with the sizes that it has.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) sized: LoadOptions,
    pub(super) fitted: Option<FittedContext>,
}

/// As [`plan_on`], with the sizes that fit in memory if the options ask for them.
pub(super) fn plan_fitted(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
) -> Result<Planned, Error> {
    let sized = |context, cache_positions| LoadOptions {
        context,
        cache_positions,
        ..options.clone()
    };
    let plan = |context, positions| plan_on(device, checkpoint, spec, &sized(context, positions));
    let fits = options.fit_context && spec.encoder.is_none();
    // Vectors of whole texts need rows for the whole context, which would be as much memory again.
    let (embed_rows, _) = embed_pass(checkpoint, options, u32::MAX, 1)?;
    let own = match embed_rows {
        u32::MAX => spec.usual_context().clamp(1, DEFAULT_CONTEXT),
        _ => spec.usual_context().max(1),
    };
    let fitted = fits.then(|| fit::fitted_context(own, options, device, plan));
    let fitted = fitted.transpose()?;
    let sized = match &fitted {
        Some(fitted) => sized(fitted.context, fitted.positions),
        None => options.clone(),
    };
    Ok(Planned {
        plan: plan_on(device, checkpoint, spec, &sized)?,
        sized,
        fitted,
    })
}

/// Refuses a plan that exceeds the available memory.
pub(super) fn check_fit(
    plan: &Plan,
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
) -> Result<(), Error> {
    // Caches that were cut to one context shrink with it.
    let plan_for = |context| {
        let mut shorter = options.with_context(context);
        if options.fit_context && options.cache_positions == options.context {
            shorter.cache_positions = context;
        }
        plan_on(device, checkpoint, spec, &shorter)
    };
    let on =
        |device: &dyn Device, options: &LoadOptions| plan_on(device, checkpoint, spec, options);
    let fewest = || {
        spec.experts?;
        fit::fewest_on_cpu(device.info().id, spec.layers, options, on)
    };
    fit::check_memory(checkpoint.origin(), plan, device, plan_for, fewest)
}

/// The program for a device and everything that the device will allocate for it.
pub(super) fn plan_on(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
) -> Result<Plan, Error> {
    if spec.encoder.is_some() {
        return plan_encoder(device, checkpoint, spec, options);
    }
    let context = match options.context {
        0 => spec.usual_context().clamp(1, DEFAULT_CONTEXT),
        n => n,
    };
    let (slots, defaults) = (options.slots.max(1), CompileOptions::default());
    // One sequence must fit in the pool.
    let context = match options.cache_positions {
        0 => context,
        n => context.min(n),
    };
    let prompt_rows = match options.prompt_rows {
        0 => device.info().prompt_rows,
        n => n,
    };
    let prompt_rows = prompt_rows.clamp(1, context.max(1));
    let (embed_rows, pooling) = embed_pass(checkpoint, options, context, prompt_rows)?;
    let compile = CompileOptions {
        context,
        kv_format: options.kv_format,
        slots,
        page: options.page,
        pages: options.cache_positions.div_ceil(options.page),
        checkpoints: options.checkpoints,
        decode_rows: options.decode_rows.max(slots),
        prompt_rows,
        embed_rows,
        pooling,
        score_tokens: options.score_tokens,
        features: options.features,
        drafts: options.draft_layer && device.drafts(),
        // Several prompts may end in one step. The logits have room for the rows of a decode step anyway.
        prompt_outputs: options.decode_rows.max(slots),
        ..defaults
    };
    let mut program = welte_models::compile(spec, checkpoint, &compile)?;
    with_adapters(&mut program, spec, checkpoint, options)?;
    let patterns = if options.fused {
        device.patterns()
    } else {
        &[]
    };
    plan_program(device, checkpoint, program, patterns)
}

/// The program of an encoder: a step holds the whole text of each sequence.
fn plan_encoder(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
) -> Result<Plan, Error> {
    let steers = !options.control_vectors.is_empty();
    if !options.adapters.is_empty() || options.max_adapters > 0 || steers {
        return Err(Error::NoText {
            origin: format!(
                "{} takes no adapters and control vectors, since it",
                checkpoint.origin()
            ),
        });
    }
    let settings = welte_models::vector_settings(checkpoint)?;
    let context = match options.context {
        0 => {
            let longest = settings.longest.unwrap_or(DEFAULT_CONTEXT);
            longest.min(spec.context).max(1)
        }
        n => n,
    };
    let rows = match options.prompt_rows {
        0 => device.info().prompt_rows,
        n => n,
    };
    let pooling = if options.scores {
        settings.score_pooling.unwrap_or(Pooling::First)
    } else {
        options
            .pooling
            .or(settings.pooling)
            .unwrap_or(Pooling::Mean)
    };
    let compile = CompileOptions {
        context: context.saturating_mul(spec.segments(options.scores)),
        slots: options.slots.max(1),
        // Logits of every row take much memory.
        embed_rows: match pooling {
            Pooling::Vocabulary => context,
            _ => rows.max(context),
        },
        pooling,
        scores: options.scores,
        ..CompileOptions::default()
    };
    let program = welte_models::compile(spec, checkpoint, &compile)?;
    plan_program(device, checkpoint, program, device.patterns())
}

/// What the device will allocate for a program.
pub(crate) fn plan_program(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    program: Program,
    patterns: &[Pattern],
) -> Result<Plan, Error> {
    let origin = || checkpoint.origin().to_string();
    let unsupported = |what| Error::Unsupported {
        origin: origin(),
        device: device.info().id,
        what,
    };
    if program.adapters.is_some() && !device.adapts() {
        return Err(unsupported("adapters (--lora, --max-adapters)".to_string()));
    }
    if let Some(what) = device.missing(&program) {
        return Err(unsupported(what));
    }
    let program = welte_table::fuse(program, patterns);
    welte_table::verify(&program).map_err(|problem| Error::Program {
        origin: origin(),
        problem,
    })?;
    Ok(device.plan(Arc::new(program))?)
}

/// The rows of an embed step, 0 if the program has no embed pass, and what it pools.
fn embed_pass(
    checkpoint: &dyn Checkpoint,
    options: &LoadOptions,
    context: u32,
    prompt_rows: u32,
) -> Result<(u32, Pooling), Error> {
    let none = (0, Pooling::Last);
    if options.scores {
        return match options.score_tokens {
            Some(_) => Ok((prompt_rows, Pooling::Last)),
            None => Ok(none),
        };
    }
    if !options.embeddings {
        return Ok(none);
    }
    let settings = welte_models::vector_settings(checkpoint)?;
    let pooling = options.pooling.or(settings.pooling).unwrap_or_default();
    Ok(match pooling {
        _ if settings.scores => none,
        Pooling::Last => (prompt_rows, pooling),
        // All rows of a text must be in one step.
        _ => (context, pooling),
    })
}
