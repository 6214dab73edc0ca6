//! Preparing activations: int8 by 32 for block formats, f32 (or bf16) for plain floats.

use super::layout::{ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, Correction, Layout};
use welte_table::Format;

/// Writes one activation row and nothing beyond it.
#[inline(always)]
pub(super) fn prepare(format: Format, bf16: bool, x: &[f32], acts: &mut [u8]) {
    prepare_by(format, bf16, x, acts, chunk);
}

/// [`prepare`], given the function for one chunk.
#[inline(always)]
fn prepare_by(
    format: Format,
    bf16: bool,
    x: &[f32],
    acts: &mut [u8],
    chunk: impl Fn(Layout, &[f32; CHUNK], &mut [u8]),
) {
    if bf16 {
        return rounded(x, acts);
    }
    if !format.rounds_activations() {
        return plain(x, acts);
    }
    let layout = Layout::of(format);
    let (whole, rest) = x.as_chunks::<CHUNK>();
    let mut outs = acts.chunks_exact_mut(ACT);
    for (x, out) in whole.iter().zip(&mut outs) {
        chunk(layout, x, out);
    }
    if let (Some(out), false) = (outs.next(), rest.is_empty()) {
        let mut padded = [0f32; CHUNK];
        padded[..rest.len()].copy_from_slice(rest);
        chunk(layout, &padded, out);
    }
}

/// f32, unchanged. Zero follows an odd last element.
#[inline(always)]
fn plain(x: &[f32], acts: &mut [u8]) {
    for (x, out) in x.iter().zip(acts.chunks_exact_mut(4)) {
        out.copy_from_slice(&x.to_le_bytes());
    }
    if !x.len().is_multiple_of(2) {
        acts[x.len() * 4..x.len() * 4 + 4].fill(0);
    }
}

/// bf16, rounded to nearest. Zero follows an odd last element.
#[inline(always)]
fn rounded(x: &[f32], acts: &mut [u8]) {
    for (x, out) in x.iter().zip(acts.chunks_exact_mut(2)) {
        out.copy_from_slice(&half::bf16::from_f32(*x).to_le_bytes());
    }
    if !x.len().is_multiple_of(2) {
        acts[x.len() * 2..x.len() * 2 + 2].fill(0);
    }
}

/// Chunks whose largest magnitude is below this become zero: the inverse of their scale would overflow.
const TINY: f32 = 1e-30;

/// Adding and removing 1.5 x 2^23 rounds to nearest even and leaves the integer in the low bits.
const MAGIC: f32 = 12_582_912.0;
const MAGIC_BITS: i32 = 0x4b40_0000;

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// One chunk: scale = largest magnitude / 127, values rounded to nearest, and the format's corrections.
#[inline(always)]
fn chunk(layout: Layout, x: &[f32; CHUNK], out: &mut [u8]) {
    // Independent lanes let the compiler use vectors. The maximum does not depend on the order.
    let mut largest = [0f32; 8];
    let mut poison = [0f32; 8];
    for part in x.chunks_exact(8) {
        for ((l, p), v) in largest.iter_mut().zip(&mut poison).zip(part) {
            let v = v.abs();
            *l = larger(*l, v);
            *p += v * 0.0;
        }
    }
    // No lane is NaN: the comparison above is false for NaN.
    let largest = (0..4).map(|i| larger(largest[i], largest[i + 4]));
    let largest = largest.fold(0.0, larger);
    // Infinities and NaN must not vanish: each makes the scale NaN, and with it every output of the row.
    let poison: f32 = poison.iter().sum();
    let (scale, inverse) = if largest > TINY {
        (largest / 127.0 + poison, 127.0 / largest)
    } else {
        (poison, 0.0)
    };
    let mut q = [0i8; CHUNK];
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + MAGIC)
            .to_bits()
            .wrapping_sub(MAGIC_BITS as u32) as i8;
    }
    for (out, q) in out.iter_mut().zip(q) {
        *out = q as u8;
    }
    let first: i32 = q[..16].iter().map(|q| i32::from(*q)).sum();
    let second: i32 = q[16..].iter().map(|q| i32::from(*q)).sum();
    finish(layout, scale, first, second, out);
}

/// The scale and the corrections of a chunk whose halves have these sums.
#[inline(always)]
fn finish(layout: Layout, scale: f32, first: i32, second: i32, out: &mut [u8]) {
    let (a, b) = match layout.correction() {
        Correction::Offset => (-layout.offset * (first + second), 0),
        Correction::OffsetHalves => (-layout.offset * first, -layout.offset * second),
        Correction::Sum => {
            let sum = first + second;
            ((scale * sum as f32).to_bits() as i32, 128 * sum)
        }
        Correction::SumPair => ((first & 0xffff) | second << 16, 0),
    };
    out[ACT_SCALE..ACT_SCALE + 4].copy_from_slice(&scale.to_le_bytes());
    out[ACT_FIRST..ACT_FIRST + 4].copy_from_slice(&a.to_le_bytes());
    out[ACT_SECOND..ACT_SECOND + 4].copy_from_slice(&b.to_le_bytes());
    out[ACT_SECOND + 4..ACT].fill(0);
}

/// AVX-512. The bits are the same, except beside a NaN scale.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::*;
    use std::arch::x86_64::*;

    /// [`super::prepare`].
    ///
    /// # Safety
    /// On a processor with AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in super::super) unsafe fn prepare(format: Format, bf16: bool, x: &[f32], acts: &mut [u8]) {
        prepare_by(format, bf16, x, acts, |layout, x, out| {
            chunk(layout, x, out)
        });
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn chunk(layout: Layout, x: &[f32; CHUNK], out: &mut [u8]) {
        // SAFETY: a chunk has two vectors.
        let x = unsafe {
            let x = x.as_ptr();
            [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))]
        };
        let (a, b) = (_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1]));
        // The instruction returns the second operand if either is NaN, so NaN never wins.
        let zero = _mm512_setzero_ps();
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(b, _mm512_max_ps(a, zero)));
        let infinite = _mm512_set1_ps(f32::INFINITY);
        let bad = |v| _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(v, infinite);
        let poison = if bad(a) | bad(b) == 0 { 0.0 } else { f32::NAN };
        let (scale, inverse) = if largest > TINY {
            (largest / 127.0 + poison, 127.0 / largest)
        } else {
            (poison, 0.0)
        };
        let q = x.map(|x| {
            let scaled = _mm512_mul_ps(x, _mm512_set1_ps(inverse));
            let rounded = _mm512_add_ps(scaled, _mm512_set1_ps(MAGIC));
            let q = _mm512_sub_epi32(_mm512_castps_si512(rounded), _mm512_set1_epi32(MAGIC_BITS));
            _mm512_cvtepi32_epi8(q)
        });
        let q = _mm256_set_m128i(q[1], q[0]);
        // The values were made positive by adding 128, so each sum of eight is 8 x 128 too large.
        let sums = _mm256_sad_epu8(
            _mm256_xor_si256(q, _mm256_set1_epi8(-128)),
            _mm256_setzero_si256(),
        );
        let sum = |half: __m128i| {
            let both = _mm_add_epi64(half, _mm_unpackhi_epi64(half, half));
            _mm_cvtsi128_si32(both) - 16 * 128
        };
        let (first, second) = (
            sum(_mm256_castsi256_si128(sums)),
            sum(_mm256_extracti128_si256::<1>(sums)),
        );
        let bytes: &mut [u8; CHUNK] = out.first_chunk_mut().expect("an activation chunk");
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), q) };
        finish(layout, scale, first, second, out);
    }
}
