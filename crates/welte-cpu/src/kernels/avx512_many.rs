//! Kernels of AVX-512 with VNNI for many activation rows: see `prompt.rs`.

use super::avx512::{ChunkScales, Out, chunk, heads, load, minima, scales, store, unpack, walk};
use super::call::Call;
use super::layout::{ACT, CHUNK, Layout, ROWS, Scales, acts_bytes, layout_of};
use super::unpacked::{
    QUANTS, chunk_bytes, kept_scales, loaded_scales, scale_vectors, unpacked_bytes,
};
use std::arch::x86_64::*;
use welte_table::Format;

/// # Safety
/// `tile` is one of k columns, `out` has room for its unpacked form, and the processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn unpack_tile<const F: usize>(
    member: Format,
    tile: *const u8,
    k: usize,
    out: *mut u8,
) {
    let layout = layout_of::<F>(member);
    let mut out = out.cast::<__m512i>();
    // SAFETY: the blocks and chunks lie in the tile, and 8 vectors and the scales of each in the unpacked form.
    unsafe {
        for b in 0..k / CHUNK / layout.chunks {
            let d = heads::<F>(layout, tile.add(layout.head_at(b)));
            let dmin = if layout.has_minima() {
                minima::<F>(layout, tile.add(layout.head_at(b)), d)
            } else {
                d
            };
            let at = tile.add(layout.block_at(b));
            for c in 0..layout.chunks {
                for group in unpack::<F>(at.add(layout.quants_at(c))) {
                    _mm512_storeu_si512(out, group);
                    out = out.add(1);
                }
                let s = scales::<F>(at.add(layout.sub_at(c)), d, dmin);
                let bits = |v| _mm512_castps_si512(v);
                let all = kept_scales!(layout, s, bits);
                for v in &all[..const { scale_vectors(Layout::of(Format::ALL[F])) }] {
                    _mm512_storeu_si512(out, *v);
                    out = out.add(1);
                }
            }
        }
    }
}

/// # Safety
/// As [`super::Kernel::matmul`] with unpacked tiles, on a processor with AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
pub(super) unsafe fn blocks<const F: usize>(call: &Call) {
    let format = call.format;
    // SAFETY: tiles, rows and outputs are walked as the caller promised them.
    unsafe {
        walk!(
            call,
            unpacked_bytes(format, call.k),
            acts_bytes(format, call.k, false),
            tile,
            F
        );
    }
}

/// M activation rows with one unpacked tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile<const F: usize, const M: usize>(
    tile: *const u8,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [__m512; M] {
    let layout = const { Layout::of(Format::ALL[F]) };
    let mut sums = [_mm512_setzero_ps(); M];
    // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
    unsafe {
        for c in 0..call.k / CHUNK {
            let at = tile.add(c * chunk_bytes(layout));
            let w: [__m512i; 8] = std::array::from_fn(|g| load(at.add(64 * g)));
            let scales = chunk_scales::<F>(at);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = chunk::<F>(&w, &scales, acts.add(r * stride + c * ACT), *sum);
            }
        }
    }
    sums
}

/// The scales of an unpacked chunk.
///
/// # Safety
/// `at` is an unpacked chunk of the format.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn chunk_scales<const F: usize>(at: *const u8) -> ChunkScales {
    // SAFETY: a chunk has the scale vectors of its layout.
    let scale = |i: usize| unsafe { load(at.add(QUANTS + 64 * i)) };
    let float = |i: usize| _mm512_castsi512_ps(scale(i));
    loaded_scales!(
        Layout::of(Format::ALL[F]),
        float,
        scale,
        _mm512_setzero_si512()
    )
}
