//! `welte quantize`: a model's weights in other formats.

use crate::args::QuantizeArgs;
use crate::source::ProgressLine;
use anyhow::Context;
use std::process::ExitCode;
use welte_formats::quantize::{Recipe, quantize, requantised};
use welte_report::human;

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<ExitCode> {
    let recipe = Recipe::from_name(&args.kind).with_context(|| {
        let names: Vec<&str> = Recipe::all().map(Recipe::name).collect();
        format!(
            "{} is not a type; use one of {}",
            args.kind,
            names.join(", ")
        )
    })?;
    let input = welte::open(&args.input)?;
    let lossy = requantised(input.as_ref(), recipe).len();
    if lossy > 0 {
        eprintln!(
            "note: {lossy} tensors are already quantised and lose accuracy again; start from F16 or BF16 if you can"
        );
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut line = ProgressLine::new("writing", &args.input);
    let mut bytes = 0;
    let written = quantize(
        input.as_ref(),
        &args.output,
        recipe,
        threads,
        &mut |done, total| {
            bytes = total;
            line.bytes(done, total);
        },
    );
    line.clear();
    written?;
    eprintln!(
        "{}: {} of weights as {}",
        args.output.display(),
        human(bytes),
        recipe.name()
    );
    Ok(ExitCode::SUCCESS)
}
