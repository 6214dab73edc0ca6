//! Planning and loading.

use crate::context::CpuContext;
use crate::kernels::{Isa, Kernel};
use crate::load::{Inner, weight_bytes};
use crate::machine::{Machine, Place};
use crate::ops::attention;
use crate::scratch::{Sizes, experts_of};
use crate::{ID, available, info, unsupported};
use std::sync::Arc;
use welte_device::{
    Activations, Context, Device, DeviceInfo, DeviceOptions, Error, Loaded, Plan, Progress, Seat,
};
use welte_formats::Checkpoint;
use welte_table::{CacheKind, Class, MemoryPlan, PATTERNS, Pattern, Program, verify};

/// Raised with every change that gives other bits.
const ARITHMETIC: u32 = 2;

/// Memory that the program takes besides what it plans: vocabularies, threads, texts.
const RESERVE: u64 = 64 << 20;

/// The most threads of a team.
const MOST_THREADS: usize = 1024;

/// This machine's processor.
pub fn device(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    Ok(devices(options, 1)?.remove(0))
}

/// This machine's processor as several devices, which share its cores: one for each rank.
pub fn devices(options: &DeviceOptions, ranks: u32) -> Result<Vec<Arc<dyn Device>>, Error> {
    if options.activations == Activations::Float8 {
        let why = Activations::ONLY_CUDA.to_string();
        return Err(Error::Unavailable { device: ID, why });
    }
    let isa = match &options.instructions {
        None => Isa::best(),
        Some(name) => isa(name)?,
    };
    let places = places(options)?;
    let device = |rank: usize| -> Arc<dyn Device> {
        let cut = |nth: usize| places.len() * nth / ranks as usize;
        // With more ranks than threads, several ranks share one.
        let (first, end) = (cut(rank), cut(rank + 1));
        Arc::new(Cpu {
            info: DeviceInfo {
                id: ID,
                name: info::name().unwrap_or_else(|| std::env::consts::ARCH.to_string()),
                prompt_rows: 512,
                cache_bytes: info::cache_bytes(),
            },
            places: places[first..end.max(first + 1)].into(),
            isa,
        })
    };
    Ok((0..ranks as usize).map(device).collect())
}

/// Where the threads run.
fn places(options: &DeviceOptions) -> Result<Arc<[Place]>, Error> {
    let unavailable = |why: String| Error::Unavailable { device: ID, why };
    let threads = options
        .threads
        .map(|threads| threads.clamp(1, MOST_THREADS));
    let Some(machine) = Machine::here() else {
        if options.cpus.is_some() {
            let why = "this system does not say which CPUs it has; leave out --cpus";
            return Err(unavailable(why.to_string()));
        }
        return Ok(vec![Place::default(); threads.unwrap_or(default_threads())].into());
    };
    let places = machine.places(threads, options.cpus.as_deref());
    Ok(places.map_err(unavailable)?.into())
}

/// How many threads a team has on a system that does not say which processors it has.
fn default_threads() -> usize {
    #[cfg(target_os = "macos")]
    if let Some(cores) = crate::macos::performance_cores() {
        return cores;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The instruction set of that name, if this machine has it.
fn isa(name: &str) -> Result<Isa, Error> {
    let found = Isa::from_name(name).filter(|isa| isa.is_available());
    found.ok_or_else(|| {
        let known = info::instruction_sets().join(", ");
        Error::Unavailable {
            device: ID,
            why: format!("no instruction set '{name}'; this machine has {known}"),
        }
    })
}

struct Cpu {
    info: DeviceInfo,
    places: Arc<[Place]>,
    isa: Isa,
}

impl Cpu {
    /// Refuses a program that cannot be lowered safely.
    fn check(&self, program: &Program) -> Result<(), Error> {
        verify(program).map_err(unsupported)?;
        match self.missing(program) {
            Some(why) => Err(unsupported(why)),
            None => Ok(()),
        }
    }
}

impl Device for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn patterns(&self) -> &'static [Pattern] {
        PATTERNS
    }

    fn missing(&self, program: &Program) -> Option<String> {
        let most = attention::MAX_HEAD_DIM as u32;
        for cache in &program.caches {
            if let CacheKind::Attention { head_dim, .. } = cache.kind
                && head_dim > most
            {
                return Some(format!(
                    "attention heads of {head_dim} elements; at most {most}"
                ));
            }
        }
        let commands = program.passes.iter().flat_map(|pass| &pass.commands);
        for command in commands {
            let Some(experts) = experts_of(command) else {
                continue;
            };
            let outputs = experts.outputs;
            let rows = Kernel::for_format(command.format, self.isa).tile_rows;
            if !outputs.is_multiple_of(rows) {
                return Some(format!(
                    "experts of {outputs} outputs; must be a multiple of {rows}"
                ));
            }
        }
        None
    }

    fn takes_features(&self) -> bool {
        true
    }

    fn adapts(&self) -> bool {
        true
    }

    fn drafts(&self) -> bool {
        true
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        self.check(&program)?;
        let mut memory = MemoryPlan::of(&program, &|weight| weight_bytes(weight, self.isa));
        for (name, class, bytes) in Sizes::of(&program, self.places.len(), self.isa).entries() {
            memory.add(name, class, bytes);
        }
        memory.add("exchange", Class::Tables, Seat::bytes(&program));
        Ok(Plan {
            program,
            memory,
            facts: vec![
                ("threads".to_string(), self.places.len().to_string()),
                ("instructions".to_string(), self.isa.name().to_string()),
            ],
            private: Box::new(()),
        })
    }

    fn available_memory(&self) -> Option<u64> {
        available().map(|bytes| bytes.saturating_sub(RESERVE))
    }

    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error> {
        // A plan is plain data that anybody can make; lowering relies on the checks.
        self.check(&plan.program)?;
        let inner = Inner::load(plan.program, checkpoint, &self.places, self.isa, progress)?;
        Ok(Arc::new(LoadedCpu(Arc::new(inner))))
    }

    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        info::read_bandwidth(&self.places, seconds)
    }
}

/// The weights of a program; contexts share them.
struct LoadedCpu(Arc<Inner>);

impl Loaded for LoadedCpu {
    fn program(&self) -> &Arc<Program> {
        &self.0.program
    }

    /// The kernels of a format depend on the instruction set and on what else the processor has.
    fn arithmetic(&self) -> String {
        let isa = self.0.isa.name();
        let available = info::instruction_sets().join(" ");
        format!("cpu {isa} of {available}, version {ARITHMETIC}")
    }

    fn context(&self) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(CpuContext::new(self.0.clone(), None)?))
    }

    fn rank_context(&self, seat: Seat) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(CpuContext::new(self.0.clone(), Some(seat))?))
    }
}
