//! Matrix times rows. Activations are prepared once; then chunks are ranges of tiles. A row that is alone is prepared by
//! every thread for itself, which takes less time than to wait until one thread has done it for all.
//!
//! Many rows are cut into items: an item unpacks a few tiles into a thread's scratch and multiplies them with all rows, in
//! small groups.

use super::basic::normalise;
use super::{Bytes, FloatRows, Floats, State, ThreadMemory, activate_and_multiply};
use crate::kernels::Kernel;

/// Rows of one kernel call: few enough for their activations to stay in cache.
pub(crate) const ROW_BLOCK: usize = 32;
/// Approximate bytes of tiles in one chunk.
pub(crate) const CHUNK: usize = 64 << 10;
/// The most outputs in one chunk if gate and up are combined in a thread's scratch.
pub(crate) const FUSED_COLUMNS: usize = 256;
/// The most tiles of an item.
const MOST_TILES: usize = 8;
/// Bytes of unpacked tiles in an item: about half of an L2 cache.
const UNPACKED: usize = 512 << 10;
/// Items per thread, if the matrix has enough tiles. Several items let threads finish at the same time.
const ITEMS: usize = 8;
/// The fewest rows of an item.
const FEWEST_ROWS: usize = 64;

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

/// How a matrix is cut into items.
pub(super) struct Plan {
    tiles: usize,
    tiles_per_item: usize,
    /// The least number of items; rows are cut to reach it.
    wanted: usize,
    /// Rows that are multiplied together.
    group: usize,
}

/// Bytes of a thread's scratch: the unpacked tiles, then outputs of a group of rows.
pub(crate) fn scratch_bytes(kernel: &Kernel, k: usize) -> usize {
    let tile = kernel.unpacked_bytes(k).unwrap_or(0);
    let unpacked = (tile * MOST_TILES).min(UNPACKED).max(tile * 2);
    unpacked + 2 * kernel.group_rows * MOST_TILES * kernel.tile_rows * 4
}

impl Plan {
    pub(super) fn new(
        kernel: &Kernel,
        (n, k): (usize, usize),
        epilogue: Epilogue,
        threads: usize,
    ) -> Plan {
        let tiles = n.div_ceil(kernel.tile_rows);
        let fit = match kernel.unpacked_bytes(k) {
            Some(bytes) if bytes > 0 => UNPACKED / bytes,
            _ => MOST_TILES,
        };
        let wanted = threads * ITEMS;
        // Gate and up are unpacked side by side.
        let (most, sides) = match epilogue {
            Epilogue::ActMul(_) => (MOST_TILES / 2, 2),
            _ => (MOST_TILES, 1),
        };
        Plan {
            tiles,
            tiles_per_item: most.min(fit / sides).min(tiles / wanted).max(1),
            wanted,
            group: kernel.group_rows,
        }
    }

    /// Row parts, and rows of each.
    fn parts(&self, rows: usize) -> (usize, usize) {
        let columns = self.tiles.div_ceil(self.tiles_per_item);
        let parts = self.wanted.div_ceil(columns).min(rows / FEWEST_ROWS).max(1);
        let each = rows.div_ceil(parts).next_multiple_of(self.group);
        (rows.div_ceil(each), each)
    }

    pub(super) fn items(&self, rows: usize) -> usize {
        self.tiles.div_ceil(self.tiles_per_item) * self.parts(rows).0
    }
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
        let prepared = if prepared_by_each(rows) {
            // SAFETY: the caller's promise; the thread's row has room for every prepared row.
            unsafe {
                thread.row_of(state.step, self.phase(), |acts| {
                    self.prepare.write(0, acts, scratch);
                })
            }
        } else {
            self.acts.0
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

    /// One item of many rows.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_bytes`] of this thread's own.
    pub(super) unsafe fn item(&self, plan: &Plan, rows: usize, item: usize, scratch: *mut f32) {
        let kernel = &self.kernel;
        let group = plan.group;
        let (parts, each) = plan.parts(rows);
        let rows = item % parts * each..rows.min((item % parts + 1) * each);
        let first = item / parts * plan.tiles_per_item;
        let tiles = plan.tiles_per_item.min(plan.tiles - first);
        let column = first * kernel.tile_rows;
        let n = (tiles * kernel.tile_rows).min(self.n - column);
        // SAFETY: tiles, prepared rows and outputs lie in their buffers; items write apart from each other. The scratch
        // has room for the tiles and the outputs.
        unsafe {
            let (at, outputs) = self.unpacked(kernel, first, tiles, scratch.cast());
            let Epilogue::ActMul(act) = self.epilogue else {
                let add = matches!(self.epilogue, Epilogue::Accumulate);
                for row in rows.clone().step_by(group) {
                    let count = group.min(rows.end - row);
                    let y = self.y.start.add(row * self.y.stride + column);
                    self.multiply(kernel, at, n, row, count, y, self.y.stride, add);
                }
                return;
            };
            let (up_at, outputs) = self.unpacked(kernel, plan.tiles + first, tiles, outputs);
            let (gate, up) = (outputs.cast::<f32>(), outputs.cast::<f32>().add(group * n));
            for row in rows.clone().step_by(group) {
                let count = group.min(rows.end - row);
                self.multiply(kernel, at, n, row, count, gate, n, false);
                self.multiply(kernel, up_at, n, row, count, up, n, false);
                for r in 0..count {
                    let y = self.y.start.add((row + r) * self.y.stride + column);
                    activate_and_multiply(
                        act,
                        std::slice::from_raw_parts(gate.add(r * n), n),
                        std::slice::from_raw_parts(up.add(r * n), n),
                        std::slice::from_raw_parts_mut(y, n),
                    );
                }
            }
        }
    }

    /// Unpacks tiles to `room` if the kernel has an unpacked form. Returns their address and the rest of the room.
    ///
    /// # Safety
    /// The matrix has these tiles, and the room is large enough.
    unsafe fn unpacked(
        &self,
        kernel: &Kernel,
        first: usize,
        tiles: usize,
        room: *mut u8,
    ) -> (*const u8, *mut u8) {
        // SAFETY: promised by the caller.
        unsafe {
            let packed = self.tiles.0.add(first * self.tile_bytes);
            let Some(bytes) = kernel.unpacked_bytes(self.k) else {
                return (packed, room);
            };
            kernel.unpack_tiles(packed, tiles, self.k, room);
            (room, room.add(tiles * bytes))
        }
    }

    /// # Safety
    /// As [`Kernel::matmul_unpacked`], for `count` rows from `row`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn multiply(
        &self,
        kernel: &Kernel,
        tiles: *const u8,
        n: usize,
        row: usize,
        count: usize,
        out: *mut f32,
        stride: usize,
        add: bool,
    ) {
        // SAFETY: promised by the caller.
        unsafe {
            let acts = self.acts.0.add(row * kernel.acts_bytes(self.k));
            kernel.matmul_unpacked(tiles, n, self.k, acts, count, out, stride, add);
        }
    }
}
