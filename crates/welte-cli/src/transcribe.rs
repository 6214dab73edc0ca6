//! `welte transcribe`: writes down speech.

use crate::flags::{Cpus, device};
use crate::{source, terminal};
use anyhow::Context;
use std::io::{IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use welte::{
    DeviceChoice, Images, Segment, Speech, SpeechOptions, Task, TranscribeOptions,
    TranscriptFormat, Update,
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
    pub(crate) srt: bool,
    /// Subtitles of the web
    #[arg(long, group = "form")]
    pub(crate) vtt: bool,
    /// JSON with segments, language and length, a line for each file
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// The text alone [default: segments with their times]
    #[arg(long, group = "form")]
    text: bool,
    /// Write in English what is said in another language
    #[arg(long)]
    pub(crate) translate: bool,
    /// The language: a code or an English name [default: detected]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,
    /// Give every word a beginning and an end (with --json)
    #[arg(long)]
    pub(crate) word_timestamps: bool,
    /// Names, spellings and style that come before the text
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Words that are likely to be said
    #[arg(long, value_name = "TEXT")]
    pub(crate) hotwords: Option<String>,
    /// Temperature; several are tried in turn until the text is good enough [default: 0 to 1 in steps of 0.2]
    #[arg(
        long = "temp",
        alias = "temperature",
        value_name = "T",
        value_delimiter = ','
    )]
    pub(crate) temperatures: Vec<f32>,
    /// Texts at a temperature above 0, of which the likeliest counts [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) best_of: Option<u32>,
    /// A text that compresses better repeats itself, so the next temperature is tried [default: 2.4]
    #[arg(long, value_name = "R")]
    pub(crate) compression_ratio_threshold: Option<f32>,
    /// A text whose mean logarithm of probability is lower is not good enough, so the next temperature is tried [default: -1]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub(crate) logprob_threshold: Option<f32>,
    /// A window is silent if this is likelier and its text is not likely enough [default: 0.6]
    #[arg(long, value_name = "P")]
    pub(crate) no_speech_threshold: Option<f32>,
    /// Cut windows where it is quiet and write N of them together: faster, but no window knows the text before it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) batch: Option<u32>,
    /// Do not use the text so far as the prompt of the next window
    #[arg(long)]
    pub(crate) no_context: bool,
    /// Transcribe silent windows, too
    #[arg(long)]
    pub(crate) keep_silence: bool,
    /// Seed of texts at temperatures above 0
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Device: cpu, cuda, cuda:N, gpu, gpu:N, reference (slow and plain), or auto (the first that runs the model)
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = device)]
    pub(crate) device: DeviceChoice,
    /// CPU threads [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Pin CPU threads to these processors, such as 0-7,16 [default: the system places them]
    #[arg(long, value_name = "LIST", value_parser = Cpus::parse)]
    pub(crate) cpus: Option<Cpus>,
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
        options
    }
}

pub(crate) fn run(
    args: &TranscribeArgs,
    model: &str,
    files: &[String],
) -> anyhow::Result<ExitCode> {
    let mut place = SpeechOptions::default();
    place.device = args.device;
    place.threads = args.threads.map(usize::from);
    place.cpus = args.cpus.as_ref().map(|cpus| cpus.0.clone());
    place.texts = args.best_of();
    place.windows = args.batch.unwrap_or(1);
    let begun = Instant::now();
    let speech = Speech::open(model, &place)?;
    let tells = std::io::stderr().is_terminal();
    if tells {
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!(
            "note: {model} on {}, loaded in {seconds:.1} s",
            speech.device()
        );
    }
    each(files, |file| {
        one(args, &speech, file, files.len() > 1, tells)
    })
}

/// Works on one file after the other. Where there are several, one that fails does not end the others.
pub(crate) fn each(
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
    speech: &Speech,
    file: &str,
    several: bool,
    tells: bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let audio = speech
        .read(bytes(file)?, MOST_SECONDS)
        .with_context(|| file.to_string())?;
    let mut out = terminal::stdout();
    let format = args.format();
    if several && format != Some(TranscriptFormat::VerboseJson) {
        writeln!(out, "{file}:")?;
    }
    let total = audio.seconds();
    let mut wrong = Ok(());
    let transcript = speech.transcribe(&audio, &args.options(), &mut |update| {
        match update {
            Update::Language(code, probability) if tells => {
                eprintln!(
                    "note: the language is {code} ({:.0} %)",
                    100.0 * probability
                );
            }
            Update::Segment(segment) if format.is_none() => {
                wrong = writeln!(out, "{}", line(segment)).and_then(|()| out.flush());
            }
            Update::Done(seconds) if tells && total > 60.0 => {
                let speed = seconds / begun.elapsed().as_secs_f64();
                eprintln!("note: {seconds:.0} of {total:.0} s, {speed:.1} times real time");
            }
            _ => {}
        }
        if wrong.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    wrong?;
    if let Some(format) = format {
        let text = transcript.write(format);
        write!(out, "{}", text.trim_end_matches('\n'))?;
        writeln!(out)?;
    }
    out.flush()?;
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!(
        "{total:.1} s of sound in {seconds:.2} s: {:.1} times real time",
        total / seconds
    );
    Ok(())
}

pub(crate) fn bytes(file: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut read = |from: &mut dyn Read| from.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    if file == "-" {
        read(&mut std::io::stdin().lock()).context("-: standard input")?;
    } else {
        let path = Path::new(file);
        anyhow::ensure!(!path.is_dir(), "{file}: is a directory");
        let mut from = std::fs::File::open(path).with_context(|| file.to_string())?;
        read(&mut from).with_context(|| file.to_string())?;
    }
    anyhow::ensure!(
        bytes.len() as u64 <= MOST_BYTES,
        "{file}: has more than 4 GiB"
    );
    Ok(bytes)
}

/// `[00:01.00 -> 00:02.50]  What is said.`
fn line(segment: &Segment) -> String {
    let clock = |seconds: f64| {
        let all = (seconds.max(0.0) * 100.0).round() as u64;
        format!("{:02}:{:02}.{:02}", all / 6000, all / 100 % 60, all % 100)
    };
    let (start, end) = (clock(segment.start), clock(segment.end));
    format!("[{start} -> {end}]  {}", segment.text.trim())
}
