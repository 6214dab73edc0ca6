//! How fast the kernels stream and multiply, for every format, beside a plain read of the same bytes.
//!
//!     kernel_bench [threads, 2] [megabytes of the matrix, 512] [instruction set] [formats, separated by commas]

#![allow(unsafe_code)]

use std::time::Instant;
use welte_cpu::kernels::{Isa, Kernel};
use welte_table::Format;

const K: usize = 4096;

/// Memory from the system, in huge pages if it gives them.
struct Memory(*mut u8, usize);

impl Memory {
    fn new(bytes: usize) -> Memory {
        let bytes = bytes.next_multiple_of(2 << 20);
        // SAFETY: a fresh private mapping; failure is checked.
        let at = unsafe {
            let (access, kind) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let at = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
            assert!(at != libc::MAP_FAILED, "not enough memory");
            #[cfg(target_os = "linux")]
            libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
            at
        };
        Memory(at.cast(), bytes)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this many bytes, zero at first.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Seconds of the fastest of `turns` runs of `work(thread, turn)` on all threads. Turns are short and many: on a busy
/// machine only a short one has a chance to run undisturbed.
fn time(threads: usize, turns: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let once = |turn: usize| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for t in 1..threads {
                let work = &work;
                scope.spawn(move || work(t, turn));
            }
            work(0, turn);
        });
        start.elapsed().as_secs_f64()
    };
    (0..turns).map(once).fold(f64::MAX, f64::min)
}

fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for line in bytes.chunks_exact(256) {
        for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads = args.first().and_then(|a| a.parse().ok()).unwrap_or(2);
    let megabytes: usize = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(512);
    let isa = args
        .get(2)
        .and_then(|a| Isa::from_name(a))
        .unwrap_or(Isa::best());
    let only = args.get(3);
    println!(
        "{:6} {:12} {:>10} {:>10} {:>8} {:>10} {:>10} {:>13} {:>11} {:>10} {:>12}",
        "format",
        "isa",
        "plain GB/s",
        "1 row GB/s",
        "share",
        "in cache",
        "64 Gop/s",
        "prompt Gop/s",
        "unpack GB/s",
        "pack GB/s",
        "prepare GB/s"
    );
    for format in Format::ALL {
        if only.is_some_and(|o| !o.split(',').any(|o| o.eq_ignore_ascii_case(format.name()))) {
            continue;
        }
        measure(Kernel::for_format(format, isa), threads, megabytes << 20);
    }
}

fn measure(kernel: Kernel, threads: usize, bytes: usize) {
    let tile = kernel.tile_bytes(K);
    let tiles = (bytes / tile).next_multiple_of(threads * 4);
    let mut weights = Memory::new(tiles * tile);
    let row: Vec<u8> = (0..kernel.format.bytes(K).unwrap_or(0))
        .map(|i| (i * 37 % 61) as u8)
        .collect();
    let rows = [row.as_slice(); 16];
    for tile in weights.bytes().chunks_exact_mut(tile) {
        kernel.pack(K, &rows, tile);
    }
    let (start, packed) = (Instant::now(), tiles.min(64));
    for tile in weights.bytes().chunks_exact_mut(tile).take(packed) {
        kernel.pack(K, &rows, tile);
    }
    let pack = (packed * 16 * row.len()) as f64 / start.elapsed().as_secs_f64();
    let x: Vec<f32> = (0..K).map(|i| (i as f32).sin()).collect();
    let mut acts = Memory::new(64 * kernel.acts_bytes(K));
    for acts in acts.bytes().chunks_exact_mut(kernel.acts_bytes(K)).take(64) {
        kernel.prepare(&x, acts);
    }
    let start = Instant::now();
    for acts in acts.bytes().chunks_exact_mut(kernel.acts_bytes(K)).take(64) {
        kernel.prepare(&x, acts);
    }
    let prepare = (64 * 4 * K) as f64 / start.elapsed().as_secs_f64();
    let mut out = Memory::new(64 * tiles * 16 * 4);
    out.bytes().fill(0);
    let (weights_at, acts_at, out_at) = (weights.0 as usize, acts.0 as usize, out.0 as usize);
    let share = tiles / threads;
    // Each turn reads the next 16 MB or so per thread, until all has been read.
    let window = ((16 << 20) / tile).clamp(1, share);
    let windows = share / window;
    let matmul = |t: usize, turn: usize, count: usize, rows: usize| {
        // Pieces of about 64 kB, as the team's chunks.
        let piece = (65536 / tile).max(1);
        for first in (0..count).step_by(piece) {
            let (first, count) = (
                t * share + turn % windows * window + first,
                piece.min(count - first),
            );
            // SAFETY: the tiles, activations and outputs were allocated for this; threads write different outputs.
            unsafe {
                kernel.matmul(
                    (weights_at as *const u8).add(first * tile),
                    count * 16,
                    K,
                    acts_at as *const u8,
                    rows,
                    (out_at as *mut f32).add(first * 16),
                    tiles * 16,
                    false,
                );
            }
        }
    };
    let all = (threads * window * tile) as f64;
    let plain = time(threads, 4 * windows, |t, turn| {
        let first = t * share + turn % windows * window;
        // SAFETY: within the weights.
        let bytes = unsafe {
            std::slice::from_raw_parts((weights_at as *const u8).add(first * tile), window * tile)
        };
        std::hint::black_box(read(bytes));
    });
    let one = time(threads, 4 * windows, |t, turn| matmul(t, turn, window, 1));
    // The same 256 kB repeatedly: from cache.
    let cached = ((256 << 10) / tile).max(1);
    let hot = time(threads, 40, |t, _| {
        for _ in 0..32 {
            matmul(t, 0, cached, 1);
        }
    });
    let few = window.min(8);
    let many = time(threads, 12, |t, turn| matmul(t, turn, few, 64));
    let ops = 2.0 * (few * threads * 16 * K * 64) as f64;
    let prompt = prompt(&kernel, threads, &weights, &acts);
    let unpack = unpack(&kernel, threads, &weights);
    println!(
        "{:6} {:12} {:10.1} {:10.1} {:7.0}% {:10.1} {:10.0} {:13.0} {:11.1} {:10.1} {:12.1}",
        kernel.format.name(),
        kernel.isa.name(),
        all / plain / 1e9,
        all / one / 1e9,
        100.0 * plain / one,
        (32 * threads * cached * tile) as f64 / hot / 1e9,
        ops / many / 1e9,
        prompt / 1e9,
        unpack / 1e9,
        pack / 1e9,
        prepare / 1e9
    );
}

/// Operations per second of 64 rows with tiles that are unpacked once, as in prompts.
fn prompt(kernel: &Kernel, threads: usize, weights: &Memory, acts: &Memory) -> f64 {
    const TILES: usize = 4;
    const ROUNDS: usize = 8;
    let bytes = kernel.unpacked_bytes(K).unwrap_or(kernel.tile_bytes(K));
    let rooms: Vec<Memory> = (0..threads).map(|_| Memory::new(TILES * bytes)).collect();
    let outs: Vec<Memory> = (0..threads)
        .map(|_| Memory::new(64 * TILES * 16 * 4))
        .collect();
    let at = |m: &[Memory]| m.iter().map(|m| m.0 as usize).collect::<Vec<_>>();
    let (rooms_at, outs_at) = (at(&rooms), at(&outs));
    let (weights_at, acts_at) = (weights.0 as usize, acts.0 as usize);
    for &room in &rooms_at {
        for t in 0..TILES {
            let (from, to) = (t * kernel.tile_bytes(K), t * bytes);
            // SAFETY: the weights have as many tiles, and a room the same unpacked.
            unsafe {
                let from = (weights_at as *const u8).add(from);
                match kernel.unpacked_bytes(K) {
                    Some(_) => kernel.unpack(from, K, (room as *mut u8).add(to)),
                    None => from.copy_to_nonoverlapping((room as *mut u8).add(to), bytes),
                }
            }
        }
    }
    let seconds = time(threads, 12, |t, _| {
        for _ in 0..ROUNDS {
            for row in (0..64).step_by(kernel.group_rows) {
                // SAFETY: the room holds the tiles; rows and outputs were allocated for this.
                unsafe {
                    kernel.matmul_unpacked(
                        rooms_at[t] as *const u8,
                        TILES * 16,
                        K,
                        (acts_at as *const u8).add(row * kernel.acts_bytes(K)),
                        kernel.group_rows,
                        (outs_at[t] as *mut f32).add(row * TILES * 16),
                        TILES * 16,
                        false,
                    );
                }
            }
        }
    });
    2.0 * (threads * ROUNDS * 64 * TILES * 16 * K) as f64 / seconds
}

/// Packed bytes per second that are unpacked from memory; 0 for kernels that do not unpack tiles.
fn unpack(kernel: &Kernel, threads: usize, weights: &Memory) -> f64 {
    let Some(bytes) = kernel.unpacked_bytes(K) else {
        return 0.0;
    };
    const TILES: usize = 4;
    let rooms: Vec<Memory> = (0..threads).map(|_| Memory::new(TILES * bytes)).collect();
    let rooms_at: Vec<usize> = rooms.iter().map(|room| room.0 as usize).collect();
    let (tile, weights_at) = (kernel.tile_bytes(K), weights.0 as usize);
    let share = weights.1 / tile / threads / TILES * TILES;
    let turns = (share / 64).max(1);
    let each = share / turns / TILES * TILES;
    let seconds = time(threads, turns, |t, turn| {
        for nth in 0..each {
            let from = (t * share + turn * each + nth) * tile;
            // SAFETY: the weights have as many tiles, and a room four unpacked ones.
            unsafe {
                let room = (rooms_at[t] as *mut u8).add(nth % TILES * bytes);
                kernel.unpack((weights_at as *const u8).add(from), K, room);
            }
        }
    });
    (threads * each * tile) as f64 / seconds
}
