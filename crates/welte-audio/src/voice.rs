//! Finds the spans that are not silent, by their energy, and cuts long ones where it is quiet.

use crate::RATE;
use std::collections::VecDeque;
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
/// Frames whose loudness together decides where a span is cut: 0.2 s.
const QUIET: usize = 10;

/// The spans of samples at [`RATE`] in which something is heard, in order. Noise counts as heard: only silence, relative to the
/// loud parts, is left out.
pub fn speech(samples: &[f32]) -> Vec<Range<usize>> {
    let levels = levels(samples);
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
    let of_samples = |span: Range<usize>| in_samples(&span, samples.len());
    spans.into_iter().map(of_samples).collect()
}

/// Windows of at most `most` samples that cover `spans` of them. Neighbouring spans share a window as long as it holds them, and
/// spans that are longer are cut where it is quiet.
pub fn windows(samples: &[f32], spans: &[Range<usize>], most: usize) -> Vec<Range<usize>> {
    let levels = levels(samples);
    let frames = |span: &Range<usize>| span.start / FRAME..span.end.div_ceil(FRAME);
    let spans: Vec<Range<usize>> = spans.iter().map(frames).collect();
    let loudness = |at: usize| {
        let near = at.saturating_sub(QUIET / 2)..(at + QUIET / 2).min(levels.len());
        levels[near].iter().sum()
    };
    let windows = cut(&spans, (most / FRAME).max(1), loudness);
    let of_samples = |window: &Range<usize>| in_samples(window, samples.len());
    windows.iter().map(of_samples).collect()
}

/// As [`windows`], for spans of frames whose loudness is known.
pub fn cut(
    spans: &[Range<usize>],
    most: usize,
    loudness: impl Fn(usize) -> f32,
) -> VecDeque<Range<usize>> {
    let mut windows: VecDeque<Range<usize>> = VecDeque::new();
    for span in spans {
        match windows.back_mut() {
            Some(last) if span.end - last.start <= most => last.end = span.end,
            _ => windows.push_back(span.clone()),
        }
        while let Some(long) = windows.pop_back_if(|last| last.len() > most) {
            // A rest of a few frames would be hard to understand.
            let last = (long.start + most).min(long.end - most / 30);
            let places = long.start + (most * 2 / 3).max(1)..last;
            let place = places.min_by(|a, b| loudness(*a).total_cmp(&loudness(*b)));
            let place = place.unwrap_or(long.start + most);
            windows.push_back(long.start..place);
            windows.push_back(place..long.end);
        }
    }
    windows
}

/// The amplitude of each frame.
fn levels(samples: &[f32]) -> Vec<f32> {
    let amplitude = |frame: &[f32]| {
        let power: f32 = frame.iter().map(|v| v * v).sum();
        (power / frame.len() as f32).sqrt()
    };
    samples.chunks(FRAME).map(amplitude).collect()
}

/// The samples of frames; the last frame may be shorter.
fn in_samples(frames: &Range<usize>, count: usize) -> Range<usize> {
    (frames.start * FRAME).min(count)..(frames.end * FRAME).min(count)
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

    /// Short spans share windows, a long one is cut at its quietest place, and nothing is lost.
    #[test]
    fn windows_are_cut_where_it_is_quiet() {
        let second = RATE as usize;
        let mut samples: Vec<f32> = (0..18 * second).map(|i| (i as f32 * 0.3).sin()).collect();
        samples[second..2 * second].fill(0.0);
        samples[9 * second..10 * second]
            .iter_mut()
            .for_each(|v| *v *= 0.1);
        let spans = [0..second, 2 * second..18 * second];
        let found = windows(&samples, &spans, 10 * second);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], 0..second);
        assert_eq!((found[1].start, found[2].end), (2 * second, 18 * second));
        assert_eq!(found[1].end, found[2].start);
        let cut = found[1].end as f32 / second as f32;
        assert!((9.0..10.0).contains(&cut), "{cut}");
        let together = windows(&samples, &[0..second, 2 * second..5 * second], 10 * second);
        assert_eq!(together, std::slice::from_ref(&(0..5 * second)));
        assert!(windows(&samples, &[], 10 * second).is_empty());
        // The last samples are less than a frame.
        let all = 0..2 * second + 7;
        let found = windows(&samples[all.clone()], std::slice::from_ref(&all), second);
        assert_eq!(found.last().map(|window| window.end), Some(all.end));
        assert!(
            found.iter().all(|window| window.len() <= second),
            "{found:?}"
        );
    }
}
