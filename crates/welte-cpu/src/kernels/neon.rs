//! NEON of 64-bit ARM: one vector is 4 output rows, a quarter of a tile.

use super::call::Call;
use super::float8;
use super::layout::{
    ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, F8_BLOCK, F8_BYTES, GroupPart, HALVES, Head,
    Layout, ROWS, Scales, acts_bytes, layout_of, pieces, place, tile_bytes,
};
use super::unpacked::{
    QUANTS, chunk_bytes, kept_scales, loaded_scales, scale_vectors, unpacked_bytes,
};
use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;
use welte_table::Format;

/// Rows of one vector.
const LANES: usize = 4;
/// Vectors of a tile.
const QUARTERS: usize = ROWS / LANES;

/// Sums of M activation rows with Q quarters of a tile.
type Sums<const M: usize, const Q: usize> = [[float32x4_t; M]; Q];

/// Runs code for each number below a constant of at most four. Loops as large are not unrolled by the compiler, and what a loop
/// indexes does not stay in registers.
macro_rules! each {
    ($i:ident below $count:expr, $code:block) => {{
        each!(@one $i 0, $count, $code);
        each!(@one $i 1, $count, $code);
        each!(@one $i 2, $count, $code);
        each!(@one $i 3, $count, $code);
    }};
    (@one $i:ident $value:literal, $count:expr, $code:block) => {
        if $value < $count {
            let $i: usize = $value;
            $code
        }
    };
}

/// A kernel's inner loop.
trait Step {
    /// Bytes of a tile.
    fn tile_bytes(call: &Call) -> usize;

    /// The sums of the M rows that begin at `acts` with the Q quarters of a tile from `quarter` on.
    ///
    /// # Safety
    /// The tile and the rows are as in [`super::Kernel::matmul`], and the processor has the instructions.
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q>;
}

/// Walks tiles and groups of activation rows. Four rows take half a tile at a time, so that their sums stay in registers.
///
/// # Safety
/// As [`super::Kernel::matmul`], and the processor has the instructions.
#[inline(always)]
unsafe fn walk<S: Step>(call: &Call) {
    let stride = acts_bytes(call.format, call.k, false);
    for t in 0..call.n.div_ceil(ROWS) {
        let tile = call.tiles.wrapping_add(t * S::tile_bytes(call));
        let mut r = 0;
        // SAFETY: tiles, rows and outputs are walked as the caller promised them.
        unsafe {
            while r < call.rows {
                let acts = call.acts.add(r * stride);
                r += match call.rows - r {
                    4.. => {
                        for quarter in [0, 2] {
                            let sums = S::sums::<4, 2>(call, tile, quarter, acts, stride);
                            store(call, t * ROWS + quarter * LANES, r, sums);
                        }
                        4
                    }
                    2..4 => {
                        let sums = S::sums::<2, 4>(call, tile, 0, acts, stride);
                        store(call, t * ROWS, r, sums);
                        2
                    }
                    _ => {
                        let sums = S::sums::<1, 4>(call, tile, 0, acts, stride);
                        store(call, t * ROWS, r, sums);
                        1
                    }
                };
            }
        }
    }
}

/// Writes the outputs from `first` on of M rows from `r` on, as far as there are outputs.
///
/// # Safety
/// As [`super::Kernel::matmul`].
#[inline(always)]
unsafe fn store<const M: usize, const Q: usize>(
    call: &Call,
    first: usize,
    r: usize,
    sums: Sums<M, Q>,
) {
    for (q, rows) in sums.into_iter().enumerate() {
        let first = first + q * LANES;
        let valid = call.n.saturating_sub(first).min(LANES);
        for (m, sum) in rows.into_iter().enumerate() {
            let out = call.out.wrapping_add((r + m) * call.out_stride + first);
            // SAFETY: the first `valid` outputs are the caller's.
            unsafe {
                if valid == LANES {
                    let sum = if call.accumulate {
                        vaddq_f32(vld1q_f32(out), sum)
                    } else {
                        sum
                    };
                    vst1q_f32(out, sum);
                    continue;
                }
                let mut lanes = [0.0; LANES];
                vst1q_f32(lanes.as_mut_ptr(), sum);
                for (i, sum) in lanes[..valid].iter().enumerate() {
                    let out = out.add(i);
                    *out = if call.accumulate { *out + sum } else { *sum };
                }
            }
        }
    }
}

/// How bytes are multiplied. Sums are exact integers, so every way gives the same bits.
trait Bytes {
    /// For each of 4 rows, adds the products of 4 weights with the activations from 4 `LANE` on of 16.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn dot<const LANE: i32>(sum: int32x4_t, w: int8x16_t, acts: int8x16_t) -> int32x4_t;
}

/// Products of bytes and sums of neighbours, which every 64-bit ARM processor has.
struct Plain;

impl Bytes for Plain {
    #[inline(always)]
    unsafe fn dot<const LANE: i32>(sum: int32x4_t, w: int8x16_t, acts: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of every such processor.
        unsafe {
            let four = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(acts)));
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(four));
            let high = vmull_high_s8(w, four);
            // Two products of at most 128 x 127 fit into i16.
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }
    }
}

/// The dot products of the extension `dotprod`.
struct Dot;

impl Bytes for Dot {
    #[inline(always)]
    unsafe fn dot<const LANE: i32>(mut sum: int32x4_t, w: int8x16_t, acts: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's. The instruction changes nothing but its operand. Its intrinsic is not stable.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {acts:v}.4b[{lane}]",
                sum = inout(vreg) sum,
                w = in(vreg) w,
                acts = in(vreg) acts,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

/// Adds the products of two rows of 8 weights with two rows of 8 activations: first the two sums of the first row of weights.
/// This is the extension `i8mm`.
///
/// # Safety
/// The processor has it.
#[inline(always)]
unsafe fn two_by_two(mut sums: int32x4_t, w: int8x16_t, acts: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's. The instruction changes nothing but its operand. Its intrinsic is not stable.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {w:v}.16b, {acts:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            acts = in(vreg) acts,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Turns a tile into the form that `unpacked` kernels read.
///
/// # Safety
/// `tile` is one of k columns, and `out` has room for its unpacked form.
pub(super) unsafe fn unpack<const F: usize>(
    member: Format,
    tile: *const u8,
    k: usize,
    out: *mut u8,
) {
    // SAFETY: the caller's.
    unsafe { unpack_tile::<F, false>(member, tile, k, out) }
}

/// Turns a tile into the form that [`unpacked_pairs`] reads.
///
/// # Safety
/// As [`unpack`].
pub(super) unsafe fn unpack_pairs<const F: usize>(
    member: Format,
    tile: *const u8,
    k: usize,
    out: *mut u8,
) {
    // SAFETY: the caller's.
    unsafe { unpack_tile::<F, true>(member, tile, k, out) }
}

/// Kernels with one way to multiply bytes.
macro_rules! kernels {
    ($name:ident, $bytes:ty, $features:literal) => {
        pub(super) mod $name {
            use super::*;

            /// Block formats.
            ///
            /// # Safety
            /// As [`super::super::Kernel::matmul`], on a processor with the features.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn blocks<const F: usize>(call: &Call) {
                // SAFETY: the caller's.
                unsafe { walk::<Blocks<$bytes, F>>(call) }
            }

            /// Block formats, unpacked by [`unpack`].
            ///
            /// # Safety
            /// As [`super::super::Kernel::matmul`] with unpacked tiles, on a processor with the features.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn unpacked<const F: usize>(call: &Call) {
                // SAFETY: the caller's.
                unsafe { walk::<Unpacked<$bytes, F>>(call) }
            }
        }
    };
}

kernels!(plain, Plain, "neon");
kernels!(dot, Dot, "neon,dotprod");

/// Block formats, unpacked by [`unpack_pairs`].
///
/// # Safety
/// As [`super::Kernel::matmul`] with unpacked tiles, on a processor with `i8mm`.
#[target_feature(enable = "neon,i8mm")]
pub(super) unsafe fn unpacked_pairs<const F: usize>(call: &Call) {
    // SAFETY: the caller's.
    unsafe { walk::<UnpackedPairs<F>>(call) }
}

/// F32, F16 and BF16: weights widened to f32.
///
/// # Safety
/// As [`super::Kernel::matmul`].
pub(super) unsafe fn floats<const F: usize>(call: &Call) {
    // SAFETY: the caller's.
    unsafe { walk::<Floats<F>>(call) }
}

/// F8_E4M3.
///
/// # Safety
/// As [`super::Kernel::matmul`].
pub(super) unsafe fn float8(call: &Call) {
    // SAFETY: the caller's.
    unsafe { walk::<Float8>(call) }
}

#[inline(always)]
unsafe fn float(at: *const u8) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vdupq_n_f32(at.cast::<f32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn word(at: *const u8) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe { vdupq_n_s32(at.cast::<i32>().read_unaligned()) }
}

/// 4 f16 as f32.
#[inline(always)]
unsafe fn halves(at: *const u8) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { widen(vld1_u16(at.cast())) }
}

/// The bits of 4 f16 as f32.
#[inline(always)]
fn widen(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is part of every such processor.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(bits)) }
}

/// 4 signed bytes.
#[inline(always)]
unsafe fn four_signed(at: *const u8) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let bytes = vreinterpret_s8_u32(vdup_n_u32(at.cast::<u32>().read_unaligned()));
        vmovl_s16(vget_low_s16(vmovl_s8(bytes)))
    }
}

/// 4 unsigned bytes.
#[inline(always)]
unsafe fn four_unsigned(at: *const u8) -> uint32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let bytes = vreinterpret_u8_u32(vdup_n_u32(at.cast::<u32>().read_unaligned()));
        vmovl_u16(vget_low_u16(vmovl_u8(bytes)))
    }
}

/// The scales of 4 rows.
#[inline(always)]
unsafe fn scales_of_head(layout: Layout, at: *const u8) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        if layout.head.bf16() {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.cast())))
        } else {
            halves(at)
        }
    }
}

#[inline(always)]
unsafe fn times_factor<const F: usize>(scales: float32x4_t) -> float32x4_t {
    match const { Layout::of(Format::ALL[F]).factor } {
        1.0 => scales,
        // SAFETY: NEON is part of every such processor.
        factor => unsafe { vmulq_n_f32(scales, factor) },
    }
}

/// The `d` of a quarter's rows, from a block's part of a head.
#[inline(always)]
unsafe fn heads<const F: usize>(layout: Layout, head: *const u8, quarter: usize) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        if let Scales::Powers = const { Layout::of(Format::ALL[F]).scales } {
            let e = vreinterpretq_s32_u32(four_unsigned(head.add(quarter * LANES)));
            let normal = vshlq_n_s32::<23>(vsubq_s32(e, vdupq_n_s32(1)));
            let small = vshlq_s32(vdupq_n_s32(0x20_0000), vminq_s32(e, vdupq_n_s32(2)));
            return vreinterpretq_f32_s32(vmaxq_s32(normal, small));
        }
        times_factor::<F>(match const { Layout::of(Format::ALL[F]).head } {
            Head::Float => vld1q_f32(head.add(quarter * 16).cast()),
            _ => scales_of_head(layout, head.add(quarter * 8)),
        })
    }
}

/// The `dmin` of a quarter's rows with these `d`, from a block's part of a head.
#[inline(always)]
unsafe fn minima<const F: usize>(
    layout: Layout,
    head: *const u8,
    quarter: usize,
    d: float32x4_t,
) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let stored = scales_of_head(layout, head.add(HALVES + quarter * 8));
        if layout.head.has_zero() {
            vmulq_f32(d, vnegq_f32(stored))
        } else {
            times_factor::<F>(stored)
        }
    }
}

/// The scales of one chunk in vectors.
type ChunkScales = super::unpacked::ChunkScales<float32x4_t, int32x4_t>;

/// The scales of the chunk whose sub-scales lie at `subs`, in a block with this `d` and `dmin`.
#[inline(always)]
unsafe fn scales<const F: usize>(
    subs: *const u8,
    quarter: usize,
    d: float32x4_t,
    dmin: float32x4_t,
) -> ChunkScales {
    // SAFETY: a chunk has 16 or 32 sub-scales.
    unsafe {
        let none = vdupq_n_s32(0);
        let plain = ChunkScales {
            d: [d, d],
            m: dmin,
            pairs: none,
            pair_minima: none,
        };
        let at = |i: usize| subs.add(i * ROWS + quarter * LANES);
        let signed = |i| vcvtq_f32_s32(four_signed(at(i)));
        let unsigned = |i| vcvtq_f32_u32(four_unsigned(at(i)));
        let pairs = subs.add(2 * quarter * LANES);
        match const { Layout::of(Format::ALL[F]).scales } {
            Scales::Plain | Scales::PlainMin | Scales::Powers => plain,
            Scales::Super => ChunkScales {
                d: [vmulq_f32(d, signed(0)); 2],
                ..plain
            },
            Scales::SuperMin => ChunkScales {
                d: [vmulq_f32(d, unsigned(0)); 2],
                m: vmulq_f32(dmin, unsigned(1)),
                ..plain
            },
            Scales::Halves => ChunkScales {
                d: [0, 1].map(|half| vmulq_f32(d, signed(half))),
                ..plain
            },
            Scales::Floats => ChunkScales {
                d: [0, 1].map(|half| {
                    // The bits of an E4M3 float in an f16 mean 1/256 of it.
                    let bits = vshl_n_u16::<7>(vmovn_u32(four_unsigned(at(half))));
                    vmulq_f32(d, vmulq_n_f32(widen(bits), 256.0))
                }),
                ..plain
            },
            Scales::Pairs => ChunkScales {
                pairs: vreinterpretq_s32_s16(vmovl_s8(vld1_s8(pairs.cast()))),
                ..plain
            },
            Scales::PairsMin => {
                let both = vmovl_u8(vld1_u8(pairs));
                ChunkScales {
                    pairs: vreinterpretq_s32_u16(vandq_u16(both, vdupq_n_u16(15))),
                    pair_minima: vreinterpretq_s32_u16(vshrq_n_u16::<4>(both)),
                    ..plain
                }
            }
        }
    }
}

/// `bits` bits of each byte, moved from bit `at` down to bit `to`. The compiler knows the numbers.
#[inline(always)]
unsafe fn field(v: uint8x16_t, at: usize, bits: usize, to: usize) -> uint8x16_t {
    // SAFETY: NEON is part of every such processor.
    unsafe {
        let moved = match at - to {
            0 => v,
            1 => vshrq_n_u8::<1>(v),
            2 => vshrq_n_u8::<2>(v),
            3 => vshrq_n_u8::<3>(v),
            4 => vshrq_n_u8::<4>(v),
            5 => vshrq_n_u8::<5>(v),
            6 => vshrq_n_u8::<6>(v),
            _ => vshrq_n_u8::<7>(v),
        };
        vandq_u8(moved, vdupq_n_u8((0xff >> (8 - bits)) << to))
    }
}

/// Group G (4 rows x 4 k) of a chunk; `q` points at this quarter of the first vector. Values of 8 bits are 128 less than
/// the format's unsigned ones.
#[inline(always)]
unsafe fn group<const F: usize, const G: usize>(q: *const u8) -> int8x16_t {
    let layout = const { Layout::of(Format::ALL[F]) };
    let bits = layout.bits;
    // SAFETY: a chunk has `bits` vectors of four quarters.
    unsafe {
        let v = |i: usize| vld1q_u8(q.add(i * 64));
        let piece =
            |p: GroupPart| field(v(p.vector), p.at as usize, p.bits as usize, p.from as usize);
        let stored = match const { pieces(Layout::of(Format::ALL[F]).bits, G) } {
            _ if bits == 8 => v(G),
            [Some(a), Some(b), Some(c)] => vorrq_u8(vorrq_u8(piece(a), piece(b)), piece(c)),
            [Some(a), Some(b), None] => vorrq_u8(piece(a), piece(b)),
            _ => {
                let (vector, at) = const { place(Layout::of(Format::ALL[F]).bits, G) };
                field(v(vector), at, bits, 0)
            }
        };
        let values = match &layout.codes {
            Some(codes) => vqtbl1q_u8(vld1q_u8(codes.as_ptr()), stored),
            None => stored,
        };
        vreinterpretq_s8_u8(match layout.value_bits() {
            8 => veorq_u8(values, vdupq_n_u8(0x80)),
            _ => values,
        })
    }
}

/// All groups of a chunk.
#[inline(always)]
unsafe fn groups<const F: usize>(q: *const u8) -> [int8x16_t; 8] {
    // SAFETY: the caller's.
    unsafe {
        [
            group::<F, 0>(q),
            group::<F, 1>(q),
            group::<F, 2>(q),
            group::<F, 3>(q),
            group::<F, 4>(q),
            group::<F, 5>(q),
            group::<F, 6>(q),
            group::<F, 7>(q),
        ]
    }
}

/// The dot products of a chunk with one activation row, by half; all in the first if the format needs no halves.
#[inline(always)]
unsafe fn dots<B: Bytes, const F: usize>(w: &[int8x16_t; 8], act: *const u8) -> [int32x4_t; 2] {
    // SAFETY: the caller's; an activation chunk has 32 bytes.
    unsafe {
        let zero = vdupq_n_s32(0);
        let (low, high) = (vld1q_s8(act.cast()), vld1q_s8(act.add(16).cast()));
        let first = B::dot::<0>(zero, w[0], low);
        let first = B::dot::<1>(first, w[1], low);
        let first = B::dot::<2>(first, w[2], low);
        let first = B::dot::<3>(first, w[3], low);
        let halves = const { Layout::of(Format::ALL[F]).by_halves() };
        let second = B::dot::<0>(if halves { zero } else { first }, w[4], high);
        let second = B::dot::<1>(second, w[5], high);
        let second = B::dot::<2>(second, w[6], high);
        let second = B::dot::<3>(second, w[7], high);
        if halves {
            [first, second]
        } else {
            [second, zero]
        }
    }
}

/// Adds one chunk's dot products to the sums of one activation row.
#[inline(always)]
unsafe fn add_chunk<const F: usize>(
    dots: [int32x4_t; 2],
    scales: &ChunkScales,
    act: *const u8,
    sum: float32x4_t,
) -> float32x4_t {
    let ChunkScales {
        d,
        m,
        pairs,
        pair_minima,
    } = *scales;
    let layout = const { Layout::of(Format::ALL[F]) };
    // SAFETY: an activation chunk has ACT bytes.
    unsafe {
        let s = float(act.add(ACT_SCALE));
        let (first, second) = (act.add(ACT_FIRST), act.add(ACT_SECOND));
        let scaled = |whole| vfmaq_f32(sum, vcvtq_f32_s32(whole), vmulq_f32(d[0], s));
        // The two i16 of each lane.
        let lows = |v| vshrq_n_s32::<16>(vshlq_n_s32::<16>(v));
        let highs = |v| vshrq_n_s32::<16>(v);
        match layout.scales {
            // Values of 8 bits carry no offset: see `group`.
            Scales::Plain | Scales::Powers | Scales::Super => scaled(match layout.value_bits() {
                8 => dots[0],
                _ => vaddq_s32(dots[0], word(first)),
            }),
            Scales::PlainMin => {
                let sum = scaled(match layout.bits {
                    8 => vaddq_s32(dots[0], word(second)),
                    _ => dots[0],
                });
                vfmaq_f32(sum, m, float(first))
            }
            Scales::SuperMin => vfmsq_f32(scaled(dots[0]), m, float(first)),
            Scales::Halves | Scales::Floats => {
                let low = vcvtq_f32_s32(vaddq_s32(dots[0], word(first)));
                let high = vcvtq_f32_s32(vaddq_s32(dots[1], word(second)));
                let both = vfmaq_f32(vmulq_f32(high, d[1]), low, d[0]);
                vfmaq_f32(sum, both, s)
            }
            Scales::Pairs => {
                let low = vaddq_s32(dots[0], word(first));
                let high = vaddq_s32(dots[1], word(second));
                scaled(vmlaq_s32(vmulq_s32(low, lows(pairs)), high, highs(pairs)))
            }
            Scales::PairsMin => {
                let low = vmulq_s32(dots[0], lows(pairs));
                let sum = scaled(vmlaq_s32(low, dots[1], highs(pairs)));
                let parts = word(first);
                let low = vmulq_s32(lows(parts), lows(pair_minima));
                let min = vmlaq_s32(low, highs(parts), highs(pair_minima));
                vfmsq_f32(sum, vcvtq_f32_s32(min), vmulq_f32(m, s))
            }
        }
    }
}

/// Packed tiles of block formats.
struct Blocks<B: Bytes, const F: usize>(B);

impl<B: Bytes, const F: usize> Step for Blocks<B, F> {
    fn tile_bytes(call: &Call) -> usize {
        tile_bytes(call.format, call.k)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q> {
        let layout = layout_of::<F>(call.format);
        // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); M]; Q];
            for b in 0..call.k / CHUNK / layout.chunks {
                let (head, at) = (tile.add(layout.head_at(b)), tile.add(layout.block_at(b)));
                let acts = acts.add(b * layout.chunks * ACT);
                let d: [_; Q] = from_fn(|q| heads::<F>(layout, head, quarter + q));
                let dmin: [_; Q] = if layout.has_minima() {
                    from_fn(|q| minima::<F>(layout, head, quarter + q, d[q]))
                } else {
                    d
                };
                for c in 0..layout.chunks {
                    let (quants, act) = (at.add(layout.quants_at(c)), acts.add(c * ACT));
                    each!(q below Q, {
                        let v = quarter + q;
                        let w = groups::<F>(quants.add(16 * v));
                        let scales = scales::<F>(at.add(layout.sub_at(c)), v, d[q], dmin[q]);
                        each!(r below M, {
                            let act = act.add(r * stride);
                            let dots = dots::<B, F>(&w, act);
                            sums[q][r] = add_chunk::<F>(dots, &scales, act, sums[q][r]);
                        });
                    });
                }
            }
            sums
        }
    }
}

/// Turns a tile into the unpacked form of `prompt.rs`. With `PAIRS`, each vector holds two rows of 8 k instead of four rows of
/// 4 k, as [`two_by_two`] reads them.
///
/// # Safety
/// `tile` is one of k columns, and `out` has room for its unpacked form.
unsafe fn unpack_tile<const F: usize, const PAIRS: bool>(
    member: Format,
    tile: *const u8,
    k: usize,
    out: *mut u8,
) {
    let layout = layout_of::<F>(member);
    let mut out = out;
    // SAFETY: the blocks and chunks lie in the tile, and 8 vectors and the scales of each in the unpacked form.
    unsafe {
        for b in 0..k / CHUNK / layout.chunks {
            let (head, at) = (tile.add(layout.head_at(b)), tile.add(layout.block_at(b)));
            for c in 0..layout.chunks {
                for v in 0..QUARTERS {
                    let d = heads::<F>(layout, head, v);
                    let dmin = if layout.has_minima() {
                        minima::<F>(layout, head, v, d)
                    } else {
                        d
                    };
                    let w = groups::<F>(at.add(layout.quants_at(c) + 16 * v));
                    for pair in 0..4 {
                        let (a, b) = (w[2 * pair], w[2 * pair + 1]);
                        let vectors = if PAIRS { zip(a, b) } else { [a, b] };
                        for (vector, at) in vectors.into_iter().zip(unpacked_at::<PAIRS>(v)) {
                            vst1q_s8(out.add(128 * pair + at).cast(), vector);
                        }
                    }
                    let s = scales::<F>(at.add(layout.sub_at(c)), v, d, dmin);
                    let bits = |v| vreinterpretq_s32_f32(v);
                    let all = kept_scales!(layout, s, bits);
                    for (i, vector) in all[..scale_vectors(layout)].iter().enumerate() {
                        vst1q_s32(out.add(QUANTS + 64 * i + 16 * v).cast(), *vector);
                    }
                }
                out = out.add(chunk_bytes(layout));
            }
        }
    }
}

/// Where the vectors of groups 0 and 1 of a quarter lie in an unpacked chunk; those of the next two groups lie 128 bytes
/// further. Pairs lie side by side.
const fn unpacked_at<const PAIRS: bool>(quarter: usize) -> [usize; 2] {
    if PAIRS {
        [32 * quarter, 32 * quarter + 16]
    } else {
        [16 * quarter, 64 + 16 * quarter]
    }
}

/// Two groups of 4 rows as rows 0 and 1, then 2 and 3, of 8 k.
#[inline(always)]
unsafe fn zip(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: NEON is part of every such processor.
    unsafe {
        let (a, b) = (vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b));
        [vzip1q_s32(a, b), vzip2q_s32(a, b)].map(|v| vreinterpretq_s8_s32(v))
    }
}

/// The vectors of a quarter of an unpacked chunk: those of groups 0 and 1, and so on.
#[inline(always)]
unsafe fn unpacked_vectors<const PAIRS: bool>(chunk: *const u8, quarter: usize) -> [int8x16_t; 8] {
    let at = unpacked_at::<PAIRS>(quarter);
    // SAFETY: the caller's.
    from_fn(|i| unsafe { vld1q_s8(chunk.add(i / 2 * 128 + at[i % 2]).cast()) })
}

/// The scales of a quarter of an unpacked chunk.
#[inline(always)]
unsafe fn unpacked_scales<const F: usize>(chunk: *const u8, quarter: usize) -> ChunkScales {
    // SAFETY: a chunk has the scale vectors of its layout.
    unsafe {
        let scale = |i: usize| vld1q_s32(chunk.add(QUANTS + 64 * i + 16 * quarter).cast());
        let float = |i: usize| vreinterpretq_f32_s32(scale(i));
        loaded_scales!(Layout::of(Format::ALL[F]), float, scale, vdupq_n_s32(0))
    }
}

/// Unpacked tiles of block formats.
struct Unpacked<B: Bytes, const F: usize>(B);

impl<B: Bytes, const F: usize> Step for Unpacked<B, F> {
    fn tile_bytes(call: &Call) -> usize {
        unpacked_bytes(call.format, call.k)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q> {
        let bytes = const { chunk_bytes(Layout::of(Format::ALL[F])) };
        // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); M]; Q];
            for c in 0..call.k / CHUNK {
                let (chunk, act) = (tile.add(c * bytes), acts.add(c * ACT));
                each!(q below Q, {
                    let w = unpacked_vectors::<false>(chunk, quarter + q);
                    let scales = unpacked_scales::<F>(chunk, quarter + q);
                    each!(r below M, {
                        let act = act.add(r * stride);
                        let dots = dots::<B, F>(&w, act);
                        sums[q][r] = add_chunk::<F>(dots, &scales, act, sums[q][r]);
                    });
                });
            }
            sums
        }
    }
}

/// Unpacked tiles of block formats with pairs of rows.
struct UnpackedPairs<const F: usize>;

impl<const F: usize> Step for UnpackedPairs<F> {
    fn tile_bytes(call: &Call) -> usize {
        unpacked_bytes(call.format, call.k)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q> {
        let bytes = const { chunk_bytes(Layout::of(Format::ALL[F])) };
        // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); M]; Q];
            for c in 0..call.k / CHUNK {
                let (chunk, act) = (tile.add(c * bytes), acts.add(c * ACT));
                each!(q below Q, {
                    let w = unpacked_vectors::<true>(chunk, quarter + q);
                    let scales = unpacked_scales::<F>(chunk, quarter + q);
                    each!(pair below M.div_ceil(2), {
                        // A row that is alone is multiplied twice.
                        let (a, b) = (2 * pair, (2 * pair + 1).min(M - 1));
                        let rows = [act.add(a * stride), act.add(b * stride)];
                        let dots = dots_of_two::<F>(&w, rows);
                        if b > a {
                            sums[q][b] = add_chunk::<F>(dots[1], &scales, rows[1], sums[q][b]);
                        }
                        sums[q][a] = add_chunk::<F>(dots[0], &scales, rows[0], sums[q][a]);
                    });
                });
            }
            sums
        }
    }
}

/// [`dots`] of two activation rows.
#[inline(always)]
unsafe fn dots_of_two<const F: usize>(
    w: &[int8x16_t; 8],
    acts: [*const u8; 2],
) -> [[int32x4_t; 2]; 2] {
    // SAFETY: the caller's; an activation chunk has 32 bytes.
    unsafe {
        let zero = vdupq_n_s32(0);
        // By half: rows 0 and 1 of the weights, then rows 2 and 3.
        let mut sums = [[zero; 2]; 2];
        let halves = const { Layout::of(Format::ALL[F]).by_halves() };
        each!(pair below 4, {
            let a = vld1_s8(acts[0].add(8 * pair).cast());
            let b = vld1_s8(acts[1].add(8 * pair).cast());
            let both = vcombine_s8(a, b);
            let sums = &mut sums[if halves { pair / 2 } else { 0 }];
            sums[0] = two_by_two(sums[0], w[2 * pair], both);
            sums[1] = two_by_two(sums[1], w[2 * pair + 1], both);
        });
        let [first, second] = sums;
        [
            [
                vuzp1q_s32(first[0], first[1]),
                vuzp1q_s32(second[0], second[1]),
            ],
            [
                vuzp2q_s32(first[0], first[1]),
                vuzp2q_s32(second[0], second[1]),
            ],
        ]
    }
}

/// Tiles of floats. Even and odd k have separate sums.
struct Floats<const F: usize>;

impl<const F: usize> Step for Floats<F> {
    fn tile_bytes(call: &Call) -> usize {
        tile_bytes(call.format, call.k)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q> {
        // SAFETY: column i of the tile and of each activation row exists, as the caller promised.
        unsafe {
            let mut sums = [[[vdupq_n_f32(0.0); M]; Q]; 2];
            for i in (0..call.k).step_by(2) {
                // An odd k ends with an even column.
                each!(odd below 2, {
                    if odd == 1 && i + 1 == call.k {
                        break;
                    }
                    let i = i + odd;
                    each!(q below Q, {
                        let w = column::<F>(tile, quarter + q, i);
                        each!(r below M, {
                            let x = float(acts.add(r * stride + i * 4));
                            sums[odd][q][r] = vfmaq_f32(sums[odd][q][r], w, x);
                        });
                    });
                });
            }
            joined(sums)
        }
    }
}

/// The sums of even and of odd columns together.
#[inline(always)]
unsafe fn joined<const M: usize, const Q: usize>([even, odd]: [Sums<M, Q>; 2]) -> Sums<M, Q> {
    let mut sums = even;
    each!(q below Q, {
        each!(r below M, {
            // SAFETY: NEON is part of every such processor.
            sums[q][r] = unsafe { vaddq_f32(even[q][r], odd[q][r]) };
        });
    });
    sums
}

/// The weights of a quarter's rows at column i.
#[inline(always)]
unsafe fn column<const F: usize>(tile: *const u8, quarter: usize, i: usize) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        match const { Format::ALL[F] } {
            Format::F32 => vld1q_f32(tile.add(i * 64 + quarter * 16).cast()),
            Format::F16 => halves(tile.add(i * 32 + quarter * 8)),
            _ => {
                let pair = vld1q_u32(tile.add(i / 2 * 64 + quarter * 16).cast());
                vreinterpretq_f32_u32(match i % 2 {
                    0 => vshlq_n_u32::<16>(pair),
                    _ => vandq_u32(pair, vdupq_n_u32(0xffff_0000)),
                })
            }
        }
    }
}

/// Tiles of F8_E4M3.
struct Float8;

impl Step for Float8 {
    fn tile_bytes(call: &Call) -> usize {
        tile_bytes(call.format, call.k)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const Q: usize>(
        call: &Call,
        tile: *const u8,
        quarter: usize,
        acts: *const u8,
        stride: usize,
    ) -> Sums<M, Q> {
        // SAFETY: block b of the tile and of each activation row exists, as the caller promised.
        unsafe {
            let zero = [[vdupq_n_f32(0.0); M]; Q];
            let mut sums = zero;
            for b in 0..call.k / F8_BLOCK {
                let (block, acts) = (tile.add(b * F8_BYTES), acts.add(b * F8_BLOCK * 4));
                let mut parts = [zero; 2];
                for i in (0..F8_BLOCK).step_by(2) {
                    each!(odd below 2, {
                        let i = i + odd;
                        let at = block.add(4 * ROWS + i * ROWS + quarter * LANES);
                        let w = small_floats::<Q>(at);
                        each!(q below Q, {
                            each!(r below M, {
                                let x = float(acts.add(r * stride + i * 4));
                                parts[odd][q][r] = vfmaq_f32(parts[odd][q][r], w[q], x);
                            });
                        });
                    });
                }
                let parts = joined(parts);
                each!(q below Q, {
                    let scale = vld1q_f32(block.add((quarter + q) * 16).cast());
                    let scale = vmulq_n_f32(scale, float8::UNIT);
                    each!(r below M, {
                        sums[q][r] = vfmaq_f32(sums[q][r], parts[q][r], scale);
                    });
                });
            }
            sums
        }
    }
}

/// The elements of the rows of Q quarters, an even number, times 2^-8.
#[inline(always)]
unsafe fn small_floats<const Q: usize>(at: *const u8) -> [float32x4_t; Q] {
    // SAFETY: the caller's.
    from_fn(|q| unsafe {
        let words = vreinterpretq_u16_s16(vmovl_s8(vld1_s8(at.add(q / 2 * 8).cast())));
        let bits = vandq_u16(vshlq_n_u16::<7>(words), vdupq_n_u16(!0x4000));
        widen(match q % 2 {
            0 => vget_low_u16(bits),
            _ => vget_high_u16(bits),
        })
    })
}
