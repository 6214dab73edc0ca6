//! Loading: the team reads the weights from the checkpoint and packs them into the device's layout.
#![allow(unsafe_code)]

use crate::kernels::{Isa, Kernel};
use crate::machine::Place;
use crate::memory::{Block, round_up};
use crate::nodes::{self, Segment};
use crate::team::Team;
use crate::{panicked, scratch};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use welte_device::{Error, Progress};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{Op, Program, Usage, WeightSpec};

/// Output bytes of one chunk of packing, and of one run of the team. After each run, progress is reported, and the parts of
/// the file that were read are released: a model is never twice in memory.
const PIECE: usize = 1 << 20;
const RUN: usize = 32 << 20;

/// The weights of a program in this device's layout, and the thread team.
pub(crate) struct Inner {
    pub(crate) program: Arc<Program>,
    pub(crate) isa: Isa,
    pub(crate) team: Team,
    pub(crate) arena: Block,
    /// By weight id.
    pub(crate) layouts: Vec<Layout>,
}

/// Where a weight lies in the arena.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// Packed tiles. A lookup table that is also a matrix is read from them.
    pub(crate) matrix: Option<usize>,
    /// Encoded rows of a lookup table that is not a matrix.
    pub(crate) lookup: Option<usize>,
    /// Floats.
    pub(crate) floats: Option<usize>,
    /// Its bytes.
    bytes: usize,
}

fn layout(spec: &WeightSpec, isa: Isa, start: usize) -> Option<Layout> {
    let (n, k) = (spec.n as usize, spec.k as usize);
    let mut layout = Layout::default();
    let mut end = start;
    let mut take = |bytes: usize| -> Option<usize> {
        let at = end;
        end = end.checked_add(bytes.checked_next_multiple_of(64)?)?;
        Some(at)
    };
    if spec.usage == Usage::Vector {
        layout.floats = Some(take(n.checked_mul(k)?.checked_mul(4)?)?);
    } else {
        let row = spec.format.bytes(k)?;
        if spec.usage != Usage::Lookup {
            let kernel = Kernel::for_format(spec.format, isa);
            layout.matrix = Some(take(
                n.div_ceil(kernel.tile_rows)
                    .checked_mul(kernel.tile_bytes(k))?,
            )?);
        }
        if spec.usage == Usage::Lookup {
            layout.lookup = Some(take(n.checked_mul(row)?)?);
        }
    }
    layout.bytes = end - start;
    Some(layout)
}

/// Bytes of a weight in this device's layout; `u64::MAX` if its row is not a whole number of blocks, or it is too large.
pub(crate) fn weight_bytes(spec: &WeightSpec, isa: Isa) -> u64 {
    layout(spec, isa, 0).map_or(u64::MAX, |l| l.bytes as u64)
}

/// Memory of which each chunk of work writes its own part.
#[derive(Clone, Copy)]
struct Target(*mut u8, usize);
// SAFETY: each chunk writes only its own part of the segment (see `pack`).
unsafe impl Sync for Target {}

impl Target {
    /// # Safety
    /// No other thread uses these bytes while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, from: usize, len: usize) -> &mut [u8] {
        assert!(from + len <= self.1, "a part lies inside its weight");
        // SAFETY: inside the segment by the assertion; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

/// A weight as it is packed: `units` units (tiles or rows) of `rows` rows and `bytes` bytes.
struct Form {
    kernel: Option<Kernel>,
    target: Target,
    units: usize,
    rows: usize,
    bytes: usize,
}

impl Form {
    /// Packs units `first..first + count`.
    fn pack(&self, rows: &WeightRows<'_>, first: usize, count: usize) -> Result<(), Error> {
        let (n, k) = (rows.spec.n as usize, rows.spec.k as usize);
        let row = first * self.rows;
        let row_count = (count * self.rows).min(n - row);
        let encoded = rows.encoded(row, row_count)?;
        // SAFETY: every unit is packed by one chunk only.
        let out = unsafe { self.target.part(first * self.bytes, count * self.bytes) };
        let Some(kernel) = &self.kernel else {
            let mut at = 0;
            for bytes in encoded {
                out[at..at + bytes.len()].copy_from_slice(&bytes);
                at += bytes.len();
            }
            return Ok(());
        };
        let row_bytes = rows
            .spec
            .format
            .bytes(k)
            .ok_or_else(|| rows.wrong("its rows are not a whole number of blocks"))?;
        let all: Vec<&[u8]> = encoded
            .iter()
            .flat_map(|bytes| bytes.chunks_exact(row_bytes))
            .collect();
        for (tile, rows) in out.chunks_exact_mut(self.bytes).zip(all.chunks(self.rows)) {
            kernel.pack(k, rows, tile);
        }
        Ok(())
    }
}

impl Inner {
    /// Reads every weight of a program from the checkpoint into this device's layout.
    pub(crate) fn load(
        program: Arc<Program>,
        checkpoint: &dyn Checkpoint,
        places: &[Place],
        isa: Isa,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Inner, Error> {
        let mut layouts = Vec::with_capacity(program.weights.len());
        let mut total = 0usize;
        for spec in &program.weights {
            let rows = WeightRows { spec, checkpoint };
            let layout = layout(spec, isa, total).ok_or_else(|| {
                rows.wrong("its rows are not a whole number of blocks, or it is too large")
            })?;
            total += layout.bytes;
            layouts.push(layout);
        }
        let arena = Block::new(total as u64, "weights")?;
        let team = Team::new(places, scratch::most_phases(&program));
        nodes::bind(&arena, &segments(&program, &layouts, isa), places);
        let mut done = 0u64;
        let mut advance = |bytes: usize| {
            done = (done + bytes as u64).min(total as u64);
            let total = total as u64;
            progress(Progress::Weights { done, total });
        };
        advance(0);
        for (spec, layout) in program.weights.iter().zip(&layouts) {
            let rows = WeightRows { spec, checkpoint };
            if let Some(form) = form(&rows, layout, &arena, isa)? {
                let run_units = (RUN / form.bytes.max(1)).max(1);
                for first in (0..form.units).step_by(run_units) {
                    let count = run_units.min(form.units - first);
                    pack_together(&team, &rows, &form, first, count)?;
                    checkpoint.release();
                    advance(count * form.bytes);
                }
            }
            if let Some(at) = layout.floats {
                let values = rows.values()?;
                let target = Target(arena.ptr(), arena.len());
                // SAFETY: only this thread is at work on the arena.
                let out = unsafe { target.part(at, values.len() * 4) };
                for (bytes, value) in out.chunks_exact_mut(4).zip(values) {
                    bytes.copy_from_slice(&value.to_ne_bytes());
                }
                advance(round_up(out.len()));
            }
        }
        advance(total);
        Ok(Inner {
            program,
            isa,
            team,
            arena,
            layouts,
        })
    }
}

/// The tiles of all matrices, as threads share them. A chunk of gate and up takes tiles from both halves of the matrix.
fn segments(program: &Program, layouts: &[Layout], isa: Isa) -> Vec<Segment> {
    let commands = program.passes.iter().flat_map(|pass| &pass.commands);
    let of = |op: Op| commands.clone().filter(move |command| command.op == op);
    let halved: BTreeSet<u32> = of(Op::NormMatmulActMul)
        .map(|command| command.weights[0])
        .collect();
    let chosen = of(Op::ExpertsActMul).chain(of(Op::ExpertsAdd));
    // Which of an expert's tiles a thread takes depends on the experts that are chosen.
    let chosen: BTreeSet<u32> = chosen.map(|command| command.weights[0]).collect();
    let weights = program.weights.iter().zip(layouts).zip(0u32..);
    let segments = weights.filter_map(|((spec, layout), id)| {
        let at = layout.matrix.filter(|_| !chosen.contains(&id))?;
        let kernel = Kernel::for_format(spec.format, isa);
        let tiles = (spec.n as usize).div_ceil(kernel.tile_rows);
        let whole = Segment::whole(at, kernel.tile_bytes(spec.k as usize), tiles);
        Some(if halved.contains(&id) {
            whole.halves()
        } else {
            vec![whole]
        })
    });
    segments.flatten().collect()
}

/// How a weight is packed; `None` if it is a vector.
fn form(
    rows: &WeightRows<'_>,
    layout: &Layout,
    arena: &Block,
    isa: Isa,
) -> Result<Option<Form>, Error> {
    let (n, k) = (rows.spec.n as usize, rows.spec.k as usize);
    // SAFETY: the layouts were summed up to the arena's size.
    let target = |at: usize, bytes: usize| Target(unsafe { arena.ptr().add(at) }, bytes);
    if let Some(at) = layout.matrix {
        let kernel = Kernel::for_format(rows.spec.format, isa);
        let (tile_rows, bytes) = (kernel.tile_rows, kernel.tile_bytes(k));
        let units = n.div_ceil(tile_rows);
        return Ok(Some(Form {
            kernel: Some(kernel),
            target: target(at, units * bytes),
            units,
            rows: tile_rows,
            bytes,
        }));
    }
    let Some(at) = layout.lookup else {
        return Ok(None);
    };
    let bytes = rows
        .spec
        .format
        .bytes(k)
        .ok_or_else(|| rows.wrong("its rows are not a whole number of blocks"))?;
    Ok(Some(Form {
        kernel: None,
        target: target(at, n * bytes),
        units: n,
        rows: 1,
        bytes,
    }))
}

fn pack_together(
    team: &Team,
    rows: &WeightRows<'_>,
    form: &Form,
    first: usize,
    count: usize,
) -> Result<(), Error> {
    let piece = (PIECE / form.bytes.max(1)).max(1);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    team.run(&[count.div_ceil(piece) as u32], &|_, chunk, _| {
        let at = chunk * piece;
        if let Err(error) = form.pack(rows, first + at, piece.min(count - at)) {
            failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error);
        }
    })
    .map_err(|_| panicked())?;
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
