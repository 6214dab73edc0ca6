//! A GPU as a device of the contract.

use crate::adapter::{self, Api};
use crate::context::WgpuContext;
use crate::gpu::{Abilities, Gpu, binding};
use crate::kernels::{self, WORKGROUP};
use crate::load::Weights;
use crate::plan;
use std::sync::Arc;
use web_time::{Duration, Instant};
use welte_device::{
    Activations, Context, Device, DeviceId, DeviceInfo, DeviceOptions, Error, Loaded, Plan,
    Progress,
};
use welte_formats::Checkpoint;
use welte_table::{PATTERNS, Pattern, Program, verify};
use wgpu::{Adapter, BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor};

/// Raised with every change that gives other bits.
const ARITHMETIC: u32 = 5;

/// Rows of a prompt that are computed together by default.
const PROMPT_ROWS: u32 = 256;
/// The same on cooperative matrices, whose tiles are larger.
const MANY_PROMPT_ROWS: u32 = 2048;

/// Opens a GPU by its number among those of an API.
pub fn device(api: Api, ordinal: u32, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    device_with(api, ordinal, options, Abilities::ALL)
}

/// A GPU as if it had these abilities at most: for tests.
pub fn device_with(
    api: Api,
    ordinal: u32,
    options: &DeviceOptions,
    abilities: Abilities,
) -> Result<Arc<dyn Device>, Error> {
    let id = api.id(ordinal);
    check_options(id, options)?;
    of_adapter(id, adapter::open(api, ordinal)?, abilities)
}

/// The first GPU, unless it is software: for an automatic choice.
pub fn hardware(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    let id = Api::Gpu.id(0);
    check_options(id, options)?;
    of_adapter(id, adapter::open_hardware()?, Abilities::ALL)
}

fn check_options(id: DeviceId, options: &DeviceOptions) -> Result<(), Error> {
    let why = match options {
        _ if options.instructions.is_some() => "instruction sets are an option of the CPU",
        _ if options.activations == Activations::Float8 => Activations::ONLY_CUDA,
        _ => return Ok(()),
    };
    Err(Error::Unavailable {
        device: id,
        why: why.to_string(),
    })
}

fn of_adapter(
    id: DeviceId,
    adapter: Adapter,
    abilities: Abilities,
) -> Result<Arc<dyn Device>, Error> {
    let gpu = Arc::new(Gpu::open(id, adapter, abilities)?);
    Ok(Arc::new(WgpuDevice {
        info: DeviceInfo {
            id: gpu.id,
            name: gpu.name.clone(),
            prompt_rows: match gpu.cooperative {
                Some(_) => MANY_PROMPT_ROWS,
                None => PROMPT_ROWS,
            },
            cache_bytes: 0,
        },
        gpu,
    }))
}

struct WgpuDevice {
    info: DeviceInfo,
    gpu: Arc<Gpu>,
}

impl WgpuDevice {
    fn refused(&self, why: String) -> Error {
        Error::Program {
            device: self.info.id,
            why,
        }
    }

    /// Refuses a program that cannot be lowered safely.
    fn check(&self, program: &Program) -> Result<(), Error> {
        verify(program).map_err(|why| self.refused(why))?;
        match plan::missing(program, &self.gpu) {
            Some(why) => Err(self.refused(why)),
            None => Ok(()),
        }
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn patterns(&self) -> &'static [Pattern] {
        PATTERNS
    }

    fn missing(&self, program: &Program) -> Option<String> {
        plan::missing(program, &self.gpu)
    }

    fn adapts(&self) -> bool {
        true
    }

    fn takes_features(&self) -> bool {
        true
    }

    fn drafts(&self) -> bool {
        true
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        self.check(&program)?;
        let kind = if self.gpu.software {
            "software"
        } else {
            "hardware"
        };
        let mut facts = vec![("adapter".to_string(), kind.to_string())];
        if let Some(why) = &self.gpu.refused {
            let slow = format!("slow, without cooperative matrices: {why}");
            facts.push(("prompts".to_string(), slow));
        }
        Ok(Plan {
            memory: plan::memory(&program, &self.gpu),
            program,
            facts,
            private: Box::new(()),
        })
    }

    fn available_memory(&self) -> Option<u64> {
        None
    }

    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error> {
        // A plan is plain data that anybody can make; lowering relies on the checks.
        self.check(&plan.program)?;
        let weights = Weights::load(self.gpu.clone(), plan.program, checkpoint, progress)?;
        Ok(Arc::new(LoadedWgpu(Arc::new(weights))))
    }

    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        const BYTES: u64 = 256 << 20;
        const GROUPS: u32 = 2048;
        // The fastest counts: a GPU that was idle takes a while to raise its clocks.
        const ROUNDS: u32 = 8;
        let gpu = &self.gpu;
        let bytes = BYTES.min(gpu.binding / 16 * 16);
        let values = gpu.buffer("what is read", bytes, BufferUsages::STORAGE)?;
        let sums = u64::from(GROUPS * WORKGROUP) * 4;
        let sums = gpu.buffer("sums", sums, BufferUsages::STORAGE)?;
        let pipeline = gpu.pipeline(&kernels::read())?;
        let bind = gpu.bind(&[
            (binding::MEM, sums.as_entire_binding()),
            (binding::WEIGHTS, values.as_entire_binding()),
        ]);
        let run = |times: u32| -> Result<Duration, Error> {
            let mut encoder = gpu
                .device
                .create_command_encoder(&CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &bind, &[]);
            (0..times).for_each(|_| pass.dispatch_workgroups(GROUPS, 1, 1));
            drop(pass);
            let begun = Instant::now();
            let index = gpu.submit(encoder);
            gpu.wait(index)?;
            Ok(begun.elapsed())
        };
        // The first run zeroes the buffer.
        run(1)?;
        let once = run(1)?.as_secs_f64();
        let times = seconds / f64::from(ROUNDS) / once.max(1e-6);
        let times = times.clamp(1.0, 1000.0) as u32;
        let mut fastest = f64::INFINITY;
        for _ in 0..ROUNDS {
            fastest = fastest.min(run(times)?.as_secs_f64());
        }
        Ok((bytes * u64::from(times)) as f64 / fastest)
    }
}

/// The weights of a program; contexts share them.
struct LoadedWgpu(Arc<Weights>);

impl Loaded for LoadedWgpu {
    fn program(&self) -> &Arc<Program> {
        &self.0.program
    }

    /// The driver compiles the kernels, so it decides on bits as the GPU does.
    fn arithmetic(&self) -> String {
        let info = self.0.gpu.device.adapter_info();
        format!(
            "wgpu {} on {} ({} {}), version {ARITHMETIC}",
            info.backend, info.name, info.driver, info.driver_info
        )
    }

    fn context(&self) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(WgpuContext::new(self.0.clone())?))
    }
}
