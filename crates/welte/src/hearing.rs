//! The ears of a model: from the bytes of a sound to the features that rows read in its place.
//!
//! [`Hearing::read`] decodes a sound and makes its spectrogram. [`Hearing::layout`] says what stands in the prompt for it, and
//! [`Hearing::encode`] computes the features, window by window.

mod conformer;
mod convolutions;
mod dictation;
mod fast_conformer;
mod granite;
mod reader;
mod recipe;
mod transcribe;

use crate::engine::{Encoder, Turns};
use crate::model::plan_program;
use crate::speech::read_frames;
use crate::text::read_text;
use crate::vision::{Budget, fits, place};
use crate::{AdapterSource, Error, Features, VisionOptions};
pub use dictation::{Dictated, Dictation};
pub(crate) use reader::Reader;
use recipe::recipe;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
pub use transcribe::WrittenWindow;
use welte_audio::{HOP, Limits, LogMel, Mel, RATE, Spectrogram, WINDOW, decode_while};
use welte_device::{Device, DeviceId, Plan, Role, Step};
use welte_formats::Checkpoint;
use welte_models::{FastConformer, HearingFamily, HearingSpec, Pieces, Rest, RunningNorms};
use welte_table::{Input, Row};
use welte_vision::Piece;

/// The most seconds of a sound.
const LONGEST: u32 = 40 * 60;
/// Sounds that are decoded at a time.
const DECODED: u64 = 2;
/// The most samples of a sound for Gemma 3n and Gemma 4.
const MOST_OF_GEMMA: usize = 30 * RATE as usize;
/// The fewest samples of a sound for Qwen3-ASR.
const FEWEST: usize = RATE as usize / 2;

/// An encoder of sounds that is ready to run. It belongs to one language model, whose rows read what it yields.
pub struct Hearing {
    spec: HearingSpec,
    mel: Filters,
    /// Norms between the programs of Gemma 3n.
    norms: Option<RunningNorms>,
    /// Queries of Granite Speech.
    queries: Vec<f32>,
    decoding: Budget,
    scale: f32,
    /// Rows that the language model's context holds.
    context: usize,
    /// The most features of a piece of the layout.
    most_rows: usize,
    /// The language model only chats: it has learned no prompt for transcripts.
    only_chats: bool,
    device: DeviceId,
    /// The encoders, the one that reads the spectrogram first.
    encoders: Vec<Encoder>,
}

/// What makes spectrograms.
enum Filters {
    Whisper(Mel),
    Conformer(LogMel),
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
    /// The SHA-256 of the bytes of the sound's file, or of its samples.
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
    /// Opens the ears of a model: those of an `mmproj` file, or those that a Hugging Face directory has beside its language model.
    /// `None` if there are none, or some of a family that is not supported.
    pub fn open(source: &str, options: &VisionOptions) -> Result<Option<Hearing>, Error> {
        if !Path::new(source).exists() {
            return Ok(None);
        }
        let checkpoint = welte_formats::open(Path::new(source))?;
        let Some(spec) = welte_models::hearing_spec(&*checkpoint)? else {
            return Ok(None);
        };
        match recipe(spec.family) {
            None => check_processor(&spec, Path::new(source))?,
            Some(recipe) => recipe::check(recipe, spec.mels, Path::new(source))?,
        }
        Hearing::of(spec, &*checkpoint, options).map(Some)
    }

    /// Bytes that the encoder takes on a device. `None`: it is not there, or does not run there.
    pub(crate) fn bytes(source: &Path, device: &dyn Device) -> Option<u64> {
        let checkpoint = welte_formats::open(source).ok()?;
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
            mel: match recipe(spec.family) {
                None => Filters::Whisper(Mel::new(spec.mels as usize)),
                Some(recipe) => Filters::Conformer(LogMel::new(recipe, spec.mels as usize)),
            },
            norms: welte_models::running_norms(&spec, checkpoint)?,
            queries: welte_models::speech_queries(&spec, checkpoint)?,
            decoding: Budget::new(DECODED),
            scale: options.scale,
            context: usize::MAX,
            most_rows: options.most_features.max(1) as usize,
            only_chats: false,
            device,
            encoders,
            spec,
        })
    }

    /// The ears of a language model whose context holds so many rows. Sounds that exceed it are not decoded to their end.
    pub fn within(mut self, context: usize) -> Hearing {
        self.context = context;
        self
    }

    /// The ears of Qwen3-Omni, whose encoder is Qwen3-ASR's, if the language model has experts.
    pub(crate) fn with_experts(mut self, has_experts: bool) -> Hearing {
        self.only_chats = has_experts && self.spec.family == HearingFamily::Qwen3Asr;
        self
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
            _ if self.only_chats => None,
            HearingFamily::GraniteSpeech => Some(Dictation::GraniteSpeech),
            HearingFamily::Lfm2Audio => Some(Dictation::Lfm2Audio),
            HearingFamily::GlmAsr => Some(Dictation::GlmAsr),
            HearingFamily::Voxtral => Some(Dictation::Voxtral),
            HearingFamily::Qwen3Asr => Some(Dictation::Qwen3Asr),
            _ => None,
        }
    }

    /// The token after which the language model would go on in sound instead of text.
    pub(crate) fn begins_speech(&self) -> Option<&'static str> {
        (self.spec.family == HearingFamily::Lfm2Audio).then_some("<|audio_start|>")
    }

    /// The text that the chat template writes for a sound, and that the sound's layout replaces.
    pub fn placeholder(&self) -> &'static str {
        match self.spec.family {
            HearingFamily::Qwen2Audio => "<|AUDIO|>",
            HearingFamily::Voxtral => "[AUDIO]",
            HearingFamily::Qwen3Asr => "<|audio_pad|>",
            HearingFamily::Qwen2_5Omni => "<|AUDIO|>",
            HearingFamily::AudioFlamingo3 => "<sound>",
            HearingFamily::Gemma3n => "<audio_soft_token>",
            HearingFamily::GlmAsr => "<|pad|>",
            // Its authors put sounds between tokens; transformers writes this one for them.
            HearingFamily::Lfm2Audio => "<|reserved_123|>",
            HearingFamily::Gemma4 | HearingFamily::GraniteSpeech | HearingFamily::Ultravox => {
                "<|audio|>"
            }
        }
    }

    /// Floats of a feature: as many as an embedding of the language model.
    pub fn width(&self) -> usize {
        self.spec.width as usize
    }

    /// Decodes a sound. Needs no device.
    pub fn read(&self, bytes: &[u8]) -> Result<Sound, Error> {
        self.read_while(bytes, &|| true)
    }

    /// As [`Hearing::read`], but gives up with [`Error::Deadline`] once `wanted` is false.
    pub fn read_while(&self, bytes: &[u8], wanted: &dyn Fn() -> bool) -> Result<Sound, Error> {
        let _share = self.decoding.take(1);
        let (seconds, why) = self.longest();
        let audio = decode_while(bytes, &Limits::lasting(seconds), wanted);
        let audio = audio.map_err(|error| match error {
            welte_audio::Error::Unwanted => Error::Deadline,
            welte_audio::Error::Long { .. } => Error::Media {
                problem: format!(
                    "the sound lasts more than {seconds} s, and {why}; cut it into several"
                ),
            },
            other => other.into(),
        })?;
        self.listen(&audio.samples, Sha256::digest(bytes).into())
    }

    /// The same for samples at [`RATE`].
    pub fn hear(&self, samples: &[f32]) -> Result<Sound, Error> {
        let mut hash = Sha256::new();
        for sample in samples {
            hash.update(sample.to_le_bytes());
        }
        self.listen(samples, hash.finalize().into())
    }

    /// Samples of a window.
    fn window(&self) -> usize {
        self.spec.frames() as usize * HOP
    }

    /// The most samples of a sound, if the encoder takes no more at once.
    pub(crate) fn most_samples(&self) -> Option<usize> {
        match self.spec.family {
            HearingFamily::Qwen2Audio => Some(self.window()),
            HearingFamily::Gemma3n | HearingFamily::Gemma4 => Some(MOST_OF_GEMMA),
            HearingFamily::GraniteSpeech => {
                // The frame after the last one would begin another state.
                Some((2 * self.spec.positions as usize) * HOP - 1)
            }
            HearingFamily::Lfm2Audio => {
                let frames = FastConformer::FRAMES * self.spec.positions;
                Some(frames as usize * HOP - 1)
            }
            _ => None,
        }
    }

    /// The most seconds of a sound, and why.
    fn longest(&self) -> (u32, String) {
        let most = (LONGEST, "more are not taken".to_string());
        let frames = match &self.spec.pieces {
            Some(pieces) => {
                let frames = self.context.saturating_mul(pieces.frames as usize);
                frames.div_ceil(pieces.each() as usize)
            }
            None if self.spec.conformer.is_some_and(|own| own.fixed.is_some()) => usize::MAX,
            None if self.spec.conformer.is_some() => self.context.saturating_mul(4),
            None if self.spec.granite.is_some() => self.granite_frames(self.context),
            None if self.spec.fast.is_some() => {
                self.context.saturating_mul(FastConformer::FRAMES as usize)
            }
            None => self.context.saturating_mul(2 * self.spec.group as usize),
        };
        let seconds = frames.div_ceil(RATE as usize / HOP).saturating_add(1);
        let rows = self.context;
        let of_context = (
            u32::try_from(seconds).unwrap_or(u32::MAX),
            format!("the model's context ({rows} positions) holds no more"),
        );
        let of_window = self.most_samples().map(|most| {
            let most = most.div_ceil(RATE as usize) as u32;
            (most, format!("the model hears {most} s at once"))
        });
        let all = of_window.into_iter().chain([of_context]);
        all.fold(
            most,
            |most, other| if other.0 < most.0 { other } else { most },
        )
    }

    fn listen(&self, samples: &[f32], hash: [u8; 32]) -> Result<Sound, Error> {
        let seconds = samples.len() as f64 / f64::from(RATE);
        let wrong = |problem: String| Error::Media { problem };
        if let Some(most) = self.most_samples().filter(|most| samples.len() > *most) {
            let most = most / RATE as usize;
            return Err(wrong(format!(
                "the sound lasts {seconds:.1} s, and the model hears {most} s at once; cut it into several"
            )));
        }
        let short = || {
            wrong(format!(
                "the sound lasts {seconds:.3} s, which is too short"
            ))
        };
        let mel = match &self.mel {
            Filters::Whisper(mel) => mel,
            Filters::Conformer(mel) => {
                let spectrogram = mel.spectrogram(samples);
                let heard = spectrogram.frames();
                let fixed = self.spec.conformer.and_then(|own| own.fixed);
                let features = match fixed {
                    Some(fixed) => fixed as usize,
                    None if self.spec.granite.is_some() => self.granite_features(heard),
                    None if self.spec.fast.is_some() => Pieces::states(heard as u32) as usize,
                    None => Pieces::after(heard as u32, 2) as usize,
                };
                if heard == 0 || features == 0 {
                    return Err(short());
                }
                return Ok(Sound {
                    hash,
                    seconds,
                    heard,
                    spectrogram: Arc::new(spectrogram),
                    features,
                });
            }
        };
        let window = self.window();
        let length = match self.spec.family {
            HearingFamily::Qwen3Asr => samples.len().max(FEWEST),
            // Its windows are silent up to five minutes.
            HearingFamily::Qwen2_5Omni => samples.len().next_multiple_of(HOP) + 4 * HOP,
            HearingFamily::Ultravox => samples.len().next_multiple_of(HOP),
            _ => samples.len().max(1).next_multiple_of(window),
        };
        let heard = match (&self.spec.pieces, self.spec.family.rest()) {
            (Some(_), _) | (None, Rest::Heard) => length / HOP,
            (None, _) => samples.len().div_ceil(HOP),
        };
        let features = match &self.spec.pieces {
            Some(pieces) => {
                let each = pieces.frames as usize;
                let rest = Pieces::states((heard % each) as u32) as usize;
                heard / each * pieces.each() as usize + rest
            }
            None => self.windows(heard).map(|(_, _, rows)| rows).sum(),
        };
        if features == 0 {
            return Err(short());
        }
        let whole =
            |samples: &[f32], length: usize| mel.spectrogram(samples, length - samples.len());
        let spectrogram = if self.spec.family.has_own_windows() {
            let each = samples.chunks(window);
            let values = each.flat_map(|samples| whole(samples, window).values);
            Spectrogram {
                bins: self.spec.mels as usize,
                values: values.collect(),
            }
        } else {
            whole(samples, length)
        };
        Ok(Sound {
            hash,
            seconds,
            heard,
            spectrogram: Arc::new(spectrogram),
            features,
        })
    }

    /// What stands before and after a sound's features, unless the chat template writes it or the vocabulary lacks it.
    fn marks(&self) -> [Option<&'static str>; 2] {
        match self.spec.family {
            HearingFamily::Qwen2Audio | HearingFamily::Qwen2_5Omni => {
                [Some("<|audio_bos|>"), Some("<|audio_eos|>")]
            }
            HearingFamily::Voxtral => [Some("[BEGIN_AUDIO]"), None],
            HearingFamily::Qwen3Asr => [Some("<|audio_start|>"), Some("<|audio_end|>")],
            HearingFamily::Gemma3n => [Some("\n\n<start_of_audio>"), Some("<end_of_audio>\n\n")],
            HearingFamily::Gemma4 => [Some("<|audio>"), Some("<audio|>")],
            HearingFamily::GlmAsr => [Some("<|begin_of_audio|>"), Some("<|end_of_audio|>")],
            HearingFamily::AudioFlamingo3
            | HearingFamily::Ultravox
            | HearingFamily::GraniteSpeech
            | HearingFamily::Lfm2Audio => [None, None],
        }
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
        let pieces = (0..sound.features).step_by(most).map(piece);
        let mark = |text: &str| Piece::Text(text.into());
        let [before, after] = self.marks().map(|text| text.map(mark));
        before.into_iter().chain(pieces).chain(after).collect()
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
            None if self.spec.conformer.is_some() => all = self.conform(sound, turns)?,
            None if self.spec.granite.is_some() => all = self.look(sound, turns)?,
            None if self.spec.fast.is_some() => all = self.conform_fast(sound, turns)?,
            None => {
                for (first, heard, features) in self.windows(sound.heard) {
                    // What follows the sound may be nothing.
                    let end = match self.spec.family.rest() {
                        Rest::Nothing => first + heard,
                        _ => first + self.spec.frames() as usize,
                    };
                    let frames = &values[first * bins..end * bins];
                    let states = heard.div_ceil(2) as u32;
                    let rows = match self.spec.family.rest() {
                        Rest::Seen => self.spec.positions,
                        _ => (features as u32 * self.spec.group)
                            .min(self.spec.positions)
                            .max(states),
                    };
                    let mut bytes = Vec::new();
                    read_frames(frames, bins, rows, &mut bytes);
                    let features = features as u32;
                    all.extend(self.last(&bytes, [rows, features], states, turns)?);
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
                    all.extend(self.last(&bytes, [states; 2], pieces.window(), turns)?);
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

    /// Of each window of Whisper with so many frames in all: its first frame, its frames, and its features.
    fn windows(&self, heard: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let each = self.spec.frames() as usize;
        (0..heard).step_by(each).map(move |first| {
            let frames = each.min(heard - first);
            let features = self.spec.features_of(frames.div_ceil(2) as u32);
            (first, frames, features as usize)
        })
    }

    /// The first features of rows of the last encoder, of which so many neighbours see each other.
    fn last(
        &self,
        bytes: &[u8],
        [rows, features]: [u32; 2],
        window: u32,
        turns: &Turns<'_>,
    ) -> Result<Vec<f32>, Error> {
        let axes = (0..rows).map(|row| [row / window.max(1), 0, 0]);
        let group = self.spec.group;
        let ends: Vec<u32> = (1..=features).map(|i| i * group - 1).collect();
        let last = self.encoders.len() - 1;
        self.encoders[last].run(bytes, step(axes, &ends), turns)
    }

    /// The states of a piece of the spectrogram.
    fn piece(&self, pieces: &Pieces, frames: &[f32], turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let mels = self.spec.mels;
        let count = (frames.len() / mels as usize) as u32;
        let times = Pieces::states(count);
        // No more places than the states need.
        let lines = 0..Pieces::after(pieces.frames, 2).min(2 * times);
        let pitches = Pieces::after(mels, 2);
        let bytes = convolutions::squares(frames, mels, pieces.frames, lines.clone());
        let rows = lines.len() as u32 * pitches;
        let all: Vec<u32> = (0..rows).collect();
        let places = self.encoders[0].run(&bytes, step((0..rows).map(|_| [0; 3]), &all), turns)?;
        let channels = pieces.channels as usize;
        let bytes = convolutions::neighbours(&places, (lines, pitches), channels, 0..times);
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

/// The adapter that the directory of a model has for requests with sounds.
pub(crate) fn own_adapter(origin: &str) -> Option<AdapterSource> {
    let path = Path::new(origin);
    let checkpoint = welte_formats::open(path).ok()?;
    let spec = welte_models::hearing_spec(&*checkpoint).ok()??;
    let is_there =
        spec.family == HearingFamily::GraniteSpeech && path.join("adapter_config.json").is_file();
    is_there.then(|| AdapterSource {
        name: "speech".into(),
        path: path.into(),
        scale: 1.0,
        for_all: false,
    })
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
