//! Finds the spans that are not silent, by their energy.

use crate::RATE;
use std::ops::Range;

/// Samples whose energy is measured together: 20 ms.
const FRAME: usize = RATE as usize / 50;
/// A frame is silent below this part of the loud frames' amplitude: 34 dB.
const RELATIVE: f32 = 0.02;
/// A frame is silent below this amplitude: -66 dB of the loudest that a file can hold.
const LEAST: f32 = 0.0005;
/// Silence shorter than this does not part spans, in frames: 0.6 s.
const GAP: usize = 30;
/// What is kept around a span, in frames: 0.2 s.
const MARGIN: usize = 10;

/// The spans of samples at [`RATE`] in which something is heard, in order. Noise counts as heard: only silence, relative to the
/// loud parts, is left out.
pub fn speech(samples: &[f32]) -> Vec<Range<usize>> {
    let amplitude = |frame: &[f32]| {
        let power: f32 = frame.iter().map(|v| v * v).sum();
        (power / frame.len() as f32).sqrt()
    };
    let levels: Vec<f32> = samples.chunks(FRAME).map(amplitude).collect();
    let mut sorted = levels.clone();
    sorted.sort_unstable_by(f32::total_cmp);
    // A click does not make speech silent.
    let loud = sorted.get(sorted.len() * 19 / 20).copied().unwrap_or(0.0);
    let threshold = (RELATIVE * loud).max(LEAST);
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (number, _) in levels.iter().enumerate().filter(|(_, v)| **v >= threshold) {
        let span = number.saturating_sub(MARGIN)..(number + 1 + MARGIN).min(levels.len());
        match spans.last_mut() {
            Some(last) if span.start <= last.end + GAP => last.end = span.end,
            _ => spans.push(span),
        }
    }
    let samples = |frame: usize| (frame * FRAME).min(samples.len());
    spans
        .into_iter()
        .map(|span| samples(span.start)..samples(span.end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_between_tones_is_left_out() {
        let second = RATE as usize;
        let mut samples = vec![0.0; 10 * second];
        for span in [2 * second..3 * second, 7 * second..8 * second] {
            for i in span {
                samples[i] = 0.3 * (i as f32 * 0.3).sin();
            }
        }
        let found = speech(&samples);
        assert_eq!(found.len(), 2, "{found:?}");
        let near = |at: usize, seconds: f32| (at as f32 / RATE as f32 - seconds).abs() < 0.25;
        assert!(
            near(found[0].start, 2.0) && near(found[0].end, 3.0),
            "{found:?}"
        );
        assert!(
            near(found[1].start, 7.0) && near(found[1].end, 8.0),
            "{found:?}"
        );
        assert!(speech(&samples[..second]).is_empty());
        assert!(speech(&[]).is_empty());
    }
}
