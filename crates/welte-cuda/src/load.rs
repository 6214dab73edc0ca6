//! Loading: kernels are compiled while weights are uploaded (`upload.rs`).

use crate::arithmetic::Arithmetic;
use crate::context::CudaContext;
use crate::gpu::{DeviceBlock, Gpu};
use crate::layout::weight_bytes;
use crate::loaded::LoadedProgram;
use crate::lower::Placed;
use crate::plan::Planned;
use crate::units::Needs;
use crate::upload::Staging;
use crate::{Error, compile, info};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use welte_device::{Context, Error as DeviceError, Loaded, Phase, Phases, Progress, Replay, Seat};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::Program;

/// A program's weights and kernels on a GPU. Cheap to clone; contexts share it.
#[derive(Clone)]
pub struct CudaProgram(pub(crate) Arc<LoadedProgram>);

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
                rows.wrong("its rows are not a whole number of blocks, or it is too large")
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
            code: OnceLock::new(),
            phases,
            arena,
            gpu,
        };
        let loaded = Arc::new(loaded);
        let tunes = loaded.needs_tuning(retune);
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| {
                let needs = Needs {
                    program: &loaded.program,
                    gpu: &loaded.gpu.info,
                    device: Some(&loaded.gpu),
                    decode: loaded.decode,
                    float8: loaded.float8,
                };
                let units = loaded.phases.time("lowering", || needs.units())?;
                loaded.add_modules(&units)?;
                Ok(units)
            });
            // If one of these does not compile, contexts do without it and say why.
            let persistent = [&loaded.recording, &loaded.rows]
                .map(|recording| scope.spawn(|| loaded.add_persistent(recording).ok()));
            let uploaded = loaded.upload(&staging, checkpoint, progress);
            let compiled = compiling.join();
            let compiled = compiled.unwrap_or_else(|_| Err(compile::panicked()));
            uploaded?;
            let units = compiled?;
            loaded.gpu.synchronise()?;
            if tunes {
                // The persistent kernels take longest to compile, and the GPU has nothing to do meanwhile.
                CudaContext::without_persistent(&loaded).map(drop)?;
            }
            for compiling in persistent {
                // If one panicked, its kernel is missing like one that did not compile.
                let _ = compiling.join();
            }
            loaded.note_code(&units);
            Ok::<(), Error>(())
        })?;
        let made = CudaProgram(loaded);
        if tunes {
            made.0.phases.time("tuning", || made.tune(progress))?;
        }
        Ok(made)
    }

    /// As [`Loaded::context`]. The result has the methods of this device too.
    pub fn cuda_context(&self) -> Result<CudaContext, DeviceError> {
        let made = CudaContext::new(&self.0, None);
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
            (false, Arithmetic::Batched) => "launched tensor-core",
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
            loaded.code.get().map_or("", String::as_str),
        )
    }

    fn context(&self) -> Result<Box<dyn Context>, DeviceError> {
        Ok(Box::new(self.cuda_context()?))
    }

    fn rank_context(&self, seat: Seat) -> Result<Box<dyn Context>, DeviceError> {
        let made = CudaContext::new(&self.0, Some(seat));
        Ok(Box::new(
            made.map_err(|error| error.on(self.0.device_id()))?,
        ))
    }

    fn phases(&self) -> Vec<Phase> {
        let started = info::STARTED.list().into_iter();
        started.chain(self.0.phases.list()).collect()
    }
}
