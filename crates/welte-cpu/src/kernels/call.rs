//! A call of a kernel, as every instruction set takes it.

use welte_table::Format;

/// How far ahead of the bytes that they read kernels fetch the same stream's bytes. By itself a core fetches too few lines
/// ahead to read as fast as it could, and none beyond the page: with this, one core of a Xeon reads 1.2 to 1.5 times as much.
/// On a Xeon and on an EPYC this distance was the best of those from 0.5 to 3 KB.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 3072;

/// Fetches the line that a stream reads `AHEAD` bytes after this one. There need not be one: a fetch of any address is
/// harmless.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn fetch_ahead(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: it reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
}

/// From this many rows on, work is cut for many rows: a matrix's tiles are unpacked once for all of them. The bits are the
/// same. (Some begin earlier: see [`Kernel::many_rows`].)
pub(crate) const MANY_ROWS: usize = 17;

/// One call of a kernel; see [`Kernel::matmul`].
pub(super) struct Call {
    pub(super) format: Format,
    pub(super) tiles: *const u8,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) acts: *const u8,
    pub(super) rows: usize,
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    pub(super) accumulate: bool,
}

impl Call {
    /// The call for the rows from `row` on, whose activations are `stride` bytes apart.
    ///
    /// # Safety
    /// There are more than `row` rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn rest(&self, row: usize, stride: usize) -> Call {
        // SAFETY: both stay within the buffers of the call.
        let (acts, out) = unsafe {
            (
                self.acts.add(row * stride),
                self.out.add(row * self.out_stride),
            )
        };
        Call {
            acts,
            out,
            rows: self.rows - row,
            ..*self
        }
    }
}

pub(super) type Matmul = unsafe fn(&Call);
