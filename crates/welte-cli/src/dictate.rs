//! `welte transcribe` with a language model that hears: the text alone.

use crate::transcribe::{TranscribeArgs, bytes};
use crate::{source, terminal};
use anyhow::Context;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;
use welte::{GenerateOptions, Images, LoadOptions, Model, Prompt, Session};

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
    ];
    for (given, flag) in refused {
        anyhow::ensure!(
            !given,
            "{flag}: a language model that hears gives the text alone, without times; take a Whisper model"
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
    options.images = Images::Beside;
    options.fit_context = true;
    let model = source::load_with(model, &options)?;
    let mut session = model.session()?;
    let mut failed = 0;
    for file in files {
        match one(args, &model, &mut session, file, files.len() > 1) {
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
    model: &Model,
    session: &mut Session,
    file: &str,
    several: bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (language, prompt) = (args.language.as_deref(), args.prompt.as_deref());
    let [before, after] = model.dictation(language, prompt)?;
    let ears = model.ears().context("the model takes no sounds")?;
    let sound = ears.look(&bytes(file)?).with_context(|| file.to_string())?;
    let mut prompt: Prompt = before.into();
    let heard = sound.see()?;
    ears.push(&mut prompt, &heard);
    prompt.tokens.extend(after);
    let mut options = GenerateOptions::default();
    options.sampling.temperature = args.temperatures.first().copied().unwrap_or(0.0);
    options.sampling.seed = args.seed;
    let outcome = session.generate(&prompt, &options, &mut |_| ControlFlow::Continue(()))?;
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
        if several {
            writeln!(out, "{file}:")?;
        }
        writeln!(out, "{}", dictated.text)?;
    }
    out.flush()?;
    eprintln!("{:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}
