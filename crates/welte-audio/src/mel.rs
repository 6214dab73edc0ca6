//! The spectrogram of Whisper: the logarithm of the power in bands that are spaced as people hear pitch.

use crate::RATE;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::PI;
use std::sync::Arc;

/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Samples of a frame.
pub const WINDOW: usize = 400;
/// The least power.
const FLOOR: f64 = 1e-10;

/// Computes spectrograms of a number of bins.
pub struct Mel(Bands);

/// Frames, their transforms, and bands of these.
pub(crate) struct Bands {
    /// For each bin, the first frequency that it covers, and the weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    /// Of the samples of a frame.
    window: Vec<f64>,
    transform: Arc<dyn RealToComplex<f64>>,
}

impl Bands {
    /// For transforms of so many values, the first of which are a frame's.
    pub(crate) fn new(
        filters: Vec<(usize, Vec<f64>)>,
        window: Vec<f64>,
        transform: usize,
    ) -> Bands {
        Bands {
            filters,
            window,
            transform: RealFftPlanner::new().plan_fft_forward(transform),
        }
    }

    /// How many bands there are.
    pub(crate) fn count(&self) -> usize {
        self.filters.len()
    }

    /// The values of frames: `sample` yields a sample of a frame, `log` the value of a sum of powers, or of amplitudes.
    pub(crate) fn values(
        &self,
        frames: usize,
        sample: impl Fn(usize, usize) -> f64,
        amplitudes: bool,
        log: impl Fn(f64) -> f64,
    ) -> Vec<f32> {
        let mut values = Vec::with_capacity(frames * self.count());
        let mut frame = self.transform.make_input_vec();
        let mut spectrum = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        for number in 0..frames {
            frame.fill(0.0);
            // The transform of a shifted frame has the same amplitudes.
            for (i, (value, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
                *value = sample(number, i) * weight;
            }
            // The lengths are those that the transform made.
            let done = self
                .transform
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            for (first, weights) in &self.filters {
                let of_bin = weights.iter().zip(&spectrum[*first..]);
                let sum: f64 = match amplitudes {
                    true => of_bin.map(|(weight, value)| weight * value.norm()).sum(),
                    false => of_bin
                        .map(|(weight, value)| weight * value.norm_sqr())
                        .sum(),
                };
                values.push(log(sum) as f32);
            }
        }
        values
    }
}

/// The window of Hann: its values of `count` samples, whose period is so long.
pub(crate) fn hann(count: usize, period: usize) -> Vec<f64> {
    let value = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / period as f64).cos();
    (0..count).map(value).collect()
}

/// A spectrogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrogram {
    /// Values of a frame.
    pub bins: usize,
    /// The frames, one after the other.
    pub values: Vec<f32>,
}

impl Spectrogram {
    /// How many frames there are: 100 for a second.
    pub fn frames(&self) -> usize {
        self.values.len() / self.bins
    }

    /// A frame.
    pub fn frame(&self, number: usize) -> &[f32] {
        &self.values[number * self.bins..][..self.bins]
    }
}

impl Mel {
    /// For spectrograms of `bins` bins: 80, or 128 for Whisper's third large model.
    pub fn new(bins: usize) -> Mel {
        let window = hann(WINDOW, WINDOW);
        Mel(Bands::new(filters(bins, WINDOW), window, WINDOW))
    }

    /// The spectrogram of samples at [`RATE`] and of `silence` zeros after them: a frame for every [`HOP`] samples. At both ends
    /// the samples are mirrored. Values are at most 2 below the largest one.
    pub fn spectrogram(&self, samples: &[f32], silence: usize) -> Spectrogram {
        let length = samples.len() + silence;
        let sample = |frame: usize, i: usize| {
            let at = (frame * HOP + i) as isize - WINDOW as isize / 2;
            let sample = mirrored(length, at).and_then(|at| samples.get(at));
            f64::from(sample.copied().unwrap_or(0.0))
        };
        let log = |power: f64| power.max(FLOOR).log10();
        let mut values = self.0.values(length / HOP, sample, false, log);
        let least = values.iter().copied().fold(f32::MIN, f32::max) - 8.0;
        for value in &mut values {
            *value = (value.max(least) + 4.0) / 4.0;
        }
        Spectrogram {
            bins: self.0.count(),
            values,
        }
    }
}

/// A place among `length` samples, or the one at the same distance within the ends.
pub(crate) fn mirrored(length: usize, at: isize) -> Option<usize> {
    let last = length as isize - 1;
    let at = at.abs();
    // Less than half a window of samples is mirrored once only.
    usize::try_from(if at > last { 2 * last - at } else { at }).ok()
}

/// Triangles on the mel scale of Slaney, each of the same energy, over the frequencies of a transform.
pub(crate) fn filters(bins: usize, transform: usize) -> Vec<(usize, Vec<f64>)> {
    let nyquist = f64::from(RATE) / 2.0;
    let top = to_mel(nyquist);
    let edge = |i: usize| to_hertz(top * i as f64 / (bins + 1) as f64);
    let step = nyquist / (transform / 2) as f64;
    let triangle = |bin: usize| {
        let [low, middle, high] = [0, 1, 2].map(|i| edge(bin + i));
        let weight = |i: usize| {
            let hertz = i as f64 * step;
            let rise = (hertz - low) / (middle - low);
            let fall = (high - hertz) / (high - middle);
            rise.min(fall).max(0.0) * 2.0 / (high - low)
        };
        let all: Vec<f64> = (0..=transform / 2).map(weight).collect();
        let first = all.iter().position(|w| *w > 0.0).unwrap_or(0);
        let end = all.iter().rposition(|w| *w > 0.0).map_or(first, |i| i + 1);
        (first, all[first..end].to_vec())
    };
    (0..bins).map(triangle).collect()
}

const LINEAR_TO: f64 = 1000.0;
const LINEAR_STEP: f64 = 200.0 / 3.0;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn to_mel(hertz: f64) -> f64 {
    if hertz < LINEAR_TO {
        hertz / LINEAR_STEP
    } else {
        LINEAR_TO / LINEAR_STEP + (hertz / LINEAR_TO).ln() / log_step()
    }
}

fn to_hertz(mel: f64) -> f64 {
    let edge = LINEAR_TO / LINEAR_STEP;
    if mel < edge {
        mel * LINEAR_STEP
    } else {
        LINEAR_TO * ((mel - edge) * log_step()).exp()
    }
}
