//! Matrix times many rows. An item unpacks a few tiles into a thread's scratch and multiplies them with all rows, in small
//! groups.

use super::activate_and_multiply;
use super::matmul::{Epilogue, Matmul};
use crate::kernels::Kernel;

/// The most tiles of an item.
const MOST_TILES: usize = 8;
/// Bytes of unpacked tiles in an item: about half of an L2 cache.
const UNPACKED: usize = 512 << 10;
/// Items per thread, if the matrix has enough tiles. Several items let threads finish at the same time.
const ITEMS: usize = 8;
/// The fewest rows of an item.
const FEWEST_ROWS: usize = 64;

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

impl Matmul {
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
