//! F8_E4M3: activations stay f32 and weights are widened to f32. Each block of 128 has separate sums of even and odd k,
//! which are scaled at the end of the block. Every instruction set gives the same bits.
//!
//! Many rows are multiplied in BF16: it holds the elements exactly, and activations are rounded to it. An unpacked block
//! is its scales, then its elements in the layout of BF16 weights: 16 rows x 2 k.
//!
//! A byte becomes an f16 by shifting: the sign to the sign, the other bits to bits 7 to 13. The f16 is 2^-8 of the value,
//! subnormals included. NaN becomes 480; readers refuse it.

use super::layout::{F8_BLOCK, F8_BYTES, ROWS, word};

/// The factor from widened elements to their values.
pub(super) const UNIT: f32 = 256.0;

fn half(byte: u8) -> f32 {
    let bits = u16::from(byte & 0x80) << 8 | u16::from(byte & 0x7f) << 7;
    half::f16::from_bits(bits).to_f32()
}

fn blocks(tile: &[u8], k: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
    let blocks = tile.chunks_exact(F8_BYTES).take(k / F8_BLOCK);
    blocks.map(|block| block.split_at(4 * ROWS))
}

/// One tile with one activation row, in plain code.
pub(super) fn plain(tile: &[u8], k: usize, acts: &[u8]) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for ((scales, elements), acts) in blocks(tile, k).zip(acts.chunks_exact(4 * F8_BLOCK)) {
        let mut parts = [[0f32; ROWS]; 2];
        for (i, elements) in elements.chunks_exact(ROWS).enumerate() {
            let x = f32::from_le_bytes(word(acts, 4 * i));
            for (part, byte) in parts[i % 2].iter_mut().zip(elements) {
                *part = half(*byte).mul_add(x, *part);
            }
        }
        for (r, sum) in sums.iter_mut().enumerate() {
            let scale = f32::from_le_bytes(word(scales, 4 * r)) * UNIT;
            *sum = (parts[0][r] + parts[1][r]).mul_add(scale, *sum);
        }
    }
    sums
}

/// Row `r` of a tile: the same floats that its encoded row decodes to.
pub(super) fn row(tile: &[u8], r: usize, out: &mut [f32]) {
    let k = out.len();
    for ((scales, elements), out) in blocks(tile, k).zip(out.chunks_exact_mut(F8_BLOCK)) {
        let scale = f32::from_le_bytes(word(scales, 4 * r));
        for (out, elements) in out.iter_mut().zip(elements.chunks_exact(ROWS)) {
            *out = scale * (half(elements[r]) * UNIT);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{avx2, avx512, rounded, rounded_unpacked, unpack};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::call::{Call, fetch_ahead};
    use super::super::layout::{acts_bytes, tile_bytes};
    use super::super::unpacked::F8_UNPACKED as UNPACKED;
    use super::super::{avx2, avx512};
    use super::*;
    use std::arch::x86_64::*;
    use welte_table::Format;

    const F: usize = Format::F8_E4M3.index();

    /// # Safety
    /// As [`super::super::Kernel::matmul`], on a processor with AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    pub(in super::super) unsafe fn avx512(call: &Call) {
        use avx512::{Out, store, walk};
        let bytes = tile_bytes(Format::F8_E4M3, call.k);
        let stride = acts_bytes(Format::F8_E4M3, call.k, false);
        // SAFETY: tiles, rows and outputs are walked as the caller promised them.
        unsafe {
            walk!(call, bytes, stride, wide_tile, F);
        }
    }

    /// # Safety
    /// As [`super::super::Kernel::matmul`], on a processor with AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(in super::super) unsafe fn avx2(call: &Call) {
        use avx2::{Out, store, walk};
        // SAFETY: as above.
        unsafe {
            walk!(call, half_tiles, F);
        }
    }

    /// The elements of 16 rows at each of two k, times 2^-8.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn widen512(at: *const u8) -> [__m512; 2] {
        // SAFETY: the caller's: 32 bytes.
        let words = unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast())) };
        let halves = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(!0x4000));
        [
            _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)),
        ]
    }

    /// M activation rows with one tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    unsafe fn wide_tile<const F: usize, const M: usize>(
        tile: *const u8,
        call: &Call,
        acts: *const u8,
        stride: usize,
    ) -> [__m512; M] {
        let mut sums = [_mm512_setzero_ps(); M];
        // SAFETY: block b of the tile and of each activation row exists, as the caller promised.
        unsafe {
            for b in 0..call.k / F8_BLOCK {
                let (block, acts) = (tile.add(b * F8_BYTES), acts.add(b * F8_BLOCK * 4));
                let mut even = [_mm512_setzero_ps(); M];
                let mut odd = even;
                for p in 0..F8_BLOCK / 2 {
                    let at = block.add(4 * ROWS + p * 2 * ROWS);
                    fetch_ahead(at);
                    let [first, second] = widen512(at);
                    for r in 0..M {
                        let x = acts.add(r * stride + p * 8).cast::<f32>();
                        let (a, b) = (x.read_unaligned(), x.add(1).read_unaligned());
                        even[r] = _mm512_fmadd_ps(first, _mm512_set1_ps(a), even[r]);
                        odd[r] = _mm512_fmadd_ps(second, _mm512_set1_ps(b), odd[r]);
                    }
                }
                let scale = _mm512_loadu_ps(block.cast());
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(UNIT));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(_mm512_add_ps(even[r], odd[r]), scale, *sum);
                }
            }
        }
        sums
    }

    /// Packed tiles, activations in BF16.
    ///
    /// # Safety
    /// As [`super::super::Kernel::matmul`], on a processor with AVX-512 BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c,fma")]
    pub(in super::super) unsafe fn rounded(call: &Call) {
        use avx512::{Out, store, walk};
        let bytes = tile_bytes(Format::F8_E4M3, call.k);
        let stride = acts_bytes(Format::F8_E4M3, call.k, true);
        const PACKED: usize = 0;
        // SAFETY: as above.
        unsafe {
            walk!(call, bytes, stride, rounded_tile, PACKED);
        }
    }

    /// As [`rounded`], with unpacked tiles.
    ///
    /// # Safety
    /// As [`rounded`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c,fma")]
    pub(in super::super) unsafe fn rounded_unpacked(call: &Call) {
        use avx512::{Out, store, walk};
        let bytes = call.k / F8_BLOCK * UNPACKED;
        let stride = acts_bytes(Format::F8_E4M3, call.k, true);
        const WIDE: usize = 1;
        // SAFETY: as above.
        unsafe {
            walk!(call, bytes, stride, rounded_tile, WIDE);
        }
    }

    /// # Safety
    /// `tile` is one of k columns, `out` has room for its unpacked form, and the processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    pub(in super::super) unsafe fn unpack(_: Format, tile: *const u8, k: usize, out: *mut u8) {
        // SAFETY: block b lies in the tile and its unpacked form in the room.
        unsafe {
            for b in 0..k / F8_BLOCK {
                let (block, out) = (tile.add(b * F8_BYTES), out.add(b * UNPACKED));
                _mm512_storeu_ps(out.cast(), _mm512_loadu_ps(block.cast()));
                for p in 0..F8_BLOCK / 2 {
                    let pair = pair(block.add(4 * ROWS + p * 2 * ROWS));
                    _mm512_storeu_si512(out.add(4 * ROWS + p * 4 * ROWS).cast(), pair);
                }
            }
        }
    }

    /// The elements of 16 rows at two k, times 2^-8, as pairs of BF16. The discarded halves are zero.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pair(at: *const u8) -> __m512i {
        // SAFETY: the caller's: 32 bytes.
        let [first, second] = unsafe { widen512(at) };
        let low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
        _mm512_or_si512(low, _mm512_castps_si512(second))
    }

    /// M activation rows with one tile, packed (W = 0) or unpacked. Pairs go to two accumulators in turn.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c,fma")]
    unsafe fn rounded_tile<const W: usize, const M: usize>(
        tile: *const u8,
        call: &Call,
        acts: *const u8,
        stride: usize,
    ) -> [__m512; M] {
        let mut sums = [_mm512_setzero_ps(); M];
        // SAFETY: block b of the tile and of each activation row exists, as the caller promised; vectors of i32 and of
        // BF16 pairs have the same size and no invalid values.
        unsafe {
            for b in 0..call.k / F8_BLOCK {
                let block = tile.add(b * if W == 0 { F8_BYTES } else { UNPACKED });
                let acts = acts.add(b * F8_BLOCK * 2);
                let mut parts = [[_mm512_setzero_ps(); M]; 2];
                for p in (0..F8_BLOCK / 2).step_by(2) {
                    for (turn, parts) in parts.iter_mut().enumerate() {
                        let p = p + turn;
                        let elements = block.add(4 * ROWS);
                        let w = if W == 0 {
                            fetch_ahead(elements.add(p * 2 * ROWS));
                            pair(elements.add(p * 2 * ROWS))
                        } else {
                            avx512::load(elements.add(p * 4 * ROWS))
                        };
                        let w: __m512bh = std::mem::transmute(w);
                        for (r, part) in parts.iter_mut().enumerate() {
                            let x = acts.add(r * stride + p * 4).cast::<i32>();
                            let x = _mm512_set1_epi32(x.read_unaligned());
                            let x: __m512bh = std::mem::transmute(x);
                            *part = _mm512_dpbf16_ps(*part, w, x);
                        }
                    }
                }
                let scale = _mm512_loadu_ps(block.cast());
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(UNIT));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let both = _mm512_add_ps(parts[0][r], parts[1][r]);
                    *sum = _mm512_fmadd_ps(both, scale, *sum);
                }
            }
        }
        sums
    }

    /// The elements of 8 rows, times 2^-8.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen256(at: *const u8) -> __m256 {
        // SAFETY: the caller's: 8 bytes.
        let words = unsafe { _mm_cvtepi8_epi16(_mm_loadl_epi64(at.cast())) };
        _mm256_cvtph_ps(_mm_and_si128(
            _mm_slli_epi16(words, 7),
            _mm_set1_epi16(!0x4000),
        ))
    }

    /// M activation rows with H halves of a tile, from `half` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half_tiles<const F: usize, const M: usize, const H: usize>(
        tile: *const u8,
        half: usize,
        call: &Call,
        acts: *const u8,
        stride: usize,
    ) -> [[__m256; M]; H] {
        let mut sums = [[_mm256_setzero_ps(); M]; H];
        // SAFETY: block b of the tile and of each activation row exists, as the caller promised.
        unsafe {
            for b in 0..call.k / F8_BLOCK {
                let (block, acts) = (tile.add(b * F8_BYTES), acts.add(b * F8_BLOCK * 4));
                let mut parts = [[[_mm256_setzero_ps(); M]; H]; 2];
                for i in (0..F8_BLOCK).step_by(2) {
                    fetch_ahead(block.add(4 * ROWS + i * ROWS));
                    for (odd, parts) in parts.iter_mut().enumerate() {
                        for (h, parts) in parts.iter_mut().enumerate() {
                            let at = 4 * ROWS + (i + odd) * ROWS + (half + h) * (ROWS / 2);
                            let w = widen256(block.add(at));
                            for (r, part) in parts.iter_mut().enumerate() {
                                let x = acts.add(r * stride + (i + odd) * 4).cast::<f32>();
                                let x = _mm256_set1_ps(x.read_unaligned());
                                *part = _mm256_fmadd_ps(w, x, *part);
                            }
                        }
                    }
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let scale = _mm256_loadu_ps(block.add((half + h) * 32).cast());
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(UNIT));
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let both = _mm256_add_ps(parts[0][h][r], parts[1][h][r]);
                        *sum = _mm256_fmadd_ps(both, scale, *sum);
                    }
                }
            }
        }
        sums
    }
}
