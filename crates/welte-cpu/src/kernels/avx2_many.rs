//! AVX2 for many rows: tiles in the unpacked form of `prompt.rs`. A load of 4 activations serves both halves of a tile, and
//! the sums of 4 rows stay in registers. Up to 32 rows pass a slice of a tile before the next slice.

use super::avx2::{
    ChunkScales, Out, chunk, heads, load, minima, products, scales, store, unpack_four, word,
};
use super::call::Call;
use super::layout::{
    ACT, ACT_FIRST, ACT_SECOND, CHUNK, Correction, Layout, ROWS, Scales, acts_bytes, layout_of,
};
use super::unpacked::{
    QUANTS, chunk_bytes, kept_scales, loaded_scales, scale_vectors, unpacked_bytes,
};
use std::arch::x86_64::*;
use welte_table::Format;

/// Halves of a tile: a vector is 8 of its 16 rows.
const HALVES: usize = 2;

/// Whether unpacking once takes less time than unpacking for every four rows. It does not where one instruction unpacks a
/// group and a chunk's scales are the block's.
pub(super) fn pays_off(format: Format) -> bool {
    let layout = Layout::of(format);
    let simple = layout.bits <= 4 && layout.bits != 3 && layout.codes.is_none();
    !(simple && layout.sub_bytes() == 0)
}

/// # Safety
/// `tile` is one of k columns, `out` has room for its unpacked form, and the processor has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn unpack_tile<const F: usize>(
    member: Format,
    tile: *const u8,
    k: usize,
    out: *mut u8,
) {
    let layout = layout_of::<F>(member);
    let chunk_bytes = chunk_bytes(const { Layout::of(Format::ALL[F]) });
    let mut out = out;
    // SAFETY: the blocks and chunks lie in the tile, and 8 vectors and the scales of each in the unpacked form.
    unsafe {
        for b in 0..k / CHUNK / layout.chunks {
            let (head, at) = (tile.add(layout.head_at(b)), tile.add(layout.block_at(b)));
            let (mut d, mut dmin) = ([_mm256_setzero_ps(); HALVES], [_mm256_setzero_ps(); HALVES]);
            for half in 0..HALVES {
                d[half] = heads::<F>(layout, head, half);
                dmin[half] = if layout.has_minima() {
                    minima::<F>(layout, head, half, d[half])
                } else {
                    d[half]
                };
            }
            for c in 0..layout.chunks {
                for half in 0..HALVES {
                    let quants = at.add(layout.quants_at(c) + half * 32);
                    let out = out.add(half * 32);
                    let groups = [
                        unpack_four::<F, false>(quants),
                        unpack_four::<F, true>(quants),
                    ];
                    for (g, group) in groups.into_iter().flatten().enumerate() {
                        _mm256_storeu_si256(out.add(64 * g).cast(), group);
                    }
                    let s = scales::<F>(at.add(layout.sub_at(c)), half, d[half], dmin[half]);
                    let bits = |v| _mm256_castps_si256(v);
                    let all = kept_scales!(layout, s, bits);
                    let count = const { scale_vectors(Layout::of(Format::ALL[F])) };
                    for (i, v) in all[..count].iter().enumerate() {
                        let at = out.add(QUANTS + 64 * i);
                        _mm256_storeu_si256(at.cast(), *v);
                    }
                }
                out = out.add(chunk_bytes);
            }
        }
    }
}

/// Rows that pass a slice of a tile one after the other, while it stays in the L1 cache.
pub(super) const GROUP: usize = 32;
/// Chunks of a slice of a tile: 10 kB, a third of an L1 cache. The rest is for the rows.
const SLICE: usize = 16;

/// The sums of a tile with all rows of a group, by half.
type Sums = [[__m256; GROUP]; HALVES];
/// The dot products of a half chunk with M rows, by half of the tile.
type Dots<const M: usize> = [[__m256i; M]; HALVES];

/// The kernels for these processor features. `$dots` computes the dot products of a chunk.
macro_rules! kernels {
    ($name:ident, $features:literal, $dots:ident) => {
        pub(super) mod $name {
            use super::*;

            /// # Safety
            /// As [`super::super::Kernel::matmul`] with unpacked tiles, on a processor with the features.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn blocks<const F: usize>(call: &Call) {
                let bytes = unpacked_bytes(call.format, call.k);
                let stride = acts_bytes(call.format, call.k, false);
                for first in (0..call.rows).step_by(GROUP) {
                    let rows = GROUP.min(call.rows - first);
                    for t in 0..call.n.div_ceil(ROWS) {
                        // SAFETY: tiles, rows and outputs are walked as the caller promised them.
                        unsafe {
                            let tile = call.tiles.add(t * bytes);
                            let acts = call.acts.add(first * stride);
                            let sums = tile_sums::<F>(tile, call.k / CHUNK, acts, rows, stride);
                            for (half, sums) in sums.iter().enumerate() {
                                for (r, sum) in sums[..rows].iter().enumerate() {
                                    store(Out::new(call, t, half, first + r), [*sum]);
                                }
                            }
                        }
                    }
                }
            }

            /// The sums of a tile with up to [`GROUP`] rows.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn tile_sums<const F: usize>(
                tile: *const u8,
                chunks: usize,
                acts: *const u8,
                rows: usize,
                stride: usize,
            ) -> Sums {
                let bytes = chunk_bytes(const { Layout::of(Format::ALL[F]) });
                let mut sums = [[_mm256_setzero_ps(); GROUP]; HALVES];
                for c in (0..chunks).step_by(SLICE) {
                    let count = SLICE.min(chunks - c);
                    let mut r = 0;
                    while r < rows {
                        // SAFETY: these chunks of the tile and of each activation row exist, as the caller promised.
                        unsafe {
                            let (tile, acts) =
                                (tile.add(c * bytes), acts.add(r * stride + c * ACT));
                            r += match rows - r {
                                4.. => slice::<F, 4>(tile, count, acts, stride, r, &mut sums),
                                2..4 => slice::<F, 2>(tile, count, acts, stride, r, &mut sums),
                                _ => slice::<F, 1>(tile, count, acts, stride, r, &mut sums),
                            };
                        }
                    }
                }
                sums
            }

            /// Adds `count` chunks of a tile with the M rows from `r` on. Returns M.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn slice<const F: usize, const M: usize>(
                tile: *const u8,
                count: usize,
                acts: *const u8,
                stride: usize,
                r: usize,
                all: &mut Sums,
            ) -> usize {
                let bytes = chunk_bytes(const { Layout::of(Format::ALL[F]) });
                let mut sums = [[_mm256_setzero_ps(); M]; HALVES];
                for half in 0..HALVES {
                    sums[half].copy_from_slice(&all[half][r..r + M]);
                }
                for c in 0..count {
                    // SAFETY: the caller's.
                    unsafe {
                        let (at, act) = (tile.add(c * bytes), acts.add(c * ACT));
                        let dots = $dots::<F, M>(at, act, stride);
                        add_chunk::<F, M>(dots, at, act, stride, &mut sums);
                    }
                }
                for half in 0..HALVES {
                    all[half][r..r + M].copy_from_slice(&sums[half]);
                }
                M
            }
        }
    };
}

kernels!(plain, "avx2,fma,f16c", chunk_dots);
kernels!(vnni, "avx2,fma,f16c,avxvnni", chunk_dots_vnni);

/// Adds the dot products of one chunk with M rows, whose chunks begin at `act`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_chunk<const F: usize, const M: usize>(
    [first, second]: [Dots<M>; 2],
    at: *const u8,
    act: *const u8,
    stride: usize,
    sums: &mut [[__m256; M]; HALVES],
) {
    // SAFETY: the caller's.
    unsafe {
        for half in 0..HALVES {
            let scales = chunk_scales::<F>(at.add(half * 32));
            for (r, sum) in sums[half].iter_mut().enumerate() {
                let dots = [first[half][r], second[half][r]];
                *sum = chunk::<F>(dots, &scales, act.add(r * stride), *sum);
            }
        }
    }
}

/// The dot products of a chunk with M rows, in two parts.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn chunk_dots<const F: usize, const M: usize>(
    at: *const u8,
    act: *const u8,
    stride: usize,
) -> [Dots<M>; 2] {
    let layout = const { Layout::of(Format::ALL[F]) };
    let zero = [[_mm256_setzero_si256(); M]; HALVES];
    // SAFETY: the caller's.
    unsafe {
        match layout.value_bits() {
            0..=4 if !layout.by_halves() => [small_dots::<M, 0, 8>(at, act, stride), zero],
            7.. if !layout.by_halves() => [byte_dots::<F, M, 0, 8>(at, act, stride), zero],
            _ => [
                dots::<F, M, 0>(at, act, stride),
                dots::<F, M, 4>(at, act, stride),
            ],
        }
    }
}

/// [`chunk_dots`] with an instruction that adds four products of bytes to an i32.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
#[allow(clippy::needless_range_loop)]
unsafe fn chunk_dots_vnni<const F: usize, const M: usize>(
    at: *const u8,
    act: *const u8,
    stride: usize,
) -> [Dots<M>; 2] {
    let layout = const { Layout::of(Format::ALL[F]) };
    let mut sums = [[[_mm256_setzero_si256(); M]; HALVES]; 2];
    // SAFETY: the caller's.
    unsafe {
        if layout.value_bits() == 8 {
            // `chunk` expects the products of signed quants, as `products` computes them. Unsigned ones are 128 above.
            for r in 0..M {
                let act = act.add(r * stride);
                let start = match layout.correction() {
                    Correction::Sum => {
                        _mm256_sub_epi32(_mm256_setzero_si256(), word(act.add(ACT_SECOND)))
                    }
                    _ => word(act.add(ACT_FIRST)),
                };
                for half in 0..HALVES {
                    sums[0][half][r] = start;
                }
            }
        }
        for g in 0..8 {
            let part = if layout.by_halves() { g / 4 } else { 0 };
            let w = group(at, g);
            for r in 0..M {
                let a = word(act.add(r * stride + 4 * g));
                for half in 0..HALVES {
                    let sum = &mut sums[part][half][r];
                    *sum = _mm256_dpbusd_avx_epi32(*sum, w[half], a);
                }
            }
        }
    }
    sums
}

/// The halves of a group of an unpacked chunk.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn group(quants: *const u8, g: usize) -> [__m256i; HALVES] {
    let at = quants.wrapping_add(64 * g);
    // SAFETY: the caller's.
    unsafe { [load(at), load(at.wrapping_add(32))] }
}

/// The dot products of COUNT groups from FIRST on of a chunk with M rows, if all their sums fit into i16: 8 groups of at
/// most 15 x 127 x 2, or 4 groups of at most 31 x 127 x 2.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::needless_range_loop)]
unsafe fn small_dots<const M: usize, const FIRST: usize, const COUNT: usize>(
    quants: *const u8,
    act: *const u8,
    stride: usize,
) -> Dots<M> {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); M]; HALVES];
    // SAFETY: the caller's.
    unsafe {
        for g in FIRST..FIRST + COUNT {
            let w = group(quants, g);
            for r in 0..M {
                let a = word(act.add(r * stride + 4 * g));
                for half in 0..HALVES {
                    let p = _mm256_maddubs_epi16(w[half], a);
                    sums[half][r] = _mm256_add_epi16(sums[half][r], p);
                }
            }
        }
    }
    for half in &mut sums {
        for sum in half {
            *sum = _mm256_madd_epi16(*sum, ones);
        }
    }
    sums
}

/// The dot products of 4 groups from FIRST on of a chunk with M rows.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::needless_range_loop)]
unsafe fn dots<const F: usize, const M: usize, const FIRST: usize>(
    quants: *const u8,
    act: *const u8,
    stride: usize,
) -> Dots<M> {
    let bits = const { Layout::of(Format::ALL[F]).value_bits() };
    let ones = _mm256_set1_epi16(1);
    // SAFETY: the caller's.
    unsafe {
        if bits <= 5 {
            return small_dots::<M, FIRST, 4>(quants, act, stride);
        }
        if bits > 6 {
            return byte_dots::<F, M, FIRST, 4>(quants, act, stride);
        }
        let mut sums = [[_mm256_setzero_si256(); M]; HALVES];
        for g in [FIRST, FIRST + 2] {
            let (w0, w1) = (group(quants, g), group(quants, g + 1));
            for r in 0..M {
                let at = act.add(r * stride + 4 * g);
                let (a0, a1) = (word(at), word(at.add(4)));
                for half in 0..HALVES {
                    // Two groups of at most 63 x 127 x 2 fit into i16.
                    let p0 = _mm256_maddubs_epi16(w0[half], a0);
                    let p1 = _mm256_maddubs_epi16(w1[half], a1);
                    let both = _mm256_madd_epi16(_mm256_add_epi16(p0, p1), ones);
                    sums[half][r] = _mm256_add_epi32(sums[half][r], both);
                }
            }
        }
        sums
    }
}

/// The dot products of COUNT groups from FIRST on of a chunk with M rows, if two products fill an i16. One group at a time:
/// more do not fit into the registers.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::needless_range_loop)]
unsafe fn byte_dots<const F: usize, const M: usize, const FIRST: usize, const COUNT: usize>(
    quants: *const u8,
    act: *const u8,
    stride: usize,
) -> Dots<M> {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); M]; HALVES];
    // SAFETY: the caller's.
    unsafe {
        for g in FIRST..FIRST + COUNT {
            let w = group(quants, g);
            for r in 0..M {
                let a = word(act.add(r * stride + 4 * g));
                for half in 0..HALVES {
                    let p = _mm256_madd_epi16(products::<F>(w[half], a), ones);
                    sums[half][r] = _mm256_add_epi32(sums[half][r], p);
                }
            }
        }
    }
    sums
}

/// The scales of half of an unpacked chunk.
///
/// # Safety
/// `at` is the half of an unpacked chunk of the format.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn chunk_scales<const F: usize>(at: *const u8) -> ChunkScales {
    // SAFETY: a chunk has the scale vectors of its layout.
    let scale = |i: usize| unsafe { load(at.add(QUANTS + 64 * i)) };
    let float = |i: usize| _mm256_castsi256_ps(scale(i));
    loaded_scales!(
        Layout::of(Format::ALL[F]),
        float,
        scale,
        _mm256_setzero_si256()
    )
}
