//! `welte synth`: a model of random weights as a GGUF file, so that others can run the same.

use crate::args::SynthArgs;
use crate::source::ProgressLine;
use std::process::ExitCode;
use welte::memory::human;
use welte_formats::gguf::{Kinds, Writer};
use welte_formats::synthetic::Synthetic;
use welte_formats::Checkpoint;

/// Bytes made up at a time.
const PIECE: usize = 16 << 20;

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<ExitCode> {
    let what = args.what.strip_prefix("synthetic:").unwrap_or(&args.what);
    let checkpoint = Synthetic::parse(what)?;
    let tensors = checkpoint.tensors();
    let row_bytes = |t: &welte_formats::TensorInfo| t.format.bytes(t.k).unwrap_or(0);
    let total: u64 = tensors.iter().map(|t| (row_bytes(t) * t.n) as u64).sum();
    let mut line = ProgressLine::new("writing", what);
    let mut done = 0;
    let mut writer = Writer::create(&args.output, checkpoint.metadata(), &Kinds::default(), tensors)?;
    for tensor in tensors {
        let step = (PIECE / row_bytes(tensor).max(1)).max(1);
        for first in (0..tensor.n).step_by(step) {
            let bytes = checkpoint.rows(tensor, first, step.min(tensor.n - first))?;
            writer.write(&bytes)?;
            done += bytes.len() as u64;
            line.show(done, total);
        }
    }
    writer.finish()?;
    line.clear();
    eprintln!("{}: {}", args.output.display(), human(total));
    Ok(ExitCode::SUCCESS)
}
