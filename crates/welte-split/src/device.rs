//! Planning and loading.

use crate::context::SplitContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use welte_device::{Context, Demand, Device, DeviceInfo, Error, Loaded, Plan, Progress};
use welte_formats::Checkpoint;
use welte_table::{Class, MemoryPlan, Op, Pass, Pattern, Program, Split, human, verify};

/// Raised with every change that gives other bits.
const ARITHMETIC: u32 = 1;

/// `near`, with the experts of the first `layers` layers on `far`. More layers than the model has mean all.
pub fn device(near: Arc<dyn Device>, far: Arc<dyn Device>, layers: u32) -> Arc<dyn Device> {
    let chosen = match layers {
        u32::MAX => "all experts".to_string(),
        layers => format!("experts of layers below {layers}"),
    };
    device_by(near, far, &chosen, move |pass, index| {
        is_experts(pass.commands[index].op) && layer(pass, index) < layers
    })
}

/// `near`, with any commands on `far`: `is_far` chooses them by their pass and number there, `chosen` says which in words.
/// Commands that cannot be moved stay where they are ([`Split::of`]).
pub fn device_by(
    near: Arc<dyn Device>,
    far: Arc<dyn Device>,
    chosen: &str,
    is_far: impl Fn(&Pass, usize) -> bool + Send + Sync + 'static,
) -> Arc<dyn Device> {
    let info = DeviceInfo {
        name: format!("{} with {}", near.info().name, far.info().name),
        ..near.info().clone()
    };
    Arc::new(SplitDevice {
        info,
        near,
        far,
        chosen: chosen.to_string(),
        is_far: Box::new(is_far),
        token_bytes: Default::default(),
    })
}

/// Whether a pass's command is far.
type IsFar = dyn Fn(&Pass, usize) -> bool + Send + Sync;

struct SplitDevice {
    /// That of `near`, with the names of both.
    info: DeviceInfo,
    near: Arc<dyn Device>,
    far: Arc<dyn Device>,
    /// Which commands are far, in words.
    chosen: String,
    is_far: Box<IsFar>,
    /// Bytes that a token of the last plan moves at least: near and far.
    token_bytes: [AtomicU64; 2],
}

/// What planning has worked out for loading.
struct Planned {
    split: Arc<Split>,
    near: Plan,
    /// `None` if nothing is far.
    far: Option<Plan>,
}

fn is_experts(op: Op) -> bool {
    matches!(op, Op::ExpertsActMul | Op::ExpertsAdd)
}

/// The layer of experts. Commands without one count the experts before them.
fn layer(pass: &Pass, index: usize) -> u32 {
    let before = || {
        let before = pass.commands[..index].iter();
        before.filter(|c| c.op == Op::ExpertsAdd).count() as u32
    };
    pass.layer_of(index).unwrap_or_else(before)
}

impl SplitDevice {
    fn split(&self, program: &Program) -> Split {
        Split::of(program, &self.is_far)
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Program {
            device: self.near.info().id,
            why: why.into(),
        }
    }

    /// Where the experts are, for a person.
    fn places(&self, program: &Program, split: &Split) -> String {
        let (near, far) = (self.near.info().id, self.far.info().id);
        let layers = |program: &Program| {
            let passes = program.passes.iter();
            let of_pass = |pass: &Pass| {
                pass.commands
                    .iter()
                    .filter(|c| c.op == Op::ExpertsAdd)
                    .count()
            };
            passes.map(of_pass).max().unwrap_or(0)
        };
        match (layers(program), layers(&split.far.program)) {
            (all, moved) if all == moved => {
                format!("all {all} layers on {far}, the rest on {near}")
            }
            (all, moved) => format!("{moved} of {all} layers on {far}, the rest on {near}"),
        }
    }
}

impl Device for SplitDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// No pattern makes experts, the only commands that may be far.
    fn patterns(&self) -> &'static [Pattern] {
        self.near.patterns()
    }

    fn missing(&self, program: &Program) -> Option<String> {
        let split = self.split(program);
        let far = || {
            let missing = self.far.missing(&split.far.program)?;
            Some(format!("{missing} (experts on {})", self.far.info().id))
        };
        let near = self.near.missing(&split.near.program);
        let near = program.needs_features().or(near);
        near.or_else(|| split.has_far().then(far).flatten())
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        verify(&program).map_err(|why| self.wrong(why))?;
        let split = Arc::new(self.split(&program));
        let near = self.near.plan(Arc::new(split.near.program.clone()))?;
        let mut facts = near.facts.clone();
        let mut memory = near.memory.clone();
        let mut far = None;
        if split.has_far() {
            let plan = self.far.plan(Arc::new(split.far.program.clone()))?;
            facts.extend(plan.facts.iter().cloned());
            facts.push(("experts".to_string(), self.places(&program, &split)));
            let id = self.far.info().id;
            for entry in &plan.memory.entries {
                memory.add(&format!("{} on {id}", entry.name), entry.class, entry.bytes);
            }
            memory.add("rows between devices", Class::Tables, split.most_bytes());
            far = Some(plan);
        }
        for (bytes, half) in self.token_bytes.iter().zip([&split.near, &split.far]) {
            let decode = half.program.passes.first().map_or(0, Pass::row_bytes);
            bytes.store(decode, Ordering::Relaxed);
        }
        let planned = Planned { split, near, far };
        for demand in self.demands_of(&planned) {
            let text = match demand.have {
                Some(have) => format!("{} of {} available", human(demand.need), human(have)),
                None => human(demand.need),
            };
            facts.push((format!("memory on {}", demand.device), text));
        }
        Ok(Plan {
            program,
            memory,
            facts,
            private: Box::new(planned),
        })
    }

    fn available_memory(&self) -> Option<u64> {
        self.near.available_memory()
    }

    fn demands(&self, plan: &Plan) -> Vec<Demand> {
        match plan.private.downcast_ref::<Planned>() {
            Some(planned) => self.demands_of(planned),
            None => Vec::new(),
        }
    }

    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error> {
        let planned = plan.private.downcast::<Planned>();
        let Planned { split, near, far } =
            *planned.map_err(|_| self.wrong("another device made the plan"))?;
        let weights = |memory: &MemoryPlan| memory.bytes(Class::Weights);
        let (first, total) = (weights(&near.memory), weights(&plan.memory));
        let mut part = |before: u64, one: Progress| {
            progress(match one {
                Progress::Weights { done, .. } => Progress::Weights {
                    done: before + done,
                    total,
                },
                tuning => tuning,
            });
        };
        let near = self.near.load(near, checkpoint, &mut |one| part(0, one))?;
        let far = match far {
            Some(far) => Some(
                self.far
                    .load(far, checkpoint, &mut |one| part(first, one))?,
            ),
            None => None,
        };
        Ok(Arc::new(LoadedSplit {
            program: plan.program,
            chosen: self.chosen.clone(),
            split,
            near,
            far,
        }))
    }

    /// That of both memories together, as a token of the last plan reads them one after the other.
    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        let [near, far] = [&self.token_bytes[0], &self.token_bytes[1]]
            .map(|bytes| bytes.load(Ordering::Relaxed) as f64);
        let near_speed = self.near.read_bandwidth(seconds)?;
        if far == 0.0 {
            return Ok(near_speed);
        }
        let far_speed = self.far.read_bandwidth(seconds)?;
        Ok((near + far) / (near / near_speed + far / far_speed))
    }
}

impl SplitDevice {
    fn demands_of(&self, planned: &Planned) -> Vec<Demand> {
        let demand = |device: &Arc<dyn Device>, need| Demand {
            device: device.info().id,
            need,
            have: device.available_memory(),
        };
        let mut demands = vec![demand(&self.near, planned.near.memory.total())];
        if let Some(far) = &planned.far {
            let need = far.memory.total() + planned.split.most_bytes();
            demands.push(demand(&self.far, need));
        }
        demands
    }
}

/// A program's weights on both devices.
struct LoadedSplit {
    program: Arc<Program>,
    chosen: String,
    split: Arc<Split>,
    near: Arc<dyn Loaded>,
    far: Option<Arc<dyn Loaded>>,
}

impl Loaded for LoadedSplit {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn arithmetic(&self) -> String {
        let near = self.near.arithmetic();
        match &self.far {
            Some(far) => format!(
                "{near}; {}: {}; split, version {ARITHMETIC}",
                self.chosen,
                far.arithmetic()
            ),
            None => near,
        }
    }

    fn context(&self) -> Result<Box<dyn Context>, Error> {
        let near = self.near.context()?;
        let far = self.far.as_ref().map(|far| far.context()).transpose()?;
        let context = SplitContext::new(self.program.clone(), self.split.clone(), near, far);
        Ok(Box::new(context))
    }
}
