//! From samples to segments, window by window.

use super::machine::Machine;
use super::options::{FRAMES, TICK, TranscribeOptions, Update};
use super::parts::Parts;
use super::rules::{Chosen, Noise, Rules, best, log_sum};
use super::transcript::{Segment, Task, Transcript};
use crate::Error;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use welte_audio::{HOP, RATE, Spectrogram};

/// Frames of the spectrogram that a timestamp covers.
const TICK_FRAMES: usize = 2;
/// Earlier text is the prompt of the next window if it was written at this temperature or a lower one.
const CERTAIN: f32 = 0.5;
/// Frames that are too few to be heard for themselves, if a window of several leaves them over.
const LEAST_REST: usize = 50;
/// Frames whose loudness decides where a long span is cut.
const QUIET: usize = 20;

/// Whom the work tells how far it is, and who may end it.
pub(super) type See<'a> = dyn FnMut(Update<'_>) -> ControlFlow<()> + 'a;

/// The work of one sound.
pub(super) struct Work<'a> {
    speech: &'a Parts,
    options: &'a TranscribeOptions,
    rules: Rules,
    language: Option<&'static str>,
    language_probability: f32,
    hotwords: Vec<u32>,
    /// The prompt, and all tokens written.
    text: Vec<u32>,
    /// Where the text begins that the next window's prompt may have.
    prompt_from: usize,
    noise: Noise,
    /// The caller wants no more.
    ended: bool,
}

/// A text of a window.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    /// The logarithm of the probability of each token.
    logprobs: Vec<f32>,
    logprob: f32,
    no_speech: f32,
    ratio: f32,
    temperature: f32,
}

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
    logprobs: Vec<f32>,
    /// Of all tokens, and of the one that comes next.
    sum: f32,
    next: Chosen,
    no_speech: f32,
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
        let mut tokens = speech.tokens.clone();
        if options.suppress_symbols {
            tokens.suppressed.extend_from_slice(&speech.symbols);
        }
        Ok(Work {
            hotwords: encode(&options.hotwords)?,
            text: encode(&options.prompt)?,
            prompt_from: 0,
            noise: Noise(options.seed),
            rules: Rules {
                tokens,
                timestamps: options.timestamps,
                most_initial: (options.max_initial_timestamp.max(0.0) / TICK).round() as u32,
            },
            speech,
            options,
            language,
            language_probability: 1.0,
            ended: false,
        })
    }

    pub(super) fn run(mut self, samples: &[f32], see: &mut See<'_>) -> Result<Transcript, Error> {
        let content = samples.len() / HOP;
        let whole = 0..content;
        let heard: Vec<Range<usize>> = if self.options.skip_silence {
            welte_audio::speech(samples)
                .into_iter()
                .map(|span| span.start / HOP..span.end.div_ceil(HOP).min(content))
                .filter(|span| !span.is_empty())
                .collect()
        } else {
            std::iter::once(whole)
                .filter(|whole| !whole.is_empty())
                .collect()
        };
        let mut segments = Vec::new();
        if !heard.is_empty() {
            // One more frame after the end, as the frames of the end are mirrored.
            let spectrogram = self.speech.mel.spectrogram(samples, HOP);
            if self.options.batch {
                self.all_windows(&spectrogram, &heard, &mut segments, see)?;
            } else {
                self.one_by_one(&spectrogram, &heard, content, &mut segments, see)?;
            }
        }
        Ok(Transcript {
            task: self.options.task,
            language: Some(self.language.unwrap_or("en").to_string()),
            language_probability: self.language_probability,
            seconds: samples.len() as f64 / f64::from(RATE),
            segments,
        })
    }

    /// Each window begins where the text of the one before it ends, and knows that text.
    fn one_by_one(
        &mut self,
        spectrogram: &Spectrogram,
        heard: &[Range<usize>],
        content: usize,
        segments: &mut Vec<Segment>,
        see: &mut See<'_>,
    ) -> Result<(), Error> {
        let window = self.speech.spec.frames() as usize;
        let mut seek = 0;
        while seek < content && !self.ended {
            let rest = (content - seek).min(window);
            // Nothing is to be heard in this window: on to the next sound.
            match heard.iter().find(|span| span.end > seek) {
                None => break,
                Some(span) if span.start >= seek + rest => {
                    seek = span.start;
                    continue;
                }
                Some(_) => {}
            }
            let all = std::iter::once(seek..seek + rest).collect::<Vec<_>>();
            for written in self.windows(spectrogram, &all, see)? {
                seek += written.frames.max(1);
                for segment in written.segments {
                    self.text.extend_from_slice(&segment.tokens);
                    self.add(segment, segments, see);
                }
                if !self.options.condition_on_previous || written.temperature > CERTAIN {
                    self.prompt_from = self.text.len();
                }
                self.tell(Update::Done(seek.min(content) as f64 / FRAMES), see);
            }
        }
        Ok(())
    }

    /// Windows are cut where it is quiet and know nothing of each other, so several are written together.
    fn all_windows(
        &mut self,
        spectrogram: &Spectrogram,
        heard: &[Range<usize>],
        segments: &mut Vec<Segment>,
        see: &mut See<'_>,
    ) -> Result<(), Error> {
        let most = self.speech.windows as usize;
        let mut pending = cut(spectrogram, heard, self.speech.spec.frames() as usize);
        let mut early: Vec<Segment> = Vec::new();
        while !pending.is_empty() {
            let taken: Vec<_> = pending.drain(..pending.len().min(most)).collect();
            let all = self.windows(spectrogram, &taken, see)?;
            if self.ended {
                break;
            }
            for (range, written) in taken.iter().zip(all).rev() {
                // What a window has left over is heard again.
                if let Some(rest) = left_over(range, written.frames) {
                    pending.push_front(rest);
                }
                early.extend(written.segments);
            }
            // Segments before the first window that is left are complete.
            let done = pending.front().map_or(spectrogram.frames(), |w| w.start);
            early.sort_by(|a, b| a.seek.cmp(&b.seek).then(a.start.total_cmp(&b.start)));
            let count = early.partition_point(|segment| segment.seek < done);
            for segment in early.drain(..count) {
                self.add(segment, segments, see);
            }
            self.tell(Update::Done(done as f64 / FRAMES), see);
        }
        Ok(())
    }

    /// Tells how far the work is; whether it goes on.
    fn tell(&mut self, update: Update<'_>, see: &mut See<'_>) -> bool {
        self.ended = self.ended || see(update).is_break();
        !self.ended
    }

    fn add(&mut self, mut segment: Segment, segments: &mut Vec<Segment>, see: &mut See<'_>) {
        if !self.ended {
            segment.id = segments.len();
            self.tell(Update::Segment(&segment), see);
            segments.push(segment);
        }
    }

    /// The tokens of the first window's text.
    pub(super) fn first(mut self, spectrogram: &Spectrogram) -> Result<Vec<u32>, Error> {
        let rest = spectrogram.frames().min(self.speech.spec.frames() as usize);
        let mut machine = self.speech.machine();
        machine.hear(0, &spectrogram.values[..rest * spectrogram.bins])?;
        let see = &mut |_: Update<'_>| ControlFlow::Continue(());
        Ok(self.write(&mut machine, 0, None, see)?.tokens)
    }

    /// Hears windows and writes their texts; none if the work ends. Other work has its turn before and after, not in between.
    fn windows(
        &mut self,
        spectrogram: &Spectrogram,
        ranges: &[Range<usize>],
        see: &mut See<'_>,
    ) -> Result<Vec<Written>, Error> {
        let speech = self.speech;
        let turn = speech.machine.take(&mut || self.tell(Update::Working, see));
        let Some(mut machine) = turn else {
            return Ok(Vec::new());
        };
        machine.renew()?;
        // It stays so if this panics.
        machine.lost = true;
        let written = self.windows_by(&mut machine, spectrogram, ranges, see);
        machine.lost = matches!(written, Err(Error::Device(_)));
        written
    }

    fn windows_by(
        &mut self,
        machine: &mut Machine,
        spectrogram: &Spectrogram,
        ranges: &[Range<usize>],
        see: &mut See<'_>,
    ) -> Result<Vec<Written>, Error> {
        let bins = spectrogram.bins;
        for (window, range) in (0..).zip(ranges) {
            machine.hear(
                window,
                &spectrogram.values[range.start * bins..range.end * bins],
            )?;
            if !self.tell(Update::Working, see) {
                return Ok(Vec::new());
            }
        }
        if self.language.is_none() {
            machine.attend(0, 0)?;
            let (code, probability) = self.detect(machine)?;
            (self.language, self.language_probability) = (Some(code), probability);
            self.tell(Update::Language(code, probability), see);
        }
        let mut firsts = VecDeque::new();
        if ranges.len() > 1 && self.options.temperatures[0] == 0.0 {
            let windows: Vec<u32> = (0..ranges.len() as u32).collect();
            let lines = self.lines(machine, &windows, 0.0, see)?;
            firsts.extend(lines.into_iter().map(|line| self.draft_of(line, 0.0)));
        }
        let mut all = Vec::new();
        for (window, range) in (0..).zip(ranges) {
            let draft = self.write(machine, window, firsts.pop_front(), see)?;
            if self.ended {
                return Ok(Vec::new());
            }
            let mut written = Written {
                segments: Vec::new(),
                frames: range.len(),
                temperature: draft.temperature,
            };
            if !self.is_silence(&draft) {
                let (mut segments, frames) = self.segments(&draft, range);
                if self.options.word_timestamps {
                    machine.attend(0, window)?;
                    self.add_words(machine, &mut segments, range)?;
                }
                (written.segments, written.frames) = (segments, frames);
            }
            all.push(written);
        }
        Ok(all)
    }

    /// Gives segments of a window their words.
    fn add_words(
        &self,
        machine: &mut Machine,
        segments: &mut [Segment],
        range: &Range<usize>,
    ) -> Result<(), Error> {
        let (prompt, start) = self.prompt();
        let own = &prompt[start as usize..];
        let own = own
            .strip_suffix(&[self.rules.tokens.no_timestamps])
            .unwrap_or(own);
        let language = self.language.unwrap_or("en");
        let place = (range.start as f64 / FRAMES, range.len());
        self.speech
            .add_words(machine, own, language, segments, place)
    }

    /// The likeliest language, and how likely it is among all languages.
    fn detect(&self, machine: &mut Machine) -> Result<(&'static str, f32), Error> {
        let tokens = &self.rules.tokens;
        let logits = machine.begin(0, &[tokens.start], &[0])?;
        let of_languages = tokens.languages.iter();
        let logits: Vec<f32> = of_languages.map(|(_, id)| logits[*id as usize]).collect();
        let at = best(&logits) as usize;
        let probability = (logits[at] - log_sum(&logits)).exp();
        Ok((tokens.languages[at].0, probability))
    }

    /// The tokens before a window's text, and the place of the mark of the beginning.
    fn prompt(&self) -> (Vec<u32>, u32) {
        let tokens = &self.rules.tokens;
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

    /// Writes the text of a window, at one temperature after the other until it is good enough. The first text may be there.
    fn write(
        &mut self,
        machine: &mut Machine,
        window: u32,
        mut first: Option<Draft>,
        see: &mut See<'_>,
    ) -> Result<Draft, Error> {
        let options = self.options;
        let mut all: Vec<Draft> = Vec::new();
        for temperature in &options.temperatures {
            let draft = match first.take() {
                Some(draft) => draft,
                None => self.draft(machine, window, *temperature, see)?,
            };
            if self.ended || self.is_good(&draft) {
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
        let best = all.into_iter().reduce(|best, next| {
            if order(&next, &best).is_gt() {
                next
            } else {
                best
            }
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

    /// A text that need not be written again at a higher temperature.
    fn is_good(&self, draft: &Draft) -> bool {
        let options = self.options;
        let repeats = options
            .compression_ratio_threshold
            .is_some_and(|most| draft.ratio > most);
        let unlikely = options
            .logprob_threshold
            .is_some_and(|least| draft.logprob < least);
        let silent = options
            .no_speech_threshold
            .is_some_and(|most| draft.no_speech > most);
        !(repeats || unlikely) || silent && unlikely
    }

    /// One text of a window at one temperature: the likeliest of several if it is above 0.
    fn draft(
        &mut self,
        machine: &mut Machine,
        window: u32,
        temperature: f32,
        see: &mut See<'_>,
    ) -> Result<Draft, Error> {
        let count = if temperature > 0.0 {
            self.options.best_of.clamp(1, machine.slots())
        } else {
            1
        };
        let windows = vec![window; count as usize];
        let lines = self.lines(machine, &windows, temperature, see)?;
        let better = |best: Line, next: Line| {
            if next.mean() > best.mean() {
                next
            } else {
                best
            }
        };
        let line = lines.into_iter().reduce(better);
        let line = line.ok_or_else(|| Error::Speech {
            field: "best_of",
            problem: "no text is written".to_string(),
        })?;
        Ok(self.draft_of(line, temperature))
    }

    fn draft_of(&self, line: Line, temperature: f32) -> Draft {
        Draft {
            ratio: compression_ratio(self.text_of(&line.tokens).trim()),
            logprob: line.mean(),
            tokens: line.tokens,
            logprobs: line.logprobs,
            no_speech: line.no_speech,
            temperature,
        }
    }

    /// Writes several texts together, each in a slot of its own, of the window that is named for it.
    fn lines(
        &mut self,
        machine: &mut Machine,
        windows: &[u32],
        temperature: f32,
        see: &mut See<'_>,
    ) -> Result<Vec<Line>, Error> {
        let (prompt, start) = self.prompt();
        let tokens = &self.rules.tokens;
        let (end, no_speech, vocab) = (tokens.end, tokens.no_speech, tokens.vocab as usize);
        let last = prompt.len() as u32 - 1;
        let picks = if start == last {
            vec![last]
        } else {
            vec![start, last]
        };
        // A text takes half of the context, as a prompt does.
        let context = self.speech.spec.tokens as usize;
        let most = (context / 2).min(context - prompt.len());
        let mut lines = Vec::new();
        for (slot, window) in (0..).zip(windows) {
            machine.attend(slot, *window)?;
            let logits = machine.begin(slot, &prompt, &picks)?;
            let (of_start, of_last) = (&logits[..vocab], &logits[logits.len() - vocab..]);
            let no_speech = no_speech.map_or(0.0, |token| {
                (of_start[token as usize] - log_sum(of_start)).exp()
            });
            let mut logits = of_last.to_vec();
            self.rules.apply(&[], &mut logits);
            let next = self.rules.choose(&logits, temperature, &mut self.noise);
            lines.push(Line {
                slot,
                tokens: Vec::new(),
                logprobs: Vec::new(),
                sum: next.logprob,
                next,
                no_speech,
            });
        }
        let mut logits = vec![0.0; vocab];
        for at in 0..most as u32 {
            let open = |line: &&mut Line| line.next.token != end;
            let mut rows = Vec::new();
            for line in lines.iter_mut().filter(open) {
                line.tokens.push(line.next.token);
                line.logprobs.push(line.next.logprob);
                rows.push((line.slot, line.next.token, prompt.len() as u32 + at));
            }
            if rows.is_empty() || at + 1 == most as u32 || !self.tell(Update::Working, see) {
                break;
            }
            let found = machine.go_on(&rows)?;
            let open = lines.iter_mut().filter(open);
            for (line, found) in open.zip(found.chunks_exact(vocab)) {
                logits.copy_from_slice(found);
                self.rules.apply(&line.tokens, &mut logits);
                line.next = self.rules.choose(&logits, temperature, &mut self.noise);
                line.sum += line.next.logprob;
            }
        }
        Ok(lines)
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
        let end = self.rules.tokens.end;
        let text: Vec<u32> = tokens
            .iter()
            .copied()
            .filter(|token| *token < end)
            .collect();
        self.speech.tokenizer.decode(&text)
    }

    /// The segments of a window's text, and after how many frames the next window begins.
    fn segments(&self, draft: &Draft, range: &Range<usize>) -> (Vec<Segment>, usize) {
        let t = &self.rules.tokens;
        let (from, rest) = (range.start as f64 / FRAMES, range.len());
        let is_time = |token: &u32| t.is_timestamp(*token);
        let seconds = |token: u32| f64::from(token - t.timestamps) * TICK;
        let tokens = &draft.tokens;
        let segment = |start: f64, end: f64, own: Range<usize>| Segment {
            id: 0,
            seek: range.start,
            start: from + start,
            end: from + end,
            text: self.text_of(&tokens[own.clone()]),
            tokens: tokens[own.clone()].to_vec(),
            logprobs: draft.logprobs[own].to_vec(),
            temperature: draft.temperature,
            avg_logprob: draft.logprob,
            compression_ratio: draft.ratio,
            no_speech_prob: draft.no_speech,
            words: Vec::new(),
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
                _ => rest as f64 / FRAMES,
            };
            list.push(segment(0.0, length, 0..tokens.len()));
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
                list.push(segment(first, last, start..*cut));
                start = *cut;
            }
            if ends_once {
                // What follows the last segment is silence.
                rest
            } else {
                (tokens[start - 1] - t.timestamps) as usize * TICK_FRAMES
            }
        };
        list.retain(|segment| segment.start != segment.end && !segment.text.trim().is_empty());
        (list, next)
    }
}

/// What is left over of a window whose text ends after some frames, if it is worth a window of its own.
fn left_over(window: &Range<usize>, frames: usize) -> Option<Range<usize>> {
    let rest = window.start + frames.max(1)..window.end;
    (rest.len() >= LEAST_REST).then_some(rest)
}

/// Cuts spans of frames into windows of at most `most` frames: between spans if possible, else where it is quiet in the last
/// third of a window.
fn cut(spectrogram: &Spectrogram, heard: &[Range<usize>], most: usize) -> VecDeque<Range<usize>> {
    welte_audio::cut(heard, most, |at| {
        let near = at.saturating_sub(QUIET / 2)..(at + QUIET / 2).min(spectrogram.frames());
        near.map(|frame| spectrogram.frame(frame).iter().sum::<f32>())
            .sum()
    })
}

/// How many times a text is longer than its compressed form.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), 6);
    text.len() as f32 / compressed.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_between_spans_and_where_it_is_quiet() {
        let mut values = vec![1.0; 2 * 400];
        values[2 * 225..2 * 245].fill(-1.0);
        let spectrogram = Spectrogram { bins: 2, values };
        let found = cut(&spectrogram, &[10..60, 70..95, 96..140, 150..330], 100);
        let Some(quiet) = found.get(2).map(|window| window.end) else {
            panic!("{found:?}");
        };
        assert!((230..240).contains(&quiet), "{found:?}");
        let windows = [10..95, 96..140, 150..quiet, quiet..330];
        assert_eq!(
            found.iter().take(3).cloned().collect::<Vec<_>>(),
            windows[..3]
        );
        assert!(found.iter().all(|window| (1..=100).contains(&window.len())));
        assert_eq!(found.back().map(|window| window.end), Some(330));
        assert!(cut(&spectrogram, &[], 100).is_empty());

        assert_eq!(left_over(&(100..300), 40), Some(140..300));
        assert_eq!(left_over(&(100..300), 200 - LEAST_REST + 1), None);
        assert_eq!(left_over(&(100..300), 900), None);
    }

    #[test]
    fn what_repeats_itself_compresses_well() {
        assert!(compression_ratio(&"and so on ".repeat(30)) > 2.4);
        let plain = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background.";
        assert!(compression_ratio(plain) < 1.5);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
