//! Loading: several threads pass weights through pinned memory to the GPU, which regroups them. Meanwhile the kernels are
//! compiled.
#![allow(unsafe_code)]

use crate::context::{CudaContext, turn_unit};
use crate::gpu::{DeviceBlock, Event, Gpu, HostBlock, Kernel, Module};
use crate::launch::{Launch, Unit};
use crate::lower::{LoweredPass, Lowering, Places};
use crate::ops::Role;
use crate::ops::logprobs::logprobs_unit;
use crate::ops::sample::sample_unit;
use crate::persistent::{Recording, Tuning};
use crate::plan::Planned;
use crate::sizes::Sizes;
use crate::{Error, compile, layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use welte_device::{Context, DeviceId, Error as DeviceError, Loaded, Progress, Replay};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{PassKind, Program, Usage, WeightSpec};

/// Bytes of one piece of a weight in flight.
const PIECE: usize = 8 << 20;
/// The most threads that fill pieces; each has two pieces.
const MOST_THREADS: usize = 8;

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
    pub(crate) sizes: Sizes,
    /// The role of decode passes.
    pub(crate) decode: Role,
    /// Of the persistent kernels, for contexts that are made from now on.
    tuning: Mutex<Tuning>,
    /// Whether the kernel for several rows agrees with launched kernels, as far as is known.
    rows_agree: AtomicBool,
    modules: Mutex<BTreeMap<Unit, Module>>,
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
            mut recording,
            mut rows,
        } = planned;
        let gpu = Arc::new(Gpu::open(gpu.device)?);
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
        let needed = total.saturating_add(sizes.context_bytes(&program));
        let free = gpu.free_memory()?;
        if needed > free {
            return Err(Error::OutOfMemory {
                what: "the weights and one context".to_string(),
                bytes: needed,
                free,
            });
        }
        let arena = DeviceBlock::new(&gpu, total, "weights")?;
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
            sizes,
            decode,
            tuning: Mutex::default(),
            rows_agree: AtomicBool::new(true),
            modules: Mutex::default(),
            arena,
            gpu,
        };
        let needed = loaded.units()?;
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| loaded.add_modules(&needed));
            // If one of these does not compile, contexts do without it and say why.
            for recording in [&loaded.recording, &loaded.rows] {
                scope.spawn(|| loaded.add_persistent(recording).ok());
            }
            let uploaded = loaded.upload(checkpoint, progress);
            let compiled = compiling.join().unwrap_or_else(|_| {
                Err(Error::NoCompiler("a compiling thread panicked".to_string()))
            });
            uploaded.and(compiled)
        })?;
        loaded.gpu.synchronise()?;
        let made = CudaProgram(Arc::new(loaded));
        if made.0.needs_tuning(retune) {
            made.tune(progress)?;
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
            (true, _) => "persistent",
            (false, Role::Batched) => "launched tensor-core",
            (false, _) => "launched",
        };
        format!(
            "cuda sm_{} with {} multiprocessors, decoding by {family} kernels, kernels {}",
            gpu.arch,
            gpu.sms,
            compile::kernels_version(gpu.driver),
        )
    }

    fn context(&self) -> Result<Box<dyn Context>, DeviceError> {
        Ok(Box::new(self.cuda_context()?))
    }
}

/// A piece of a weight.
#[derive(Clone, Copy)]
struct Piece {
    weight: usize,
    first: usize,
    count: usize,
    /// Bytes in the checkpoint.
    bytes: usize,
}

impl LoadedProgram {
    pub(crate) fn device_id(&self) -> DeviceId {
        DeviceId::numbered("cuda", self.gpu.info.device)
    }

    /// Every unit that the passes need, found by lowering them without addresses.
    fn units(&self) -> Result<Vec<Unit>, Error> {
        let places = Places {
            buffers: vec![0; self.program.buffers.len()],
            ..Places::default()
        };
        let cx = Lowering::new(
            &self.program,
            &self.gpu.info,
            &self.gpu,
            &self.weights,
            &places,
            self.decode,
        );
        let mut units = BTreeSet::new();
        if self.program.pass(PassKind::Decode).is_some() {
            units.extend([turn_unit(), sample_unit(), logprobs_unit()]);
        }
        for pass in &self.program.passes {
            units.extend(units_of(&cx.pass(pass)?));
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
        let images = compile::images(&missing, &arch, self.gpu.info.driver)?;
        for (unit, image) in missing.into_iter().zip(images) {
            let module = Module::new(&self.gpu, &image, &format!("loading {}", unit.file))?;
            self.modules().insert(unit, module);
        }
        Ok(())
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

    fn pieces(&self, checkpoint: &dyn Checkpoint) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::new();
        for (weight, spec) in self.program.weights.iter().enumerate() {
            let rows = WeightRows { spec, checkpoint };
            let n = spec.n as usize;
            if spec.usage == Usage::Vector {
                pieces.push(Piece {
                    weight,
                    first: 0,
                    count: n,
                    bytes: n * spec.k as usize * 4,
                });
                continue;
            }
            let row = spec
                .format
                .bytes(spec.k as usize)
                .ok_or_else(|| rows.wrong("its rows are no whole number of blocks"))?;
            let most = (PIECE / row.max(1)).max(1);
            for first in (0..n).step_by(most) {
                let count = most.min(n - first);
                pieces.push(Piece {
                    weight,
                    first,
                    count,
                    bytes: count * row,
                });
            }
        }
        Ok(pieces)
    }

    fn upload(
        &self,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), Error> {
        let total = self.arena.bytes();
        let mut told = |done: u64| {
            progress(Progress::Weights {
                done: done.min(total),
                total,
            });
        };
        let pieces = self.pieces(checkpoint)?;
        self.add_modules(&self.repack_units())?;
        let room = pieces.iter().map(|p| p.bytes).max().unwrap_or(0);
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MOST_THREADS)
            .min(pieces.len().max(1));
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel::<u64>();
        told(0);
        let mut done = 0;
        std::thread::scope(|scope| {
            let mut workers = Vec::with_capacity(threads);
            for _ in 0..threads {
                let sender = sender.clone();
                let (pieces, next) = (&pieces, &next);
                workers.push(scope.spawn(move || {
                    let result = self.upload_pieces(checkpoint, pieces, next, room, &sender);
                    if result.is_err() {
                        next.store(pieces.len(), Ordering::Relaxed);
                    }
                    result
                }));
            }
            drop(sender);
            for bytes in receiver {
                done += bytes;
                told(done);
            }
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| {
                    Err(Error::Program(
                        "a thread that reads the checkpoint panicked".to_string(),
                    ))
                })
            })
        })?;
        self.gpu.synchronise()?;
        told(total);
        Ok(())
    }

    /// The units that regroup weights.
    fn repack_units(&self) -> Vec<Unit> {
        let matrices = self
            .program
            .weights
            .iter()
            .filter(|w| w.usage != Usage::Vector);
        let units: BTreeSet<Unit> = matrices
            .filter_map(|w| layout::repack_launch(w.format, w.n, w.k, 0, 1, 0, 0))
            .map(|launch| launch.unit)
            .collect();
        units.into_iter().collect()
    }

    /// The work of one thread: takes pieces until none are left.
    fn upload_pieces(
        &self,
        checkpoint: &dyn Checkpoint,
        pieces: &[Piece],
        next: &AtomicUsize,
        room: usize,
        done: &mpsc::Sender<u64>,
    ) -> Result<(), Error> {
        self.gpu.current()?;
        let slot = || -> Result<Slot, Error> {
            Ok(Slot {
                host: HostBlock::new(&self.gpu, room, "staging memory")?,
                raw: DeviceBlock::new(&self.gpu, room as u64, "staging memory")?,
                free: Event::new(&self.gpu)?,
            })
        };
        let mut slots = [slot()?, slot()?];
        for turn in 0.. {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else {
                break;
            };
            let slot = &mut slots[turn % 2];
            // An event that was never recorded counts as passed.
            slot.free.wait()?;
            self.upload_piece(checkpoint, piece, slot)?;
            slot.free.record()?;
            // The receiver is gone only if the load has failed.
            let _ = done.send(piece.bytes as u64);
        }
        for slot in &slots {
            slot.free.wait()?;
        }
        Ok(())
    }

    fn upload_piece(
        &self,
        checkpoint: &dyn Checkpoint,
        piece: &Piece,
        slot: &mut Slot,
    ) -> Result<(), Error> {
        let spec = &self.program.weights[piece.weight];
        let rows = WeightRows { spec, checkpoint };
        let start = self.weights[piece.weight].start;
        let staged = &mut slot.host.as_mut_slice()[..piece.bytes];
        if spec.usage == Usage::Vector {
            for (bytes, value) in staged.chunks_exact_mut(4).zip(rows.values()?) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            // SAFETY: the weight has these bytes. The slot is not reused until its event has passed.
            return unsafe { self.gpu.upload(start, staged) };
        }
        let mut at = 0;
        for part in rows.encoded(piece.first, piece.count)? {
            let Some(room) = staged.get_mut(at..at + part.len()) else {
                return Err(rows
                    .wrong("the checkpoint gave more bytes than its rows have")
                    .into());
            };
            room.copy_from_slice(&part);
            at += part.len();
        }
        if at != piece.bytes {
            return Err(rows
                .wrong("the checkpoint gave fewer bytes than its rows have")
                .into());
        }
        let (first, count) = (piece.first as u32, piece.count as u32);
        let raw = slot.raw.start();
        match layout::repack_launch(spec.format, spec.n, spec.k, first, count, raw, start) {
            None => {
                let row = piece.bytes / piece.count.max(1);
                // SAFETY: as above; rows that are not regrouped are contiguous.
                unsafe { self.gpu.upload(start + (piece.first * row) as u64, staged) }
            }
            Some(launch) => {
                let kernel = self.kernel(&launch)?;
                // SAFETY: the staging memory has room for any piece, the layout writes inside the weight, and the stream
                // keeps the order.
                unsafe {
                    self.gpu.upload(raw, staged)?;
                    self.gpu.launch(&kernel, launch.grid, &launch.args)
                }
            }
        }
    }
}

/// Staging memory for one piece.
struct Slot {
    host: HostBlock,
    raw: DeviceBlock,
    /// Has passed when the slot may be refilled.
    free: Event,
}

/// The units of a lowered pass.
pub(crate) fn units_of(pass: &LoweredPass) -> Vec<Unit> {
    let mut units = Vec::new();
    for node in pass.commands.iter().chain(&pass.one_row).flatten() {
        node.add_units(&mut units);
    }
    units
}
