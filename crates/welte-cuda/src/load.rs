//! Loading: kernels are compiled while weights are uploaded (`upload.rs`).

use crate::context::{CudaContext, turn_unit};
use crate::gpu::{DeviceBlock, Gpu, Kernel, Module};
use crate::launch::{Launch, Unit};
use crate::lower::{LoweredPass, Lowering, Places};
use crate::ops::Role;
use crate::ops::logprobs::logprobs_unit;
use crate::ops::sample::sample_unit;
use crate::persistent::{Recording, Tuning};
use crate::plan::Planned;
use crate::sizes::Sizes;
use crate::upload::Staging;
use crate::{Error, compile, info, layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use welte_device::{
    Context, DeviceId, Error as DeviceError, Loaded, Phase, Phases, Progress, Replay,
};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{PassKind, Program, Usage, WeightSpec};

/// A program's weights and kernels on a GPU. Cheap to clone; contexts share it.
#[derive(Clone)]
pub struct CudaProgram(pub(crate) Arc<LoadedProgram>);

/// The parts of a [`CudaProgram`].
pub(crate) struct LoadedProgram {
    pub(crate) program: Arc<Program>,
    /// The requested way of replaying chains.
    pub(crate) replay: Replay,
    pub(crate) weights: Vec<Placed>,
    /// The decode pass recorded for the persistent kernel, or why there is none.
    pub(crate) recording: Result<Recording, String>,
    /// The same for steps of several rows.
    pub(crate) rows: Result<Recording, String>,
    /// The most rows of a step of the persistent kernels, where launched kernels compute larger ones.
    pub(crate) few: Option<u32>,
    pub(crate) sizes: Sizes,
    /// The role of decode passes.
    pub(crate) decode: Role,
    /// Whether FP8 weights are multiplied with activations in FP8.
    pub(crate) float8: bool,
    /// Whether the rows of each FP8 weight have one scale, as far as it is uploaded.
    pub(crate) one_scale: Vec<AtomicBool>,
    /// Of the persistent kernels, for contexts that are made from now on.
    tuning: Mutex<Tuning>,
    /// Whether the kernel for several rows agrees with launched kernels, as far as is known.
    rows_agree: AtomicBool,
    modules: Mutex<BTreeMap<Unit, Module>>,
    /// What the load and contexts spent their time on.
    pub(crate) phases: Phases,
    // Freed after everything that lives in its context.
    pub(crate) arena: DeviceBlock,
    pub(crate) gpu: Arc<Gpu>,
}

/// The place of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Its address.
    pub(crate) start: u64,
}

/// Bytes of a weight on the GPU; `None` if its shape does not fit its format.
pub(crate) fn weight_bytes(spec: &WeightSpec) -> Option<u64> {
    if spec.usage == Usage::Vector {
        return (u64::from(spec.n) * u64::from(spec.k))
            .checked_mul(4)?
            .checked_next_multiple_of(256);
    }
    layout::bytes(spec.format, spec.n, spec.k)?.checked_next_multiple_of(256)
}

impl CudaProgram {
    /// Uploads the weights of a planned program, compiles its kernels and, at the first load on this GPU, tunes them.
    pub(crate) fn load(
        planned: Planned,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaProgram, Error> {
        let Planned {
            program,
            gpu,
            replay,
            retune,
            sizes,
            decode,
            float8,
            mut recording,
            mut rows,
            few,
        } = planned;
        let phases = Phases::default();
        let gpu = phases.time("a stream on the GPU", || Gpu::open(gpu.device));
        let gpu = Arc::new(gpu?);
        let mut weights = Vec::with_capacity(program.weights.len());
        let mut total = 0u64;
        for spec in &program.weights {
            let rows = WeightRows { spec, checkpoint };
            let bytes = weight_bytes(spec).ok_or_else(|| {
                rows.wrong("its rows are no whole number of blocks, or it is too large")
            })?;
            weights.push(Placed { start: total });
            total = total
                .checked_add(bytes)
                .ok_or_else(|| rows.wrong("the weights are too large"))?;
        }
        let one_scale = program.weights.iter().map(|_| AtomicBool::new(true));
        let one_scale = one_scale.collect();
        // Staging memory is gone when a context is made.
        let staging = Staging::of(&program);
        let later = sizes.context_bytes(&program).max(staging.gpu_bytes());
        let needed = total.saturating_add(later);
        let free = gpu.free_memory()?;
        if needed > free {
            return Err(Error::OutOfMemory {
                what: "the weights and one context".to_string(),
                bytes: needed,
                free,
            });
        }
        let arena = phases.time("memory for weights", || {
            DeviceBlock::new(&gpu, total, "weights")
        })?;
        for weight in &mut weights {
            weight.start += arena.start();
        }
        for recording in [&mut recording, &mut rows].into_iter().flatten() {
            recording.place(&weights);
        }
        let loaded = LoadedProgram {
            program,
            replay,
            weights,
            recording,
            rows,
            few,
            sizes,
            decode,
            float8,
            one_scale,
            tuning: Mutex::default(),
            rows_agree: AtomicBool::new(true),
            modules: Mutex::default(),
            phases,
            arena,
            gpu,
        };
        let loaded = Arc::new(loaded);
        let tunes = loaded.needs_tuning(retune);
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| {
                let units = loaded.phases.time("lowering", || loaded.units())?;
                loaded.add_modules(&units)
            });
            // If one of these does not compile, contexts do without it and say why.
            for recording in [&loaded.recording, &loaded.rows] {
                scope.spawn(|| loaded.add_persistent(recording).ok());
            }
            let uploaded = loaded.upload(&staging, checkpoint, progress);
            let compiled = compiling.join().unwrap_or_else(|_| {
                Err(Error::NoCompiler("a compiling thread panicked".to_string()))
            });
            uploaded.and(compiled)?;
            loaded.gpu.synchronise()?;
            match tunes {
                // The persistent kernels take longest to compile, and the GPU has nothing to do meanwhile.
                true => CudaContext::without_persistent(&loaded).map(drop),
                false => Ok(()),
            }
        })?;
        let made = CudaProgram(loaded);
        if tunes {
            made.0.phases.time("tuning", || made.tune(progress))?;
        }
        Ok(made)
    }

    /// As [`Loaded::context`]. The result has the methods of this device too.
    pub fn cuda_context(&self) -> Result<CudaContext, DeviceError> {
        let made = CudaContext::new(&self.0);
        made.map_err(|error| error.on(self.0.device_id()))
    }
}

impl Loaded for CudaProgram {
    fn program(&self) -> &Arc<Program> {
        &self.0.program
    }

    /// Which kernels decode depends on the GPU, on the way of replaying, and on whether the persistent kernels support the
    /// program; what they compute, on their source and its compiler.
    fn arithmetic(&self) -> String {
        let loaded = &*self.0;
        let gpu = &loaded.gpu.info;
        let persistent = loaded.replay == Replay::Persistent && loaded.recording.is_ok();
        let family = match (persistent && loaded.rows_agree(), loaded.decode) {
            (true, _) if loaded.few.is_some() => "persistent and launched",
            (true, _) => "persistent",
            (false, Role::Batched) => "launched tensor-core",
            (false, _) => "launched",
        };
        format!(
            "cuda sm_{} with {} multiprocessors, decoding by {family} kernels{}, kernels {}",
            gpu.arch,
            gpu.sms,
            if loaded.float8 {
                ", activations in FP8"
            } else {
                ""
            },
            compile::kernels_version(gpu.driver),
        )
    }

    fn context(&self) -> Result<Box<dyn Context>, DeviceError> {
        Ok(Box::new(self.cuda_context()?))
    }

    fn phases(&self) -> Vec<Phase> {
        let started = info::STARTED.list().into_iter();
        started.chain(self.0.phases.list()).collect()
    }
}

impl LoadedProgram {
    pub(crate) fn device_id(&self) -> DeviceId {
        DeviceId::numbered("cuda", self.gpu.info.device)
    }

    /// The weights whose rows have one scale, if activations are in FP8.
    pub(crate) fn one_scale(&self) -> Option<Vec<bool>> {
        let all = self.one_scale.iter().map(|one| one.load(Ordering::Relaxed));
        self.float8.then(|| all.collect())
    }

    /// Every unit that the passes need, found by lowering them without addresses.
    fn units(&self) -> Result<Vec<Unit>, Error> {
        let places = Places {
            buffers: vec![0; self.program.buffers.len()],
            ..Places::default()
        };
        // Which FP8 weights have several scales is not known yet, so both kernels are compiled.
        let scales = [true, false].map(|one| vec![one; self.program.weights.len()]);
        let scales: Vec<Option<&[bool]>> = match self.float8 {
            true => scales.iter().map(|one| Some(&one[..])).collect(),
            false => vec![None],
        };
        let mut units = BTreeSet::new();
        if self.program.pass(PassKind::Decode).is_some() {
            units.extend([turn_unit(), sample_unit(), logprobs_unit()]);
        }
        for float8 in scales {
            let cx = Lowering::new(
                &self.program,
                &self.gpu.info,
                &self.gpu,
                &self.weights,
                &places,
                self.decode,
                float8,
            );
            for pass in &self.program.passes {
                units.extend(units_of(&cx.pass(pass)?));
            }
        }
        Ok(units.into_iter().collect())
    }

    /// Compiles and loads a persistent kernel, where chains are to be replayed by it.
    fn add_persistent(&self, recording: &Result<Recording, String>) -> Result<(), Error> {
        match (self.replay, recording) {
            (Replay::Persistent, Ok(recording)) => {
                self.add_modules(std::slice::from_ref(&recording.unit()))
            }
            _ => Ok(()),
        }
    }

    /// The loaded persistent kernel.
    pub(crate) fn persistent_kernel(
        &self,
        unit: &Unit,
        recording: &Recording,
    ) -> Result<Kernel, Error> {
        let threads = Recording::THREADS;
        self.kernel_of(unit, recording.function(), threads, recording.shared)
    }

    /// The tuning parameters of the persistent kernels.
    pub(crate) fn tuning(&self) -> Tuning {
        *self.tuning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_tuning(&self, tuning: Tuning) {
        *self.tuning.lock().unwrap_or_else(PoisonError::into_inner) = tuning;
    }

    pub(crate) fn rows_agree(&self) -> bool {
        self.rows_agree.load(Ordering::Relaxed)
    }

    pub(crate) fn set_rows_agree(&self, agree: bool) {
        self.rows_agree.store(agree, Ordering::Relaxed);
    }

    fn modules(&self) -> MutexGuard<'_, BTreeMap<Unit, Module>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles and loads the units that are missing.
    pub(crate) fn add_modules(&self, units: &[Unit]) -> Result<(), Error> {
        let missing: Vec<Unit> = {
            let known = self.modules();
            let missing = units.iter().filter(|unit| !known.contains_key(unit));
            missing.cloned().collect()
        };
        let arch = compile::arch_name(self.gpu.info.arch);
        let load = |unit: &Unit, image: Vec<u8>| {
            let what = format!("loading {}", unit.file);
            let module = self
                .phases
                .time(&what, || Module::new(&self.gpu, &image, &what))?;
            self.modules().insert(unit.clone(), module);
            Ok(())
        };
        compile::images(&missing, &arch, self.gpu.info.driver, &self.phases, &load)
    }

    /// The loaded function of a launch.
    pub(crate) fn kernel(&self, launch: &Launch) -> Result<Kernel, Error> {
        self.kernel_of(&launch.unit, launch.function, launch.block, launch.shared)
    }

    /// A loaded function.
    pub(crate) fn kernel_of(
        &self,
        unit: &Unit,
        function: &'static str,
        block: u32,
        shared: u32,
    ) -> Result<Kernel, Error> {
        let modules = self.modules();
        let module = modules
            .get(unit)
            .ok_or_else(|| Error::Program(format!("{} was not compiled", unit.file)))?;
        module.kernel(function, block, shared)
    }
}

/// The units of a lowered pass.
pub(crate) fn units_of(pass: &LoweredPass) -> Vec<Unit> {
    let mut units = Vec::new();
    for node in pass.commands.iter().chain(&pass.one_row).flatten() {
        node.add_units(&mut units);
    }
    units
}
