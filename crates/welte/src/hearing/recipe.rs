//! How conformers' spectrograms are made, and what a processor's settings must say of it.

use crate::Error;
use crate::text::read_text;
use serde_json::Value as Json;
use std::path::Path;
use welte_audio::{HOP, RATE, Recipe};
use welte_models::HearingFamily;

/// How a family makes spectrograms, if not as Whisper.
pub(super) fn recipe(family: HearingFamily) -> Option<Recipe> {
    match family {
        HearingFamily::Gemma3n => Some(Recipe::Gemma3n),
        HearingFamily::Gemma4 => Some(Recipe::Gemma4),
        HearingFamily::GraniteSpeech => Some(Recipe::GraniteSpeech),
        HearingFamily::Lfm2Audio => Some(Recipe::FastConformer),
        _ => None,
    }
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
