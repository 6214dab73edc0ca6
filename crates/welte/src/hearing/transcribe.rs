//! Transcripts by language models that hear, window by window.

use super::dictation::code_of;
use super::reader::Reader;
use crate::speech::{compression_ratio, language_code};
use crate::{
    Error, GenerateOptions, Model, Prompt, Segment, Sense, Session, StopReason, Task,
    TranscribeOptions, Transcript, Update,
};
use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use welte_audio::{Audio, HOP, Limits, RATE};

/// Samples of a window: as many as Whisper hears at once. Longer windows would make coarser times.
const WINDOW: usize = 30 * RATE as usize;

/// Takes tokens as they come, and may end the answer.
type Take<'a> = &'a mut (dyn FnMut(&[u32]) -> ControlFlow<()> + 'a);

/// Answers the prompt of a window.
type Answer<'a, E> =
    dyn FnMut(Prompt, &GenerateOptions, Take<'_>) -> Result<Option<WrittenWindow>, E> + 'a;

/// Hears how far the work is, and may end it.
type See<'a> = &'a mut (dyn FnMut(Update<'_>) -> ControlFlow<()> + 'a);

/// What a model has written for a window.
#[derive(Clone, Debug)]
pub struct WrittenWindow {
    /// The tokens, without the end token.
    pub tokens: Vec<u32>,
    /// The logarithms of their probabilities, if they were asked for.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
}

/// A window of a recording, in samples.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    /// What the model hears.
    heard: Range<usize>,
    /// Where somebody speaks.
    said: Range<usize>,
}

impl Window {
    fn times(&self) -> (f64, f64) {
        let seconds = |samples: usize| samples as f64 / f64::from(RATE);
        (seconds(self.said.start), seconds(self.said.end))
    }
}

/// Cuts a recording. A short one is heard as a whole.
fn windows(samples: &[f32], most: usize, skip_silence: bool) -> Vec<Window> {
    let whole = 0..samples.len();
    let spans = if skip_silence {
        welte_audio::speech(samples)
    } else {
        vec![whole.clone()]
    };
    match (spans.first(), spans.last()) {
        (Some(first), Some(last)) if samples.len() <= most => {
            let said = first.start..last.end;
            vec![Window { heard: whole, said }]
        }
        _ => {
            let all = welte_audio::windows(samples, &spans, most).into_iter();
            let window = |said: Range<usize>| Window {
                heard: said.clone(),
                said,
            };
            all.map(window).collect()
        }
    }
}

impl Model {
    /// Decodes a file of sound. Longer ones than `seconds` are refused. Gives up once `wanted` is false.
    pub fn read_sound(
        &self,
        bytes: Vec<u8>,
        seconds: u32,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Audio, Error> {
        let audio = welte_audio::decode_while(bytes, &Limits::lasting(seconds), wanted);
        audio.map_err(|error| match error {
            welte_audio::Error::Unwanted => Error::Deadline,
            other => other.into(),
        })
    }

    /// Writes down what is said. Each window of at most 30 s has a prompt of its own, which `answer` answers: it hands over tokens as
    /// they come, and returns `None` if that asks it to end. `see` may end the work; what is written by then is the result.
    pub fn transcribe<E: From<Error>>(
        &self,
        audio: &Audio,
        options: &TranscribeOptions,
        answer: &mut Answer<'_, E>,
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, E> {
        let mut work = Work::new(self, options, see)?;
        let most = work.ears.most_samples().unwrap_or(WINDOW).min(WINDOW);
        for window in windows(&audio.samples, most, options.skip_silence) {
            let times = window.times();
            if !work.tell(Update::Working) || !work.tell(Update::Window(times.0, times.1)) {
                break;
            }
            let Some(prompt) = work.prompt(&audio.samples[window.heard.clone()])? else {
                break;
            };
            let mut reader = Reader::new(self.tokenizer()?);
            let mut text = String::new();
            let take = &mut |tokens: &[u32]| {
                let new: String = tokens.iter().map(|token| reader.push(*token)).collect();
                work.flow(&new, &mut text)
            };
            let written = answer(prompt, &work.generate, take)?;
            let Some(written) = written.filter(|written| !work.ends_at(&written.stop)) else {
                break;
            };
            work.check(&written.stop)?;
            let rest = reader.finish();
            let goes_on = work.flow(&rest, &mut text).is_continue();
            work.close(&window, &reader, text, written);
            if !goes_on || !work.tell(Update::Done(times.1)) {
                break;
            }
        }
        Ok(work.finish(audio.seconds()))
    }
}

impl Session {
    /// Writes down what is said, as [`Model::transcribe`] does.
    pub fn transcribe(
        &mut self,
        audio: &Audio,
        options: &TranscribeOptions,
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, Error> {
        let model = self.model().clone();
        let answer = &mut |prompt: Prompt, options: &GenerateOptions, take: Take<'_>| {
            let mut stream = self.pieces(prompt, options)?;
            let mut known = Vec::new();
            while let Some(piece) = stream.next() {
                piece?;
                known.extend(stream.take_logprobs().iter().map(|one| one.logprob()));
                if take(stream.take_tokens()).is_break() {
                    return Ok(None);
                }
            }
            known.extend(stream.take_logprobs().iter().map(|one| one.logprob()));
            let rest = take(stream.take_tokens());
            let outcome = stream.outcome().filter(|_| rest.is_continue());
            Ok::<_, Error>(outcome.map(|outcome| WrittenWindow {
                tokens: outcome.tokens.clone(),
                logprobs: known,
                stop: outcome.stop.clone(),
            }))
        };
        model.transcribe(audio, options, answer, see)
    }
}

/// The work on a recording.
struct Work<'a> {
    model: &'a Model,
    ears: &'a Sense,
    /// Tokens before and after a sound.
    around: [Vec<u32>; 2],
    generate: GenerateOptions,
    options: &'a TranscribeOptions,
    see: RefCell<See<'a>>,
    segments: Vec<Segment>,
    /// The last character of the text so far.
    last: Option<char>,
    /// The name of the first window's language.
    language: Option<String>,
}

impl<'a> Work<'a> {
    fn new(
        model: &'a Model,
        options: &'a TranscribeOptions,
        see: &'a mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Work<'a>, Error> {
        let refused = [
            (options.task == Task::Translate, "task", "translate speech"),
            (
                options.word_timestamps,
                "word_timestamps",
                "tell the times of words",
            ),
            (options.hotwords.is_some(), "hotwords", "take hot words"),
        ];
        if let Some((_, field, what)) = refused.into_iter().find(|(given, ..)| *given) {
            let problem = format!("a language model does not {what}; take a Whisper model");
            return Err(Error::Speech { field, problem });
        }
        let language = options.language.as_deref().filter(|l| !l.trim().is_empty());
        let around = model.dictation(language, options.prompt.as_deref())?;
        let ears = model.ears().ok_or_else(|| fault("it takes no sounds"))?;
        let mut generate = GenerateOptions::default();
        generate.sampling.temperature = options.temperatures.first().copied().unwrap_or(0.0);
        generate.sampling.seed = options.seed;
        generate.logprobs = options.logprobs.then_some(0);
        Ok(Work {
            model,
            ears,
            around,
            generate,
            options,
            see: RefCell::new(see),
            segments: Vec::new(),
            last: None,
            language: None,
        })
    }

    /// Tells the caller something. False: the work ends.
    fn tell(&self, update: Update<'_>) -> bool {
        let mut see = self.see.borrow_mut();
        (*see)(update).is_continue()
    }

    /// The prompt of a window; `None` if the caller has ended the work.
    fn prompt(&self, samples: &[f32]) -> Result<Option<Prompt>, Error> {
        let of_file = |error: Error| match error {
            Error::Media { problem } => fault(problem),
            other => other,
        };
        let sound = self.ears.hear(samples).map_err(of_file)?;
        let [before, after] = &self.around;
        let (own, context) = (
            before.len() + sound.tokens() + after.len(),
            self.model.context(),
        );
        if own >= context {
            return Err(fault(format!(
                "a window of {:.0} s takes {own} positions of the context, which has {context}; load the model with a larger one (--ctx-size)",
                samples.len() as f64 / f64::from(RATE)
            )));
        }
        let heard = match sound.see_while(&|| self.tell(Update::Working)) {
            Err(Error::Deadline) => return Ok(None),
            heard => heard.map_err(of_file)?,
        };
        let mut prompt: Prompt = before.into();
        self.ears.push(&mut prompt, &heard);
        prompt.tokens.extend(after);
        Ok(Some(prompt))
    }

    /// Hands over more of a window's text.
    fn flow(&self, new: &str, text: &mut String) -> ControlFlow<()> {
        let goes_on = match new.chars().next() {
            None => self.tell(Update::Working),
            Some(first) => {
                let begins = text.is_empty();
                let parted = begins && self.last.is_some_and(|last| has_space(last, first));
                let new = if parted {
                    format!(" {new}")
                } else {
                    new.into()
                };
                text.push_str(&new);
                self.tell(Update::Text(&new))
            }
        };
        if goes_on {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Whether an answer was ended by the caller.
    fn ends_at(&self, stop: &StopReason) -> bool {
        matches!(stop, StopReason::Callback | StopReason::Cancelled)
    }

    /// Only a text that has ended counts.
    fn check(&self, stop: &StopReason) -> Result<(), Error> {
        let context = self.model.context();
        match stop {
            StopReason::End(_) => Ok(()),
            StopReason::Deadline => Err(Error::Deadline),
            _ => Err(fault(format!(
                "its transcript does not fit the context of {context} positions; load the model with a larger one (--ctx-size)"
            ))),
        }
    }

    /// Adds what a window has become.
    fn close(
        &mut self,
        window: &Window,
        reader: &Reader<'_>,
        text: String,
        written: WrittenWindow,
    ) {
        self.language = self
            .language
            .take()
            .or(reader.language().map(str::to_string));
        self.last = text.chars().next_back().or(self.last);
        if text.is_empty() {
            return;
        }
        let own = reader.before_text().min(written.tokens.len());
        let tokens = written.tokens[own..].to_vec();
        let logprobs = written.logprobs.get(own..).unwrap_or_default().to_vec();
        let (start, end) = window.times();
        let segment = Segment {
            id: self.segments.len(),
            seek: window.heard.start / HOP,
            start,
            end,
            compression_ratio: compression_ratio(&text),
            text,
            avg_logprob: logprobs.iter().sum::<f32>() / logprobs.len().max(1) as f32,
            tokens,
            logprobs,
            temperature: self.generate.sampling.temperature,
            no_speech_prob: 0.0,
            words: Vec::new(),
        };
        self.tell(Update::Segment(&segment));
        self.segments.push(segment);
    }

    fn finish(self, seconds: f64) -> Transcript {
        let asked = self.options.language.as_deref().and_then(language_code);
        let language = asked.or(self.language.as_deref().and_then(code_of));
        Transcript {
            task: Task::Transcribe,
            language: language.map(str::to_string),
            language_probability: 1.0,
            seconds,
            segments: self.segments,
        }
    }
}

fn fault(problem: impl Into<String>) -> Error {
    Error::Speech {
        field: "file",
        problem: problem.into(),
    }
}

/// Whether a space parts two windows whose texts end and begin with these characters.
fn has_space(last: char, first: char) -> bool {
    let is_written_without = |c: char| {
        matches!(c,
            // Thai and Lao, Burmese, Khmer
            '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
            // Chinese and Japanese with their punctuation
            | '\u{2e80}'..='\u{312f}' | '\u{3190}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
    };
    !is_written_without(last) && !is_written_without(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_recordings_are_heard_whole_and_long_ones_in_windows() {
        let second = RATE as usize;
        let mut samples = vec![0.0; 50 * second];
        for span in [
            2 * second..8 * second,
            20 * second..25 * second,
            40 * second..48 * second,
        ] {
            samples[span].fill(0.3);
        }
        let near = |at: usize, seconds: usize| at.abs_diff(seconds * second) < second / 4;
        let found = windows(&samples[..10 * second], WINDOW, true);
        let [Window { heard, said }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(*heard, 0..10 * second);
        assert!(near(said.start, 2) && near(said.end, 8), "{said:?}");
        let found = windows(&samples, WINDOW, true);
        let [first, last] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(
            near(first.said.start, 2) && near(first.said.end, 25),
            "{first:?}"
        );
        assert!(
            near(last.said.start, 40) && near(last.said.end, 48),
            "{last:?}"
        );
        assert_eq!(first.heard, first.said);
        // Silence is heard only if that is asked for.
        let silence = &samples[..second];
        assert!(windows(silence, WINDOW, true).is_empty());
        assert_eq!(windows(silence, WINDOW, false).len(), 1);
        let all = windows(&samples, WINDOW, false);
        assert_eq!(
            (all[0].said.start, all[all.len() - 1].said.end),
            (0, samples.len())
        );
    }

    #[test]
    fn only_languages_with_spaces_get_some() {
        for (last, first, wanted) in [
            ('.', 'A', true),
            ('。', '我', false),
            ('k', '我', false),
            ('다', '저', true),
            ('ก', 'ข', false),
            ('я', 'и', true),
        ] {
            assert_eq!(has_space(last, first), wanted, "{last}{first}");
        }
    }
}
