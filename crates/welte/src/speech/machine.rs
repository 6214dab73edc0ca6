//! The two programs of a model on a device, and what they are fed.

use super::frames::read_frames;
use crate::Error;
use std::sync::Arc;
use welte_device::{Context, Loaded, Pick, Role, Stage, Step, StepOptions, Want};
use welte_models::SpeechSpec;
use welte_table::{Format, Input, Op, PassKind, Row, params};

/// The cache of the decoder that an encoder pass fills.
const CROSS: usize = 1;

/// An encoder and a decoder with the windows that were heard last.
pub(super) struct Machine {
    spec: SpeechSpec,
    /// The programs of the encoder and the decoder.
    loaded: [Arc<dyn Loaded>; 2],
    /// After a fault of the device.
    pub(super) lost: bool,
    encoder: Box<dyn Context>,
    decoder: Box<dyn Context>,
    /// The window whose keys and values each slot reads.
    of_slots: Vec<u32>,
    windows: u32,
    step: Step,
    bytes: Vec<u8>,
}

impl Machine {
    /// Every slot has pages of its own for its text.
    pub(super) fn new(spec: SpeechSpec, loaded: [Arc<dyn Loaded>; 2]) -> Result<Machine, Error> {
        let (encoder, mut decoder) = (loaded[0].context()?, loaded[1].context()?);
        let program = decoder.program().clone();
        let slots = program.slots;
        for (number, cache) in program.caches.iter().enumerate() {
            let own = cache.pages / slots;
            for slot in (0..slots).filter(|_| number != CROSS) {
                let pages: Vec<u32> = (slot * own..(slot + 1) * own).collect();
                decoder.set_pages(number, slot, 0, &pages)?;
            }
        }
        let mut machine = Machine {
            step: Step::with_room(program.most_rows() as usize),
            windows: program.caches[CROSS].pages / spec.window_pages(),
            of_slots: vec![u32::MAX; slots as usize],
            spec,
            loaded,
            lost: false,
            encoder,
            decoder,
            bytes: Vec::new(),
        };
        (0..slots).try_for_each(|slot| machine.attend(slot, 0))?;
        Ok(machine)
    }

    /// Takes new contexts after a fault of the device.
    pub(super) fn renew(&mut self) -> Result<(), Error> {
        if self.lost {
            *self = Machine::new(self.spec.clone(), self.loaded.clone())?;
        }
        Ok(())
    }

    /// A slot's text is of this window from now on.
    pub(super) fn attend(&mut self, slot: u32, window: u32) -> Result<(), Error> {
        let of_slot = &mut self.of_slots[slot as usize];
        if *of_slot != window {
            *of_slot = window;
            let count = self.spec.window_pages();
            let pages: Vec<u32> = (window * count..(window + 1) * count).collect();
            self.decoder.set_pages(CROSS, slot, 0, &pages)?;
        }
        Ok(())
    }

    /// The most windows at a time.
    pub(super) fn windows(&self) -> u32 {
        self.windows
    }

    /// The most texts at a time.
    pub(super) fn slots(&self) -> u32 {
        self.decoder.program().slots
    }

    /// Hears a window: frames of the spectrogram, one after the other. Missing ones are zeros.
    pub(super) fn hear(&mut self, window: u32, frames: &[f32]) -> Result<(), Error> {
        let states = self.encode(frames)?;
        self.remember(window, &states)
    }

    /// The states of a window.
    pub(super) fn encode(&mut self, frames: &[f32]) -> Result<Vec<f32>, Error> {
        let (mels, rows) = (self.spec.mels as usize, self.spec.positions);
        let frames = &frames[..frames.len().min(self.spec.frames() as usize * mels)];
        self.bytes.clear();
        read_frames(frames, mels, rows, &mut self.bytes);
        let buffer = self.encoder.program().features;
        self.encoder.write_bytes(buffer, 0, &self.bytes)?;
        self.listen(rows);
        self.step.picks.extend((0..rows).map(picked));
        let states = self.encoder.step(&self.step, StepOptions::default())?;
        Ok(states.to_vec())
    }

    /// Stores keys and values of a window's states.
    fn remember(&mut self, window: u32, states: &[f32]) -> Result<(), Error> {
        self.attend(0, window)?;
        self.bytes.clear();
        self.bytes
            .extend(states.iter().flat_map(|v| v.to_ne_bytes()));
        let buffer = self.decoder.program().features;
        self.decoder.write_bytes(buffer, 0, &self.bytes)?;
        self.listen(self.spec.positions);
        self.step.picks.push(picked(self.spec.positions - 1));
        self.decoder.step(&self.step, StepOptions::default())?;
        Ok(())
    }

    /// Rows that read the features, in order.
    fn listen(&mut self, rows: u32) {
        self.step.clear();
        let all = (0..rows).map(|number| Row {
            input: Input::Feature(number),
            ..Row::new(0, number, 0)
        });
        self.step.add(Role::Text, all);
    }

    /// Feeds the tokens that begin a text. Returns the logits that follow those at `picks`, which ascend.
    pub(super) fn begin(
        &mut self,
        slot: u32,
        tokens: &[u32],
        picks: &[u32],
    ) -> Result<&[f32], Error> {
        self.step.clear();
        let rows = (0..).zip(tokens);
        let rows = rows.map(|(position, token)| Row::new(*token, position, slot));
        self.step.add(Role::Prompt, rows);
        self.step.picks.extend(picks.iter().map(|row| picked(*row)));
        Ok(self.decoder.step(&self.step, StepOptions::default())?)
    }

    /// Feeds one more token of some slots: slot, token and position. Returns the logits that follow each.
    pub(super) fn go_on(&mut self, rows: &[(u32, u32, u32)]) -> Result<&[f32], Error> {
        self.step.clear();
        for (slot, token, position) in rows {
            let row = Row::new(*token, *position, *slot);
            self.step.add(Role::Generated, [row]);
        }
        Ok(self.decoder.step(&self.step, StepOptions::default())?)
    }

    /// Feeds a text and shows where some heads of cross attention look: `[head][token][place]`, for the first places of the
    /// first slot's window. No op yields these weights; queries and keys are read on their way.
    pub(super) fn look(
        &mut self,
        tokens: &[u32],
        heads: &[[u32; 2]],
        places: usize,
    ) -> Result<Vec<f32>, Error> {
        let program = self.decoder.program().clone();
        let keys = self.keys(heads, places)?;
        self.step.clear();
        let rows = (0..).zip(tokens);
        self.step.add(
            Role::Prompt,
            rows.map(|(position, token)| Row::new(*token, position, 0)),
        );
        self.step.picks.push(picked(tokens.len() as u32 - 1));
        self.decoder
            .step(&self.step, StepOptions::stage(Stage::Begin))?;
        let dim = self.spec.dim as usize;
        let head_dim = dim / self.spec.decoder.heads as usize;
        let mut weights = vec![0.0; heads.len() * tokens.len() * places];
        let pass = program
            .pass(PassKind::Prompt)
            .map(|at| &program.passes[at].commands[..]);
        let commands = pass.unwrap_or(&[]);
        let mut done = 0;
        let crossed = commands
            .iter()
            .enumerate()
            .filter(|(_, c)| c.op == Op::CrossAttention);
        for (at, command) in crossed {
            let params = params::CrossAttention::of(&command.params);
            let own = heads
                .iter()
                .enumerate()
                .filter(|(_, [layer, _])| *layer == params.layer);
            let own: Vec<_> = own.collect();
            if own.is_empty() {
                continue;
            }
            let part = StepOptions::stage(Stage::run(done..at));
            self.decoder.step(&self.step, part)?;
            done = at;
            let stride = params.q_stride as usize;
            self.bytes.resize(4 * stride * tokens.len(), 0);
            let queries = command.buffers[0];
            let first = queries.offset.into();
            self.decoder
                .read_bytes(queries.buffer, first, &mut self.bytes)?;
            let (words, _) = self.bytes.as_chunks::<4>();
            let values: Vec<f32> = words.iter().map(|word| f32::from_ne_bytes(*word)).collect();
            for (number, [_, head]) in own {
                let keys = &keys[number * places * head_dim..][..places * head_dim];
                for (token, row) in values.chunks_exact(stride).enumerate() {
                    let query = &row[*head as usize * head_dim..][..head_dim];
                    let out = &mut weights[(number * tokens.len() + token) * places..][..places];
                    for (out, key) in out.iter_mut().zip(keys.chunks_exact(head_dim)) {
                        let product: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                        *out = product * params.scale;
                    }
                    softmax(out);
                }
            }
        }
        let part = StepOptions::stage(Stage::run(done..usize::MAX));
        self.decoder.step(&self.step, part)?;
        self.decoder
            .step(&self.step, StepOptions::stage(Stage::End))?;
        Ok(weights)
    }

    /// The keys of some heads at the first places of the first slot's window.
    fn keys(&mut self, heads: &[[u32; 2]], places: usize) -> Result<Vec<f32>, Error> {
        let program = self.decoder.program().clone();
        let (cache, page) = (&program.caches[CROSS], program.page as usize);
        let head_dim = (self.spec.dim / self.spec.decoder.heads) as usize;
        let size = cache.page_bytes(program.page).unwrap_or(0) as usize;
        let run = size / (2 * cache.layers() as usize);
        let mut keys = vec![0.0; heads.len() * places * head_dim];
        let mut bytes = vec![0; size];
        let first = self.of_slots[0] * self.spec.window_pages();
        for number in 0..places.div_ceil(page) {
            self.decoder
                .read_page(CROSS, first + number as u32, &mut bytes)?;
            let count = page.min(places - number * page);
            for (at, [layer, head]) in heads.iter().enumerate() {
                // Keys and values of a layer are two runs.
                let start = 2 * *layer as usize * run + *head as usize * page * head_dim * 2;
                let stored = &bytes[start..][..count * head_dim * 2];
                let to = &mut keys[(at * places + number * page) * head_dim..][..count * head_dim];
                welte_formats::quant::decode(Format::F16, stored, to);
            }
        }
        Ok(keys)
    }
}

fn softmax(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    values
        .iter_mut()
        .for_each(|value| *value = (*value - most).exp());
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
}

fn picked(row: u32) -> Pick {
    Pick {
        row,
        want: Want::Values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceChoice, Speech, SpeechOptions, TranscribeOptions, Update};
    use std::ops::ControlFlow;
    use welte_audio::{Audio, RATE};

    /// As after a fault of the device, or a panic in the middle of a step.
    #[test]
    fn a_lost_machine_is_made_anew() {
        let golden = welte_goldens::Golden::new("speech/f32");
        let options = SpeechOptions {
            device: DeviceChoice::CPU,
            ..SpeechOptions::default()
        };
        let path = golden.path().to_str().expect("a path");
        let speech = Speech::open(path, &options).expect("a model");
        let audio = Audio {
            samples: (0..RATE).map(|i| (i as f32 * 0.1).sin()).collect(),
            rate: RATE,
            channels: 1,
        };
        let options = TranscribeOptions::default();
        let mut see = |_: Update<'_>| ControlFlow::Continue(());
        let mut text = || {
            speech
                .transcribe(&audio, &options, &mut see)
                .expect("a text")
        };
        let before = text();
        let own = |machine: &Machine| std::ptr::from_ref(&*machine.decoder).cast::<u8>();
        let mut machine = speech.parts.machine();
        let first = own(&machine);
        machine.lost = true;
        drop(machine);
        assert_eq!(text().segments, before.segments);
        let machine = speech.parts.machine();
        assert!(!machine.lost && own(&machine) != first);
    }
}
