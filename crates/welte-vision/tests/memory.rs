//! Decoding takes no more memory than its limits say, whatever is in the file.
#![allow(unsafe_code)]

mod common;

use common::{LIMITS, count, mutants};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use welte_vision::decode;

/// Counts the bytes in use, and the most of them.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tables of the decoders, which no limit counts.
const BESIDE: usize = 1 << 20;

/// The program has this test only: allocations of others would be counted, too.
#[test]
fn damaged_files_take_bounded_memory() {
    let mut largest = 0;
    mutants(count(20_000), 2, |file, number, bytes| {
        let before = USED.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let _ = decode(bytes, LIMITS);
        let took = MOST.load(Ordering::Relaxed) - before;
        largest = largest.max(took);
        let most = LIMITS.bytes as usize + BESIDE;
        assert!(took <= most, "{} {number} takes {took} bytes", file.kind);
    });
    println!("at most {largest} bytes");
    assert!(largest > 1 << 10, "something was decoded");
}
