//! A matrix for each head. A head's input is small, so each chunk prepares it for itself.

use super::{Bytes, FloatRows};
use crate::kernels::Kernel;
use std::ops::Range;

/// Rows that a chunk takes of one head.
const ROWS: usize = 64;
/// Approximate bytes of tiles in one chunk, and the most tiles.
const CHUNK: usize = 64 << 10;
const MOST_TILES: usize = 8;

pub(crate) struct HeadsMatmul {
    pub(crate) kernel: Kernel,
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    /// Of the matrices of all heads, one below the other.
    pub(crate) tiles: Bytes,
    pub(crate) heads: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) tail: usize,
    /// Floats from one head to the next.
    pub(crate) x_head: usize,
    pub(crate) y_head: usize,
}

/// Bytes of a thread's scratch, in order.
struct Room {
    acts: usize,
    outputs: usize,
    unpacked: usize,
}

impl Room {
    fn of(kernel: &Kernel, k: usize) -> Room {
        Room {
            acts: ROWS * kernel.acts_bytes(k),
            outputs: ROWS * MOST_TILES * kernel.tile_rows * 4,
            unpacked: MOST_TILES * kernel.unpacked_bytes(k).unwrap_or(0),
        }
    }
}

/// Bytes of a thread's scratch.
pub(crate) fn scratch_bytes(kernel: &Kernel, k: usize) -> usize {
    let room = Room::of(kernel, k);
    room.acts + room.outputs + room.unpacked
}

impl HeadsMatmul {
    fn tiles_per_chunk(&self) -> usize {
        (CHUNK / self.kernel.tile_bytes(self.k).max(1)).clamp(1, MOST_TILES)
    }

    /// The tiles with outputs of a head. The first and the last may be shared with its neighbours.
    fn tiles_of(&self, head: usize) -> Range<usize> {
        let each = self.kernel.tile_rows;
        head * self.n / each..((head + 1) * self.n).div_ceil(each)
    }

    /// Chunks of a head and a block of rows.
    fn parts(&self) -> usize {
        let shared = usize::from(!self.n.is_multiple_of(self.kernel.tile_rows));
        (self.n.div_ceil(self.kernel.tile_rows) + shared).div_ceil(self.tiles_per_chunk())
    }

    pub(crate) fn chunks(&self, rows: usize) -> usize {
        self.heads * self.parts() * rows.div_ceil(ROWS)
    }

    /// # Safety
    /// See `super`; `scratch` holds [`scratch_bytes`] of this thread's own.
    pub(crate) unsafe fn run(&self, rows: usize, chunk: usize, scratch: *mut f32) {
        let (head, rest) = (chunk % self.heads, chunk / self.heads);
        let (part, first_row) = (rest % self.parts(), rest / self.parts() * ROWS);
        let count = ROWS.min(rows - first_row);
        let (kernel, n, k) = (&self.kernel, self.n, self.k);
        let tiles = self.tiles_of(head);
        let first = tiles.start + part * self.tiles_per_chunk();
        let tiles = first..tiles.end.min(first + self.tiles_per_chunk());
        if tiles.is_empty() {
            return;
        }
        let (room, acts_bytes) = (Room::of(kernel, k), kernel.acts_bytes(k));
        // SAFETY: the head lies in its rows of both buffers, which are apart. Only this chunk writes its outputs, and only
        // the head's first chunk its tail. The scratch has room for what `Room` lists.
        unsafe {
            let acts = scratch.cast::<u8>();
            let outputs = acts.add(room.acts).cast::<f32>();
            let unpacked = acts.add(room.acts + room.outputs);
            for row in 0..count {
                let x = self.x.start;
                let x = x.add((first_row + row) * self.x.stride + head * self.x_head);
                let to = std::slice::from_raw_parts_mut(acts.add(row * acts_bytes), acts_bytes);
                kernel.prepare(std::slice::from_raw_parts(x, k), to);
                if part == 0 {
                    let y = self.y.start;
                    let y = y.add((first_row + row) * self.y.stride + head * self.y_head);
                    std::ptr::copy_nonoverlapping(x.add(k), y, self.tail);
                }
            }
            // Outputs of the tiles that belong to the head.
            let all = tiles.start * kernel.tile_rows..tiles.end * kernel.tile_rows;
            let own = all.start.max(head * n)..all.end.min((head + 1) * n);
            let skipped = own.start - all.start;
            let y = self.y.start.add(
                first_row * self.y.stride + head * self.y_head + self.tail + own.start - head * n,
            );
            let (out, stride) = match skipped {
                0 => (y, self.y.stride),
                _ => (outputs, MOST_TILES * kernel.tile_rows),
            };
            let columns = own.end - all.start;
            let packed = self.tiles.0.add(tiles.start * kernel.tile_bytes(k));
            if kernel.unpacked_bytes(k).is_some() && rows >= kernel.many_rows {
                kernel.unpack_tiles(packed, tiles.len(), k, unpacked);
                for row in (0..count).step_by(kernel.group_rows) {
                    let group = kernel.group_rows.min(count - row);
                    let (acts, out) = (acts.add(row * acts_bytes), out.add(row * stride));
                    kernel.matmul_unpacked(unpacked, columns, k, acts, group, out, stride, false);
                }
            } else {
                kernel.matmul(packed, columns, k, acts, count, out, stride, false)
            }
            if skipped > 0 {
                for row in 0..count {
                    let from = outputs.add(row * stride + skipped);
                    std::ptr::copy_nonoverlapping(from, y.add(row * self.y.stride), own.len());
                }
            }
        }
    }
}
