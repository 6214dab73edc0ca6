//! `welte imatrix`: how much the columns of a model's matrices matter, for `welte quantize --imatrix`.

use crate::args::ImatrixArgs;
use crate::perplexity::{CHUNK, Text};
use crate::source;
use std::io::IsTerminal;
use std::process::ExitCode;
use welte::Model;

pub(crate) fn run(args: &ImatrixArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let text = source::read_text(&args.file)?;
    let mut options = args.load.options()?;
    if options.context == 0 {
        options.context = CHUNK;
    }
    let chunk = options.context as usize;
    options.prompt_rows = options.context;
    options.fused = false;
    // The file names tensors as GGUF does, also those of a directory.
    let checkpoint = welte::as_gguf(welte::open(&source)?)?;
    let model = source::load_by(&source, |progress| {
        Model::from_checkpoint(checkpoint, &options, progress)
    })?;
    let text = Text::of(&model, &text, chunk, args.chunks)?;
    let total = text.total;
    let terminal = std::io::stderr().is_terminal();
    let mut stepper = model.stepper()?;
    let mut all = welte::importance(&mut stepper, &text.tokens, chunk, text.bos, &mut |done| {
        if terminal {
            eprint!("\r\x1b[K[{done}/{total}]");
        }
        done < total
    })?;
    if terminal {
        eprintln!();
    }
    all.datasets = vec![args.file.display().to_string()];
    all.write(&args.output)?;
    let output = args.output.display();
    eprintln!(
        "{output}: {} tensors, {} chunks of {chunk} tokens",
        all.tensors.len(),
        all.chunks
    );
    Ok(ExitCode::SUCCESS)
}
