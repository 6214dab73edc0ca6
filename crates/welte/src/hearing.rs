//! The ears of a model: from the bytes of a sound to the features that rows read in its place.
//!
//! [`Hearing::read`] decodes a sound and makes its spectrogram. [`Hearing::layout`] says what stands in the prompt for it, and
//! [`Hearing::encode`] computes the features, window by window.

mod convolutions;
mod dictation;

use crate::engine::{Encoder, Turns};
use crate::model::plan_program;
use crate::speech::read_frames;
use crate::text::read_text;
use crate::vision::{Budget, fits, place};
use crate::{Error, Features, VisionOptions};
pub use dictation::{Dictated, Dictation};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use welte_audio::{HOP, Limits, Mel, RATE, Spectrogram, WINDOW, decode};
use welte_device::{Device, DeviceId, Plan, Role, Step};
use welte_formats::Checkpoint;
use welte_models::{HearingFamily, HearingSpec, Pieces};
use welte_table::{Input, Row};
use welte_vision::Piece;

/// The most seconds of a sound.
const LONGEST: u32 = 40 * 60;
/// Sounds that are decoded at a time.
const DECODED: u64 = 2;
/// The fewest samples of a sound for Qwen3-ASR.
const FEWEST: usize = RATE as usize / 2;

/// An encoder of sounds that is ready to run. It belongs to one language model, whose rows read what it yields.
pub struct Hearing {
    spec: HearingSpec,
    mel: Mel,
    decoding: Budget,
    scale: f32,
    /// The most features of a piece of the layout.
    most_rows: usize,
    device: DeviceId,
    /// The encoders, the one that reads the spectrogram first.
    encoders: Vec<Encoder>,
}

/// A sound that is decoded, but not encoded.
#[derive(Clone, Debug)]
pub struct Sound {
    hash: [u8; 32],
    seconds: f64,
    /// Frames that are heard. Those after them are silence that fills a window up.
    heard: usize,
    spectrogram: Arc<Spectrogram>,
    features: usize,
}

impl Sound {
    /// The SHA-256 of the sound's bytes.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// How long it is.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// How many features it becomes.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Bytes that it takes until it is encoded.
    pub fn bytes(&self) -> usize {
        4 * self.spectrogram.values.len()
    }
}

impl std::fmt::Debug for Hearing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hearing").field(&self.spec.family).finish()
    }
}

impl Hearing {
    /// Opens the ears of a model: those that a Hugging Face directory has beside its language model. `None` if the model has none, or
    /// some of a family that is not supported.
    pub fn open(source: &str, options: &VisionOptions) -> Result<Option<Hearing>, Error> {
        if !Path::new(source).is_dir() {
            return Ok(None);
        }
        let checkpoint = welte_formats::open(Path::new(source))?;
        let Some(spec) = welte_models::hearing_spec(&*checkpoint)? else {
            return Ok(None);
        };
        check_processor(&spec, Path::new(source))?;
        Hearing::of(spec, &*checkpoint, options).map(Some)
    }

    /// Bytes that the encoder takes on a device. `None`: it is not there, or does not run there.
    pub(crate) fn bytes(source: &str, device: &dyn Device) -> Option<u64> {
        let checkpoint = welte_formats::open(Path::new(source)).ok()?;
        let spec = welte_models::hearing_spec(&*checkpoint).ok()??;
        let plans = plans(&spec, &*checkpoint, device).ok()?;
        Some(plans.iter().map(|plan| plan.memory.total()).sum())
    }

    fn of(
        spec: HearingSpec,
        checkpoint: &dyn Checkpoint,
        options: &VisionOptions,
    ) -> Result<Hearing, Error> {
        let load = |device: Arc<dyn Device>| {
            let plans = plans(&spec, checkpoint, &*device)?;
            let need = plans.iter().map(|plan| plan.memory.total()).sum();
            fits(need, &*device, checkpoint)?;
            let load = |plan: Plan| {
                let loaded = device.load(plan, checkpoint, &mut |_| ())?;
                Ok(Encoder::new(loaded)?)
            };
            let all = plans.into_iter().map(load);
            Ok((device.info().id, all.collect::<Result<Vec<_>, Error>>()?))
        };
        let (device, encoders) = place(options, load)?;
        Ok(Hearing {
            mel: Mel::new(spec.mels as usize),
            decoding: Budget::new(DECODED),
            scale: options.scale,
            most_rows: options.most_features.max(1) as usize,
            device,
            encoders,
            spec,
        })
    }

    /// The device that it runs on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Its family.
    pub fn family(&self) -> HearingFamily {
        self.spec.family
    }

    /// How it is asked for a transcript, if that is known.
    pub fn dictation(&self) -> Option<Dictation> {
        match self.spec.family {
            HearingFamily::Qwen2Audio => None,
            HearingFamily::Voxtral => Some(Dictation::Voxtral),
            HearingFamily::Qwen3Asr => Some(Dictation::Qwen3Asr),
        }
    }

    /// The text that the chat template writes for a sound, and that the sound's layout replaces.
    pub fn placeholder(&self) -> &'static str {
        match self.spec.family {
            HearingFamily::Qwen2Audio => "<|AUDIO|>",
            HearingFamily::Voxtral => "[AUDIO]",
            HearingFamily::Qwen3Asr => "<|audio_pad|>",
        }
    }

    /// Floats of a feature: as many as an embedding of the language model.
    pub fn width(&self) -> usize {
        self.spec.width as usize
    }

    /// Decodes a sound. Needs no device.
    pub fn read(&self, bytes: &[u8]) -> Result<Sound, Error> {
        let _share = self.decoding.take(1);
        let limits = Limits {
            seconds: LONGEST,
            ..Limits::default()
        };
        let audio = decode(bytes, &limits)?;
        let mut sound = self.hear(&audio.samples)?;
        sound.hash = Sha256::digest(bytes).into();
        Ok(sound)
    }

    /// The same for samples at [`RATE`].
    pub fn hear(&self, samples: &[f32]) -> Result<Sound, Error> {
        let seconds = samples.len() as f64 / f64::from(RATE);
        let wrong = |problem: String| Error::Media { problem };
        let window = self.spec.frames() as usize * HOP;
        let length = match self.spec.family {
            HearingFamily::Qwen3Asr => samples.len().max(FEWEST),
            HearingFamily::Qwen2Audio if samples.len() > window => {
                let most = window / RATE as usize;
                return Err(wrong(format!(
                    "the sound lasts {seconds:.1} s, and the model hears {most} s at once; cut it into several"
                )));
            }
            _ => samples.len().max(1).next_multiple_of(window),
        };
        let (heard, features) = match &self.spec.pieces {
            Some(pieces) => {
                let frames = length / HOP;
                let each = pieces.frames as usize;
                let rest = Pieces::states((frames % each) as u32) as usize;
                (frames, frames / each * pieces.each() as usize + rest)
            }
            None if self.spec.family == HearingFamily::Qwen2Audio => {
                let frames = samples.len().div_ceil(HOP);
                (frames, frames.div_ceil(2) / self.spec.group as usize)
            }
            None => {
                let frames = length / HOP;
                (frames, frames / 2 / self.spec.group as usize)
            }
        };
        if features == 0 {
            return Err(wrong(format!(
                "the sound lasts {seconds:.3} s, which is too short"
            )));
        }
        let spectrogram = self.mel.spectrogram(samples, length - samples.len());
        Ok(Sound {
            hash: [0; 32],
            seconds,
            heard,
            spectrogram: Arc::new(spectrogram),
            features,
        })
    }

    /// What stands in the prompt for a sound. Its features come in pieces, so that a long sound needs no more room than a short one.
    pub fn layout(&self, sound: &Sound) -> Vec<Piece> {
        let most = (self.spec.positions / self.spec.group) as usize;
        let most = most.min(self.most_rows);
        let piece = |first: usize| {
            let rows = most.min(sound.features - first) as u32;
            Piece::Features {
                first,
                axes: (0..rows).map(|row| [row; 3]).collect(),
                advance: rows,
                both_ways: false,
            }
        };
        let begin = match self.spec.family {
            HearingFamily::Voxtral => Some(Piece::Text("[BEGIN_AUDIO]".into())),
            _ => None,
        };
        let pieces = (0..sound.features).step_by(most).map(piece);
        begin.into_iter().chain(pieces).collect()
    }

    /// Computes the features of a sound. One window is encoded at a time; others wait.
    pub fn encode(&self, sound: &Sound) -> Result<Features, Error> {
        self.encode_in(sound, &Turns::at_once())
    }

    /// As [`Hearing::encode`], in turns with others that use the device.
    pub fn encode_in(&self, sound: &Sound, turns: &Turns<'_>) -> Result<Features, Error> {
        let mut all = Vec::with_capacity(sound.features * self.width());
        let bins = self.spec.mels as usize;
        let values = &sound.spectrogram.values;
        match &self.spec.pieces {
            None => {
                let window = self.spec.frames() as usize * bins;
                for (number, frames) in values.chunks(window).enumerate() {
                    let before = number * self.spec.frames() as usize;
                    let states = (sound.heard - before).div_ceil(2);
                    let states = (states as u32).min(self.spec.positions);
                    let mut bytes = Vec::new();
                    read_frames(frames, bins, states, &mut bytes);
                    all.extend(self.last(&bytes, states, turns)?);
                }
            }
            Some(pieces) => {
                let heard = &values[..sound.heard * bins];
                let together = (self.spec.positions / pieces.each()) as usize;
                let mut tiles = heard.chunks(pieces.frames as usize * bins * together);
                tiles.try_for_each(|tile| {
                    let mut bytes = Vec::new();
                    for piece in tile.chunks(pieces.frames as usize * bins) {
                        let states = self.piece(pieces, piece, turns)?;
                        bytes.extend(states.iter().flat_map(|v| v.to_ne_bytes()));
                    }
                    let states = (bytes.len() / 4) as u32 / self.spec.dim;
                    all.extend(self.last(&bytes, states, turns)?);
                    Ok::<_, Error>(())
                })?;
            }
        }
        if self.scale != 1.0 {
            all.iter_mut().for_each(|value| *value *= self.scale);
        }
        Ok(Features {
            hash: sound.hash,
            width: self.width(),
            rows: all.into(),
        })
    }

    /// The features of rows of the last encoder.
    fn last(&self, bytes: &[u8], rows: u32, turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let window = self.spec.pieces.map_or(rows, |pieces| pieces.window());
        let axes = (0..rows).map(|row| [row / window.max(1), 0, 0]);
        let group = self.spec.group;
        let ends: Vec<u32> = (1..=rows / group).map(|i| i * group - 1).collect();
        let last = self.encoders.len() - 1;
        self.encoders[last].run(bytes, step(axes, &ends), turns)
    }

    /// The states of a piece of the spectrogram.
    fn piece(&self, pieces: &Pieces, frames: &[f32], turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let mels = self.spec.mels;
        let count = (frames.len() / mels as usize) as u32;
        let times = Pieces::states(count);
        let (bytes, [lines, pitches]) = convolutions::squares(frames, mels, pieces.frames, times);
        let rows = lines * pitches;
        let all: Vec<u32> = (0..rows).collect();
        let places = self.encoders[0].run(&bytes, step((0..rows).map(|_| [0; 3]), &all), turns)?;
        let channels = pieces.channels as usize;
        let bytes = convolutions::neighbours(&places, [lines, pitches], channels, times);
        let group = Pieces::after(mels, 3);
        let ends: Vec<u32> = (1..=times).map(|time| time * group - 1).collect();
        let axes = (0..times * group).map(|_| [0; 3]);
        self.encoders[1].run(&bytes, step(axes, &ends), turns)
    }
}

/// Refuses settings of a processor that makes another spectrogram.
fn check_processor(spec: &HearingSpec, folder: &Path) -> Result<(), Error> {
    let path = folder.join("preprocessor_config.json");
    if !path.is_file() {
        return Ok(());
    }
    let wrong = |problem: String| Error::File {
        path: path.display().to_string(),
        problem,
    };
    let settings: Json =
        serde_json::from_str(&read_text(&path)?).map_err(|e| wrong(e.to_string()))?;
    for (key, wanted) in [
        ("feature_size", spec.mels),
        ("sampling_rate", RATE),
        ("hop_length", HOP as u32),
        ("n_fft", WINDOW as u32),
    ] {
        match &settings[key] {
            Json::Null => {}
            found if found.as_u64() == Some(wanted.into()) => {}
            found => {
                return Err(wrong(format!(
                    "{key}: is {found}; the encoder takes {wanted}"
                )));
            }
        }
    }
    Ok(())
}

/// A step of rows with these axes, of which `ends` yield features.
fn step(axes: impl Iterator<Item = [u32; 3]>, ends: &[u32]) -> Step {
    let rows = (0..).zip(axes).map(|(number, axes)| Row {
        input: Input::Feature(number),
        axes,
        ..Row::new(0, number, 0)
    });
    let rows: Vec<Row> = rows.collect();
    Step::of(Role::Text, &rows, ends)
}

fn plans(
    spec: &HearingSpec,
    checkpoint: &dyn Checkpoint,
    device: &dyn Device,
) -> Result<Vec<Plan>, Error> {
    let programs = welte_models::compile_hearing(spec, checkpoint)?.into_iter();
    let plan = |program| plan_program(device, checkpoint, program, device.patterns());
    programs.map(plan).collect()
}

/// Whether a source is the directory of a language model with an encoder of sounds.
pub fn hears(source: &str) -> bool {
    let path = Path::new(source);
    path.is_dir()
        && welte_formats::open(path)
            .is_ok_and(|checkpoint| matches!(welte_models::hearing_spec(&*checkpoint), Ok(Some(_))))
}

/// Why a model without a known encoder takes no sounds.
pub(crate) fn unknown(checkpoint: &dyn Checkpoint) -> String {
    let known = HearingSpec::families();
    match welte_models::unknown_hearing(checkpoint) {
        Some(name) => format!(
            "its encoder of sounds ({name}) is not supported; known are {known}. Use it without sounds, or another model"
        ),
        None => format!("it has no encoder of sounds of a known family; known are {known}"),
    }
}
