//! The input buffer of a session: sound that has come and is not committed.

use welte_audio::{RATE, StreamDecoder, StreamFormat, Turn, VoiceDetector, VoiceSettings};

/// The most samples of a turn. Somebody who speaks without a pause is written down in parts.
const LONGEST_TURN: usize = 60 * RATE as usize;

/// What happens in the buffer.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Somebody began to speak, so many milliseconds after the session's beginning.
    Started(usize),
    /// The turn has ended. Its samples.
    Stopped(usize, Vec<f32>),
}

pub(super) struct Ear {
    format: StreamFormat,
    decoder: StreamDecoder,
    /// What finds turns, and the sample of the session at which it began.
    detector: Option<(VoiceDetector, usize)>,
    /// The buffer, and the number of its first sample in the session.
    samples: Vec<f32>,
    first: usize,
}

impl Ear {
    pub(super) fn new(format: StreamFormat, turns: Option<VoiceSettings>) -> Ear {
        Ear {
            format,
            decoder: StreamDecoder::new(format),
            detector: turns.map(|turns| (VoiceDetector::new(turns), 0)),
            samples: Vec::new(),
            first: 0,
        }
    }

    /// Samples in the buffer.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// About as many samples as bytes of the stream become.
    pub(super) fn samples_of(&self, bytes: usize) -> usize {
        bytes / self.format.bytes() * RATE as usize / self.format.rate() as usize
    }

    /// Takes bytes. Returns the turns that begin and end in them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Heard> {
        let before = self.samples.len();
        self.decoder.push(bytes, &mut self.samples);
        self.listen(before)
    }

    /// From now on the stream has this format, and turns are found so.
    pub(super) fn set(&mut self, format: StreamFormat, turns: Option<VoiceSettings>) -> Vec<Heard> {
        let mut before = self.samples.len();
        if format != self.format {
            self.decoder.finish(&mut self.samples);
            (self.format, self.decoder) = (format, StreamDecoder::new(format));
        }
        match (&mut self.detector, turns) {
            (Some((detector, _)), Some(turns)) => detector.set(turns),
            (own, None) => *own = None,
            (own, Some(turns)) => {
                // What is in the buffer counts.
                *own = Some((VoiceDetector::new(turns), self.first));
                before = 0;
            }
        }
        self.listen(before)
    }

    /// Whether a turn has begun and not ended.
    pub(super) fn in_turn(&self) -> bool {
        let detector = self.detector.as_ref();
        detector.is_some_and(|(detector, _)| detector.speaking())
    }

    /// Takes all that is in the buffer.
    pub(super) fn take(&mut self) -> Vec<f32> {
        let before = self.samples.len();
        self.decoder.finish(&mut self.samples);
        if let Some((detector, _)) = &mut self.detector {
            detector.push(&self.samples[before..]);
            detector.reset();
        }
        self.cut(self.samples.len())
    }

    /// Takes the samples before this one.
    fn cut(&mut self, count: usize) -> Vec<f32> {
        let later = self.samples.split_off(count.min(self.samples.len()));
        let taken = std::mem::replace(&mut self.samples, later);
        self.first += taken.len();
        taken
    }

    /// Finds turns in the samples from this one on.
    fn listen(&mut self, from: usize) -> Vec<Heard> {
        let Some((detector, origin)) = &mut self.detector else {
            return Vec::new();
        };
        let origin = *origin;
        let turns = detector.push(&self.samples[from..]);
        let mut all = Vec::new();
        for turn in turns {
            match turn {
                Turn::Started(at) => {
                    let at = (origin + at).max(self.first);
                    self.cut(at - self.first);
                    all.push(Heard::Started(milliseconds(at)));
                }
                Turn::Stopped(at) => {
                    let at = origin + at;
                    let samples = self.cut(at - self.first);
                    all.push(Heard::Stopped(milliseconds(at), samples));
                }
            }
        }
        if self.in_turn() && self.samples.len() > LONGEST_TURN {
            let samples = self.take();
            all.push(Heard::Stopped(milliseconds(self.first), samples));
        }
        if let Some((detector, _)) = self.detector.as_ref().filter(|(own, _)| !own.speaking()) {
            let needed = origin + detector.needed_from();
            self.cut(needed.saturating_sub(self.first));
        }
        all
    }
}

fn milliseconds(samples: usize) -> usize {
    samples * 1000 / RATE as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenths of a second at 24 kHz: `x` is a tone, everything else is silence.
    fn pcm(tenths: &str) -> Vec<u8> {
        let sample = |(at, tenth): (usize, char)| {
            let value = move |i: usize| match tenth {
                'x' => (((at * 2400 + i) as f32 * 0.2).sin() * 8000.0) as i16,
                _ => 0,
            };
            (0..2400).flat_map(move |i| value(i).to_le_bytes())
        };
        tenths.chars().enumerate().flat_map(sample).collect()
    }

    fn near(found: usize, wanted: usize) -> bool {
        found.abs_diff(wanted) <= 40
    }

    #[test]
    fn turns_have_their_sound_and_silence_is_dropped() {
        let mut ear = Ear::new(StreamFormat::Pcm16, Some(VoiceSettings::default()));
        let mut heard = Vec::new();
        for piece in pcm("..........xxxxx.......xxx.......").chunks(700) {
            heard.extend(ear.push(piece));
        }
        let [
            Heard::Started(first),
            Heard::Stopped(end, samples),
            Heard::Started(second),
            Heard::Stopped(last, later),
        ] = &heard[..]
        else {
            panic!("{heard:?}");
        };
        // The second turn has what the first one left of its padding.
        for (found, wanted) in [(first, 700), (end, 2000), (second, 2000), (last, 3000)] {
            assert!(near(*found, wanted), "{found} is not {wanted}");
        }
        assert!(near(milliseconds(samples.len()), 1300) && near(milliseconds(later.len()), 1000));
        // What may precede the next turn stays.
        assert!(near(milliseconds(ear.len()), 200), "{}", ear.len());
    }

    #[test]
    fn without_turns_all_stays_until_it_is_taken() {
        let mut ear = Ear::new(StreamFormat::Pcm16, None);
        let bytes = pcm("..xx..");
        assert_eq!(ear.samples_of(bytes.len()), 9600);
        assert!(ear.push(&bytes).is_empty());
        assert_eq!(ear.take().len(), 9600);
        assert_eq!(ear.len(), 0);
        // Telephones have 8 kHz and a byte for each sample.
        assert!(ear.set(StreamFormat::Ulaw, None).is_empty());
        ear.push(&[0xff; 800]);
        assert_eq!(ear.take().len(), 1600);
    }

    /// What came before turns are found counts, and no turn is longer than a minute.
    #[test]
    fn turns_may_be_found_later() {
        let mut ear = Ear::new(StreamFormat::Pcm16, None);
        ear.push(&pcm("....xxxx"));
        let heard = ear.set(StreamFormat::Pcm16, Some(VoiceSettings::default()));
        assert!(
            matches!(heard[..], [Heard::Started(at)] if near(at, 100)),
            "{heard:?}"
        );
        assert!(ear.in_turn());
        let heard = ear.push(&pcm(&"x".repeat(610)));
        assert!(matches!(heard[..], [Heard::Stopped(..)]), "{}", heard.len());
        assert!(!ear.in_turn());
        assert!(ear.set(StreamFormat::Pcm16, None).is_empty());
    }
}
