//! The search for scales and mins of the K formats. Each sub-block tries scales around the obvious one. Each candidate
//! is refined by least squares over the integers that it yields; the one with the least weighted error is kept. Large
//! values weigh more, since their errors cost more in a product.

use half::f16;

/// Candidates on each side of the obvious scale, and their distance in integer steps at the end of the range.
const CANDIDATES: i32 = 9;
const STEP: f32 = 0.1;

/// A block of 256 as `x = (d · scale) · q`, sub-blocks of 16.
pub(super) struct Symmetric {
    pub(super) d: f32,
    pub(super) scales: [i8; 16],
    pub(super) q: [i8; 256],
}

/// A block of 256 as `x = (d · scale) · q - (dmin · min)`, `S` sub-blocks.
pub(super) struct Affine<const S: usize> {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [u8; S],
    pub(super) mins: [u8; S],
    pub(super) q: [u8; 256],
}

/// Fits q in `-half..half` and scales in `-scale_half..scale_half`.
pub(super) fn symmetric(
    x: &[f32; 256],
    importance: &[f32; 256],
    half: f32,
    scale_half: f32,
) -> Symmetric {
    let subs = x.as_chunks::<16>().0;
    let matter = importance.as_chunks::<16>().0;
    let mut ideal = [0f32; 16];
    for ((ideal, x), matters) in ideal.iter_mut().zip(subs).zip(matter) {
        *ideal = best_scale(x, &weights(x, matters), half);
    }
    // The extreme maps to the negative end, which reaches one step further.
    let d = as_half(extreme(&ideal) / -scale_half);
    let mut fit = Symmetric {
        d,
        scales: [0; 16],
        q: [0; 256],
    };
    if d == 0.0 {
        return fit;
    }
    for (sub, (x, q)) in subs.iter().zip(fit.q.as_chunks_mut::<16>().0).enumerate() {
        let weights = weights(x, &matter[sub]);
        let near = nearest((ideal[sub] / d).clamp(-scale_half, scale_half - 1.0));
        let mut least = f32::INFINITY;
        for scale in neighbours(near, -scale_half, scale_half - 1.0) {
            let integers = round_all(x, 0.0, d * scale, -half, half - 1.0);
            let error = error(x, &weights, &integers, d * scale, 0.0);
            if error < least {
                least = error;
                fit.scales[sub] = scale as i8;
                *q = integers.map(|q| q as i8);
            }
        }
    }
    fit
}

/// Fits q in `0..=top`, scales and mins in `0..=scale_top`, sub-blocks of `N` (`S · N` = 256).
pub(super) fn affine<const S: usize, const N: usize>(
    x: &[f32; 256],
    importance: &[f32; 256],
    top: f32,
    scale_top: f32,
) -> Affine<S> {
    let subs = x.as_chunks::<N>().0;
    let matter = importance.as_chunks::<N>().0;
    let mut ideal = [(0f32, 0f32); S];
    for ((ideal, x), matters) in ideal.iter_mut().zip(subs).zip(matter) {
        *ideal = best_scale_min(x, &weights(x, matters), top);
    }
    let largest = |of: fn(&(f32, f32)) -> f32| ideal.iter().map(of).fold(0.0, f32::max);
    let d = as_half(largest(|i| i.0) / scale_top);
    let dmin = as_half(largest(|i| i.1) / scale_top);
    let mut fit = Affine {
        d,
        dmin,
        scales: [0; S],
        mins: [0; S],
        q: [0; 256],
    };
    let steps = |of: f32, unit: f32| {
        if unit > 0.0 {
            nearest((of / unit).clamp(0.0, scale_top))
        } else {
            0.0
        }
    };
    for (sub, (x, q)) in subs.iter().zip(fit.q.as_chunks_mut::<N>().0).enumerate() {
        let weights = weights(x, &matter[sub]);
        let (near_scale, near_min) = (steps(ideal[sub].0, d), steps(ideal[sub].1, dmin));
        let mut least = f32::INFINITY;
        for scale in neighbours(near_scale, 0.0, scale_top) {
            for min in neighbours(near_min, 0.0, scale_top) {
                let integers = round_all(x, dmin * min, d * scale, 0.0, top);
                let error = error(x, &weights, &integers, d * scale, dmin * min);
                if error < least {
                    least = error;
                    fit.scales[sub] = scale as u8;
                    fit.mins[sub] = min as u8;
                    *q = integers.map(|q| q as u8);
                }
            }
        }
    }
    fit
}

/// The integer and its neighbours within the bounds. A bound may occur twice.
fn neighbours(near: f32, lowest: f32, highest: f32) -> [f32; 3] {
    [near, (near - 1.0).max(lowest), (near + 1.0).min(highest)]
}

/// The nearest integer, ties to even, for magnitudes below 2^22. Adding 1.5 · 2^23 rounds off the fraction.
fn nearest(x: f32) -> f32 {
    const ROOM: f32 = 12_582_912.0;
    (x + ROOM) - ROOM
}

/// The step as an f16 field stores it. Subnormal steps are rounded away from zero, so that the largest multiple still
/// reaches the largest value.
pub(super) fn as_half(step: f32) -> f32 {
    let near = f16::from_f32(step);
    let short = near.to_f32().abs() < step.abs() && step.abs() < f16::MIN_POSITIVE.to_f32();
    f16::from_bits(near.to_bits() + u16::from(short)).to_f32()
}

/// The value of the largest magnitude.
fn extreme(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { *b } else { a })
}

/// The weight of each error: large values cost more in a product, and so do values that are multiplied by large inputs.
pub(super) fn weights<const N: usize>(x: &[f32; N], importance: &[f32; N]) -> [f32; N] {
    let rms = (sum(x, |x| x * x) / N as f32).sqrt();
    let mut weights = x.map(|x| rms + x.abs());
    (weights.iter_mut().zip(importance)).for_each(|(weight, matters)| *weight *= matters);
    weights
}

/// A sum in eight lanes, which fit one register.
fn sum<const N: usize>(x: &[f32; N], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane += term(*x);
        }
    }
    lanes.iter().sum()
}

/// Σ a·b·c
fn sum3<const N: usize>(a: &[f32; N], b: &[f32; N], c: &[f32; N]) -> f32 {
    let mut lanes = [0f32; 8];
    let parts = a
        .as_chunks::<8>()
        .0
        .iter()
        .zip(b.as_chunks::<8>().0)
        .zip(c.as_chunks::<8>().0);
    for ((a, b), c) in parts {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += a[i] * b[i] * c[i];
        }
    }
    lanes.iter().sum()
}

/// The integers for `x = scale · q - min`; all 0 if the scale is 0.
fn round_all<const N: usize>(
    x: &[f32; N],
    min: f32,
    scale: f32,
    lowest: f32,
    highest: f32,
) -> [f32; N] {
    if scale == 0.0 {
        return [0.0; N];
    }
    let inverse = 1.0 / scale;
    x.map(|x| nearest(((x + min) * inverse).clamp(lowest, highest)))
}

fn error<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N], scale: f32, min: f32) -> f32 {
    let mut off = [0f32; N];
    for i in 0..N {
        off[i] = scale * q[i] - min - x[i];
    }
    sum3(&off, &off, w)
}

/// The scale for q in `-half..half`. For given q, the best scale is Σwxq / Σwqq; it reduces the error by (Σwxq)² /
/// Σwqq.
fn best_scale<const N: usize>(x: &[f32; N], w: &[f32; N], half: f32) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for side in [-1.0, 1.0] {
        for candidate in -CANDIDATES..=CANDIDATES {
            let inverse = side * (half + STEP * candidate as f32) / extreme;
            let q = x.map(|x| nearest((x * inverse).clamp(-half, half - 1.0)));
            let (wxq, wqq) = (sum3(w, x, &q), sum3(w, &q, &q));
            if wqq > 0.0 && wxq * wxq > most * wqq {
                most = wxq * wxq / wqq;
                best = wxq / wqq;
            }
        }
        // With many steps, the extra step of the negative side hardly matters.
        if half > 4.0 {
            break;
        }
    }
    best
}

/// Scale and min (both at least 0) for q in `0..=top`, from the normal equations of `x = scale · q - min`.
fn best_scale_min<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32) -> (f32, f32) {
    let lowest = x.iter().copied().fold(0.0, f32::min);
    let highest = x.iter().copied().fold(lowest, f32::max);
    if highest == lowest {
        return (0.0, -lowest);
    }
    let ones = [1.0; N];
    let (sw, sx) = (sum3(w, &ones, &ones), sum3(w, x, &ones));
    let (mut best, mut most) = ((0.0, -lowest), f32::NEG_INFINITY);
    for candidate in -CANDIDATES..=CANDIDATES {
        let inverse = (top + STEP * candidate as f32) / (highest - lowest);
        let q = x.map(|x| nearest(((x - lowest) * inverse).clamp(0.0, top)));
        let (sq, sqq, sqx) = (sum3(w, &q, &ones), sum3(w, &q, &q), sum3(w, &q, x));
        let determinant = sw * sqq - sq * sq;
        let mut scale = (sw * sqx - sx * sq) / determinant;
        let mut min = (sq * sqx - sqq * sx) / determinant;
        // The min must not be negative. If all q are equal, the equations have no unique solution.
        if min < 0.0 || determinant <= 1e-6 * sw * sqq {
            (scale, min) = (sqx / sqq, 0.0);
        }
        // The reduction of the error. It is NaN if all values are tiny; NaN is not greater.
        let gain =
            scale * (2.0 * sqx - scale * sqq) - min * (2.0 * sx + min * sw - 2.0 * scale * sq);
        if scale >= 0.0 && gain > most {
            most = gain;
            best = (scale, min);
        }
    }
    best
}
