//! Says when somebody begins and ends to speak while sound comes in, by its energy above the noise.

use crate::RATE;
use std::collections::VecDeque;

/// Samples whose energy is measured together: 20 ms.
const FRAME: usize = RATE as usize / 50;
/// Frames among which the quietest one is the noise: 3 s. Speech has a pause in them.
const NOISE: usize = 150;
/// The bounds of the noise in dB of the loudest sound: a louder one is something else, and silence is not below.
const QUIETEST: f32 = -65.0;
const LOUDEST: f32 = -40.0;
/// How far above the noise a frame must be at a threshold of 1, in dB.
const MOST_MARGIN: f32 = 30.0;
/// Speech that has begun may be quieter by this, in dB.
const HOLD: f32 = 5.0;
/// Speech begins once `ENOUGH` of the last `ONSET` frames are loud: a click is shorter.
const ONSET: usize = 5;
const ENOUGH: usize = 3;

/// When somebody counts as speaking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VoiceSettings {
    /// From 0 to 1: how far above the noise speech is, from nothing to 30 dB.
    pub threshold: f32,
    /// Milliseconds before the beginning that belong to it.
    pub prefix_ms: u32,
    /// Milliseconds of silence that end it.
    pub silence_ms: u32,
}

impl Default for VoiceSettings {
    fn default() -> VoiceSettings {
        VoiceSettings {
            threshold: 0.5,
            prefix_ms: 300,
            silence_ms: 500,
        }
    }
}

/// What a detector has found, by the number of the sample since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Somebody began to speak here.
    Started(usize),
    /// Nobody speaks any more; the silence that says so belongs to it.
    Stopped(usize),
}

/// Follows a stream of samples at [`RATE`].
pub struct VoiceDetector {
    settings: VoiceSettings,
    /// Samples of a frame that is not complete.
    rest: Vec<f32>,
    /// Complete frames so far.
    frames: usize,
    /// The levels of the last frames in dB.
    levels: VecDeque<f32>,
    /// Which of the last frames were loud.
    loud: VecDeque<bool>,
    speaking: bool,
    /// Frames since the last loud one.
    silent: usize,
    /// The sample before which nothing belongs to what comes.
    from: usize,
}

impl VoiceDetector {
    /// At the beginning of a stream.
    pub fn new(settings: VoiceSettings) -> VoiceDetector {
        VoiceDetector {
            settings,
            rest: Vec::with_capacity(FRAME),
            frames: 0,
            levels: VecDeque::with_capacity(NOISE + 1),
            loud: VecDeque::with_capacity(ONSET + 1),
            speaking: false,
            silent: 0,
            from: 0,
        }
    }

    /// From now on these settings hold.
    pub fn set(&mut self, settings: VoiceSettings) {
        self.settings = settings;
    }

    /// Whether somebody speaks.
    pub fn speaking(&self) -> bool {
        self.speaking
    }

    /// The first sample that may belong to a turn which has not begun.
    pub fn needed_from(&self) -> usize {
        let onset = (self.frames.saturating_sub(ONSET)) * FRAME;
        onset.saturating_sub(self.prefix()).max(self.from)
    }

    /// Ends a turn, if there is one. What came so far belongs to no later one.
    pub fn reset(&mut self) {
        self.from = self.frames * FRAME + self.rest.len();
        self.speaking = false;
        self.loud.clear();
    }

    /// Takes samples. Returns what begins and ends in them, in order.
    pub fn push(&mut self, mut samples: &[f32]) -> Vec<Turn> {
        let mut turns = Vec::new();
        while !samples.is_empty() {
            let (own, later) = samples.split_at(samples.len().min(FRAME - self.rest.len()));
            self.rest.extend_from_slice(own);
            samples = later;
            if self.rest.len() == FRAME {
                let power: f32 = self.rest.iter().map(|v| v * v).sum::<f32>() / FRAME as f32;
                self.rest.clear();
                turns.extend(self.frame(10.0 * (power + 1e-10).log10()));
            }
        }
        turns
    }

    fn prefix(&self) -> usize {
        self.settings.prefix_ms as usize * (RATE as usize / 1000)
    }

    /// Takes a frame of this level.
    fn frame(&mut self, level: f32) -> Option<Turn> {
        self.frames += 1;
        self.levels.push_back(level);
        if self.levels.len() > NOISE {
            self.levels.pop_front();
        }
        let quietest = self.levels.iter().copied().fold(f32::INFINITY, f32::min);
        let margin = MOST_MARGIN * self.settings.threshold;
        let margin = if self.speaking { margin - HOLD } else { margin };
        let is_loud = level >= quietest.clamp(QUIETEST, LOUDEST) + margin.max(0.0);
        if self.speaking {
            self.silent = if is_loud { 0 } else { self.silent + 1 };
            let silent_ms = self.silent * 1000 * FRAME / RATE as usize;
            if silent_ms < self.settings.silence_ms as usize || is_loud {
                return None;
            }
            self.reset();
            return Some(Turn::Stopped(self.from));
        }
        self.loud.push_back(is_loud);
        if self.loud.len() > ONSET {
            self.loud.pop_front();
        }
        if self.loud.iter().filter(|loud| **loud).count() < ENOUGH {
            return None;
        }
        let first = self.loud.iter().position(|loud| *loud).unwrap_or(0);
        let begin = (self.frames - self.loud.len() + first) * FRAME;
        (self.speaking, self.silent) = (true, 0);
        Some(Turn::Started(
            begin.saturating_sub(self.prefix()).max(self.from),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: usize = RATE as usize;

    /// Noise with tones in it, of these amplitudes.
    fn sound(seconds: usize, noise: f32, tones: &[(f32, f32, f32)]) -> Vec<f32> {
        let mut state = 1u32;
        let sample = |at: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let hiss = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let time = at as f32 / SECOND as f32;
            let own = tones
                .iter()
                .filter(|(from, to, _)| (*from..*to).contains(&time));
            let tone: f32 = own.map(|(_, _, a)| a * (at as f32 * 0.3).sin()).sum();
            noise * hiss + tone
        };
        (0..seconds * SECOND).map(sample).collect()
    }

    fn near(turn: Turn, seconds: f32) -> bool {
        let (Turn::Started(at) | Turn::Stopped(at)) = turn;
        (at as f32 / SECOND as f32 - seconds).abs() < 0.1
    }

    #[test]
    fn turns_begin_and_end_with_speech() {
        for noise in [0.0, 0.003] {
            let samples = sound(
                6,
                noise,
                &[(1.0, 2.0, 0.2), (2.3, 3.0, 0.1), (4.5, 5.0, 0.1)],
            );
            let turns = VoiceDetector::new(VoiceSettings::default()).push(&samples);
            let wanted = [0.7, 3.5, 4.2, 5.5];
            assert_eq!(turns.len(), 4, "{turns:?}");
            for (turn, (wanted, started)) in turns
                .iter()
                .zip(wanted.into_iter().zip([true, false].into_iter().cycle()))
            {
                assert!(near(*turn, wanted), "{turns:?}");
                assert_eq!(matches!(turn, Turn::Started(_)), started);
            }
            // In pieces of any size it is the same.
            let mut detector = VoiceDetector::new(VoiceSettings::default());
            let pieces: Vec<Turn> = samples
                .chunks(77)
                .flat_map(|piece| detector.push(piece))
                .collect();
            assert_eq!(pieces, turns);
        }
    }

    #[test]
    fn settings_decide_what_is_a_turn() {
        let samples = sound(5, 0.003, &[(1.0, 2.0, 0.02), (2.3, 3.0, 0.02)]);
        let turns = |settings| VoiceDetector::new(settings).push(&samples).len();
        let default = VoiceSettings::default();
        assert_eq!(turns(default), 2);
        // The pause ends the first turn, and a higher threshold takes this for noise.
        assert_eq!(
            turns(VoiceSettings {
                silence_ms: 200,
                ..default
            }),
            4
        );
        assert_eq!(
            turns(VoiceSettings {
                threshold: 0.9,
                ..default
            }),
            0
        );
        let mut detector = VoiceDetector::new(VoiceSettings {
            prefix_ms: 0,
            ..default
        });
        assert!(near(detector.push(&samples)[0], 1.0));
    }

    #[test]
    fn a_click_and_a_reset_begin_nothing() {
        let mut detector = VoiceDetector::new(VoiceSettings::default());
        let click = sound(2, 0.001, &[(1.0, 1.03, 0.5)]);
        assert!(detector.push(&click).is_empty());
        assert_eq!(detector.push(&sound(1, 0.001, &[(0.5, 1.0, 0.2)])).len(), 1);
        assert!(detector.speaking());
        detector.reset();
        assert!(!detector.speaking());
        assert_eq!(detector.needed_from(), 3 * SECOND);
        let turns = detector.push(&sound(1, 0.001, &[(0.1, 1.0, 0.2)]));
        assert_eq!(turns, [Turn::Started(3 * SECOND)]);
    }
}
