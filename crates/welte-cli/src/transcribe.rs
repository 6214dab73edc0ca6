//! `welte transcribe`: writes down speech.

use crate::flags::{Cpus, device};
use crate::{source, terminal};
use anyhow::Context;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use welte::{
    Audio, DeviceChoice, Images, LoadOptions, Session, Speech, SpeechOptions, Task,
    TranscribeOptions, Transcript, TranscriptFormat, Update,
};

/// Files that are larger are not read.
const MOST_BYTES: u64 = 4 << 30;
/// The most seconds of a file: a day.
const MOST_SECONDS: u32 = 24 * 3600;

#[derive(clap::Args)]
pub(crate) struct TranscribeArgs {
    /// A model of speech (docs/speech.md lists them) unless -m names it, and files (-: standard input)
    #[arg(value_name = "[MODEL] FILE", required = true)]
    words: Vec<String>,
    /// Whisper directory, .bin file of whisper.cpp, or a language model that writes transcripts (docs/speech.md lists them)
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// A model on the Hugging Face hub, ORG/NAME, downloaded if it is not in the cache (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// File with the encoder of sounds of a GGUF file (also -mm) [default: mmproj*.gguf beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) mmproj: Option<std::path::PathBuf>,
    /// Subtitles as SubRip has them
    #[arg(long, group = "form")]
    srt: bool,
    /// Subtitles of the web
    #[arg(long, group = "form")]
    vtt: bool,
    /// JSON with segments, language and length, a line for each file
    #[arg(long, group = "form")]
    json: bool,
    /// The text alone [default: segments with their times]
    #[arg(long, group = "form")]
    text: bool,
    /// Write in English what is said in another language
    #[arg(long)]
    translate: bool,
    /// The language: a code or an English name [default: detected]
    #[arg(short, long, value_name = "NAME")]
    language: Option<String>,
    /// Give every word a beginning and an end (with --json)
    #[arg(long)]
    word_timestamps: bool,
    /// Names, spellings and style that come before the text
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Words that are likely to be said
    #[arg(long, value_name = "TEXT")]
    hotwords: Option<String>,
    /// Temperature; several are tried in turn until the text is good enough [default: 0 to 1 in steps of 0.2]
    #[arg(
        long = "temp",
        alias = "temperature",
        value_name = "T",
        value_delimiter = ','
    )]
    temperatures: Vec<f32>,
    /// Texts at a temperature above 0, of which the likeliest counts [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    best_of: Option<u32>,
    /// A text that compresses better repeats itself, so the next temperature is tried [default: 2.4]
    #[arg(long, value_name = "R")]
    compression_ratio_threshold: Option<f32>,
    /// A text whose mean logarithm of probability is lower is not good enough, so the next temperature is tried [default: -1]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    logprob_threshold: Option<f32>,
    /// A window is silent if this is likelier and its text is not likely enough [default: 0.6]
    #[arg(long, value_name = "P")]
    no_speech_threshold: Option<f32>,
    /// Cut windows where it is quiet and write N of them together: faster, but no window knows the text before it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    batch: Option<u32>,
    /// Do not use the text so far as the prompt of the next window
    #[arg(long)]
    no_context: bool,
    /// Transcribe silent windows, too
    #[arg(long)]
    keep_silence: bool,
    /// Seed of texts at temperatures above 0
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Device: cpu, cuda, cuda:N, gpu, gpu:N, reference (slow and plain), or auto (the first that runs the model)
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = device)]
    device: DeviceChoice,
    /// CPU threads [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Pin CPU threads to these processors, such as 0-7,16 [default: the system places them]
    #[arg(long, value_name = "LIST", value_parser = Cpus::parse)]
    cpus: Option<Cpus>,
}

impl TranscribeArgs {
    /// Where the encoder of sounds is, if the model is none of speech.
    pub(crate) fn images(&self) -> Images {
        self.mmproj.clone().map_or(Images::Beside, Images::File)
    }

    /// The model, and the files.
    pub(crate) fn named(&self) -> anyhow::Result<(&str, &[String])> {
        match (&self.model, &self.words[..]) {
            (Some(model), files) => Ok((model, files)),
            (None, [first, files @ ..]) if source::is_model(first) && !files.is_empty() => {
                Ok((first, files))
            }
            _ => anyhow::bail!(
                "no model of speech is named: give a Whisper directory, a .bin file of whisper.cpp, or a language model that writes transcripts with -m, and files; docs/speech.md lists them"
            ),
        }
    }

    fn format(&self) -> Option<TranscriptFormat> {
        let all = [
            (self.srt, TranscriptFormat::Srt),
            (self.vtt, TranscriptFormat::Vtt),
            (self.json, TranscriptFormat::VerboseJson),
            (self.text, TranscriptFormat::Text),
        ];
        let chosen = all.into_iter().find(|(chosen, _)| *chosen);
        chosen.map(|(_, format)| format)
    }

    fn best_of(&self) -> u32 {
        self.best_of.unwrap_or(5)
    }

    fn options(&self) -> TranscribeOptions {
        let mut options = TranscribeOptions::default();
        if self.translate {
            options.task = Task::Translate;
        }
        options.language = self.language.clone();
        options.word_timestamps = self.word_timestamps;
        options.prompt = self.prompt.clone();
        options.hotwords = self.hotwords.clone();
        if !self.temperatures.is_empty() {
            options.temperatures = self.temperatures.clone();
        }
        options.best_of = self.best_of();
        options.compression_ratio_threshold = Some(self.compression_ratio_threshold.unwrap_or(2.4));
        options.logprob_threshold = Some(self.logprob_threshold.unwrap_or(-1.0));
        options.no_speech_threshold = Some(self.no_speech_threshold.unwrap_or(0.6));
        options.condition_on_previous = !self.no_context;
        options.batch = self.batch.is_some();
        options.skip_silence = !self.keep_silence;
        options.seed = self.seed;
        options.logprobs = self.json;
        options
    }
}

/// A model that writes down speech.
enum Scribe {
    Speech(Box<Speech>),
    /// A language model that hears.
    Language(Session),
}

impl Scribe {
    fn load(args: &TranscribeArgs, model: &str) -> anyhow::Result<Scribe> {
        if welte::hears(model, &args.images())? {
            return load_language_model(args, model);
        }
        let mut place = SpeechOptions::default();
        place.device = args.device;
        place.threads = args.threads.map(usize::from);
        place.cpus = args.cpus.as_ref().map(|cpus| cpus.0.clone());
        place.texts = args.best_of();
        place.windows = args.batch.unwrap_or(1);
        let begun = Instant::now();
        let speech = Speech::open(model, &place)?;
        if io::stderr().is_terminal() {
            let (device, seconds) = (speech.device(), begun.elapsed().as_secs_f64());
            eprintln!("note: {model} on {device}, loaded in {seconds:.1} s");
        }
        Ok(Scribe::Speech(Box::new(speech)))
    }

    fn read(&self, bytes: Vec<u8>) -> Result<Audio, welte::Error> {
        match self {
            Scribe::Speech(speech) => speech.read(bytes, MOST_SECONDS),
            Scribe::Language(session) => session.model().read_sound(bytes, MOST_SECONDS, &|| true),
        }
    }

    fn transcribe(
        &mut self,
        audio: &Audio,
        options: &TranscribeOptions,
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, welte::Error> {
        match self {
            Scribe::Speech(speech) => speech.transcribe(audio, options, see),
            Scribe::Language(session) => session.transcribe(audio, options, see),
        }
    }
}

pub(crate) fn run(
    args: &TranscribeArgs,
    model: &str,
    files: &[String],
) -> anyhow::Result<ExitCode> {
    let mut scribe = Scribe::load(args, model)?;
    each(files, |file| {
        let done = one(args, &mut scribe, file, files.len() > 1);
        done.with_context(|| file.to_string())
    })
}

/// Refuses what only Whisper models do.
fn check(args: &TranscribeArgs) -> anyhow::Result<()> {
    let refused = [
        (args.word_timestamps, "--word-timestamps"),
        (args.translate, "--translate"),
        (args.hotwords.is_some(), "--hotwords"),
        (args.batch.is_some(), "--batch"),
        (args.temperatures.len() > 1, "--temp with several values"),
        (args.best_of.is_some(), "--best-of"),
        (
            args.compression_ratio_threshold.is_some(),
            "--compression-ratio-threshold",
        ),
        (args.logprob_threshold.is_some(), "--logprob-threshold"),
        (args.no_speech_threshold.is_some(), "--no-speech-threshold"),
        (args.no_context, "--no-context"),
    ];
    for (given, flag) in refused {
        anyhow::ensure!(
            !given,
            "{flag}: a language model writes the text of each window once, without times of words; take a Whisper model"
        );
    }
    Ok(())
}

/// Loads a language model that hears.
fn load_language_model(args: &TranscribeArgs, model: &str) -> anyhow::Result<Scribe> {
    check(args)?;
    let mut options = LoadOptions::default();
    options.device = args.device;
    options.threads = args.threads.map(usize::from);
    options.cpus = args.cpus.as_ref().map(|cpus| cpus.0.clone());
    options.images = args.images();
    options.fit_context = true;
    let model = source::load_with(model, &options)?;
    // What it cannot do is said before a file is read.
    model.dictation(args.language.as_deref(), args.prompt.as_deref())?;
    Ok(Scribe::Language(model.session()?))
}

/// Works on one file after the other. Where there are several, one that fails does not end the others.
fn each(
    files: &[String],
    mut work: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let mut failed = 0;
    for file in files {
        match work(file) {
            Err(error) if files.len() > 1 => {
                eprintln!("error: {error:#}");
                failed += 1;
            }
            done => done?,
        }
    }
    anyhow::ensure!(failed == 0, "{failed} of {} files failed", files.len());
    Ok(ExitCode::SUCCESS)
}

/// Writes down one file.
fn one(
    args: &TranscribeArgs,
    scribe: &mut Scribe,
    file: &str,
    several: bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let audio = scribe.read(bytes(file)?)?;
    let format = args.format();
    let mut page = Page {
        out: terminal::stdout(),
        format,
        live: io::stdout().is_terminal(),
        head: None,
        written: false,
    };
    if several && format != Some(TranscriptFormat::VerboseJson) {
        writeln!(page.out, "{file}:")?;
    }
    let (total, tells) = (audio.seconds(), io::stderr().is_terminal());
    let mut wrong = Ok(());
    let transcript = scribe.transcribe(&audio, &args.options(), &mut |update| {
        match update {
            Update::Language(code, probability) if tells => {
                eprintln!(
                    "note: the language is {code} ({:.0} %)",
                    100.0 * probability
                );
            }
            Update::Done(seconds) if tells && total > 60.0 && !page.is_live() => {
                let speed = seconds / begun.elapsed().as_secs_f64();
                eprintln!("note: {seconds:.0} of {total:.0} s, {speed:.1} times real time");
            }
            update if wrong.is_ok() => wrong = page.take(update),
            _ => {}
        }
        if wrong.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    wrong?;
    page.finish(&transcript)?;
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!(
        "{total:.1} s of sound in {seconds:.2} s: {:.1} times real time",
        total / seconds
    );
    Ok(())
}

/// Where a transcript is written, as soon as its format allows.
struct Page<W> {
    out: W,
    /// `None`: segments with their times.
    format: Option<TranscriptFormat>,
    /// Somebody looks: text appears as it comes.
    live: bool,
    /// The times of the window whose text comes next.
    head: Option<(f64, f64)>,
    /// The text was written as it came.
    written: bool,
}

impl<W: Write> Page<W> {
    fn is_live(&self) -> bool {
        self.live && matches!(self.format, None | Some(TranscriptFormat::Text))
    }

    fn take(&mut self, update: Update<'_>) -> io::Result<()> {
        match update {
            Update::Window(start, end) => self.head = Some((start, end)),
            Update::Text(text) if self.is_live() => {
                self.written = true;
                match self.head.take().filter(|_| self.format.is_none()) {
                    Some(head) => write!(self.out, "{}{}", times(head), text.trim_start())?,
                    None => write!(self.out, "{text}")?,
                }
                self.out.flush()?;
            }
            Update::Segment(_) if self.written && self.format.is_none() => writeln!(self.out)?,
            Update::Segment(segment) if self.format.is_none() => {
                let head = times((segment.start, segment.end));
                writeln!(self.out, "{head}{}", segment.text.trim())?;
                self.out.flush()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, transcript: &Transcript) -> io::Result<()> {
        match self.format {
            Some(_) if self.written => writeln!(self.out)?,
            Some(format) => {
                let text = transcript.write(format);
                writeln!(self.out, "{}", text.trim_end_matches('\n'))?;
            }
            None => {}
        }
        self.out.flush()
    }
}

/// `[00:01.00 -> 00:02.50]  `
fn times((start, end): (f64, f64)) -> String {
    let clock = |seconds: f64| {
        let all = (seconds.max(0.0) * 100.0).round() as u64;
        format!("{:02}:{:02}.{:02}", all / 6000, all / 100 % 60, all % 100)
    };
    format!("[{} -> {}]  ", clock(start), clock(end))
}

fn bytes(file: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut read = |from: &mut dyn Read| from.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    if file == "-" {
        read(&mut io::stdin().lock()).context("standard input")?;
    } else {
        let path = Path::new(file);
        anyhow::ensure!(!path.is_dir(), "is a directory");
        read(&mut std::fs::File::open(path)?)?;
    }
    anyhow::ensure!(bytes.len() as u64 <= MOST_BYTES, "has more than 4 GiB");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a terminal text appears as it comes, elsewhere line by line; the result is the same.
    #[test]
    fn segments_are_written_as_they_come() {
        let segment = |start, end, text: &str| welte::Segment {
            id: 0,
            seek: 0,
            start,
            end,
            text: text.to_string(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            temperature: 0.0,
            avg_logprob: 0.0,
            compression_ratio: 1.0,
            no_speech_prob: 0.0,
            words: Vec::new(),
        };
        let segments = vec![
            segment(0.5, 29.0, "So it begins."),
            segment(60.0, 61.5, " The end."),
        ];
        let transcript = Transcript {
            task: Task::Transcribe,
            language: None,
            language_probability: 1.0,
            seconds: 62.0,
            segments: segments.clone(),
        };
        let write = |live, format| {
            let mut page = Page {
                out: Vec::new(),
                format,
                live,
                head: None,
                written: false,
            };
            let mut seen = Vec::new();
            for (segment, pieces) in segments
                .iter()
                .zip([["So it", " begins."], [" The", " end."]])
            {
                page.take(Update::Window(segment.start, segment.end))
                    .unwrap();
                for piece in pieces {
                    page.take(Update::Text(piece)).unwrap();
                    seen.push(page.out.len());
                }
                page.take(Update::Segment(segment)).unwrap();
            }
            page.finish(&transcript).unwrap();
            (String::from_utf8(page.out).unwrap(), seen)
        };
        let lines = "[00:00.50 -> 00:29.00]  So it begins.\n[01:00.00 -> 01:01.50]  The end.\n";
        let (live, seen) = write(true, None);
        assert_eq!(live, lines);
        assert!(seen.is_sorted_by(|a, b| a < b) && seen[0] > 0, "{seen:?}");
        let (later, seen) = write(false, None);
        assert_eq!((later.as_str(), seen[1]), (lines, 0));
        for live in [true, false] {
            let (text, _) = write(live, Some(TranscriptFormat::Text));
            assert_eq!(text, "So it begins. The end.\n");
            let (srt, seen) = write(live, Some(TranscriptFormat::Srt));
            assert!(
                srt.starts_with("1\n00:00:00,500 --> 00:00:29,000\n"),
                "{srt}"
            );
            assert_eq!(seen, [0; 4]);
        }
    }
}
