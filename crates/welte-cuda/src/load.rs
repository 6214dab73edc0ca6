//! Loading: weights go up through pinned staging, filled by several threads, and are regrouped on the GPU; meanwhile
//! the kernels are compiled.
#![allow(unsafe_code)]

use crate::gpu::{DeviceBlock, Event, Gpu, HostBlock, Kernel, Module};
use crate::launch::{Launch, Unit};
use crate::lower::{LoweredTable, Lowering, Places};
use crate::persistent::{Recording, Tuning};
use crate::replay::turn_unit;
use crate::sizes::Sizes;
use crate::{Error, Options, Plan, Replay, compile, layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{Program, Usage, WeightSpec};

/// Bytes of one piece of a weight on its way up.
const PIECE: usize = 8 << 20;
/// Tuning counts as one part in so many of the weights' bytes, where progress is told.
const TUNING_SHARE: u64 = 10;
/// Most threads that fill pieces; each has two.
const MOST_THREADS: usize = 8;

/// The weights of a program on a GPU, and its kernels. Cheap to clone.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) program: Arc<Program>,
    pub(crate) options: Options,
    pub(crate) weights: Vec<Placed>,
    /// The decode table for the persistent kernel, or why there is none.
    pub(crate) recording: Result<Recording, String>,
    /// The same for steps of several rows.
    pub(crate) rows: Result<Recording, String>,
    pub(crate) sizes: Sizes,
    /// Of the persistent kernels, for sessions that are made from now on.
    tuning: Mutex<Tuning>,
    /// Whether the kernel for several rows agrees with launched kernels, as far as is known.
    rows_agree: AtomicBool,
    modules: Mutex<BTreeMap<Unit, Module>>,
    // Freed after everything that lives in its context.
    pub(crate) arena: DeviceBlock,
    pub(crate) gpu: Arc<Gpu>,
}

/// Where a weight lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Address.
    pub(crate) start: u64,
}

/// Bytes that a weight takes on the GPU; 0 if its shape does not fit its format.
pub fn weight_bytes(spec: &WeightSpec, options: &Options) -> u64 {
    let _ = options;
    size_of_weight(spec).unwrap_or(0)
}

fn size_of_weight(spec: &WeightSpec) -> Option<u64> {
    if spec.usage == Usage::Vector {
        return (u64::from(spec.n) * u64::from(spec.k))
            .checked_mul(4)?
            .checked_next_multiple_of(256);
    }
    layout::bytes(spec.format, spec.n, spec.k)?.checked_next_multiple_of(256)
}

impl Model {
    /// Uploads the weights of a program, compiles its kernels and, at the first load on this GPU, tunes them. `progress` hears of
    /// bytes done and in all; tuning counts like a tenth of the weights.
    pub fn load(
        program: Arc<Program>,
        checkpoint: &dyn Checkpoint,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        Model::load_planned(Plan::of(program, options)?, checkpoint, progress)
    }

    /// The same for a program that is planned already.
    pub fn load_planned(
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        let Plan {
            program,
            options,
            sizes,
            mut recording,
            mut rows,
        } = plan;
        let gpu = Arc::new(Gpu::open(options.device)?);
        let mut weights = Vec::with_capacity(program.weights.len());
        let mut total = 0u64;
        for spec in &program.weights {
            let rows = WeightRows { spec, checkpoint };
            let bytes = size_of_weight(spec).ok_or_else(|| {
                rows.wrong("its rows are no whole number of blocks, or it is too large")
            })?;
            weights.push(Placed { start: total });
            total = total
                .checked_add(bytes)
                .ok_or_else(|| rows.wrong("the weights are too large"))?;
        }
        let needed = total.saturating_add(sizes.session_bytes(&program));
        let free = gpu.free_memory()?;
        if needed > free {
            return Err(Error::OutOfMemory {
                what: "the model and a session of it".to_string(),
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
        let model = Model {
            inner: Arc::new(Inner {
                recording,
                rows,
                sizes,
                program,
                options,
                weights,
                tuning: Mutex::default(),
                rows_agree: AtomicBool::new(true),
                modules: Mutex::default(),
                arena,
                gpu,
            }),
        };
        let inner = &*model.inner;
        let bytes = inner.arena.bytes();
        let tunes = inner.needs_tuning();
        let all = if tunes {
            bytes + bytes / TUNING_SHARE
        } else {
            bytes
        };
        let needed = inner.units()?;
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| inner.add_modules(&needed));
            // If one does not compile, a session says so and goes without it.
            for recording in [&inner.recording, &inner.rows] {
                scope.spawn(|| inner.add_persistent(recording).ok());
            }
            let uploaded = inner.upload(checkpoint, &mut |done, _| progress(done, all));
            let compiled = compiling.join().unwrap_or_else(|_| {
                Err(Error::NoCompiler("a compiling thread panicked".to_string()))
            });
            uploaded.and(compiled)
        })?;
        inner.gpu.synchronise()?;
        if tunes {
            let tuning = all - bytes;
            model.tune(&mut |done, trials| progress(bytes + tuning * done / trials, all))?;
            progress(all, all);
        }
        Ok(model)
    }

    /// The program that was loaded.
    pub fn program(&self) -> &Arc<Program> {
        &self.inner.program
    }

    /// How the device runs.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The GPU.
    pub fn gpu(&self) -> &crate::GpuInfo {
        &self.inner.gpu.info
    }
}

/// A piece of a weight on its way up.
#[derive(Clone, Copy)]
struct Piece {
    weight: usize,
    first: usize,
    count: usize,
    /// Bytes as the checkpoint has them.
    bytes: usize,
}

impl Inner {
    /// Every unit that the tables need, found by lowering them to nowhere.
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
        );
        let mut units = BTreeSet::from([turn_unit()]);
        for table in &self.program.tables {
            units.extend(units_of(&cx.lower(table)?));
        }
        Ok(units.into_iter().collect())
    }

    /// Compiles and loads a persistent kernel, where chains are to be replayed by it.
    fn add_persistent(&self, recording: &Result<Recording, String>) -> Result<(), Error> {
        match (self.options.replay, recording) {
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

    /// Compiles and loads what is not there yet.
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
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        let total = self.arena.bytes();
        let pieces = self.pieces(checkpoint)?;
        self.add_modules(&self.repack_units())?;
        let room = pieces.iter().map(|p| p.bytes).max().unwrap_or(0);
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MOST_THREADS)
            .min(pieces.len().max(1));
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel::<u64>();
        progress(0, total);
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
                progress(done.min(total), total);
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
        progress(total, total);
        Ok(())
    }

    /// The kernels that regroup weights.
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

    /// One thread's work: takes pieces until there are none.
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
            // Nobody listens any more only if the load has failed.
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
            // SAFETY: the weight has these bytes; the slot is left alone until its event has passed.
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
                // SAFETY: as above; without regrouping rows lie one after the other.
                unsafe { self.gpu.upload(start + (piece.first * row) as u64, staged) }
            }
            Some(launch) => {
                let kernel = self.kernel(&launch)?;
                // SAFETY: the staging memory has room for any piece, the layout writes inside the weight, and the
                // stream keeps the order.
                unsafe {
                    self.gpu.upload(raw, staged)?;
                    self.gpu.launch(&kernel, launch.grid, &launch.args)
                }
            }
        }
    }
}

/// Memory that a piece passes through.
struct Slot {
    host: HostBlock,
    raw: DeviceBlock,
    /// Passed when the slot may be filled again.
    free: Event,
}

/// The units of a lowered table.
pub(crate) fn units_of(table: &LoweredTable) -> Vec<Unit> {
    let mut units = Vec::new();
    let nodes = table.commands.iter().flatten();
    for node in nodes.chain(&table.sample) {
        node.add_units(&mut units);
    }
    units
}
