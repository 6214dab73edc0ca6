//! `welte transcribe` with a language model that hears: the text alone.

use crate::transcribe::{TranscribeArgs, bytes, each};
use crate::{source, terminal};
use anyhow::Context;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;
use welte::{GenerateOptions, LoadOptions, Prompt, Session, StopReason};

/// Refuses what only models of speech with timestamps do.
fn check(args: &TranscribeArgs) -> anyhow::Result<()> {
    let refused = [
        (args.srt, "--srt"),
        (args.vtt, "--vtt"),
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
        (args.keep_silence, "--keep-silence"),
    ];
    for (given, flag) in refused {
        anyhow::ensure!(
            !given,
            "{flag}: a language model hears a file at once and gives its text alone, without times; take a Whisper model"
        );
    }
    Ok(())
}

pub(crate) fn run(
    args: &TranscribeArgs,
    model: &str,
    files: &[String],
) -> anyhow::Result<ExitCode> {
    check(args)?;
    let mut options = LoadOptions::default();
    options.device = args.device;
    options.threads = args.threads.map(usize::from);
    options.cpus = args.cpus.as_ref().map(|cpus| cpus.0.clone());
    options.images = args.images();
    options.fit_context = true;
    let model = source::load_with(model, &options)?;
    let around = model.dictation(args.language.as_deref(), args.prompt.as_deref())?;
    let mut session = model.session()?;
    each(files, |file| {
        let bytes = bytes(file)?;
        let name = (files.len() > 1).then_some(file);
        let done = one(args, &mut session, &around, &bytes, name);
        done.with_context(|| file.to_string())
    })
}

/// Writes down one file, under its name, if it has one. `before` and `after` stand around the sound.
fn one(
    args: &TranscribeArgs,
    session: &mut Session,
    [before, after]: &[Vec<u32>; 2],
    bytes: &[u8],
    name: Option<&str>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let model = session.model().clone();
    let ears = model.ears().context("the model takes no sounds")?;
    let sound = ears.look(bytes)?;
    let (own, context) = (before.len() + sound.tokens() + after.len(), model.context());
    anyhow::ensure!(
        own < context,
        "its sound takes {own} positions of the context, which has {context}; cut it into shorter files"
    );
    let mut prompt: Prompt = before.into();
    let heard = sound.see()?;
    ears.push(&mut prompt, &heard);
    prompt.tokens.extend(after);
    let mut options = GenerateOptions::default();
    options.sampling.temperature = args.temperatures.first().copied().unwrap_or(0.0);
    options.sampling.seed = args.seed;
    let outcome = session.generate(&prompt, &options, &mut |_| ControlFlow::Continue(()))?;
    anyhow::ensure!(
        matches!(outcome.stop, StopReason::End(_)),
        "its transcript does not fit the context of {context} positions; cut it into shorter files"
    );
    let dictated = model.dictated(&outcome.tokens)?;
    let mut out = terminal::stdout();
    if args.json {
        let language = dictated.language.or(args.language.clone());
        writeln!(
            out,
            "{}",
            json!({ "text": dictated.text, "language": language })
        )?;
    } else {
        if let Some(name) = name {
            writeln!(out, "{name}:")?;
        }
        writeln!(out, "{}", dictated.text)?;
    }
    out.flush()?;
    eprintln!("{:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}
