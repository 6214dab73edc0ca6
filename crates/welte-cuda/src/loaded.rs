//! A program's weights and kernels on a GPU.

use crate::arithmetic::Arithmetic;
use crate::disk::hashed;
use crate::gpu::{DeviceBlock, Gpu, Kernel, Module};
use crate::launch::{Launch, Unit};
use crate::lower::Placed;
use crate::persistent::{Recording, Tuning};
use crate::sizes::Sizes;
use crate::{Error, compile};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use welte_device::{DeviceId, Phases, Replay};
use welte_table::Program;

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
    /// The arithmetic of decode passes.
    pub(crate) decode: Arithmetic,
    /// Whether FP8 weights are multiplied with activations in FP8.
    pub(crate) float8: bool,
    /// Whether the rows of each FP8 weight have one scale, as far as it is uploaded.
    pub(crate) one_scale: Vec<AtomicBool>,
    /// Of the persistent kernels, for contexts that are made from now on.
    pub(crate) tuning: Mutex<Tuning>,
    /// Whether the kernel for several rows agrees with launched kernels, as far as is known.
    pub(crate) rows_agree: AtomicBool,
    pub(crate) modules: Mutex<BTreeMap<Unit, Module>>,
    /// Changes with the code of any kernel that computes, set at the end of the load.
    pub(crate) code: OnceLock<String>,
    /// What the load and contexts spent their time on.
    pub(crate) phases: Phases,
    // Freed after everything that lives in its context.
    pub(crate) arena: DeviceBlock,
    pub(crate) gpu: Arc<Gpu>,
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

    /// Notes the code of these units and of the persistent kernels.
    pub(crate) fn note_code(&self, units: &[Unit]) {
        let recordings = [&self.recording, &self.rows].into_iter().flatten();
        let recorded: Vec<Unit> = recordings.map(Recording::unit).collect();
        let modules = self.modules();
        let all = units.iter().chain(&recorded);
        let sums: Vec<u64> = all
            .filter_map(|unit| Some(modules.get(unit)?.sum))
            .collect();
        // A load has one end.
        let _ = self.code.set(hashed(&sums));
    }

    /// Compiles and loads a persistent kernel, where chains are to be replayed by it.
    pub(crate) fn add_persistent(
        &self,
        recording: &Result<Recording, String>,
    ) -> Result<(), Error> {
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
        compile::images(&missing, &arch, &self.phases, &load)
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
