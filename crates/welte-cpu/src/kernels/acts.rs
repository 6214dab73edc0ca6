//! Preparing activations: int8 by 32 for block formats, f32 (or bf16) for plain floats.

use super::layout::{ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, Correction, Layout};
use welte_table::Format;

/// Writes one activation row; what lies beyond it stays as it was.
#[inline(always)]
pub(super) fn prepare(format: Format, bf16: bool, x: &[f32], acts: &mut [u8]) {
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

/// f32 as it is; an odd last element is followed by zero.
#[inline(always)]
fn plain(x: &[f32], acts: &mut [u8]) {
    for (x, out) in x.iter().zip(acts.chunks_exact_mut(4)) {
        out.copy_from_slice(&x.to_le_bytes());
    }
    if !x.len().is_multiple_of(2) {
        acts[x.len() * 4..x.len() * 4 + 4].fill(0);
    }
}

/// bf16, rounded to nearest; an odd last element is followed by zero.
#[inline(always)]
fn rounded(x: &[f32], acts: &mut [u8]) {
    for (x, out) in x.iter().zip(acts.chunks_exact_mut(2)) {
        out.copy_from_slice(&half::bf16::from_f32(*x).to_le_bytes());
    }
    if !x.len().is_multiple_of(2) {
        acts[x.len() * 2..x.len() * 2 + 2].fill(0);
    }
}

/// Largest magnitudes below this are taken as zero: their inverse would overflow.
const TINY: f32 = 1e-30;

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// One chunk: scale = largest magnitude / 127, values rounded to nearest, and the format's corrections.
#[inline(always)]
fn chunk(layout: Layout, x: &[f32; CHUNK], out: &mut [u8]) {
    // Lanes side by side, so that the compiler can use vectors; the largest does not depend on the order.
    let mut largest = [0f32; 8];
    let mut poison = [0f32; 8];
    for part in x.chunks_exact(8) {
        for ((l, p), v) in largest.iter_mut().zip(&mut poison).zip(part) {
            let v = v.abs();
            *l = larger(*l, v);
            *p += v * 0.0;
        }
    }
    // None is NaN: a comparison with NaN takes neither side above.
    let largest = (0..4).map(|i| larger(largest[i], largest[i + 4]));
    let largest = largest.fold(0.0, larger);
    // Infinities and NaN must not vanish: any of them makes the scale, and so every output of the row, NaN.
    let poison: f32 = poison.iter().sum();
    let (scale, inverse) = if largest > TINY {
        (largest / 127.0 + poison, 127.0 / largest)
    } else {
        (poison, 0.0)
    };
    let mut q = [0i8; CHUNK];
    for (q, v) in q.iter_mut().zip(x) {
        // Adding and removing 1.5 x 2^23 rounds to nearest even and leaves the integer in the low bits.
        *q = (v * inverse + 12_582_912.0)
            .to_bits()
            .wrapping_sub(0x4b40_0000) as i8;
    }
    for (out, q) in out.iter_mut().zip(q) {
        *out = q as u8;
    }
    let first: i32 = q[..16].iter().map(|q| i32::from(*q)).sum();
    let second: i32 = q[16..].iter().map(|q| i32::from(*q)).sum();
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
