//! Vectors of floats, so that attention is written once for all instruction sets.
#![allow(unsafe_code)]
// Other processors have no vectors yet.
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]

use half::f16;

/// One vector of floats.
pub(super) trait Lanes {
    /// Floats in it.
    const N: usize;
    type V: Copy;
    unsafe fn load(at: *const f32) -> Self::V;
    unsafe fn store(at: *mut f32, v: Self::V);
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger one; `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// a b + c.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `x` where `low <= at <= high`, else `other`.
    unsafe fn within(
        at: Self::V,
        low: Self::V,
        high: Self::V,
        x: Self::V,
        other: Self::V,
    ) -> Self::V;
    /// 2^n for a sum of 1.5 x 2^23 and n.
    unsafe fn power(sum: Self::V) -> Self::V;
    /// f16 to floats.
    unsafe fn widen_f16(at: *const u8) -> Self::V;
    /// i8 to floats.
    unsafe fn widen_i8(at: *const u8) -> Self::V;
    /// One f16 in every lane.
    unsafe fn splat_f16(at: *const u8) -> Self::V;
    /// The sum of each of `N` vectors, added up in a fixed order.
    unsafe fn sums(of: &[Self::V]) -> Self::V;
    /// Transposes a square of `N` by `N`.
    unsafe fn transpose(square: &mut [Self::V]);
    /// Prefetches a line of memory into the L2 cache. Any address is allowed.
    unsafe fn fetch(at: *const u8);

    /// `e^x` for x <= 0; below -87 exactly 0.
    #[inline(always)]
    unsafe fn exp_not_positive(x: Self::V) -> Self::V {
        const LEAST: f32 = -87.0;
        const MAGIC: f32 = 12_582_912.0;
        // SAFETY: the caller's.
        unsafe {
            let (least, magic) = (Self::splat(LEAST), Self::splat(MAGIC));
            let t = Self::mul(Self::max(least, x), Self::splat(std::f32::consts::LOG2_E));
            let whole = Self::add(t, magic);
            let f = Self::sub(t, Self::sub(whole, magic));
            let mut p = Self::splat(1.535_336_2e-4);
            for c in [
                1.339_887_4e-3,
                9.618_437e-3,
                5.550_332_7e-2,
                2.402_264_8e-1,
                std::f32::consts::LN_2,
                1.0,
            ] {
                p = Self::fma(p, f, Self::splat(c));
            }
            let e = Self::mul(p, Self::power(whole));
            Self::within(
                x,
                Self::splat(f32::NEG_INFINITY),
                least,
                Self::splat(0.0),
                e,
            )
        }
    }

    /// `cap * tanh(x / cap)`.
    #[inline(always)]
    unsafe fn soften(x: Self::V, cap: f32) -> Self::V {
        // SAFETY: the caller's.
        unsafe {
            let (zero, one, cap) = (Self::splat(0.0), Self::splat(1.0), Self::splat(cap));
            let x = Self::div(x, cap);
            let size = Self::max(x, Self::sub(zero, x));
            let t = Self::exp_not_positive(Self::mul(size, Self::splat(-2.0)));
            let tanh = Self::div(Self::sub(one, t), Self::add(one, t));
            let signed = Self::within(zero, zero, x, tanh, Self::sub(zero, tanh));
            Self::mul(cap, signed)
        }
    }
}

/// One float, for processors without vectors.
pub(super) struct Single;

// SAFETY of each: addresses are the caller's.
impl Lanes for Single {
    const N: usize = 1;
    type V = f32;

    unsafe fn load(at: *const f32) -> f32 {
        // SAFETY: the caller's.
        unsafe { *at }
    }
    unsafe fn store(at: *mut f32, v: f32) {
        // SAFETY: the caller's.
        unsafe { *at = v }
    }
    unsafe fn splat(x: f32) -> f32 {
        x
    }
    unsafe fn add(a: f32, b: f32) -> f32 {
        a + b
    }
    unsafe fn sub(a: f32, b: f32) -> f32 {
        a - b
    }
    unsafe fn mul(a: f32, b: f32) -> f32 {
        a * b
    }
    unsafe fn div(a: f32, b: f32) -> f32 {
        a / b
    }
    unsafe fn max(a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    unsafe fn fma(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    unsafe fn within(at: f32, low: f32, high: f32, x: f32, other: f32) -> f32 {
        if low <= at && at <= high { x } else { other }
    }
    unsafe fn power(sum: f32) -> f32 {
        f32::from_bits(sum.to_bits().wrapping_sub(0x4b40_0000 - 127) << 23)
    }
    unsafe fn widen_f16(at: *const u8) -> f32 {
        // SAFETY: the caller's.
        f16::to_f32(unsafe { at.cast::<f16>().read_unaligned() })
    }
    unsafe fn widen_i8(at: *const u8) -> f32 {
        // SAFETY: the caller's.
        f32::from(unsafe { *at.cast::<i8>() })
    }
    unsafe fn splat_f16(at: *const u8) -> f32 {
        // SAFETY: the caller's.
        unsafe { Self::widen_f16(at) }
    }
    unsafe fn sums(of: &[f32]) -> f32 {
        of[0]
    }
    unsafe fn transpose(_: &mut [f32]) {}
    unsafe fn fetch(_: *const u8) {}
}

macro_rules! lanes {
    ($name:ident, $n:literal, $v:ident, $($own:tt)*) => {
        // SAFETY of each: only used inside functions that the processor has the instructions for; addresses are
        // the caller's.
        impl Lanes for $name {
            const N: usize = $n;
            type V = $v;
            $($own)*
        }
    };
}

macro_rules! plain {
    ($($name:ident($($arg:ident: $t:ty),*) $(-> $r:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller's.
                unsafe { $body }
            }
        )*
    };
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    pub(in crate::ops) struct Avx512;
    pub(in crate::ops) struct Avx2;

    lanes! { Avx512, 16, __m512,
        plain! {
            load(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
            store(at: *mut f32, v: __m512) = _mm512_storeu_ps(at, v);
            splat(x: f32) -> __m512 = _mm512_set1_ps(x);
            add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
            sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
            mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
            div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
            max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
            fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
            within(at: __m512, low: __m512, high: __m512, x: __m512, other: __m512) -> __m512 = {
                let above = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(low, at);
                let both = _mm512_mask_cmp_ps_mask::<_CMP_LE_OQ>(above, at, high);
                _mm512_mask_blend_ps(both, other, x)
            };
            power(sum: __m512) -> __m512 = {
                let n = _mm512_sub_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(0x4b40_0000 - 127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
            };
            widen_f16(at: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
            widen_i8(at: *const u8) -> __m512 =
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())));
            splat_f16(at: *const u8) -> __m512 =
                _mm512_cvtph_ps(_mm256_set1_epi16(at.cast::<i16>().read_unaligned()));
            sums(of: &[__m512]) -> __m512 = {
                let mut quads = [of[0]; 4];
                for (i, quad) in quads.iter_mut().enumerate() {
                    let pair = |a, b| {
                        _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
                    };
                    let ab = _mm512_castps_pd(pair(of[4 * i], of[4 * i + 1]));
                    let cd = _mm512_castps_pd(pair(of[4 * i + 2], of[4 * i + 3]));
                    *quad = _mm512_add_ps(
                        _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
                    );
                }
                let fold = |a, b| {
                    _mm512_add_ps(
                        _mm512_shuffle_f32x4::<0x88>(a, b),
                        _mm512_shuffle_f32x4::<0xdd>(a, b),
                    )
                };
                fold(fold(quads[0], quads[1]), fold(quads[2], quads[3]))
            };
            transpose(square: &mut [__m512]) = {
                for four in square.chunks_exact_mut(4) {
                    let [a, b, c, d] = [four[0], four[1], four[2], four[3]];
                    let low = |a, b| _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                    let high = |a, b| _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                    four[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low(a, b), low(c, d)));
                    four[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low(a, b), low(c, d)));
                    four[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high(a, b), high(c, d)));
                    four[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high(a, b), high(c, d)));
                }
                // Now a quarter of vector 4 r + c is column 4 quarter + c of four rows.
                for c in 0..4 {
                    let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
                    let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
                    let (low, high) = ([square[c], square[c + 4]], [square[c + 8], square[c + 12]]);
                    let evens = [even(low[0], low[1]), even(high[0], high[1])];
                    let odds = [odd(low[0], low[1]), odd(high[0], high[1])];
                    square[c] = even(evens[0], evens[1]);
                    square[c + 4] = even(odds[0], odds[1]);
                    square[c + 8] = odd(evens[0], evens[1]);
                    square[c + 12] = odd(odds[0], odds[1]);
                }
            };
            fetch(at: *const u8) = _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
    }

    lanes! { Avx2, 8, __m256,
        plain! {
            load(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
            store(at: *mut f32, v: __m256) = _mm256_storeu_ps(at, v);
            splat(x: f32) -> __m256 = _mm256_set1_ps(x);
            add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
            sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
            mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
            div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
            max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
            fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
            within(at: __m256, low: __m256, high: __m256, x: __m256, other: __m256) -> __m256 = {
                let above = _mm256_cmp_ps::<_CMP_LE_OQ>(low, at);
                let below = _mm256_cmp_ps::<_CMP_LE_OQ>(at, high);
                _mm256_blendv_ps(other, x, _mm256_and_ps(above, below))
            };
            power(sum: __m256) -> __m256 = {
                let n = _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_set1_epi32(0x4b40_0000 - 127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
            };
            widen_f16(at: *const u8) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(at.cast()));
            widen_i8(at: *const u8) -> __m256 =
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())));
            splat_f16(at: *const u8) -> __m256 =
                _mm256_cvtph_ps(_mm_set1_epi16(at.cast::<i16>().read_unaligned()));
            sums(of: &[__m256]) -> __m256 = {
                let mut quads = [of[0]; 2];
                for (i, quad) in quads.iter_mut().enumerate() {
                    let ab = _mm256_hadd_ps(of[4 * i], of[4 * i + 1]);
                    let cd = _mm256_hadd_ps(of[4 * i + 2], of[4 * i + 3]);
                    *quad = _mm256_hadd_ps(ab, cd);
                }
                _mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(quads[0], quads[1]),
                    _mm256_permute2f128_ps::<0x31>(quads[0], quads[1]),
                )
            };
            transpose(square: &mut [__m256]) = {
                for four in square.chunks_exact_mut(4) {
                    let [a, b, c, d] = [four[0], four[1], four[2], four[3]];
                    let low = |a, b| _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
                    let high = |a, b| _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
                    four[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(low(a, b), low(c, d)));
                    four[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low(a, b), low(c, d)));
                    four[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high(a, b), high(c, d)));
                    four[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high(a, b), high(c, d)));
                }
                for c in 0..4 {
                    let [low, high] = [square[c], square[c + 4]];
                    square[c] = _mm256_permute2f128_ps::<0x20>(low, high);
                    square[c + 4] = _mm256_permute2f128_ps::<0x31>(low, high);
                }
            };
            fetch(at: *const u8) = _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Lanes;
    use std::arch::aarch64::*;

    /// Two vectors of four floats: so the bits are those of AVX2.
    pub(in crate::ops) struct Neon;

    type V = float32x4x2_t;

    #[inline(always)]
    fn both(a: V, b: V, op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> V {
        float32x4x2_t(op(a.0, b.0), op(a.1, b.1))
    }

    #[inline(always)]
    fn same(v: float32x4_t) -> V {
        float32x4x2_t(v, v)
    }

    /// The sums of the neighbours of 4 vectors of 4 floats.
    #[inline(always)]
    unsafe fn four_sums(v: [float32x4_t; 4]) -> float32x4_t {
        // SAFETY: NEON is part of every such processor.
        unsafe { vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])) }
    }

    /// Transposes 4 by 4 floats.
    #[inline(always)]
    unsafe fn turn(v: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of every such processor.
        unsafe {
            let pairs = |a, b| {
                let (low, high) = (vzip1q_f32(a, b), vzip2q_f32(a, b));
                (vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(high))
            };
            let ((a, b), (c, d)) = (pairs(v[0], v[1]), pairs(v[2], v[3]));
            [
                vzip1q_f64(a, c),
                vzip2q_f64(a, c),
                vzip1q_f64(b, d),
                vzip2q_f64(b, d),
            ]
            .map(|v| vreinterpretq_f32_f64(v))
        }
    }

    lanes! { Neon, 8, V,
        plain! {
            load(at: *const f32) -> V = float32x4x2_t(vld1q_f32(at), vld1q_f32(at.add(4)));
            store(at: *mut f32, v: V) = {
                vst1q_f32(at, v.0);
                vst1q_f32(at.add(4), v.1);
            };
            splat(x: f32) -> V = same(vdupq_n_f32(x));
            add(a: V, b: V) -> V = both(a, b, |a, b| vaddq_f32(a, b));
            sub(a: V, b: V) -> V = both(a, b, |a, b| vsubq_f32(a, b));
            mul(a: V, b: V) -> V = both(a, b, |a, b| vmulq_f32(a, b));
            div(a: V, b: V) -> V = both(a, b, |a, b| vdivq_f32(a, b));
            max(a: V, b: V) -> V = both(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b));
            fma(a: V, b: V, c: V) -> V =
                float32x4x2_t(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1));
            within(at: V, low: V, high: V, x: V, other: V) -> V = {
                let inside = |at, low, high| vandq_u32(vcleq_f32(low, at), vcleq_f32(at, high));
                float32x4x2_t(
                    vbslq_f32(inside(at.0, low.0, high.0), x.0, other.0),
                    vbslq_f32(inside(at.1, low.1, high.1), x.1, other.1),
                )
            };
            power(sum: V) -> V = {
                let each = |sum| {
                    let n = vsubq_s32(vreinterpretq_s32_f32(sum), vdupq_n_s32(0x4b40_0000 - 127));
                    vreinterpretq_f32_s32(vshlq_n_s32::<23>(n))
                };
                float32x4x2_t(each(sum.0), each(sum.1))
            };
            widen_f16(at: *const u8) -> V = {
                let halves = vreinterpretq_f16_u16(vld1q_u16(at.cast()));
                float32x4x2_t(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
            };
            widen_i8(at: *const u8) -> V = {
                let words = vmovl_s8(vld1_s8(at.cast()));
                float32x4x2_t(
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
                    vcvtq_f32_s32(vmovl_high_s16(words)),
                )
            };
            splat_f16(at: *const u8) -> V = {
                let half = vdup_n_u16(at.cast::<u16>().read_unaligned());
                same(vcvt_f32_f16(vreinterpret_f16_u16(half)))
            };
            sums(of: &[V]) -> V = {
                let quad = |i: usize| [of[i], of[i + 1], of[i + 2], of[i + 3]];
                let halves = |v: [V; 4]| {
                    vaddq_f32(four_sums(v.map(|v| v.0)), four_sums(v.map(|v| v.1)))
                };
                float32x4x2_t(halves(quad(0)), halves(quad(4)))
            };
            transpose(square: &mut [V]) = {
                let quad = |i: usize| [square[i], square[i + 1], square[i + 2], square[i + 3]];
                let (top, bottom) = (quad(0), quad(4));
                let left = [turn(top.map(|v| v.0)), turn(bottom.map(|v| v.0))];
                let right = [turn(top.map(|v| v.1)), turn(bottom.map(|v| v.1))];
                for i in 0..4 {
                    square[i] = float32x4x2_t(left[0][i], left[1][i]);
                    square[i + 4] = float32x4x2_t(right[0][i], right[1][i]);
                }
            };
        }
        // Not measured, so left to the processor.
        #[inline(always)]
        unsafe fn fetch(_: *const u8) {}
    }
}
