//! What the rows of the convolutions of Qwen3-ASR and LFM2-Audio read.

use std::ops::Range;
use welte_models::Pieces;

/// What the rows of the first program read of a piece: a row for each place after two convolutions, by time, of which there are `lines`,
/// and then by pitch. `frames` are the piece's own, `all` how many a whole one has.
pub(super) fn squares(frames: &[f32], mels: u32, all: u32, lines: Range<u32>) -> Vec<u8> {
    let pitches = Pieces::after(mels, 2);
    let (first_lines, first_pitches) = (Pieces::after(all, 1), Pieces::after(mels, 1));
    let values = (lines.len() as u32 * pitches * Pieces::ROW_VALUES) as usize;
    let mut bytes = Vec::with_capacity(4 * values);
    // The place that is so far after the first neighbour of the first neighbour.
    let value = |line: u32, pitch: u32, of: u32, at: u32| {
        let frame = (4 * line + of).checked_sub(3)? as usize;
        let mel = (4 * pitch + at).checked_sub(3).filter(|mel| *mel < mels)?;
        frames.get(frame * mels as usize + mel as usize).copied()
    };
    let is_there = |place: u32, neighbour: u32, count: u32| {
        let at = (2 * place + neighbour).checked_sub(1);
        at.is_some_and(|at| at < count)
    };
    for (line, pitch) in lines.flat_map(|line| (0..pitches).map(move |pitch| (line, pitch))) {
        let mut add = |value: f32| bytes.extend(value.to_ne_bytes());
        for of in 0..Pieces::SIDE {
            for at in 0..Pieces::SIDE {
                add(value(line, pitch, of, at).unwrap_or(0.0));
            }
        }
        (Pieces::SIDE * Pieces::SIDE..Pieces::INSIDE).for_each(|_| add(0.0));
        for neighbour in 0..Pieces::TAPS {
            let inside = is_there(line, neighbour / 3, first_lines)
                && is_there(pitch, neighbour % 3, first_pitches);
            add(f32::from(u8::from(inside)));
        }
        (Pieces::INSIDE + Pieces::TAPS..Pieces::ROW_VALUES).for_each(|_| add(0.0));
    }
    bytes
}

/// What the rows of the second program read: the nine neighbours of the places of `times` and of all pitches, one after the other, by time
/// and then by pitch. `places` are those of `lines`; there are no others.
pub(super) fn neighbours(
    places: &[f32],
    (lines, pitches): (Range<u32>, u32),
    channels: usize,
    times: Range<u32>,
) -> Vec<u8> {
    let own = Pieces::after(pitches, 1);
    let row = Pieces::TAPS as usize * channels;
    let mut bytes = Vec::with_capacity(4 * times.len() * own as usize * row);
    let nothing = vec![0.0f32; channels];
    for (time, pitch) in times.flat_map(|time| (0..own).map(move |pitch| (time, pitch))) {
        for neighbour in 0..Pieces::TAPS {
            let at = |place: u32, of: u32, there: &Range<u32>| {
                let at = (2 * place + of).checked_sub(1);
                at.filter(|at| there.contains(at))
            };
            let line = at(time, neighbour / 3, &lines);
            let place = line.zip(at(pitch, neighbour % 3, &(0..pitches)));
            let values = place.map(|(line, pitch)| {
                let first = ((line - lines.start) * pitches + pitch) as usize * channels;
                &places[first..first + channels]
            });
            let values = values.unwrap_or(&nothing);
            bytes.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        }
    }
    bytes
}
