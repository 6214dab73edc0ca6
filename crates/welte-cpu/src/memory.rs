//! Aligned, zeroed memory that says no instead of aborting.
#![allow(unsafe_code)]

use crate::{ID, available};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use welte_device::Error;

/// Every block starts on a cache line.
pub(crate) const ALIGN: usize = 64;
/// From this size on memory is mapped, so that the system may back it with huge pages.
#[cfg(any(unix, test))]
const MAP_FROM: usize = 1 << 20;
/// Size of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// Rounds up to a whole number of cache lines.
pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.div_ceil(ALIGN).saturating_mul(ALIGN)
}

/// A block of zeroed memory, aligned to 64 bytes. Shared between threads by raw pointer: who may touch which part and
/// when is argued where the pointers are used.
pub(crate) struct Block {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

enum Origin {
    Empty,
    Heap(Layout),
    #[cfg(unix)]
    Mapped {
        base: *mut libc::c_void,
        len: usize,
    },
}

// SAFETY: a block owns its memory and hands out only raw pointers or borrows of itself.
unsafe impl Send for Block {}
// SAFETY: as above; a shared block gives no access but `as_slice` (reads) and raw pointers (the user's argument).
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed memory of at least `bytes` (rounded up to 64); `what` names it in the error.
    pub(crate) fn new(bytes: u64, what: &str) -> Result<Block, Error> {
        let refused = || Error::OutOfMemory {
            device: ID,
            what: what.to_string(),
            bytes,
            free: available(),
        };
        let len = usize::try_from(bytes).map_err(|_| refused())?;
        if len > isize::MAX as usize - 2 * HUGE {
            return Err(refused());
        }
        let len = round_up(len);
        if len == 0 {
            let start = NonNull::<Line>::dangling().cast();
            return Ok(Block {
                start,
                len,
                origin: Origin::Empty,
            });
        }
        #[cfg(unix)]
        if len >= MAP_FROM {
            return Block::map(len).ok_or_else(refused);
        }
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(refused)?;
        Ok(Block {
            start,
            len,
            origin: Origin::Heap(layout),
        })
    }

    #[cfg(unix)]
    fn map(len: usize) -> Option<Block> {
        let mapped = len + HUGE;
        // SAFETY: a fresh anonymous mapping touches no memory that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let skip = (HUGE - base as usize % HUGE) % HUGE;
        // SAFETY: skip < HUGE, and the mapping is HUGE longer than the block.
        let start = unsafe { base.cast::<u8>().add(skip) };
        #[cfg(target_os = "linux")]
        // SAFETY: the range lies in our own mapping; a refusal of the advice changes nothing.
        unsafe {
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
        }
        Some(Block {
            start: NonNull::new(start)?,
            len,
            origin: Origin::Mapped { base, len: mapped },
        })
    }

    /// Where it starts.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its size.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the block is `len` initialised bytes; replay writes only while the session is borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its bytes, to write.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Gives the empty block its alignment.
#[repr(align(64))]
struct Line;

impl Drop for Block {
    fn drop(&mut self) {
        match self.origin {
            Origin::Empty => {}
            // SAFETY: allocated with this layout in `new`.
            Origin::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(unix)]
            // SAFETY: mapped with this base and length in `map`.
            Origin::Mapped { base, len } => unsafe {
                libc::munmap(base, len);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_zeroed() {
        for bytes in [
            0,
            1,
            63,
            64,
            65,
            5000,
            MAP_FROM as u64,
            MAP_FROM as u64 * 3 + 1,
        ] {
            let mut block = Block::new(bytes, "test").unwrap();
            assert_eq!(block.ptr() as usize % ALIGN, 0);
            assert_eq!(block.len(), round_up(bytes as usize));
            assert!(block.as_slice().iter().all(|&b| b == 0));
            block.as_mut_slice().fill(1);
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for bytes in [u64::MAX, i64::MAX as u64, 1 << 55] {
            assert!(matches!(
                Block::new(bytes, "test"),
                Err(Error::OutOfMemory { .. })
            ));
        }
    }
}
