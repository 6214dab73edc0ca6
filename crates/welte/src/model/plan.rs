//! From a checkpoint to a plan: which device, which sizes, and what the device will allocate.

use super::eyes::{Found, Images};
use super::{DEFAULT_CONTEXT, Inspection, LoadOptions};
use crate::devices::{KINDS, Kind, open_device};
use crate::fit::{self, FittedContext};
use crate::{DeviceChoice, Error, Skipped};
use std::sync::Arc;
use welte_device::{Device, Plan};
use welte_formats::checkpoint::Checkpoint;
use welte_models::{CompileOptions, ModelSpec, Pooling};
use welte_table::{Format, Program};

/// As [`inspect`], with room for images if the model has eyes. What an encoder needs that happens to lie beside the model does
/// not decide where the model runs.
pub(super) fn inspect_with_eyes(
    checkpoint: Arc<dyn Checkpoint>,
    options: &LoadOptions,
    found: &mut Found,
) -> Result<Inspection, Error> {
    *found = options.images.find(checkpoint.origin());
    let wanted = found.with_room(options);
    let with = |checkpoint, found: &Found| {
        let inspection = inspect(checkpoint, &wanted)?;
        let images = found.in_words(&inspection.plan.program, options);
        Ok(Inspection {
            images,
            ..inspection
        })
    };
    if wanted.features == options.features || options.images != Images::Beside {
        return with(checkpoint, found);
    }
    let without = inspect(checkpoint.clone(), options)?;
    if without.device.takes_features() {
        return with(checkpoint, found);
    }
    let why = Error::Unsupported {
        origin: without.origin().to_string(),
        device: without.device.info().id,
        what: "images, which are rows that read vectors".into(),
    };
    found.give_up(&options.images, why)?;
    let images = found.in_words(&without.plan.program, options);
    Ok(Inspection { images, ..without })
}

/// Compiles for the device that the options name, or for the first one that runs the model and has the memory for it.
fn inspect(checkpoint: Arc<dyn Checkpoint>, options: &LoadOptions) -> Result<Inspection, Error> {
    if !matches!(options.kv_format, Format::F16 | Format::Q8_0) {
        return Err(Error::CacheFormat {
            format: options.kv_format,
        });
    }
    let spec = welte_models::spec(checkpoint.as_ref())?;
    if options.cpu_experts > 0 && spec.experts.is_none() {
        return Err(Error::NoExperts {
            origin: checkpoint.origin().to_string(),
        });
    }
    let plan_on = |device: &dyn Device| plan_fitted(device, checkpoint.as_ref(), &spec, options);
    let mut skipped: Vec<Skipped> = Vec::new();
    let (device, planned) = match options.device {
        DeviceChoice::Named(id) => {
            let device = fit::placed(open_device(id, &options.for_device())?, options)?;
            let planned = plan_on(device.as_ref())?;
            (device, planned)
        }
        DeviceChoice::Auto => {
            // With experts on the CPU, all else needs another device.
            let fits =
                |kind: &&Kind| kind.is_automatic() && (options.cpu_experts == 0 || !kind.is_cpu());
            let mut kinds = KINDS.iter().filter(fits).peekable();
            loop {
                let Some(kind) = kinds.next() else {
                    return Err(match options.cpu_experts {
                        0 => Error::unknown_device("auto"),
                        _ => Error::ExpertsOnCpu,
                    });
                };
                let last = kinds.peek().is_none();
                let found = kind.open_first(&options.for_device()).and_then(|device| {
                    let device = fit::placed(device, options)?;
                    let planned = plan_on(device.as_ref())?;
                    if !last && !options.ignore_memory {
                        let (checkpoint, sized) = (checkpoint.as_ref(), &planned.sized);
                        check_fit(&planned.plan, device.as_ref(), checkpoint, &spec, sized)?;
                    }
                    Ok((device, planned))
                });
                match found {
                    Ok(found) => break found,
                    // With experts on the CPU or activations in FP8, the device that is tried first counts.
                    Err(why) if last => match skipped.into_iter().next() {
                        Some(first) if options.needs_gpu() => return Err(first.why),
                        _ => return Err(why),
                    },
                    Err(why) => skipped.push(Skipped {
                        device: kind.id(0),
                        why,
                    }),
                }
            }
        }
    };
    Ok(Inspection {
        checkpoint,
        spec,
        options: planned.sized,
        skipped,
        device,
        plan: planned.plan,
        fitted: planned.fitted,
        images: None,
    })
}

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
        u32::MAX => spec.context.clamp(1, DEFAULT_CONTEXT),
        _ => spec.context.max(1),
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
        0 => spec.context.clamp(1, DEFAULT_CONTEXT),
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
        // Several prompts may end in one step. The logits have room for the rows of a decode step anyway.
        prompt_outputs: options.decode_rows.max(slots),
        ..defaults
    };
    let program = welte_models::compile(spec, checkpoint, &compile)?;
    plan_program(device, checkpoint, program)
}

/// The program of an encoder: a step holds the whole text of each sequence.
fn plan_encoder(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
) -> Result<Plan, Error> {
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
        embed_rows: rows.max(context),
        pooling,
        scores: options.scores,
        ..CompileOptions::default()
    };
    let program = welte_models::compile(spec, checkpoint, &compile)?;
    plan_program(device, checkpoint, program)
}

/// What the device will allocate for a program.
pub(crate) fn plan_program(
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
    program: Program,
) -> Result<Plan, Error> {
    let origin = || checkpoint.origin().to_string();
    let unsupported = |what| Error::Unsupported {
        origin: origin(),
        device: device.info().id,
        what,
    };
    if let Some(what) = device.missing(&program) {
        return Err(unsupported(what));
    }
    let program = welte_table::fuse(program, device.patterns());
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
