//! The spectrograms that conformers read: as Whisper's, but each family frames, filters and cuts off in its own way.

use crate::RATE;
use crate::mel::{self, Bands, HOP, Spectrogram, hann, mirrored};

/// How a family makes its spectrograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Gemma 3n: frames of 32 ms with more of their high tones, the least amplitude is 1e-5.
    Gemma3n,
    /// Gemma 4: frames of 20 ms, the first of which begins half a frame before the sound; 1e-3 is added to amplitudes.
    Gemma4,
    /// Granite Speech: frames of 25 ms around their place; the power, and nothing far below the largest one.
    GraniteSpeech,
    /// LFM2-Audio: frames of 25 ms around their place, with more of their high tones; what is added to the power is 2^-24. The values of a band
    /// have mean 0 and variance 1 over all frames but the last one, which is zero.
    FastConformer,
}

impl Recipe {
    /// Samples of a frame.
    pub fn frame(self) -> usize {
        match self {
            Recipe::Gemma3n => 512,
            Recipe::Gemma4 => 320,
            Recipe::GraniteSpeech | Recipe::FastConformer => 400,
        }
    }

    /// Values of a frame, most of them its samples and the rest zeros, that are transformed together.
    pub fn transform(self) -> usize {
        match self {
            Recipe::Gemma3n => 1024,
            Recipe::Gemma4 | Recipe::GraniteSpeech | Recipe::FastConformer => 512,
        }
    }

    /// The lowest and the highest frequency of a band.
    pub fn band(self) -> [f64; 2] {
        match self {
            Recipe::Gemma3n => [125.0, 7600.0],
            Recipe::Gemma4 | Recipe::GraniteSpeech | Recipe::FastConformer => [0.0, 8000.0],
        }
    }

    /// The part of a sample that is subtracted from the next one.
    pub fn preemphasis(self) -> f64 {
        match self {
            Recipe::Gemma3n | Recipe::FastConformer => 0.97,
            Recipe::Gemma4 | Recipe::GraniteSpeech => 0.0,
        }
    }

    /// The least amplitude, what is added to amplitudes, the least power, or what is added to the power.
    pub fn floor(self) -> f64 {
        match self {
            Recipe::Gemma3n => 1e-5,
            Recipe::Gemma4 => 1e-3,
            Recipe::GraniteSpeech => 1e-10,
            Recipe::FastConformer => 1.0 / f64::from(1 << 24),
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
            Recipe::FastConformer if samples < HOP => 0,
            Recipe::FastConformer => samples / HOP + 1,
        }
    }
}

/// Computes the spectrograms of a family.
pub struct LogMel {
    recipe: Recipe,
    bands: Bands,
}

impl LogMel {
    /// For spectrograms of `bins` bins.
    pub fn new(recipe: Recipe, bins: usize) -> LogMel {
        let (count, transform) = (recipe.frame(), recipe.transform());
        // A window that ends with the zero that it begins with is a sample shorter.
        let period = count - usize::from(recipe == Recipe::FastConformer);
        let filters = match recipe {
            Recipe::FastConformer => mel::filters(bins, transform),
            _ => filters(recipe, bins),
        };
        LogMel {
            recipe,
            bands: Bands::new(filters, hann(count, period), transform),
        }
    }

    /// How spectrograms are made.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// The spectrogram of samples at [`RATE`].
    pub fn spectrogram(&self, samples: &[f32]) -> Spectrogram {
        let (recipe, bins) = (self.recipe, self.bands.count());
        let (lead, count) = (recipe.frame() as isize / 2, samples.len());
        let sample = |frame: usize, i: usize| {
            let at = (frame * HOP + i) as isize;
            let at = match recipe {
                Recipe::Gemma3n => usize::try_from(at).ok(),
                Recipe::Gemma4 | Recipe::FastConformer => usize::try_from(at - lead).ok(),
                Recipe::GraniteSpeech => mirrored(count, at - lead),
            };
            let sample = at.and_then(|at| samples.get(at)).copied();
            sample.map(f64::from)
        };
        let emphasised = |frame: usize, i: usize| {
            let own = sample(frame, i);
            // Nothing of the last sample is subtracted from what follows the sound of LFM2-Audio.
            if own.is_none() && recipe == Recipe::FastConformer {
                return 0.0;
            }
            let before = sample(frame, i.saturating_sub(1)).unwrap_or(0.0);
            own.unwrap_or(0.0) - recipe.preemphasis() * before
        };
        let amplitudes = matches!(recipe, Recipe::Gemma3n | Recipe::Gemma4);
        let log = |sum: f64| match recipe {
            Recipe::Gemma3n => sum.max(recipe.floor()).ln(),
            Recipe::Gemma4 | Recipe::FastConformer => (sum + recipe.floor()).ln(),
            Recipe::GraniteSpeech => sum.max(recipe.floor()).log10(),
        };
        let frames = recipe.frames(count);
        let mut values = self.bands.values(frames, emphasised, amplitudes, log);
        match recipe {
            Recipe::GraniteSpeech => {
                let least = values.iter().copied().fold(f32::MIN, f32::max) - 8.0;
                for value in &mut values {
                    *value = value.max(least) / 4.0 + 1.0;
                }
            }
            Recipe::FastConformer => normalise(&mut values, bins),
            Recipe::Gemma3n | Recipe::Gemma4 => {}
        }
        Spectrogram { bins, values }
    }
}

/// Gives each band mean 0 and variance 1 over all frames but the last one, which becomes zero.
fn normalise(values: &mut [f32], bins: usize) {
    const LEAST: f64 = 1e-5;
    let frames = (values.len() / bins).saturating_sub(1);
    for bin in 0..bins {
        let own = || values[..frames * bins].iter().skip(bin).step_by(bins);
        let mean = own().map(|v| f64::from(*v)).sum::<f64>() / frames as f64;
        let squares: f64 = own().map(|v| (f64::from(*v) - mean).powi(2)).sum();
        // One frame has no variance.
        let deviation = (squares / frames.saturating_sub(1).max(1) as f64).sqrt() + LEAST;
        for value in values[..frames * bins].iter_mut().skip(bin).step_by(bins) {
            *value = ((f64::from(*value) - mean) / deviation) as f32;
        }
    }
    if let Some(last) = values.len().checked_sub(bins) {
        values[last..].fill(0.0);
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
