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
pub struct Mel {
    bins: usize,
    /// For each bin, the first frequency that it covers, and the weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    transform: Arc<dyn RealToComplex<f64>>,
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
        let window = (0..WINDOW).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / WINDOW as f64).cos());
        Mel {
            bins,
            filters: filters(bins),
            window: window.collect(),
            transform: RealFftPlanner::new().plan_fft_forward(WINDOW),
        }
    }

    /// The spectrogram of samples at [`RATE`] and of `silence` zeros after them: a frame for every [`HOP`] samples. At both ends
    /// the samples are mirrored. Values are at most 2 below the largest one.
    pub fn spectrogram(&self, samples: &[f32], silence: usize) -> Spectrogram {
        let length = samples.len() + silence;
        let frames = length / HOP;
        let mut values = Vec::with_capacity(frames * self.bins);
        let mut largest = f64::MIN;
        let mut frame = self.transform.make_input_vec();
        let mut spectrum = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        for number in 0..frames {
            let start = (number * HOP) as isize - WINDOW as isize / 2;
            for (i, (value, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
                let at = mirrored(length, start + i as isize);
                let sample = at.and_then(|at| samples.get(at)).copied();
                *value = f64::from(sample.unwrap_or(0.0)) * weight;
            }
            // The lengths are those that the transform made.
            let done = self
                .transform
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            for (first, weights) in &self.filters {
                let power = weights.iter().zip(&spectrum[*first..]);
                let power: f64 = power.map(|(weight, value)| weight * value.norm_sqr()).sum();
                let log = power.max(FLOOR).log10();
                largest = largest.max(log);
                values.push(log as f32);
            }
        }
        let least = (largest - 8.0) as f32;
        for value in &mut values {
            *value = (value.max(least) + 4.0) / 4.0;
        }
        Spectrogram {
            bins: self.bins,
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

/// Triangles on the mel scale of Slaney, each of the same energy.
fn filters(bins: usize) -> Vec<(usize, Vec<f64>)> {
    let nyquist = f64::from(RATE) / 2.0;
    let top = to_mel(nyquist);
    let edge = |i: usize| to_hertz(top * i as f64 / (bins + 1) as f64);
    let step = nyquist / (WINDOW / 2) as f64;
    let triangle = |bin: usize| {
        let [low, middle, high] = [0, 1, 2].map(|i| edge(bin + i));
        let weight = |i: usize| {
            let hertz = i as f64 * step;
            let rise = (hertz - low) / (middle - low);
            let fall = (high - hertz) / (high - middle);
            rise.min(fall).max(0.0) * 2.0 / (high - low)
        };
        let all: Vec<f64> = (0..=WINDOW / 2).map(weight).collect();
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
