//! What the host does for Granite Speech: blocks of frames, and windows of states with their queries.

use super::{Hearing, Sound, step};
use crate::Error;
use crate::engine::Turns;
use welte_device::{Role, Step};
use welte_models::GraniteSpeech;
use welte_table::{Input, Row};

impl Hearing {
    /// Features of a sound of so many frames, two of which are a state. The last window is filled up.
    pub(super) fn granite_features(&self, frames: usize) -> usize {
        let own = self.spec.granite;
        own.map_or(0, |own| {
            let windows = (frames / 2).div_ceil(own.window as usize);
            windows * own.queries as usize
        })
    }

    /// Frames of the longest sound of at most so many features.
    pub(super) fn granite_frames(&self, features: usize) -> usize {
        self.spec.granite.map_or(0, |own| {
            let windows = features / own.queries as usize;
            windows.saturating_mul(2 * own.window as usize)
        })
    }

    /// The features of a sound.
    pub(super) fn look(&self, sound: &Sound, turns: &Turns<'_>) -> Result<Vec<f32>, Error> {
        let Some(own) = self.spec.granite else {
            return Ok(Vec::new());
        };
        let bins = self.spec.mels as usize;
        let pairs = sound.spectrogram.values.chunks_exact(2 * bins);
        let states = pairs.len() as u32;
        let rows = states.next_multiple_of(own.block);
        let read = GraniteSpeech::row_values(self.spec.mels) as usize;
        let mut bytes = Vec::with_capacity(4 * read * rows as usize);
        for pair in pairs {
            let is_there = [1.0, 0.0, 0.0, 0.0];
            let row = pair.iter().chain(&is_there);
            bytes.extend(row.flat_map(|v| v.to_ne_bytes()));
        }
        bytes.resize(4 * read * rows as usize, 0);
        let of_block = (0..rows).map(|row| {
            let (block, place) = (row / own.block, row % own.block);
            let last = states.min((block + 1) * own.block) - 1;
            Row {
                input: Input::Feature(row),
                axes: [block, place, 0],
                reach: last.max(row),
                ..Row::new(0, row, 0)
            }
        });
        let of_block: Vec<Row> = of_block.collect();
        let all: Vec<u32> = (0..states).collect();
        let begun = Step::of(Role::Text, &of_block, &all);
        let states = self.encoders[0].run(&bytes, begun, turns)?;
        let window = (own.window * self.spec.dim) as usize;
        let windows: Vec<&[f32]> = states.chunks(window).collect();
        let rows = own.window + own.queries;
        let mut features = Vec::with_capacity(sound.features * self.width());
        for some in windows.chunks(GraniteSpeech::WINDOWS as usize) {
            let mut bytes = Vec::new();
            for own_states in some {
                bytes.extend(own_states.iter().flat_map(|v| v.to_ne_bytes()));
                bytes.resize(bytes.len() + 4 * (window - own_states.len()), 0);
                bytes.extend(self.queries.iter().flat_map(|v| v.to_ne_bytes()));
            }
            let count = some.len() as u32;
            let axes = (0..count * rows).map(|row| {
                let is_query = row % rows >= own.window;
                [row / rows, u32::from(is_query), 0]
            });
            let queries = (0..count * rows).filter(|row| row % rows >= own.window);
            let ends: Vec<u32> = queries.collect();
            features.extend(self.encoders[1].run(&bytes, step(axes, &ends), turns)?);
        }
        Ok(features)
    }
}
