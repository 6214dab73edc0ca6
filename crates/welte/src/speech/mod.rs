//! A model that writes down speech.
//!
//! [`Speech::transcribe`] reads sound in windows of 30 s. Each is heard once, by the encoder; then the decoder writes its text,
//! with timestamps that say where the next window begins.

mod frames;
mod machine;
mod options;
mod parts;
mod rules;
mod tokens;
mod transcript;
mod window;
mod words;

use crate::fair_lock::FairLock;
use crate::model::plan_program;
use crate::vision::{fits, place};
use crate::{Error, VisionOptions};
pub(crate) use frames::read_frames;
use machine::Machine;
pub use options::{SpeechOptions, TranscribeOptions, Update};
use parts::Parts;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use tokens::{Tokens, symbols};
pub(crate) use tokens::{language_code, language_name};
pub use transcript::{Segment, Task, Transcript, TranscriptFormat, Word};

use welte_audio::{Audio, HOP, Limits, Mel, RATE};
use welte_device::{Device, DeviceId};
use welte_formats::Checkpoint;
use welte_models::SpeechSpec;
use window::Work;
pub(crate) use window::compression_ratio;

/// A model of speech that is ready to run.
pub struct Speech {
    origin: String,
    device: DeviceId,
    parts: Parts,
}

impl std::fmt::Debug for Speech {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Speech").field(&self.origin).finish()
    }
}

impl Speech {
    /// Loads a model.
    pub fn open(source: &str, options: &SpeechOptions) -> Result<Speech, Error> {
        Speech::of(&*welte_formats::open(Path::new(source))?, options)
    }

    /// Loads the model of a checkpoint.
    pub fn of(checkpoint: &dyn Checkpoint, options: &SpeechOptions) -> Result<Speech, Error> {
        let origin = checkpoint.origin().to_string();
        let spec = welte_models::speech_spec(checkpoint)?.ok_or_else(|| Error::File {
            path: origin.clone(),
            problem: "is not a model of speech; supported is Whisper, as a directory from the Hugging Face hub or a .bin file of whisper.cpp".to_string(),
        })?;
        let tokenizer = Arc::new(crate::text::tokenizer(checkpoint)?);
        let mut tokens = Tokens::of(&tokenizer, &origin, spec.vocab)?;
        let lists = Lists::of(checkpoint, &spec)?;
        tokens.suppressed_first = match lists.first {
            Some(list) => list,
            None => {
                let mut list = tokenizer.encode(" ", false, false)?;
                list.push(tokens.end);
                list
            }
        };
        let symbols = match lists.always {
            Some(list) => list,
            None => symbols(&tokenizer)?,
        };
        let near = VisionOptions {
            device: options.device,
            threads: options.threads,
            cpus: options.cpus.clone(),
            ..VisionOptions::default()
        };
        let (device, machine) = place(&near, |device: Arc<dyn Device>| {
            let texts = options.texts.max(options.windows);
            let programs = welte_models::compile_speech(&spec, checkpoint, texts, options.windows)?;
            let load = |program| {
                let plan = plan_program(&*device, checkpoint, program, device.patterns())?;
                fits(plan.memory.total(), &*device, checkpoint)?;
                Ok::<_, Error>(device.load(plan, checkpoint, &mut |_| ())?)
            };
            let loaded = [load(programs.encoder)?, load(programs.decoder)?];
            let machine = Machine::new(spec.clone(), loaded)?;
            Ok((device.info().id, machine))
        })?;
        let parts = Parts {
            mel: Mel::new(spec.mels as usize),
            tokenizer,
            tokens,
            symbols,
            alignment_heads: lists.heads.unwrap_or_else(|| later_heads(&spec)),
            windows: machine.windows(),
            machine: FairLock::new(machine),
            spec,
        };
        Ok(Speech {
            origin,
            device,
            parts,
        })
    }

    /// Where it came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The device that it runs on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// What it is.
    pub fn spec(&self) -> &SpeechSpec {
        &self.parts.spec
    }

    /// The codes of the languages that it knows; a model of English knows no other.
    pub fn languages(&self) -> Vec<&'static str> {
        self.parts.languages()
    }

    /// The code of a language that is named by its code or its English name, if the model knows it.
    pub fn language(&self, asked: &str) -> Result<&'static str, Error> {
        self.parts.language(asked)
    }

    /// Decodes a file of sound. Longer ones than `seconds` are refused.
    pub fn read(&self, bytes: Vec<u8>, seconds: u32) -> Result<Audio, Error> {
        Ok(welte_audio::decode(bytes, &Limits::lasting(seconds))?)
    }

    /// Memory that a second of sound takes while it is written down.
    pub fn bytes_per_second(&self) -> usize {
        let frames = RATE as usize / HOP;
        4 * (RATE as usize + frames * self.parts.spec.mels as usize)
    }

    /// The spelling of a segment's tokens but timestamps, each with the logarithm of its probability.
    pub fn spelled<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = (&'a [u8], f32)> {
        let all = segment.tokens.iter().zip(&segment.logprobs);
        let texts = all.filter(|(token, _)| **token < self.parts.tokens.end);
        texts.map(|(token, logprob)| (self.parts.tokenizer.token_bytes(*token), *logprob))
    }

    /// Writes down what is said. `see` may end the work; what is written by then is the result.
    pub fn transcribe(
        &self,
        audio: &Audio,
        options: &TranscribeOptions,
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, Error> {
        Work::new(&self.parts, options)?.run(&audio.samples, see)
    }

    /// The states that the encoder makes of frames of a spectrogram, one after the other: for tests and tools.
    pub fn states(&self, frames: &[f32]) -> Result<Vec<f32>, Error> {
        self.parts.machine().encode(frames)
    }

    /// The logits that follow each of some tokens, after a window of frames: for tests and tools.
    pub fn logits(&self, frames: &[f32], tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut machine = self.parts.machine();
        machine.hear(0, frames)?;
        let mut all = Vec::new();
        for (position, token) in (0..).zip(tokens) {
            all.extend_from_slice(machine.go_on(&[(0, *token, position)])?);
        }
        Ok(all)
    }

    /// The same by the pass of prompts, after the last token.
    pub fn prompt_logits(&self, frames: &[f32], tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut machine = self.parts.machine();
        machine.hear(0, frames)?;
        let last = tokens.len().saturating_sub(1) as u32;
        Ok(machine.begin(0, tokens, &[last])?.to_vec())
    }

    /// Where the heads that tell the times of words look while tokens are read, `[head][token][state]`: for tests and tools.
    pub fn looks(&self, frames: &[f32], tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let (parts, mut machine) = (&self.parts, self.parts.machine());
        machine.hear(0, frames)?;
        let places = parts.spec.positions as usize;
        machine.look(tokens, &parts.alignment_heads, places)
    }

    /// The tokens of the first window's text: for tests and tools.
    pub fn first_window(
        &self,
        audio: &Audio,
        options: &TranscribeOptions,
    ) -> Result<Vec<u32>, Error> {
        let spectrogram = self.parts.mel.spectrogram(&audio.samples, 0);
        Work::new(&self.parts, options)?.first(&spectrogram)
    }
}

/// Tokens that a model's own settings suppress.
struct Lists {
    always: Option<Vec<u32>>,
    first: Option<Vec<u32>>,
    heads: Option<Vec<[u32; 2]>>,
}

/// All heads of the later half of the layers: what looks at the sound if the model does not say.
fn later_heads(spec: &SpeechSpec) -> Vec<[u32; 2]> {
    let layers = spec.decoder.count / 2..spec.decoder.count;
    let heads = layers.flat_map(|layer| (0..spec.decoder.heads).map(move |head| [layer, head]));
    heads.collect()
}

impl Lists {
    fn of(checkpoint: &dyn Checkpoint, spec: &SpeechSpec) -> Result<Lists, Error> {
        let file = checkpoint.text_files().generation_config_json;
        let settings = match &file {
            None => Value::Null,
            Some(path) => {
                let fault = |problem: String| Error::File {
                    path: path.display().to_string(),
                    problem,
                };
                let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
                serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?
            }
        };
        let numbers = |list: &Value| {
            let ids = list.as_array()?.iter();
            let ids = ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            ids.collect::<Option<Vec<u32>>>()
        };
        let list = |key: &str| numbers(&settings[key]);
        let head = |pair: &Value| {
            let pair = <[u32; 2]>::try_from(numbers(pair)?).ok()?;
            (pair[0] < spec.decoder.count && pair[1] < spec.decoder.heads).then_some(pair)
        };
        let heads = settings["alignment_heads"].as_array();
        let heads = heads.and_then(|list| list.iter().map(head).collect::<Option<Vec<_>>>());
        Ok(Lists {
            heads: heads.filter(|heads| !heads.is_empty()),
            always: list("suppress_tokens"),
            first: list("begin_suppress_tokens"),
        })
    }
}
