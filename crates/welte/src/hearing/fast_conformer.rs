//! What the host does for the FastConformer of LFM2-Audio: neighbours of its convolutions.

use super::{Hearing, Sound, convolutions, step};
use crate::Error;
use crate::engine::Turns;
use welte_models::{FastConformer, Pieces};

impl Hearing {
    /// The features of a sound.
    pub(super) fn conform_fast(&self, sound: &Sound, turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let Some(own) = self.spec.fast else {
            return Ok(Vec::new());
        };
        let (mels, frames) = (self.spec.mels, sound.heard as u32);
        let (all_lines, times) = (Pieces::after(frames, 2), Pieces::states(frames));
        let (pitches, joined) = (Pieces::after(mels, 2), Pieces::after(mels, 3));
        let mut states = Vec::with_capacity((times * self.spec.dim) as usize);
        for from in (0..times).step_by(FastConformer::TIMES as usize) {
            let to = times.min(from + FastConformer::TIMES);
            // The first of them reads the line before its own ones.
            let lines = (2 * from).saturating_sub(1)..all_lines.min(2 * to);
            let values = &sound.spectrogram.values;
            let bytes = convolutions::squares(values, mels, frames, lines.clone());
            let rows = lines.len() as u32 * pitches;
            let all: Vec<u32> = (0..rows).collect();
            let begun = step((0..rows).map(|_| [0; 3]), &all);
            let places = self.encoders[0].run(&bytes, begun, turns)?;
            let channels = own.channels as usize;
            let bytes = convolutions::neighbours(&places, (lines, pitches), channels, from..to);
            let rows = (to - from) * joined;
            let ends: Vec<u32> = (1..=to - from).map(|time| time * joined - 1).collect();
            let begun = step((0..rows).map(|_| [0; 3]), &ends);
            states.extend(self.encoders[1].run(&bytes, begun, turns)?);
        }
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let all: Vec<u32> = (0..times).collect();
        let begun = step((0..times).map(|_| [0; 3]), &all);
        self.encoders[2].run(&bytes, begun, turns)
    }
}
