//! The spectrograms that conformers read: as Whisper's, but each family frames, filters and cuts off in its own way.

use crate::RATE;
use crate::mel::{HOP, Spectrogram, mirrored};
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::PI;
use std::sync::Arc;

/// How a family makes its spectrograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Gemma 3n: frames of 32 ms with more of their high tones, the least amplitude is 1e-5.
    Gemma3n,
    /// Gemma 4: frames of 20 ms, the first of which begins half a frame before the sound; 1e-3 is added to amplitudes.
    Gemma4,
    /// Granite Speech: frames of 25 ms around their place; the power, and nothing far below the largest one.
    GraniteSpeech,
}

impl Recipe {
    /// Samples of a frame.
    pub fn frame(self) -> usize {
        match self {
            Recipe::Gemma3n => 512,
            Recipe::Gemma4 => 320,
            Recipe::GraniteSpeech => 400,
        }
    }

    /// Values of a frame, most of them its samples and the rest zeros, that are transformed together.
    pub fn transform(self) -> usize {
        match self {
            Recipe::Gemma3n => 1024,
            Recipe::Gemma4 | Recipe::GraniteSpeech => 512,
        }
    }

    /// The lowest and the highest frequency of a band.
    pub fn band(self) -> [f64; 2] {
        match self {
            Recipe::Gemma3n => [125.0, 7600.0],
            Recipe::Gemma4 | Recipe::GraniteSpeech => [0.0, 8000.0],
        }
    }

    /// The part of a sample that is subtracted from the next one.
    pub fn preemphasis(self) -> f64 {
        match self {
            Recipe::Gemma3n => 0.97,
            Recipe::Gemma4 | Recipe::GraniteSpeech => 0.0,
        }
    }

    /// The least amplitude, what is added to amplitudes, or the least power.
    pub fn floor(self) -> f64 {
        match self {
            Recipe::Gemma3n => 1e-5,
            Recipe::Gemma4 => 1e-3,
            Recipe::GraniteSpeech => 1e-10,
        }
    }

    /// Frames of a sound of so many samples.
    pub fn frames(self, samples: usize) -> usize {
        match self {
            // A sound is filled up to a multiple of 128 samples; a frame needs the sample after it, too.
            Recipe::Gemma3n => {
                let filled = samples.next_multiple_of(128);
                (filled + HOP).saturating_sub(self.frame() + 1) / HOP
            }
            // The sample after a frame must be one of the sound.
            Recipe::Gemma4 => {
                let lead = self.frame() / 2;
                (samples + lead + HOP).saturating_sub(self.frame() + 1) / HOP
            }
            Recipe::GraniteSpeech => samples / HOP + 1,
        }
    }
}

/// Computes the spectrograms of a family.
pub struct LogMel {
    recipe: Recipe,
    bins: usize,
    /// For each bin, the first frequency that it covers, and the weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    transform: Arc<dyn RealToComplex<f64>>,
}

impl LogMel {
    /// For spectrograms of `bins` bins.
    pub fn new(recipe: Recipe, bins: usize) -> LogMel {
        let count = recipe.frame();
        let window = (0..count).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / count as f64).cos());
        LogMel {
            recipe,
            bins,
            filters: filters(recipe, bins),
            window: window.collect(),
            transform: RealFftPlanner::new().plan_fft_forward(recipe.transform()),
        }
    }

    /// How spectrograms are made.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// The spectrogram of samples at [`RATE`].
    pub fn spectrogram(&self, samples: &[f32]) -> Spectrogram {
        let (recipe, length) = (self.recipe, self.recipe.frame());
        let frames = recipe.frames(samples.len());
        let mut values = Vec::with_capacity(frames * self.bins);
        let mut frame = self.transform.make_input_vec();
        let mut spectrum = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        for number in 0..frames {
            frame.fill(0.0);
            let start = (number * HOP) as isize;
            let sample = |i: usize| {
                let at = start + i as isize;
                let at = match recipe {
                    Recipe::Gemma3n => usize::try_from(at).ok(),
                    Recipe::Gemma4 => usize::try_from(at - length as isize / 2).ok(),
                    Recipe::GraniteSpeech => mirrored(samples.len(), at - length as isize / 2),
                };
                let sample = at.and_then(|at| samples.get(at)).copied();
                f64::from(sample.unwrap_or(0.0))
            };
            // The transform of a shifted frame has the same amplitudes.
            for (i, (value, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
                let before = sample(i.saturating_sub(1));
                *value = (sample(i) - recipe.preemphasis() * before) * weight;
            }
            // The lengths are those that the transform made.
            let done = self
                .transform
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            for (first, weights) in &self.filters {
                let of_bin = weights.iter().zip(&spectrum[*first..]);
                let value = match recipe {
                    Recipe::Gemma3n => {
                        let sum: f64 = of_bin.map(|(weight, value)| weight * value.norm()).sum();
                        sum.max(recipe.floor()).ln()
                    }
                    Recipe::Gemma4 => {
                        let sum: f64 = of_bin.map(|(weight, value)| weight * value.norm()).sum();
                        (sum + recipe.floor()).ln()
                    }
                    Recipe::GraniteSpeech => {
                        let sum: f64 = of_bin
                            .map(|(weight, value)| weight * value.norm_sqr())
                            .sum();
                        sum.max(recipe.floor()).log10()
                    }
                };
                values.push(value as f32);
            }
        }
        if recipe == Recipe::GraniteSpeech {
            let least = values.iter().copied().fold(f32::MIN, f32::max) - 8.0;
            for value in &mut values {
                *value = value.max(least) / 4.0 + 1.0;
            }
        }
        Spectrogram {
            bins: self.bins,
            values,
        }
    }
}

/// Triangles on the mel scale of HTK, each of the same height.
fn filters(recipe: Recipe, bins: usize) -> Vec<(usize, Vec<f64>)> {
    let to_mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let [low, high] = recipe.band().map(to_mel);
    let edge = |i: usize| {
        let mel = low + (high - low) * i as f64 / (bins + 1) as f64;
        700.0 * (10f64.powf(mel / 2595.0) - 1.0)
    };
    let last = recipe.transform() / 2;
    let step = f64::from(RATE) / recipe.transform() as f64;
    let triangle = |bin: usize| {
        let [low, middle, high] = [0, 1, 2].map(|i| edge(bin + i));
        let weight = |i: usize| {
            let hertz = i as f64 * step;
            let rise = (hertz - low) / (middle - low);
            let fall = (high - hertz) / (high - middle);
            rise.min(fall).max(0.0)
        };
        let all: Vec<f64> = (0..=last).map(weight).collect();
        let first = all.iter().position(|w| *w > 0.0).unwrap_or(0);
        let end = all.iter().rposition(|w| *w > 0.0).map_or(first, |i| i + 1);
        (first, all[first..end].to_vec())
    };
    (0..bins).map(triangle).collect()
}
