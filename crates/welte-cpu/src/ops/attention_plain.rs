//! Attention over one split: the function for a cache and an instruction set, and the plain ones.

use super::attention::{Attention, MAX_HEAD_DIM, Run, SPLIT, Span, partial_floats};
use super::{State, exp_not_positive};
use crate::kernels::Isa;
use half::f16;
use welte_table::Format;

/// Reads a row of the cache as floats.
pub(super) type Widen = fn(&[u8], &mut [f32]);

fn widen_f16(row: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row.chunks_exact(2)) {
        *out = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    }
}

fn widen_q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = *q as i8 as f32 * scale;
        }
    }
}

/// How a cache's rows become floats.
pub(super) fn widen_for(format: Format) -> Widen {
    match format {
        Format::Q8_0 => widen_q8_0,
        _ => widen_f16,
    }
}

/// The function for a cache format and head size on an instruction set of this processor.
pub(crate) fn run_for(format: Format, head_dim: usize, isa: Isa) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        use super::attention_vectors as x86;
        let wide = isa >= Isa::Avx512 && head_dim.is_multiple_of(16);
        let vectors = isa >= Isa::Avx2 && head_dim.is_multiple_of(8);
        match format {
            Format::Q8_0 if wide => return x86::q8_0_avx512,
            Format::Q8_0 if vectors => return x86::q8_0_avx2,
            Format::F16 if wide => return x86::f16_avx512,
            Format::F16 if vectors => return x86::f16_avx2,
            _ => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use super::attention_vectors as arm;
        let vectors = isa >= Isa::Neon && head_dim.is_multiple_of(8);
        match format {
            Format::Q8_0 if vectors => return arm::q8_0_neon,
            Format::F16 if vectors => return arm::f16_neon,
            _ => {}
        }
    }
    let _ = (isa, head_dim);
    match format {
        Format::Q8_0 => plain_q8_0,
        _ => plain_f16,
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

/// # Safety
/// See [`attend`].
unsafe fn plain_f16(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
) {
    // SAFETY: promised by the caller.
    unsafe { attend(a, state, row, kv_head, span, scores, out, widen_f16) }
}

/// # Safety
/// See [`attend`].
unsafe fn plain_q8_0(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
) {
    // SAFETY: promised by the caller.
    unsafe { attend(a, state, row, kv_head, span, scores, out, widen_q8_0) }
}

/// Softmax attention of one group's heads over a span: per head `head_dim` sums, the largest score, the sum of weights.
///
/// # Safety
/// See `super`; `scores` holds `group * SPLIT` floats and `out` the group's partials, of this thread's own.
#[allow(clippy::too_many_arguments)]
unsafe fn attend(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
    widen: Widen,
) {
    let dim = a.head_dim;
    let group = a.heads / a.kv_heads;
    let slot = state.rows[row].slot as usize;
    let floats = partial_floats(dim);
    let mut wide = [0.0f32; MAX_HEAD_DIM];
    let wide = &mut wide[..dim];
    // SAFETY: the partials and scores are ours; q holds the group's heads.
    let (partials, scores, queries) = unsafe {
        let q = a.q.start.add(row * a.q.stride + kv_head * group * dim);
        (
            std::slice::from_raw_parts_mut(out, group * floats),
            std::slice::from_raw_parts_mut(scores, group * SPLIT),
            std::slice::from_raw_parts(q, group * dim),
        )
    };
    // SAFETY: promised by the caller.
    let chosen = unsafe { a.chosen(state, row) };
    let read = |part: usize, place: usize, wide: &mut [f32]| {
        let position = chosen.map_or(place, |chosen| chosen[place].to_bits() as usize);
        // SAFETY: positions up to the row's own lie in the layout.
        let row = unsafe {
            let at = a.cache.at(state, a.layer, part, kv_head, slot, position);
            std::slice::from_raw_parts(at, a.cache.row_bytes)
        };
        widen(row, wide);
    };
    let count = span.to - span.from;
    for p in 0..count {
        read(0, span.from + p, wide);
        for (h, q) in queries.chunks_exact(dim).enumerate() {
            scores[h * SPLIT + p] = dot(q, wide) * a.scale;
        }
    }
    for (partial, scores) in partials
        .chunks_exact_mut(floats)
        .zip(scores.chunks_exact_mut(SPLIT))
    {
        partial.fill(0.0);
        weigh(&mut partial[dim..], &mut scores[..count], a.softcap);
    }
    for p in 0..count {
        read(1, span.from + p, wide);
        for (partial, scores) in partials
            .chunks_exact_mut(floats)
            .zip(scores.chunks_exact(SPLIT))
        {
            let weight = scores[p];
            for (sum, v) in partial[..dim].iter_mut().zip(wide.iter()) {
                *sum += weight * *v;
            }
        }
    }
}

/// Turns scores into weights. The largest score and the sum of the weights become the first two of `facts`.
fn weigh(facts: &mut [f32], scores: &mut [f32], softcap: f32) {
    if softcap != 0.0 {
        scores
            .iter_mut()
            .for_each(|s| *s = softcap * (*s / softcap).tanh());
    }
    let largest = scores
        .iter()
        .fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
    scores
        .iter_mut()
        .for_each(|s| *s = exp_not_positive(*s - largest));
    (facts[0], facts[1]) = (largest, scores.iter().sum());
}
