//! What rows of Whisper's encoder read.

/// Adds what the first `rows` rows read of the frames of a window, each of `bins` values: five frames around their place, and whether
/// there is one before the window's first. Missing frames are zeros.
pub(crate) fn read_frames(frames: &[f32], bins: usize, rows: u32, bytes: &mut Vec<u8>) {
    let nothing = vec![0.0; bins];
    for row in 0..i64::from(rows) {
        for frame in 2 * row - 2..=2 * row + 2 {
            let at = usize::try_from(frame).ok().map(|frame| frame * bins);
            let values = at.and_then(|at| frames.get(at..at + bins));
            let values = values.unwrap_or(&nothing);
            bytes.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        }
        let inside = if row == 0 { 0.0f32 } else { 1.0 };
        let rest = [inside, 0.0, 0.0, 0.0];
        bytes.extend(rest.iter().flat_map(|v| v.to_ne_bytes()));
    }
}
