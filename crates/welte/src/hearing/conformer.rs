//! What the host does for the conformers of Gemma 3n and Gemma 4: what the rows of their programs read.

use super::{Hearing, Sound, step};
use crate::Error;
use crate::engine::Turns;
use crate::text::read_text;
use serde_json::Value as Json;
use std::path::Path;
use welte_audio::{HOP, RATE, Recipe};
use welte_models::{Conformer, HearingFamily, Pieces};

/// How a family makes spectrograms, if not as Whisper.
pub(super) fn recipe(family: HearingFamily) -> Option<Recipe> {
    match family {
        HearingFamily::Gemma3n => Some(Recipe::Gemma3n),
        HearingFamily::Gemma4 => Some(Recipe::Gemma4),
        HearingFamily::GraniteSpeech => Some(Recipe::GraniteSpeech),
        _ => None,
    }
}

impl Hearing {
    /// The features of a sound.
    pub(super) fn conform(&self, sound: &Sound, turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let Some(own) = self.spec.conformer else {
            return Ok(Vec::new());
        };
        let mels = self.spec.mels;
        let frames = &sound.spectrogram.values;
        let count = sound.heard as u32;
        let value = |frame: u32, mel: i64| {
            let mel = usize::try_from(mel).ok().filter(|mel| *mel < mels as usize);
            mel.filter(|_| frame < count)
                .map_or(0.0, |mel| frames[frame as usize * mels as usize + mel])
        };
        let first = Pieces::after(count, 1);
        let norms = match &self.norms {
            Some(norms) => norms.first(first, mels, value),
            None => vec![[0.0, 1.0]; first as usize],
        };
        let (times, pitches) = (Pieces::after(count, 2), Pieces::after(mels, 2));
        let line = own.line(mels);
        let mut places = Vec::with_capacity((times * line) as usize);
        for from in (0..times).step_by(Conformer::TIMES as usize) {
            let to = times.min(from + Conformer::TIMES);
            let mut bytes = Vec::new();
            for (time, pitch) in (from..to).flat_map(|time| (0..pitches).map(move |p| (time, p))) {
                let row = square(&own, [time, pitch], mels, &norms, value);
                bytes.extend(row.iter().flat_map(|v| v.to_ne_bytes()));
            }
            let rows = (to - from) * pitches;
            let all: Vec<u32> = (0..rows).collect();
            let step = step((0..rows).map(|_| [0; 3]), &all);
            places.extend(self.encoders[0].run(&bytes, step, turns)?);
        }
        if let Some(norms) = &self.norms {
            norms.second(&mut places, line);
        }
        let bytes: Vec<u8> = places.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let ends: Vec<u32> = (0..times).step_by(self.spec.group as usize).collect();
        let axes = (0..times).map(|time| [0, time % own.seen, 0]);
        let mut features = self.encoders[1].run(&bytes, step(axes, &ends), turns)?;
        if let Some(norms) = &self.norms {
            let missing = sound.features.saturating_sub(ends.len());
            features.extend(norms.filler.repeat(missing));
        }
        Ok(features)
    }
}

/// What the row of a place reads: the square of the spectrogram around it, and mean and factor of the times of the first convolution.
fn square(
    own: &Conformer,
    [time, pitch]: [u32; 2],
    mels: u32,
    norms: &[[f32; 2]],
    value: impl Fn(u32, i64) -> f32,
) -> [f32; Conformer::ROW_VALUES as usize] {
    let mut row = [0.0; Conformer::ROW_VALUES as usize];
    // Before the sound there is nothing.
    let frame_at = |of: u32| (4 * time + of).checked_sub(3 * own.before);
    for of in 0..Pieces::SIDE {
        for at in 0..Pieces::SIDE {
            let mel = i64::from(4 * pitch + at) - 3;
            let found = frame_at(of).map(|frame| value(frame, mel));
            row[(of * Pieces::SIDE + at) as usize] = found.unwrap_or(0.0);
        }
    }
    let pitches = Pieces::after(mels, 1);
    for near in 0..3 {
        let at = (2 * time + near).checked_sub(own.before);
        let norm = at.and_then(|at| norms.get(at as usize));
        let [mean, factor] = norm.copied().unwrap_or([0.0; 2]);
        row[(Conformer::MEANS + near) as usize] = -mean;
        for beside in 0..3 {
            let is_there = (2 * pitch + beside)
                .checked_sub(1)
                .is_some_and(|at| at < pitches);
            let place = Conformer::FACTORS + 3 * near + beside;
            row[place as usize] = if is_there { factor } else { 0.0 };
        }
    }
    row
}

/// Refuses settings of a processor that makes another spectrogram. They are in one of two files.
pub(super) fn check(recipe: Recipe, mels: u32, folder: &Path) -> Result<(), Error> {
    for (file, section) in [
        ("preprocessor_config.json", None),
        ("processor_config.json", Some("feature_extractor")),
    ] {
        let path = folder.join(file);
        if !path.is_file() {
            continue;
        }
        let wrong = |problem: String| Error::File {
            path: path.display().to_string(),
            problem,
        };
        let all: Json =
            serde_json::from_str(&read_text(&path)?).map_err(|e| wrong(e.to_string()))?;
        let settings = section.map_or(&all, |section| &all[section]);
        let overdriven = recipe.transform() > recipe.frame().next_power_of_two();
        let [low, high] = recipe.band();
        for (key, wanted) in [
            ("feature_size", f64::from(mels)),
            ("sampling_rate", f64::from(RATE)),
            ("hop_length", HOP as f64),
            ("hop_length_ms", 10.0),
            ("frame_length", recipe.frame() as f64),
            (
                "frame_length_ms",
                recipe.frame() as f64 / f64::from(RATE / 1000),
            ),
            ("fft_length", recipe.transform() as f64),
            ("fft_overdrive", f64::from(u8::from(overdriven))),
            ("min_frequency", low),
            ("max_frequency", high),
            ("preemphasis", recipe.preemphasis()),
            ("preemphasis_htk_flavor", 1.0),
            ("mel_floor", recipe.floor()),
            ("dither", 0.0),
            ("input_scale_factor", 1.0),
        ] {
            let found = match &settings[key] {
                Json::Null => continue,
                Json::Bool(is) => Some(f64::from(u8::from(*is))),
                other => other.as_f64(),
            };
            if found != Some(wanted) {
                let found = &settings[key];
                return Err(wrong(format!(
                    "{key}: is {found}; the encoder takes {wanted}"
                )));
            }
        }
        for (key, wanted) in [
            ("sample_rate", RATE as usize),
            ("hop_length", HOP),
            ("win_length", recipe.frame()),
            ("n_fft", recipe.transform()),
            ("n_mels", mels as usize),
        ] {
            let found = &settings["melspec_kwargs"][key];
            if !found.is_null() && found.as_u64() != Some(wanted as u64) {
                return Err(wrong(format!(
                    "melspec_kwargs.{key}: is {found}; the encoder takes {wanted}"
                )));
            }
        }
        for key in ["per_bin_mean", "per_bin_stddev"] {
            if !settings[key].is_null() {
                return Err(wrong(format!("{key}: is not supported")));
            }
        }
    }
    Ok(())
}
