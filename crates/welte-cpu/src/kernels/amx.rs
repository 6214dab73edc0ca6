//! AMX: an instruction multiplies a matrix of 16 activation rows with one of 16 output rows. Unpacked weights already lie
//! as the instruction wants them: a line is 16 output rows times 4 consecutive k.
//!
//! Sums of bytes are integers, and everything after them is the code of AVX-512. The bits are therefore those of AVX-512.
//! Products of BF16 are added in the order of the instruction: see [`rounded`].

use super::avx512::{Out, add_chunk, load, starts, store};
use super::avx512_many as wide;
use super::call::Call;
use super::layout::{ACT, CHUNK, Layout, ROWS, acts_bytes, tile_bytes};
use super::unpacked::{chunk_bytes, unpacked_bytes};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use welte_table::Format;

/// Activation rows of a matrix tile.
pub(super) const GROUP: usize = 16;
/// Fewer rows than this are multiplied by AVX-512.
const FEWEST: usize = 4;
/// Bytes of a line of a matrix tile.
const LINE: usize = 64;

/// The shapes of the tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

impl Shapes {
    /// Registers 0 to 3 hold sums of `rows` activation rows; 4 to 7 hold `k` bytes of those rows, and of weights, in turn.
    fn new(rows: usize, k: usize) -> Shapes {
        let mut shapes = Shapes {
            palette: 1,
            start: 0,
            reserved: [0; 14],
            line_bytes: [0; 16],
            lines: [0; 16],
        };
        for sums in 0..4 {
            shapes.line_bytes[sums] = LINE as u16;
            shapes.lines[sums] = rows as u8;
        }
        for (acts, weights) in [(4, 5), (6, 7)] {
            shapes.line_bytes[acts] = k as u16;
            shapes.lines[acts] = rows as u8;
            shapes.line_bytes[weights] = LINE as u16;
            shapes.lines[weights] = (k / 4) as u8;
        }
        shapes
    }

    /// # Safety
    /// The processor has AMX, and [`release`] follows.
    unsafe fn set(&self) {
        // SAFETY: the instruction reads the 64 bytes of `self`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// Frees the registers, so that the system need not save them.
///
/// # Safety
/// The processor has AMX.
unsafe fn release() {
    // SAFETY: no tile is in use.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// Sums of a chunk: [activation row][output row].
#[repr(C, align(64))]
struct Sums([[i32; ROWS]; GROUP]);

/// `tdpbsud` of rows at `$acts` and weights at `$w` into zeroed sums, which are stored at `$out`.
macro_rules! multiply {
    ($acts:ident, $stride:ident, $w:ident, $out:ident, $sum:tt, $rows:tt, $weights:tt) => {
        asm!(
            concat!("tilezero ", $sum),
            concat!("tileloadd ", $rows, ", [{acts} + {stride}]"),
            concat!("tileloadd ", $weights, ", [{w} + {line}]"),
            concat!("tdpbsud ", $sum, ", ", $rows, ", ", $weights),
            concat!("tilestored [{out} + {line}], ", $sum),
            acts = in(reg) $acts,
            stride = in(reg) $stride,
            w = in(reg) $w,
            line = in(reg) LINE,
            out = in(reg) $out,
            out($sum) _, out($rows) _, out($weights) _,
            options(nostack, preserves_flags)
        )
    };
}

/// Dot products of the activation rows with chunk `c`. Even and odd chunks use registers of their own, so products of two
/// chunks can be on their way.
///
/// # Safety
/// The shapes are set for rows of `acts`, `stride` bytes apart, and weights lie at `w`.
#[inline(always)]
unsafe fn products(c: usize, acts: *const u8, stride: usize, w: *const u8, out: *mut Sums) {
    // SAFETY: the caller's; the sums have room for all lines.
    unsafe {
        match c % 2 {
            0 => multiply!(acts, stride, w, out, "tmm0", "tmm4", "tmm5"),
            _ => multiply!(acts, stride, w, out, "tmm1", "tmm6", "tmm7"),
        }
    }
}

/// Block formats with scales for whole chunks, and unpacked tiles.
///
/// # Safety
/// As [`super::Kernel::matmul`] with unpacked tiles, on a processor with AMX and AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
pub(super) unsafe fn blocks<const F: usize>(call: &Call) {
    let bytes = unpacked_bytes(call.format, call.k);
    let stride = acts_bytes(call.format, call.k, false);
    let mut first = 0;
    // SAFETY: tiles, rows and outputs are walked as the caller promised them.
    unsafe {
        while call.rows - first >= FEWEST {
            let rows = GROUP.min(call.rows - first);
            Shapes::new(rows, CHUNK).set();
            for t in 0..call.n.div_ceil(ROWS) {
                let tile = call.tiles.add(t * bytes);
                let acts = call.acts.add(first * stride);
                let sums = match rows {
                    GROUP => tile_sums::<F, true>(tile, call.k, acts, stride, rows),
                    _ => tile_sums::<F, false>(tile, call.k, acts, stride, rows),
                };
                write(call, first, t, rows, sums);
            }
            first += rows;
        }
        release();
        if first < call.rows {
            wide::blocks::<F>(&call.rest(first, stride));
        }
    }
}

/// Sums of an unpacked tile with up to 16 rows; exactly 16 if FULL.
///
/// # Safety
/// As for [`blocks`], with the shapes set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile_sums<const F: usize, const FULL: bool>(
    tile: *const u8,
    k: usize,
    acts: *const u8,
    stride: usize,
    rows: usize,
) -> [__m512; GROUP] {
    let layout = const { Layout::of(Format::ALL[F]) };
    let mut sums = [_mm512_setzero_ps(); GROUP];
    let mut dots = [const { MaybeUninit::<Sums>::uninit() }; 2];
    let chunks = k / CHUNK;
    // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised. Sums are read after the
    // products of their chunk were stored there, for all rows of the shapes.
    unsafe {
        let multiply = |c: usize, dots: &mut [MaybeUninit<Sums>; 2]| {
            let (at, acts) = (tile.add(c * chunk_bytes(layout)), acts.add(c * ACT));
            products(c, acts, stride, at, dots[c % 2].as_mut_ptr());
        };
        if chunks > 0 {
            multiply(0, &mut dots);
        }
        for c in 0..chunks {
            // The products of the next chunk are on their way while those of this one are added.
            if c + 1 < chunks {
                multiply(c + 1, &mut dots);
            }
            let acts = acts.add(c * ACT);
            let scales = wide::chunk_scales::<F>(tile.add(c * chunk_bytes(layout)));
            let dots = dots[c % 2].as_ptr().cast::<u8>();
            for (r, sum) in sums.iter_mut().enumerate() {
                // Missing rows repeat the last one, and nobody reads their sums.
                let r = if FULL { r } else { r.min(rows - 1) };
                let act = acts.add(r * stride);
                let start = starts::<F>(act)[0];
                let dot = _mm512_add_epi32(load(dots.add(r * LINE)), start);
                *sum = add_chunk::<F>([dot; 2], &scales, act, *sum);
            }
        }
    }
    sums
}

/// Writes the sums of `rows` rows from row `first` with tile `t`.
///
/// # Safety
/// As for [`blocks`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn write(call: &Call, first: usize, t: usize, rows: usize, sums: [__m512; GROUP]) {
    let valid = (call.n - t * ROWS).min(ROWS);
    for (r, sum) in sums.into_iter().enumerate().take(rows) {
        // SAFETY: the mask covers only outputs that the caller of the kernel gave.
        unsafe {
            let out = Out {
                first: call.out.add((first + r) * call.out_stride + t * ROWS),
                stride: call.out_stride,
                mask: (0xffff_u32 >> (ROWS - valid)) as u16,
                accumulate: call.accumulate,
            };
            store(out, [sum]);
        }
    }
}

/// k that an instruction adds for BF16.
const PAIRS: usize = 16;
/// Weight tiles that are multiplied together: an instruction need not wait for the sums of the one before.
const TOGETHER: usize = 4;

/// BF16 weights and activations. A sum takes 32 k at a time: its even k and its odd k are added up apart, in order, and then
/// both to the sum. The order is the same for every number of rows.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AMX and AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn rounded(call: &Call) {
    let bytes = tile_bytes(Format::BF16, call.k);
    let stride = acts_bytes(Format::BF16, call.k, true);
    // SAFETY: tiles, rows and outputs are walked as the caller promised them.
    unsafe {
        for first in (0..call.rows).step_by(GROUP) {
            let rows = GROUP.min(call.rows - first);
            let mut shapes = Shapes::new(rows, 4 * PAIRS);
            // Register 6 holds weights too.
            (shapes.line_bytes[6], shapes.lines[6]) = (LINE as u16, PAIRS as u8);
            shapes.set();
            let acts = call.acts.add(first * stride);
            let tiles = call.n.div_ceil(ROWS);
            let mut t = 0;
            while t < tiles {
                let at = call.tiles.add(t * bytes);
                let mut sums = [const { Floats([[0.0; ROWS]; GROUP]) }; TOGETHER];
                let together = match tiles - t {
                    TOGETHER.. => {
                        rounded_products::<TOGETHER>(
                            acts, stride, rows, at, bytes, call.k, &mut sums,
                        );
                        TOGETHER
                    }
                    _ => {
                        rounded_products::<1>(acts, stride, rows, at, bytes, call.k, &mut sums);
                        1
                    }
                };
                for sums in &sums[..together] {
                    let sums = sums.0.map(|line| _mm512_loadu_ps(line.as_ptr()));
                    write(call, first, t, rows, sums);
                    t += 1;
                }
            }
        }
        release();
    }
}

/// Sums of floats: [activation row][output row].
#[repr(C, align(64))]
struct Floats([[f32; ROWS]; GROUP]);

/// Multiplies up to 16 rows with T adjacent tiles of BF16.
///
/// # Safety
/// As for [`rounded`], with the shapes set.
#[inline]
unsafe fn rounded_products<const T: usize>(
    acts: *const u8,
    stride: usize,
    rows: usize,
    tiles: *const u8,
    bytes: usize,
    k: usize,
    out: &mut [Floats; TOGETHER],
) {
    // SAFETY: the caller's. The rest of k is copied to buffers with zeros after it, so that no read leaves the rows.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem)
        );
        let whole = k / (2 * PAIRS);
        for step in 0..whole {
            step_of_pairs::<T>(
                acts.add(step * LINE),
                stride,
                tiles.add(step * PAIRS * LINE),
                bytes,
            );
        }
        let pairs = (k - whole * 2 * PAIRS).div_ceil(2);
        if pairs > 0 {
            let mut last_acts = [[0u8; LINE]; GROUP];
            let mut last_tiles = [[[0u8; LINE]; PAIRS]; T];
            for (r, line) in last_acts.iter_mut().enumerate().take(rows) {
                acts.add(r * stride + whole * LINE)
                    .copy_to(line.as_mut_ptr(), 4 * pairs);
            }
            for (t, lines) in last_tiles.iter_mut().enumerate() {
                let at = tiles.add(t * bytes + whole * PAIRS * LINE);
                at.copy_to(lines.as_flattened_mut().as_mut_ptr(), pairs * LINE);
            }
            let (acts, tiles) = (last_acts.as_ptr().cast(), last_tiles.as_ptr().cast());
            step_of_pairs::<T>(acts, LINE, tiles, PAIRS * LINE);
        }
        asm!(
            "tilestored [{out} + {line}], tmm0",
            "tilestored [{out} + {line} + 1024], tmm1",
            "tilestored [{out} + {line} + 2048], tmm2",
            "tilestored [{out} + {line} + 3072], tmm3",
            out = in(reg) out,
            line = in(reg) LINE,
            options(nostack, preserves_flags)
        );
    }
}

/// Adds 32 k of T tiles, `bytes` apart, to the sums in the registers.
///
/// # Safety
/// As for [`rounded_products`].
#[inline(always)]
unsafe fn step_of_pairs<const T: usize>(
    acts: *const u8,
    stride: usize,
    tile: *const u8,
    bytes: usize,
) {
    // SAFETY: the caller's. The sums stay in their registers: nothing else uses those.
    unsafe {
        if T == TOGETHER {
            asm!(
                "tileloadd tmm4, [{acts} + {stride}]",
                "tileloadd tmm5, [{a} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{b} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{c} + {line}]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{d} + {line}]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                acts = in(reg) acts,
                stride = in(reg) stride,
                a = in(reg) tile,
                b = in(reg) tile.add(bytes),
                c = in(reg) tile.add(2 * bytes),
                d = in(reg) tile.add(3 * bytes),
                line = in(reg) LINE,
                options(nostack, readonly, preserves_flags)
            );
        } else {
            asm!(
                "tileloadd tmm4, [{acts} + {stride}]",
                "tileloadd tmm5, [{a} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                acts = in(reg) acts,
                stride = in(reg) stride,
                a = in(reg) tile,
                line = in(reg) LINE,
                options(nostack, readonly, preserves_flags)
            );
        }
    }
}
