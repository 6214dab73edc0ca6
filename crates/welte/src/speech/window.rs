//! From samples to segments, window by window.

use super::machine::Machine;
use super::options::{FRAMES, TICK, TranscribeOptions, Update};
use super::parts::Parts;
use super::rules::{Chosen, Noise, Rules, best, log_sum};
use super::transcript::{Segment, Task, Transcript};
use super::words::Text;
use crate::Error;
use std::ops::{ControlFlow, Range};
use welte_audio::{HOP, RATE, Spectrogram};

/// Frames of the spectrogram that a timestamp covers.
const TICK_FRAMES: usize = 2;
/// Earlier text is the prompt of the next window if it was written at this temperature or a lower one.
const CERTAIN: f32 = 0.5;

/// The work of one sound.
pub(super) struct Work<'a> {
    speech: &'a Parts,
    options: &'a TranscribeOptions,
    language: Option<&'static str>,
    hotwords: Vec<u32>,
    /// The prompt, and all tokens written.
    text: Vec<u32>,
    /// Where the text begins that the next window's prompt may have.
    prompt_from: usize,
    noise: Noise,
}

/// A text of a window.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    /// The probability of each token.
    pub(super) probabilities: Vec<f32>,
    pub(super) logprob: f32,
    pub(super) no_speech: f32,
    pub(super) ratio: f32,
    pub(super) temperature: f32,
}

/// The code of a language that was detected, and how likely it is.
type Detected = Option<(&'static str, f32)>;

/// What a window has become.
struct Written {
    segments: Vec<Segment>,
    /// After how many frames the next one begins.
    frames: usize,
    temperature: f32,
}

/// One text in the making.
struct Line {
    slot: u32,
    tokens: Vec<u32>,
    probabilities: Vec<f32>,
    sum: f32,
    last: Chosen,
}

impl Line {
    /// What decides among texts: the mean of all tokens, the end among them.
    fn mean(&self) -> f32 {
        self.sum / (self.tokens.len() + 1) as f32
    }
}

impl<'a> Work<'a> {
    pub(super) fn new(speech: &'a Parts, options: &'a TranscribeOptions) -> Result<Self, Error> {
        let encode = |text: &Option<String>| match text.as_deref().map(str::trim) {
            None | Some("") => Ok(Vec::new()),
            Some(text) => speech.tokenizer.encode(&format!(" {text}"), false, false),
        };
        let fault = |field, problem: &str| {
            let problem = problem.to_string();
            Err(Error::Speech { field, problem })
        };
        let temperatures = &options.temperatures;
        if temperatures.is_empty() || temperatures.iter().any(|t| !(0.0..=2.0).contains(t)) {
            return fault("temperature", "must be from 0 to 2");
        }
        let multilingual = speech.tokens.multilingual();
        if options.task == Task::Translate && (!multilingual || speech.tokens.translate.is_none()) {
            return fault(
                "task",
                "this model knows English only, so it cannot translate",
            );
        }
        let language = options.language.as_deref().filter(|l| !l.trim().is_empty());
        let language = match language {
            Some(asked) => Some(speech.language(asked)?),
            None if !multilingual => Some("en"),
            None => None,
        };
        Ok(Work {
            hotwords: encode(&options.hotwords)?,
            text: encode(&options.prompt)?,
            prompt_from: 0,
            noise: Noise(options.seed),
            speech,
            options,
            language,
        })
    }

    pub(super) fn run(
        mut self,
        samples: &[f32],
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, Error> {
        let speech = self.speech;
        let mut transcript = Transcript {
            task: self.options.task,
            language: self.language.unwrap_or("en").to_string(),
            language_probability: 1.0,
            seconds: samples.len() as f64 / f64::from(RATE),
            segments: Vec::new(),
        };
        let frames_of = |samples: usize| samples / HOP;
        let heard: Vec<Range<usize>> = match self.options.skip_silence {
            true => welte_audio::speech(samples)
                .into_iter()
                .map(|span| frames_of(span.start)..span.end.div_ceil(HOP))
                .collect(),
            false => std::iter::once(0..usize::MAX).collect(),
        };
        let content = frames_of(samples.len());
        if heard.is_empty() || content == 0 {
            return Ok(transcript);
        }
        // One more frame after the end, as the frames of the end are mirrored.
        let padded: Vec<f32> = samples.iter().copied().chain([0.0; HOP]).collect();
        let spectrogram = speech.mel.spectrogram(&padded);
        drop(padded);
        let window = speech.spec.frames() as usize;
        let mut seek = 0;
        while seek < content {
            let rest = (content - seek).min(window);
            // Nothing is to be heard in this window: on to the next sound.
            let next = heard.iter().find(|span| span.end > seek);
            match next {
                None => break,
                Some(span) if span.start >= seek + rest => {
                    seek = span.start;
                    continue;
                }
                Some(_) => {}
            }
            let (written, detected) = self.window(&spectrogram, seek, rest)?;
            if let Some((code, probability)) = detected {
                transcript.language = code.to_string();
                transcript.language_probability = probability;
                if see(Update::Language(code, probability)).is_break() {
                    return Ok(transcript);
                }
            }
            let before = seek;
            seek += written.frames.max(1);
            for mut segment in written.segments {
                segment.id = transcript.segments.len();
                self.text.extend_from_slice(&segment.tokens);
                let flow = see(Update::Segment(&segment));
                transcript.segments.push(segment);
                if flow.is_break() {
                    return Ok(transcript);
                }
            }
            if !self.options.condition_on_previous || written.temperature > CERTAIN {
                self.prompt_from = self.text.len();
            }
            debug_assert!(seek > before);
            if see(Update::Done(seek.min(content) as f64 / FRAMES)).is_break() {
                return Ok(transcript);
            }
        }
        Ok(transcript)
    }

    /// The tokens of the first window's text.
    pub(super) fn first(mut self, spectrogram: &Spectrogram) -> Result<Vec<u32>, Error> {
        let rest = spectrogram.frames().min(self.speech.spec.frames() as usize);
        let mut machine = self.speech.machine();
        machine.hear(&spectrogram.values[..rest * spectrogram.bins])?;
        Ok(self.write(&mut machine)?.tokens)
    }

    /// Hears a window and writes its text. Other work may have the machine before and after, not in between.
    fn window(
        &mut self,
        spectrogram: &Spectrogram,
        seek: usize,
        rest: usize,
    ) -> Result<(Written, Detected), Error> {
        let mut machine = self.speech.machine();
        let bins = spectrogram.bins;
        machine.hear(&spectrogram.values[seek * bins..(seek + rest) * bins])?;
        let detected = match self.language {
            Some(_) => None,
            None => Some(self.detect(&mut machine)?),
        };
        if let Some((code, _)) = detected {
            self.language = Some(code);
        }
        let draft = self.write(&mut machine)?;
        let mut written = Written {
            segments: Vec::new(),
            frames: rest,
            temperature: draft.temperature,
        };
        if !self.is_silence(&draft) {
            let (segments, cuts, frames) = self.segments(&draft, seek, rest);
            (written.segments, written.frames) = (segments, frames);
            if self.options.word_timestamps {
                self.add_words(&mut machine, &draft, &cuts, &mut written.segments, rest)?;
            }
        }
        Ok((written, detected))
    }

    /// Gives segments their words. `cuts` says which of the draft's tokens each has.
    fn add_words(
        &self,
        machine: &mut Machine,
        draft: &Draft,
        cuts: &[Range<usize>],
        segments: &mut [Segment],
        frames: usize,
    ) -> Result<(), Error> {
        let texts: Vec<Text<'_>> = cuts
            .iter()
            .map(|cut| Text {
                tokens: &draft.tokens[cut.clone()],
                probabilities: &draft.probabilities[cut.clone()],
            })
            .collect();
        let (prompt, start) = self.prompt();
        let own = &prompt[start as usize..];
        let own = own
            .strip_suffix(&[self.speech.tokens.no_timestamps])
            .unwrap_or(own);
        let from = segments
            .first()
            .map_or(0.0, |segment| segment.seek as f64 / FRAMES);
        let language = self.language.unwrap_or("en");
        let words = self
            .speech
            .words(machine, own, language, &texts, (from, frames))?;
        for (segment, words) in segments.iter_mut().zip(words) {
            segment.words = words;
        }
        Ok(())
    }

    /// The likeliest language, and how likely it is among all languages.
    fn detect(&self, machine: &mut Machine) -> Result<(&'static str, f32), Error> {
        let tokens = &self.speech.tokens;
        let logits = machine.begin(0, &[tokens.start], &[0])?;
        let of_languages = tokens.languages.iter();
        let logits: Vec<f32> = of_languages.map(|(_, id)| logits[*id as usize]).collect();
        let at = best(&logits) as usize;
        let probability = (logits[at] - log_sum(&logits)).exp();
        Ok((tokens.languages[at].0, probability))
    }

    /// The tokens before a window's text, and the place of the mark of the beginning.
    fn prompt(&self) -> (Vec<u32>, u32) {
        let tokens = &self.speech.tokens;
        let half = self.speech.spec.tokens as usize / 2;
        let earlier = &self.text[self.prompt_from..];
        let mut prompt = Vec::new();
        if !earlier.is_empty() || !self.hotwords.is_empty() {
            let hot = &self.hotwords[..self.hotwords.len().min(half / 2)];
            let room = half.saturating_sub(1 + hot.len());
            prompt.push(tokens.previous);
            prompt.extend_from_slice(hot);
            prompt.extend_from_slice(&earlier[earlier.len().saturating_sub(room)..]);
        }
        let start = prompt.len() as u32;
        prompt.push(tokens.start);
        if tokens.multilingual() {
            let code = self.language.unwrap_or("en");
            let language = tokens.languages.iter().find(|(known, _)| *known == code);
            prompt.extend(language.map(|(_, id)| *id));
            prompt.extend(match self.options.task {
                Task::Transcribe => tokens.transcribe,
                Task::Translate => tokens.translate,
            });
        }
        if !self.options.timestamps {
            prompt.push(tokens.no_timestamps);
        }
        (prompt, start)
    }

    /// Writes the text of the window that was heard, at one temperature after the other until it is good enough.
    fn write(&mut self, machine: &mut Machine) -> Result<Draft, Error> {
        let options = self.options;
        let mut all: Vec<Draft> = Vec::new();
        for temperature in &options.temperatures {
            let draft = self.draft(machine, *temperature)?;
            let repeats = options
                .compression_ratio_threshold
                .is_some_and(|most| draft.ratio > most);
            let unlikely = options
                .logprob_threshold
                .is_some_and(|least| draft.logprob < least);
            let silent = options
                .no_speech_threshold
                .is_some_and(|most| draft.no_speech > most);
            if !(repeats || unlikely) || silent && unlikely {
                return Ok(draft);
            }
            all.push(draft);
        }
        // None is good enough: the likeliest, if possible of those that do not repeat themselves.
        let last = all.last().map_or(0.0, |draft| draft.temperature);
        let most = options.compression_ratio_threshold.unwrap_or(f32::MAX);
        let order = |a: &Draft, b: &Draft| {
            let fits = |draft: &Draft| draft.ratio <= most;
            (fits(a).cmp(&fits(b))).then(a.logprob.total_cmp(&b.logprob))
        };
        let best = all
            .into_iter()
            .reduce(|best, next| match order(&next, &best) {
                std::cmp::Ordering::Greater => next,
                _ => best,
            });
        best.map(|draft| Draft {
            temperature: last,
            ..draft
        })
        .ok_or_else(|| Error::Speech {
            field: "temperature",
            problem: "none is given".to_string(),
        })
    }

    /// One text at one temperature: the likeliest of several if it is above 0.
    fn draft(&mut self, machine: &mut Machine, temperature: f32) -> Result<Draft, Error> {
        let (speech, options) = (self.speech, self.options);
        let mut tokens = speech.tokens.clone();
        if options.suppress_symbols {
            tokens.suppressed.extend_from_slice(&speech.symbols);
        }
        let rules = Rules {
            tokens: &tokens,
            timestamps: options.timestamps,
            most_initial: (options.max_initial_timestamp.max(0.0) / TICK).round() as u32,
        };
        let (prompt, start) = self.prompt();
        let (end, vocab) = (tokens.end, tokens.vocab as usize);
        let last = prompt.len() as u32 - 1;
        let picks = if start == last {
            vec![last]
        } else {
            vec![start, last]
        };
        let count = match temperature > 0.0 {
            true => options.best_of.clamp(1, machine.slots()),
            false => 1,
        };
        // A text takes half of the context, as a prompt does.
        let most =
            (speech.spec.tokens as usize / 2).min(speech.spec.tokens as usize - prompt.len());
        let mut no_speech = 0.0;
        let mut lines = Vec::new();
        for slot in 0..count {
            let logits = machine.begin(slot, &prompt, &picks)?;
            let (of_start, of_last) = (&logits[..vocab], &logits[logits.len() - vocab..]);
            if let Some(token) = tokens.no_speech {
                no_speech = (of_start[token as usize] - log_sum(of_start)).exp();
            }
            let mut logits = of_last.to_vec();
            rules.apply(&[], &mut logits);
            let last = rules.choose(&logits, temperature, &mut self.noise);
            lines.push(Line {
                slot,
                tokens: Vec::new(),
                probabilities: Vec::new(),
                sum: last.logprob,
                last,
            });
        }
        let mut logits = vec![0.0; vocab];
        for at in 0..most as u32 {
            let open = |line: &&mut Line| line.last.token != end;
            let mut rows = Vec::new();
            for line in lines.iter_mut().filter(open) {
                line.tokens.push(line.last.token);
                line.probabilities.push(line.last.logprob.exp());
                rows.push((line.slot, line.last.token, prompt.len() as u32 + at));
            }
            if rows.is_empty() || at + 1 == most as u32 {
                break;
            }
            let found = machine.go_on(&rows)?;
            let open = lines.iter_mut().filter(open);
            for (line, found) in open.zip(found.chunks_exact(vocab)) {
                logits.copy_from_slice(found);
                rules.apply(&line.tokens, &mut logits);
                line.last = rules.choose(&logits, temperature, &mut self.noise);
                line.sum += line.last.logprob;
            }
        }
        let line = lines
            .into_iter()
            .reduce(|best, next| match next.mean() > best.mean() {
                true => next,
                false => best,
            });
        let line = line.ok_or_else(|| Error::Speech {
            field: "best_of",
            problem: "no text is written".to_string(),
        })?;
        Ok(Draft {
            ratio: compression_ratio(self.text_of(&line.tokens).trim()),
            logprob: line.mean(),
            tokens: line.tokens,
            probabilities: line.probabilities,
            no_speech,
            temperature,
        })
    }

    /// Nobody speaks, and the text is not likely either.
    fn is_silence(&self, draft: &Draft) -> bool {
        let silent = self
            .options
            .no_speech_threshold
            .is_some_and(|most| draft.no_speech > most);
        let likely = self
            .options
            .logprob_threshold
            .is_some_and(|least| draft.logprob > least);
        silent && !likely
    }

    fn text_of(&self, tokens: &[u32]) -> String {
        let end = self.speech.tokens.end;
        let text: Vec<u32> = tokens
            .iter()
            .copied()
            .filter(|token| *token < end)
            .collect();
        self.speech.tokenizer.decode(&text)
    }

    /// The segments of a text with their places in its tokens, and after how many frames the next window begins.
    fn segments(
        &self,
        draft: &Draft,
        seek: usize,
        rest: usize,
    ) -> (Vec<Segment>, Vec<Range<usize>>, usize) {
        let t = &self.speech.tokens;
        let (from, size) = (seek as f64 / FRAMES, rest as f64 / FRAMES);
        let is_time = |token: &u32| t.is_timestamp(*token);
        let seconds = |token: u32| f64::from(token - t.timestamps) * TICK;
        let tokens = &draft.tokens;
        let segment = |start: f64, end: f64, own: Range<usize>| {
            (
                self.segment(draft, seek, [start, end], &tokens[own.clone()]),
                own,
            )
        };
        // Where one segment ends and the next begins.
        let pairs = tokens.windows(2).enumerate();
        let pairs = pairs.filter(|(_, pair)| pair.iter().all(is_time));
        let mut cuts: Vec<usize> = pairs.map(|(at, _)| at + 1).collect();
        let ends_once =
            matches!(tokens[..], [.., before, last] if !is_time(&before) && is_time(&last));
        let mut list = Vec::new();
        let next = if cuts.is_empty() {
            let last = tokens.iter().rev().find(|token| is_time(token));
            let length = match last {
                Some(last) if *last != t.timestamps => seconds(*last),
                _ => size,
            };
            list.push(segment(from, from + length, 0..tokens.len()));
            rest
        } else {
            if ends_once {
                cuts.push(tokens.len());
            }
            let mut start = 0;
            for cut in &cuts {
                let own = &tokens[start..*cut];
                let times = [own[0], own[own.len() - 1]];
                let [first, last] = times.map(|token| seconds(token.max(t.timestamps)));
                list.push(segment(from + first, from + last, start..*cut));
                start = *cut;
            }
            match ends_once {
                // What follows the last segment is silence.
                true => rest,
                false => (tokens[start - 1] - t.timestamps) as usize * TICK_FRAMES,
            }
        };
        list.retain(|(segment, _)| segment.start != segment.end && !segment.text.trim().is_empty());
        let (segments, cuts) = list.into_iter().unzip();
        (segments, cuts, next)
    }

    fn segment(&self, draft: &Draft, seek: usize, [start, end]: [f64; 2], own: &[u32]) -> Segment {
        Segment {
            id: 0,
            seek,
            start,
            end,
            text: self.text_of(own),
            tokens: own.to_vec(),
            temperature: draft.temperature,
            avg_logprob: draft.logprob,
            compression_ratio: draft.ratio,
            no_speech_prob: draft.no_speech,
            words: Vec::new(),
        }
    }
}

/// How many times a text is longer than its compressed form.
fn compression_ratio(text: &str) -> f32 {
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), 6);
    text.len() as f32 / compressed.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_itself_compresses_well() {
        assert!(compression_ratio(&"and so on ".repeat(30)) > 2.4);
        let plain = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background.";
        assert!(compression_ratio(plain) < 1.5);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
