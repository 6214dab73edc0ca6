//! `welte quantize`: a model's weights in other formats, a directory as one GGUF file, and a GGUF file as a directory.

use crate::args::QuantizeArgs;
use crate::source::ProgressLine;
use anyhow::Context;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use welte_formats::importance::Importance;
use welte_formats::quantize::{Quantisation, Recipe, quantize, requantised, size};
use welte_formats::{Checkpoint, TensorInfo, quant};
use welte_report::human;
use welte_table::Format;

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<ExitCode> {
    let to = quantisation(args)?;
    if is_folder(&args.output) {
        return as_directory(args, &to);
    }
    let input = read(args)?;
    let plan = to.plan(input.as_ref())?;
    let lossy = requantised(input.as_ref(), &plan).len();
    if lossy > 0 {
        eprintln!(
            "note: {lossy} tensors are already quantised and lose accuracy again; start from F16 or BF16 if you can"
        );
    }
    if args.dry_run {
        return show(input.as_ref(), &plan, &to);
    }
    let mut line = ProgressLine::new("writing", &args.input);
    let written = quantize(input.as_ref(), &args.output, &to, &mut |done, total| {
        line.bytes(done, total);
    });
    line.clear();
    written?;
    eprintln!(
        "{}: {} of weights as {}",
        args.output.display(),
        human(size(&plan)),
        to.recipe.name()
    );
    Ok(ExitCode::SUCCESS)
}

/// A path that ends with a slash, or a folder that is there, means a directory.
fn is_folder(output: &Path) -> bool {
    output.to_string_lossy().ends_with(['/', '\\']) || output.is_dir()
}

/// Writes a Hugging Face directory.
fn as_directory(args: &QuantizeArgs, to: &Quantisation) -> anyhow::Result<ExitCode> {
    let unused = [
        ("--mmproj", args.mmproj),
        ("--imatrix", args.imatrix.is_some()),
        ("--tensor-type", !args.tensor_type.is_empty()),
        ("--dry-run", args.dry_run),
    ];
    if let Some((flag, _)) = unused.iter().find(|(_, given)| *given) {
        anyhow::bail!("{flag}: goes with a GGUF file, not with a directory");
    }
    let mut line = ProgressLine::new("writing", &args.input);
    let written = welte::write_directory(&args.input, &args.output, to, &mut |done, total| {
        line.bytes(done, total);
    });
    line.clear();
    written?;
    eprintln!("{}: weights as {}", args.output.display(), to.recipe.name());
    Ok(ExitCode::SUCCESS)
}

/// What is written, with the names of a GGUF file.
fn read(args: &QuantizeArgs) -> anyhow::Result<Box<dyn Checkpoint>> {
    let input = welte::open(&args.input)?;
    if !args.mmproj {
        return Ok(welte::as_gguf(input)?);
    }
    let (input, left_out) = welte::as_mmproj(input)?;
    if let Some(why) = left_out {
        eprintln!("note: left out: {why}");
    }
    Ok(input)
}

fn quantisation(args: &QuantizeArgs) -> anyhow::Result<Quantisation> {
    let recipe = Recipe::from_name(&args.kind).with_context(|| {
        let names: Vec<&str> = Recipe::all().map(Recipe::name).collect();
        format!(
            "{} is not a type; use one of {}",
            args.kind,
            names.join(", ")
        )
    })?;
    if recipe.needs_importance() && args.imatrix.is_none() {
        anyhow::bail!(
            "{} needs to know what matters: give --imatrix FILE (welte imatrix -m MODEL -f TEXT -o FILE makes one)",
            recipe.name()
        );
    }
    let overrides = args.tensor_type.iter().map(|given| {
        let (part, format) = given
            .split_once('=')
            .filter(|(part, _)| !part.is_empty())
            .with_context(|| format!("--tensor-type {given}: must be TEXT=TYPE"))?;
        let known = Format::from_name(&format.to_uppercase());
        let format = known
            .filter(|format| quant::has_encoder(*format) || quant::grid::table(*format).is_some())
            .with_context(|| format!("--tensor-type {given}: cannot write the format {format}"))?;
        Ok((part.to_string(), format))
    });
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Quantisation {
        recipe,
        overrides: overrides.collect::<anyhow::Result<_>>()?,
        importance: args.imatrix.as_deref().map(Importance::read).transpose()?,
        threads: args.threads.unwrap_or_else(all).max(1),
    })
}

/// Each tensor with its format before and after, then the sizes.
fn show(
    input: &dyn Checkpoint,
    plan: &[TensorInfo],
    to: &Quantisation,
) -> anyhow::Result<ExitCode> {
    let mut out = crate::terminal::stdout();
    for (from, planned) in input.tensors().iter().zip(plan) {
        let weighed = to
            .importance
            .as_ref()
            .is_some_and(|importance| importance.tensors.contains_key(&from.name));
        writeln!(
            out,
            "{:<40} {:>8} x {:<8} {:>8} -> {:<8}{}",
            from.name,
            from.n,
            from.k,
            from.format.name(),
            planned.format.name(),
            if weighed { " weighed" } else { "" }
        )?;
    }
    writeln!(
        out,
        "{} -> {}",
        human(size(input.tensors())),
        human(size(plan))
    )?;
    Ok(ExitCode::SUCCESS)
}
