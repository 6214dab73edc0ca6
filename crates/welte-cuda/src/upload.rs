//! The upload of weights. Several threads take pieces of weights in turn. Each copies its piece into pinned memory, and its stream
//! takes it from there to the GPU, which regroups it. So reading the file, the copies and regrouping overlap.
#![allow(unsafe_code)]

use crate::gpu::{DeviceBlock, Event, Gpu, HostBlock};
use crate::loaded::LoadedProgram;
use crate::units::upload_units;
use crate::{Error, layout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use welte_device::Progress;
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{Format, Program, Usage, WeightSpec};

/// Bytes of a piece, unless one row is larger.
const PIECE: usize = 4 << 20;
/// Pieces that a thread has in flight: one is being filled while the others are being copied.
const SLOTS: usize = 3;
/// The most threads. Eight copy 61 GB/s out of the page cache, more than the bus to the GPU takes.
const MOST_THREADS: usize = 8;
/// Bytes read after which the file's pages are given back to the system.
const RELEASE: u64 = 1 << 30;

/// A piece of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WeightChunk {
    weight: usize,
    /// The first row, and how many.
    first: usize,
    count: usize,
    /// Bytes in the checkpoint.
    bytes: usize,
}

/// The memory that uploading takes besides the weights: as much on the host, pinned, as on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staging {
    threads: usize,
    /// Bytes of the largest piece.
    piece: usize,
}

impl Staging {
    /// For the weights of a program.
    pub(crate) fn of(program: &Program) -> Staging {
        let sizes = program.weights.iter().map(|spec| {
            let rows = rows_per_piece(spec).min(spec.n as usize);
            (spec.n as usize).div_ceil(rows.max(1)) * usize::from(rows > 0)
        });
        let pieces: usize = sizes.sum();
        let largest =
            |spec: &WeightSpec| row_bytes(spec) * rows_per_piece(spec).min(spec.n as usize);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Staging {
            threads: cores.min(MOST_THREADS).min(pieces.max(1)),
            piece: program
                .weights
                .iter()
                .map(largest)
                .max()
                .unwrap_or(0)
                .next_multiple_of(256),
        }
    }

    /// Bytes on the GPU.
    pub(crate) fn gpu_bytes(&self) -> u64 {
        (self.threads * SLOTS * self.piece) as u64
    }

    /// For a person.
    pub(crate) fn explain(&self) -> String {
        let Staging { threads, .. } = self;
        let mib = self.gpu_bytes() as f64 / f64::from(1 << 20);
        format!(
            "{threads} threads; until the weights are there, {mib:.0} MiB of pinned memory and as much on the GPU"
        )
    }
}

/// Bytes of a row in the checkpoint's format; 0 if its elements are not whole blocks, which loading refuses.
fn row_bytes(spec: &WeightSpec) -> usize {
    match spec.usage {
        Usage::Vector => spec.k as usize * 4,
        _ => spec.format.bytes(spec.k as usize).unwrap_or(0),
    }
}

/// Rows of a piece. A vector is one piece.
fn rows_per_piece(spec: &WeightSpec) -> usize {
    match spec.usage {
        Usage::Vector => spec.n as usize,
        _ => (PIECE / row_bytes(spec).max(1)).max(1),
    }
}

/// The pieces of all weights, in order.
fn pieces(program: &Program, checkpoint: &dyn Checkpoint) -> Result<Vec<WeightChunk>, Error> {
    let mut pieces = Vec::new();
    for (weight, spec) in program.weights.iter().enumerate() {
        let row = row_bytes(spec);
        if row == 0 && spec.k > 0 {
            let rows = WeightRows { spec, checkpoint };
            return Err(rows
                .wrong("its rows are not a whole number of blocks")
                .into());
        }
        let (n, most) = (spec.n as usize, rows_per_piece(spec));
        for first in (0..n).step_by(most.max(1)) {
            let count = most.min(n - first);
            pieces.push(WeightChunk {
                weight,
                first,
                count,
                bytes: count * row,
            });
        }
    }
    Ok(pieces)
}

impl LoadedProgram {
    /// Uploads all weights. The first error of any thread ends the upload.
    pub(crate) fn upload(
        &self,
        staging: &Staging,
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
        let pieces = pieces(&self.program, checkpoint)?;
        self.phases.time("kernels that regroup", || {
            self.add_modules(&upload_units(&self.program))
        })?;
        told(0);
        self.phases.time("upload", || {
            let next = AtomicUsize::new(0);
            let (sender, receiver) = mpsc::channel::<u64>();
            std::thread::scope(|scope| {
                let mut workers = Vec::with_capacity(staging.threads);
                for _ in 0..staging.threads {
                    let sender = sender.clone();
                    let (pieces, next) = (&pieces, &next);
                    workers.push(scope.spawn(move || {
                        let result = self.upload_pieces(staging, checkpoint, pieces, next, &sender);
                        if result.is_err() {
                            next.store(pieces.len(), Ordering::Relaxed);
                        }
                        result
                    }));
                }
                drop(sender);
                let (mut done, mut kept) = (0, 0);
                for bytes in receiver {
                    done += bytes;
                    kept += bytes;
                    if kept >= RELEASE {
                        checkpoint.release();
                        kept = 0;
                    }
                    told(done);
                }
                checkpoint.release();
                workers.into_iter().try_for_each(|worker| {
                    worker.join().unwrap_or_else(|_| {
                        Err(Error::Program(
                            "a thread that reads the checkpoint panicked".to_string(),
                        ))
                    })
                })
            })
        })?;
        told(total);
        Ok(())
    }

    /// The work of one thread: takes pieces until none are left, then waits for its stream.
    fn upload_pieces(
        &self,
        staging: &Staging,
        checkpoint: &dyn Checkpoint,
        pieces: &[WeightChunk],
        next: &AtomicUsize,
        done: &mpsc::Sender<u64>,
    ) -> Result<(), Error> {
        let gpu = Arc::new(self.gpu.with_own_stream()?);
        let room = staging.piece;
        let mut host = HostBlock::new(&gpu, SLOTS * room, "staging memory on the host")?;
        let raw = DeviceBlock::new(&gpu, (SLOTS * room) as u64, "staging memory")?;
        let free: [Event; SLOTS] = [Event::new(&gpu)?, Event::new(&gpu)?, Event::new(&gpu)?];
        for turn in 0.. {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else {
                break;
            };
            let slot = turn % SLOTS;
            // An event that was never recorded counts as passed.
            free[slot].wait()?;
            let staged = &mut host.as_mut_slice()[slot * room..][..piece.bytes];
            let raw = raw.start() + (slot * room) as u64;
            self.upload_piece(&gpu, checkpoint, piece, staged, raw)
                .map_err(|error| error.about(&self.program.weights[piece.weight].name))?;
            free[slot].record()?;
            // The receiver is gone only if the load has failed.
            let _ = done.send(piece.bytes as u64);
        }
        gpu.synchronise()
    }

    /// Reads a piece into staging memory and enqueues its way to its weight. `raw`: staging memory on the GPU.
    fn upload_piece(
        &self,
        gpu: &Gpu,
        checkpoint: &dyn Checkpoint,
        piece: &WeightChunk,
        staged: &mut [u8],
        raw: u64,
    ) -> Result<(), Error> {
        let spec = &self.program.weights[piece.weight];
        let rows = WeightRows { spec, checkpoint };
        let start = self.weights[piece.weight].start;
        if spec.usage == Usage::Vector {
            for (bytes, value) in staged.chunks_exact_mut(4).zip(rows.values()?) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            // SAFETY: the weight has these bytes. The slot is not reused until its event has passed.
            return unsafe { gpu.upload(start, staged) };
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
        if self.float8 && spec.format == Format::F8_E4M3 {
            let row = piece.bytes / piece.count.max(1);
            if !staged.chunks_exact(row.max(1)).all(has_one_scale) {
                self.one_scale[piece.weight].store(false, Ordering::Relaxed);
            }
        }
        let (first, count) = (piece.first as u32, piece.count as u32);
        match layout::repack_launch(spec.format, spec.n, spec.k, first, count, raw, start) {
            None => {
                let row = piece.bytes / piece.count.max(1);
                // SAFETY: as above; rows that are not regrouped are contiguous.
                unsafe { gpu.upload(start + (piece.first * row) as u64, staged) }
            }
            Some(launch) => {
                let kernel = self.kernel(&launch)?;
                // SAFETY: the staging memory has room for any piece, the layout writes inside the weight, and the stream
                // keeps the order.
                unsafe {
                    gpu.upload(raw, staged)?;
                    gpu.launch(&kernel, launch.grid, &launch.args)
                }
            }
        }
    }
}

/// Whether all blocks of a row of F8_E4M3 have the same scale, with which a block begins.
fn has_one_scale(row: &[u8]) -> bool {
    let mut blocks = row.chunks_exact(Format::F8_E4M3.block_bytes());
    let first = blocks.next().map(|block| &block[..4]);
    blocks.all(|block| first == Some(&block[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte_formats::synthetic::Synthetic;

    #[test]
    fn pieces_cover_every_row_once_and_fit_the_staging_memory() {
        // Rows of the embedding take several pieces.
        let checkpoint = Synthetic::parse("qwen3-0.6b,layers=2:q4_0").unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let program = welte_table::fuse(
            welte_models::compile(&spec, &checkpoint, &Default::default()).unwrap(),
            welte_table::PATTERNS,
        );
        let staging = Staging::of(&program);
        let pieces = pieces(&program, &checkpoint).unwrap();
        for (weight, spec) in program.weights.iter().enumerate() {
            let mut next = 0;
            for piece in pieces.iter().filter(|piece| piece.weight == weight) {
                assert_eq!(piece.first, next, "{}", spec.name);
                assert_eq!(piece.bytes, piece.count * row_bytes(spec));
                assert!(piece.count > 0 && piece.bytes <= staging.piece);
                next += piece.count;
            }
            assert_eq!(next, spec.n as usize, "{}", spec.name);
        }
        assert!(pieces.len() > program.weights.len());
        assert!(staging.piece <= PIECE && staging.threads <= MOST_THREADS);
        let bytes = (staging.threads * SLOTS * staging.piece) as u64;
        assert_eq!(staging.gpu_bytes(), bytes);
        let mib = format!(" {:.0} MiB", bytes as f64 / f64::from(1 << 20));
        assert!(staging.explain().contains(&mib), "{}", staging.explain());
    }
}
