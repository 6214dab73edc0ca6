//! `welte synth`: writes a model of random weights as a GGUF file, so that other engines can run it too.

use crate::args::SynthArgs;
use crate::source::ProgressLine;
use std::process::ExitCode;
use welte_formats::synthetic::{self, Synthetic};
use welte_report::human;

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<ExitCode> {
    let what = args.what.strip_prefix("synthetic:").unwrap_or(&args.what);
    let model = Synthetic::parse(what)?;
    let mut line = ProgressLine::new("writing", what);
    let mut bytes = 0;
    let written = synthetic::write(&model, &args.output, &mut |done, total| {
        bytes = total;
        line.bytes(done, total);
    });
    line.clear();
    written?;
    eprintln!("{}: {} of weights", args.output.display(), human(bytes));
    Ok(ExitCode::SUCCESS)
}
