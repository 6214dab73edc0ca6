//! A model that is compiled and planned but not loaded.

use super::eyes::Found;
use super::plan::{check_fit, plan_fitted, plan_on};
use crate::device::bits;
use crate::devices::{KINDS, Kind, open_device};
use crate::fit::{self, FittedContext};
use crate::{DeviceChoice, Error, Images, LoadOptions, Skipped};
use std::path::Path;
use std::sync::Arc;
use welte_device::{Device, DeviceInfo, Plan};
use welte_formats::checkpoint::{Checkpoint, Value};
use welte_models::ModelSpec;
use welte_table::{Format, MemoryPlan, Program};

/// A model that is compiled and planned but not loaded: what `welte inspect` shows.
pub struct Inspection {
    /// The checkpoint.
    pub checkpoint: Arc<dyn Checkpoint>,
    /// What the model is.
    pub spec: ModelSpec,
    pub(super) options: LoadOptions,
    pub(super) skipped: Vec<Skipped>,
    pub(super) device: Arc<dyn Device>,
    pub(super) plan: Plan,
    pub(super) fitted: Option<FittedContext>,
    /// What is known of its eyes and ears, in words.
    pub(super) media: Vec<(String, String)>,
}

impl Inspection {
    /// Where the model comes from.
    pub fn origin(&self) -> &str {
        self.checkpoint.origin()
    }

    /// Facts about the model and how the device will run it, in order.
    pub fn facts(&self) -> Vec<(String, String)> {
        let text = |value: &Value| match value {
            Value::U64(v) => v.to_string(),
            Value::I64(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(v) => v.chars().take(80).collect(),
            Value::Array(v) => format!("{} values", v.len()),
        };
        let mut facts: Vec<(String, String)> = self.spec.facts();
        let metadata = self.checkpoint.metadata().iter();
        let general = metadata.filter(|(key, _)| key.starts_with("general."));
        facts.extend(general.map(|(key, value)| (key.clone(), text(value))));
        facts.extend(self.plan.facts.iter().cloned());
        facts.extend(self.media.iter().cloned());
        let others = KINDS
            .iter()
            .filter(|kind| kind.name != self.device.info().id.kind);
        facts.extend(others.flat_map(|kind| self.facts_elsewhere(kind)));
        facts
    }

    /// Facts about how another kind of device would run the model.
    fn facts_elsewhere(&self, kind: &Kind) -> Vec<(String, String)> {
        let Some((device, assumed)) = kind.for_planning(&self.options.for_device()) else {
            return Vec::new();
        };
        let note = if assumed {
            format!(
                "; assuming an {}, since there is none here",
                device.info().name
            )
        } else {
            String::new()
        };
        let checkpoint = self.checkpoint.as_ref();
        let facts = match plan_on(device.as_ref(), checkpoint, &self.spec, &self.options) {
            Ok(plan) => plan.facts,
            Err(why) => vec![("not possible".to_string(), why.to_string())],
        };
        let on_kind =
            |(name, value)| (format!("{name} on {}", kind.name), format!("{value}{note}"));
        facts.into_iter().map(on_kind).collect()
    }

    /// Its passes.
    pub fn program(&self) -> &Program {
        &self.plan.program
    }

    /// Memory by class.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan.memory
    }

    /// Memory that the device could allocate now, if it is known and the plan takes no other memory besides.
    pub fn available(&self) -> Option<u64> {
        match self.device.demands(&self.plan)[..] {
            [demand] => demand.have,
            _ => None,
        }
    }

    /// The device on which the model would run.
    pub fn device(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// Puts the compiled kernels with which this load would run into a folder, for machines without a compiler, and returns how many are
    /// new. The device need not be here. `progress` hears of kernels done and in all.
    pub fn make_kernels(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, Error> {
        Ok(self.device.make_ready(&self.plan, folder, progress)?)
    }

    /// The devices that an automatic choice did not take.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The context that was chosen, if the options asked for that.
    pub fn fitted_context(&self) -> Option<FittedContext> {
        self.fitted
    }
}

/// As [`inspect`], with room for images and sounds if the model has eyes or ears. What an encoder needs that happens to lie beside the model does
/// not decide where the model runs.
pub(super) fn inspect_with_eyes(
    checkpoint: Arc<dyn Checkpoint>,
    options: &LoadOptions,
    found: &mut Found,
) -> Result<Inspection, Error> {
    *found = options.images.find(checkpoint.origin());
    found.read(&options.images, checkpoint.as_ref());
    let wanted = found.with_room(checkpoint.origin(), options);
    let with = |checkpoint: Arc<dyn Checkpoint>, found: &Found| {
        let mut inspection = inspect(checkpoint.clone(), &wanted)?;
        let (spec, device) = (&inspection.spec, inspection.device.as_ref());
        let encoder = found.bytes(checkpoint.origin(), &wanted, spec, device);
        if encoder > 0 && inspection.fitted.is_some() {
            let room = LoadOptions {
                encoder,
                ..wanted.clone()
            };
            inspection = inspect(checkpoint, &room)?;
        }
        let media = found.in_words(&inspection.plan.program, options, encoder);
        Ok(Inspection {
            media,
            ..inspection
        })
    };
    if wanted.features == options.features || options.images != Images::Beside {
        return with(checkpoint, found);
    }
    let without = inspect(checkpoint.clone(), options)?;
    let id = without.device.info().id;
    let unsupported = |what: &str| Error::Unsupported {
        origin: without.origin().to_string(),
        device: id,
        what: what.into(),
    };
    let takes = without.device.takes_features();
    let seeing = takes.then(|| with(checkpoint.clone(), found));
    let why = match seeing {
        None => unsupported("images and sounds, which are rows that read vectors"),
        Some(Err(error)) => error,
        Some(Ok(seeing)) if seeing.device.info().id != id => {
            unsupported("room for images and sounds")
        }
        Some(Ok(seeing)) => {
            let (device, plan) = (seeing.device.as_ref(), &seeing.plan);
            let fits = check_fit(
                plan,
                device,
                checkpoint.as_ref(),
                &seeing.spec,
                &seeing.options,
            );
            match fits {
                Err(error) if !options.ignore_memory => error,
                _ => return Ok(seeing),
            }
        }
    };
    found.give_up(&options.images, why)?;
    let media = found.in_words(&without.plan.program, options, 0);
    Ok(Inspection { media, ..without })
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
        DeviceChoice::Ranks { kind, numbers } => {
            let numbers: Vec<u32> = bits(numbers).collect();
            let device = fit::ranks(kind, &numbers, options)?;
            let planned = plan_on(device.as_ref())?;
            (device, planned)
        }
        DeviceChoice::Assumed(_) if options.ranks > 1 => {
            let why = "they are planned only for devices that are here".to_string();
            return Err(Error::Ranks { why });
        }
        DeviceChoice::Assumed(model) => {
            let of_kind = |kind: &Kind| kind.assumed(model, &options.for_device());
            let device = KINDS.iter().find_map(of_kind);
            let device = device.ok_or_else(|| Error::unknown_device(model))?;
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
                let planned_on = |device: Arc<dyn Device>, must_fit: bool| {
                    let planned = plan_on(device.as_ref())?;
                    if must_fit && !options.ignore_memory {
                        let (checkpoint, sized) = (checkpoint.as_ref(), &planned.sized);
                        check_fit(&planned.plan, device.as_ref(), checkpoint, &spec, sized)?;
                    }
                    Ok((device, planned))
                };
                let first = kind.open_first(&options.for_device());
                let first = first.and_then(|device| fit::placed(device, options));
                let found = first.and_then(|device| planned_on(device, !last));
                let found = found.or_else(|why| {
                    fit::on_more_ranks(kind, why, options, |device| planned_on(device, true))
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
        media: Vec::new(),
    })
}
