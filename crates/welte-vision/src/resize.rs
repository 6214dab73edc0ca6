//! Resizing with the filters of the Python imaging library, whose results the encoders were trained with: a pass over lines, then
//! one over columns, each rounded to bytes. Weights are integers of 22 fractional bits. (Since its version 13 the library sometimes
//! begins with columns, which makes other pixels where a filter overshoots.)

use crate::Pixels;

/// How new pixels follow from old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The nearest two of each direction.
    Bilinear,
    /// The nearest four of each direction.
    Bicubic,
    /// The nearest six of each direction.
    Lanczos,
}

impl Filter {
    /// Its number in a processor's configuration (`resample`).
    pub fn of_number(number: u64) -> Option<Filter> {
        match number {
            1 => Some(Filter::Lanczos),
            2 => Some(Filter::Bilinear),
            3 => Some(Filter::Bicubic),
            _ => None,
        }
    }

    /// Old pixels on either side that a new one follows from, at equal sizes.
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Filter::Bilinear => (1.0 - x).max(0.0),
            Filter::Bicubic => {
                const A: f64 = -0.5;
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Filter::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Fractional bits of a weight.
const BITS: u32 = 32 - 8 - 2;

/// What one new line or column follows from.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: u32, to: u32, filter: Filter) -> Vec<Taps> {
    let scale = f64::from(from) / f64::from(to);
    let wider = scale.max(1.0);
    let support = filter.support() * wider;
    let each = |x: u32| {
        let center = (f64::from(x) + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from as usize);
        let own = (first..end).map(|at| filter.weight((at as f64 - center + 0.5) / wider));
        let own: Vec<f64> = own.collect();
        let sum: f64 = own.iter().sum();
        let whole = |w: &f64| {
            let w = if sum == 0.0 { *w } else { w / sum } * f64::from(1u32 << BITS);
            (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
        };
        Taps {
            first,
            weights: own.iter().map(whole).collect(),
        }
    };
    (0..to).map(each).collect()
}

fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Resizes to a width and a height, which are not 0.
pub fn resize(image: &Pixels, width: u32, height: u32, filter: Filter) -> Pixels {
    const HALF: i32 = 1 << (BITS - 1);
    let mut bytes = Vec::new();
    let (old, new) = (3 * image.width as usize, 3 * width as usize);
    let lines: &[u8] = if width == image.width {
        &image.bytes
    } else {
        let taps = taps(image.width, width, filter);
        bytes.reserve_exact(new * image.height as usize);
        for line in image.bytes.chunks_exact(old) {
            for Taps { first, weights } in &taps {
                let mut sums = [HALF; 3];
                for (pixel, weight) in line[3 * first..].chunks_exact(3).zip(weights) {
                    for (sum, value) in sums.iter_mut().zip(pixel) {
                        *sum += i32::from(*value) * weight;
                    }
                }
                bytes.extend(sums.map(byte));
            }
        }
        &bytes
    };
    let bytes = if height == image.height {
        lines.to_vec()
    } else {
        let mut all = Vec::with_capacity(new * height as usize);
        let mut sums = vec![HALF; new];
        for Taps { first, weights } in taps(image.height, height, filter) {
            sums.fill(HALF);
            for (line, weight) in lines[first * new..].chunks_exact(new).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(line) {
                    *sum += i32::from(*value) * weight;
                }
            }
            all.extend(sums.iter().map(|sum| byte(*sum)));
        }
        all
    };
    Pixels {
        width,
        height,
        bytes,
    }
}
