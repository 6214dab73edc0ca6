//! Matrix times rows. Activations are prepared once; then chunks are ranges of tiles. A row that is alone is prepared by
//! every thread for itself, which takes less time than to wait until one thread has done it for all.

use super::basic::normalise;
use super::matmul_prompt::Plan;
use super::{Bytes, FloatRows, Floats, State, ThreadMemory, activate_and_multiply};
use crate::kernels::Kernel;

/// Rows of one kernel call: few enough for their activations to stay in cache.
pub(crate) const ROW_BLOCK: usize = 32;
/// Approximate bytes of tiles in one chunk.
pub(crate) const CHUNK: usize = 64 << 10;
/// The most outputs in one chunk if gate and up are combined in a thread's scratch.
pub(crate) const FUSED_COLUMNS: usize = 256;

/// Whether every thread prepares the rows for itself.
pub(crate) fn prepared_by_each(rows: usize) -> bool {
    rows == 1
}

/// Prepares rows of activations for the kernel, after an optional norm.
#[derive(Clone, Copy)]
pub(crate) struct Prepare {
    pub(crate) kernel: Kernel,
    pub(crate) x: FloatRows,
    pub(crate) k: usize,
    pub(crate) norm: Option<(Floats, f32)>,
    pub(crate) acts: Bytes,
}

impl Prepare {
    /// Prepares a row for all threads.
    ///
    /// # Safety
    /// See `super`; `scratch` holds `k` floats of this thread's own.
    pub(crate) unsafe fn run(&self, row: usize, scratch: *mut f32) {
        // SAFETY: the row lies in the prepared rows.
        unsafe {
            let acts = self.acts.0.add(row * self.kernel.acts_bytes(self.k));
            self.write(row, acts, scratch);
        }
    }

    /// # Safety
    /// See `super`; `scratch` holds `k` floats of this thread's own, and `acts` has room for a prepared row that nobody
    /// uses now.
    unsafe fn write(&self, row: usize, acts: *mut u8, scratch: *mut f32) {
        let kernel = &self.kernel;
        // SAFETY: the row lies in x; the rest is promised by the caller.
        unsafe {
            let acts = std::slice::from_raw_parts_mut(acts, kernel.acts_bytes(self.k));
            match self.norm {
                None => kernel.prepare(self.x.row(row, self.k), acts),
                Some((weight, eps)) => {
                    normalise(
                        self.x.start.add(row * self.x.stride),
                        scratch,
                        self.k,
                        eps,
                        weight,
                    );
                    kernel.prepare(std::slice::from_raw_parts(scratch, self.k), acts);
                }
            }
        }
    }
}

/// What happens to the outputs.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    Store,
    Accumulate,
    /// The matrix holds gate then up, `n` rows each: store `act(gate) * up`.
    ActMul(u32),
}

pub(crate) struct Matmul {
    prepare: Prepare,
    pub(crate) kernel: Kernel,
    /// For many rows. The bits are those of few rows.
    plan: Plan,
    pub(crate) tiles: Bytes,
    /// Outputs, or outputs of the gate.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) acts: Bytes,
    pub(crate) acts_bytes: usize,
    pub(crate) y: FloatRows,
    pub(crate) epilogue: Epilogue,
    pub(super) tile_bytes: usize,
    tiles_per_chunk: usize,
}

impl Matmul {
    pub(crate) fn new(
        prepare: Prepare,
        tiles: Bytes,
        n: usize,
        y: FloatRows,
        epilogue: Epilogue,
        threads: usize,
    ) -> Matmul {
        let Prepare {
            kernel, k, acts, ..
        } = prepare;
        let tile_bytes = kernel.tile_bytes(k);
        let all = n.div_ceil(kernel.tile_rows);
        let mut tiles_per_chunk = (CHUNK / tile_bytes.max(1)).min(all.div_ceil(threads * 4));
        if let Epilogue::ActMul(_) = epilogue {
            tiles_per_chunk = tiles_per_chunk.min(FUSED_COLUMNS / kernel.tile_rows);
        }
        let acts_bytes = kernel.acts_bytes(k);
        let tiles_per_chunk = tiles_per_chunk.max(1);
        Matmul {
            prepare,
            kernel,
            plan: Plan::new(&kernel, (n, k), epilogue, threads),
            tiles,
            n,
            k,
            acts,
            acts_bytes,
            y,
            epilogue,
            tile_bytes,
            tiles_per_chunk,
        }
    }

    pub(crate) fn chunks(&self, rows: usize) -> usize {
        if rows >= self.kernel.many_rows {
            return self.plan.items(rows);
        }
        self.n
            .div_ceil(self.kernel.tile_rows)
            .div_ceil(self.tiles_per_chunk)
    }

    /// A number that no other phase has.
    fn phase(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// # Safety
    /// See `super`; the thread's scratch holds `2 * ROW_BLOCK * FUSED_COLUMNS` floats, and what the plan and `Prepare`
    /// need.
    pub(crate) unsafe fn run(
        &self,
        state: &State,
        rows: usize,
        chunk: usize,
        thread: ThreadMemory,
    ) {
        let scratch = thread.scratch;
        if rows >= self.kernel.many_rows {
            // SAFETY: the caller's promise.
            return unsafe { self.item(&self.plan, rows, chunk, scratch) };
        }
        let first_tile = chunk * self.tiles_per_chunk;
        let first = first_tile * self.kernel.tile_rows;
        let n = (self.tiles_per_chunk * self.kernel.tile_rows).min(self.n - first);
        let prepared = match prepared_by_each(rows) {
            // SAFETY: the caller's promise; the thread's row has room for every prepared row.
            true => unsafe {
                thread.row_of(state.step, self.phase(), |acts| {
                    self.prepare.write(0, acts, scratch);
                })
            },
            false => self.acts.0,
        };
        for row in (0..rows).step_by(ROW_BLOCK) {
            let count = ROW_BLOCK.min(rows - row);
            // SAFETY: tiles, prepared rows and outputs lie in their buffers; columns of chunks are apart.
            unsafe {
                let tiles = self.tiles.0.add(first_tile * self.tile_bytes);
                let acts = prepared.add(row * self.acts_bytes);
                let y = self.y.start.add(row * self.y.stride + first);
                match self.epilogue {
                    Epilogue::Store => {
                        self.kernel
                            .matmul(tiles, n, self.k, acts, count, y, self.y.stride, false)
                    }
                    Epilogue::Accumulate => {
                        self.kernel
                            .matmul(tiles, n, self.k, acts, count, y, self.y.stride, true)
                    }
                    Epilogue::ActMul(act) => {
                        let up_tiles = tiles.add(self.n / self.kernel.tile_rows * self.tile_bytes);
                        let up = scratch.add(ROW_BLOCK * FUSED_COLUMNS);
                        self.kernel.matmul(
                            tiles,
                            n,
                            self.k,
                            acts,
                            count,
                            scratch,
                            FUSED_COLUMNS,
                            false,
                        );
                        self.kernel.matmul(
                            up_tiles,
                            n,
                            self.k,
                            acts,
                            count,
                            up,
                            FUSED_COLUMNS,
                            false,
                        );
                        for r in 0..count {
                            activate_and_multiply(
                                act,
                                std::slice::from_raw_parts(scratch.add(r * FUSED_COLUMNS), n),
                                std::slice::from_raw_parts(up.add(r * FUSED_COLUMNS), n),
                                std::slice::from_raw_parts_mut(y.add(r * self.y.stride), n),
                            );
                        }
                    }
                }
            }
        }
    }
}
