//! A GPU as a device of the contract.

use crate::load::CudaProgram;
use crate::ops::exchange::{Inbox, MOST_RANKS};
use crate::plan::Planned;
use crate::upload::Staging;
use crate::{Error, GpuInfo, compile, floor, gpu, info};
use std::path::Path;
use std::sync::Arc;
use welte_device::{
    Device, DeviceId, DeviceInfo, DeviceOptions, Error as DeviceError, Loaded, Plan, Progress,
};
use welte_formats::Checkpoint;
use welte_table::{PATTERNS, Pass, Pattern, Program};

/// Rows of a prompt that keep a GPU's tensor cores busy.
const PROMPT_ROWS: u32 = 2048;

/// Opens a GPU by the driver's index.
pub fn device(ordinal: u32, options: &DeviceOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let opened = CudaDevice::open(ordinal, options);
    let opened = opened.map_err(|error| error.on(DeviceId::numbered("cuda", ordinal)))?;
    Ok(Arc::new(opened))
}

/// Starts a GPU, then opens the compiler if it was never seen on this machine. A load would do so too, but only after it has read the
/// model's description. Errors are left to the load.
pub fn start(ordinal: u32) {
    if gpu::free_memory(ordinal).is_ok() {
        let _ = info::STARTED.time("asking for the compiler", compile::version);
    }
}

/// Whether GPUs of these numbers can use each other's memory.
pub fn reach_each_other(gpus: &[u32]) -> bool {
    gpu::Reach::among(gpus).is_ok_and(|reach| reach > gpu::Reach::Nothing)
}

/// A GPU that may not exist, for planning: one of [`GPUS`](crate::GPUS).
pub fn assumed_device(name: &str, options: &DeviceOptions) -> Option<Arc<dyn Device>> {
    let gpu = info::known(name)?;
    Some(Arc::new(CudaDevice::assumed(gpu, options)))
}

/// A GPU and the options of its use.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    info: DeviceInfo,
    gpu: GpuInfo,
    /// Whether it exists.
    present: bool,
    options: DeviceOptions,
}

impl CudaDevice {
    /// Opens a GPU. The error says why it cannot be used.
    pub fn open(ordinal: u32, options: &DeviceOptions) -> Result<CudaDevice, Error> {
        if options.instructions.is_some() {
            let why = "instruction sets are an option of the CPU";
            return Err(Error::Unavailable(why.to_string()));
        }
        Ok(CudaDevice {
            present: true,
            ..CudaDevice::assumed(info::info(ordinal)?, options)
        })
    }

    /// A GPU that may not exist, for planning.
    pub fn assumed(gpu: GpuInfo, options: &DeviceOptions) -> CudaDevice {
        CudaDevice {
            info: DeviceInfo {
                id: DeviceId::numbered("cuda", gpu.device),
                name: gpu.name.clone(),
                prompt_rows: PROMPT_ROWS,
                cache_bytes: gpu.l2_bytes,
            },
            gpu,
            present: false,
            options: options.clone(),
        }
    }

    /// The GPU's properties.
    pub fn gpu(&self) -> &GpuInfo {
        &self.gpu
    }

    /// As [`Device::plan`] and [`Device::load`]. The result has the methods of this device too.
    pub fn load_program(
        &self,
        program: Arc<Program>,
        checkpoint: &dyn Checkpoint,
    ) -> Result<CudaProgram, DeviceError> {
        let planned = self.planned(program)?;
        CudaProgram::load(planned, checkpoint, &mut |_| {}).map_err(|error| error.on(self.info.id))
    }

    /// The source of a persistent kernel for a program, for chains or for steps of several rows, as one text that compiles
    /// on its own. The error says why there is no such kernel.
    pub fn persistent_source(
        &self,
        program: Arc<Program>,
        several_rows: bool,
    ) -> Result<String, DeviceError> {
        let planned = self.planned(program)?;
        let source = planned.persistent_source(several_rows);
        source.map_err(|why| Error::Program(why).on(self.info.id))
    }

    fn planned(&self, program: Arc<Program>) -> Result<Planned, DeviceError> {
        let planned = Planned::of(program, &self.gpu, &self.options);
        planned.map_err(|error| error.on(self.info.id))
    }
}

fn made_by_another() -> DeviceError {
    DeviceError::request("the plan was made by another device")
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn patterns(&self) -> &'static [Pattern] {
        PATTERNS
    }

    fn missing(&self, program: &Program) -> Option<String> {
        let middle = program.passes.iter().any(Pass::is_middle);
        if Inbox::of(program, self.options.exchange).ranks > MOST_RANKS as u64 {
            return Some(format!("more than {MOST_RANKS} ranks"));
        }
        middle.then(|| "the middle of a pass by itself".to_string())
    }

    fn adapts(&self) -> bool {
        true
    }

    fn takes_features(&self) -> bool {
        true
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, DeviceError> {
        let planned = self.planned(program)?;
        if self.present {
            planned
                .check_kernels()
                .map_err(|error| error.on(self.info.id))?;
        }
        let upload = Staging::of(&planned.program).explain();
        let mut facts = vec![("replay", planned.explain()), ("upload", upload)];
        facts.extend(planned.sizes.inbox.explain().map(|how| ("exchange", how)));
        let facts = facts.into_iter();
        Ok(Plan {
            program: planned.program.clone(),
            memory: planned.memory(),
            facts: facts.map(|(name, fact)| (name.to_string(), fact)).collect(),
            private: Box::new(planned),
        })
    }

    fn drafts(&self) -> bool {
        true
    }

    fn available_memory(&self) -> Option<u64> {
        if self.present {
            gpu::free_memory(self.gpu.device).ok()
        } else {
            Some(self.gpu.memory)
        }
    }

    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, DeviceError> {
        let planned = plan
            .private
            .downcast::<Planned>()
            .map_err(|_| made_by_another())?;
        let loaded = CudaProgram::load(*planned, checkpoint, progress);
        Ok(Arc::new(loaded.map_err(|error| error.on(self.info.id))?))
    }

    fn make_ready(
        &self,
        plan: &Plan,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, DeviceError> {
        let planned = plan.private.downcast_ref::<Planned>();
        let planned = planned.ok_or_else(made_by_another)?;
        let made = planned.make_ready(folder, progress);
        made.map_err(|error| error.on(self.info.id))
    }

    fn read_bandwidth(&self, seconds: f64) -> Result<f64, DeviceError> {
        let measured = floor::read_bandwidth(self.gpu.device, seconds);
        measured.map_err(|error| error.on(self.info.id))
    }
}
