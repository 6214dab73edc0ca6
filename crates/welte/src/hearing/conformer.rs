//! What the host does for the conformers of Gemma 3n and Gemma 4: what the rows of their programs read.

use super::{Hearing, Sound, step};
use crate::Error;
use crate::engine::Turns;
use welte_models::{Conformer, Pieces};

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
