//! `welte synth`: a model of random weights as a GGUF file, so that others can run the same.

use crate::args::SynthArgs;
use crate::source;
use std::process::ExitCode;
use welte::memory::human;
use welte_formats::gguf;
use welte_formats::synthetic::Synthetic;

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<ExitCode> {
    let what = args.what.strip_prefix("synthetic:").unwrap_or(&args.what);
    let checkpoint = Synthetic::parse(what)?;
    let mut line = source::ProgressLine::new("writing", what);
    let written = gguf::copy(&checkpoint, &args.output, &mut |done, total| line.show(done, total));
    line.clear();
    let bytes = written?;
    eprintln!("{}: {}", args.output.display(), human(bytes));
    Ok(ExitCode::SUCCESS)
}
