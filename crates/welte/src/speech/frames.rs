//! What rows of Whisper's encoder read.

/// Adds what the first `rows` rows read of the frames of a window, each of `bins` values: five frames around their place, whether there
/// is one before it, at it and after it, and whether the row is one of the sound. Missing frames are zeros.
pub(crate) fn read_frames(frames: &[f32], bins: usize, rows: u32, bytes: &mut Vec<u8>) {
    let nothing = vec![0.0; bins];
    let count = (frames.len() / bins) as i64;
    for row in 0..i64::from(rows) {
        for frame in 2 * row - 2..=2 * row + 2 {
            let at = usize::try_from(frame).ok().map(|frame| frame * bins);
            let values = at.and_then(|at| frames.get(at..at + bins));
            let values = values.unwrap_or(&nothing);
            bytes.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        }
        let is_there = |frame: i64| f32::from(u8::from((0..count).contains(&frame)));
        let before = f32::from(u8::from(row > 0));
        let own = is_there(2 * row);
        let rest = [before, own, is_there(2 * row + 1), own];
        bytes.extend(rest.iter().flat_map(|v| v.to_ne_bytes()));
    }
}
