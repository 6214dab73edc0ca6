//! `welte inspect`: a model's description, memory plan and passes. Of a model that is not supported, its contents beside those of the
//! most similar architecture.

use crate::args::{InspectArgs, Picture};
use crate::source::{self, ProgressLine};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use welte::{Inspection, Model};
use welte_report::Header;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let mut options = args.load.options()?;
    options.slots = args.parallel;
    if args.kernels.is_some() {
        // As `run` and `serve` load.
        (options.fit_context, options.embeddings) = (true, true);
    }
    args.eyes.set(&mut options);
    let inspection = match Model::inspect(&source, &options) {
        Err(welte::Error::Model(error)) if error.is_of_contents() => {
            writeln!(crate::terminal::stdout(), "{}\n", Model::survey(&source)?)?;
            return Err(welte::Error::Model(error).into());
        }
        other => other?,
    };
    if let Some(folder) = &args.kernels {
        return compile(&inspection, folder);
    }
    let header = Header {
        title: inspection.origin().to_string(),
        facts: inspection.facts(),
        plan: inspection.plan().clone(),
        available: inspection.available(),
    };
    let view = match args.output {
        Picture::Text => welte_report::text,
        Picture::Json => welte_report::json,
        Picture::Dot => welte_report::dot,
        Picture::Html => welte_report::html,
    };
    let mut out = crate::terminal::stdout();
    out.write_all(view(inspection.program(), &header).as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Compiles the kernels of a load into a folder.
fn compile(inspection: &Inspection, folder: &Path) -> anyhow::Result<ExitCode> {
    let mut line = ProgressLine::new("compiling kernels", inspection.origin());
    let compiled =
        inspection.make_kernels(folder, &mut |done, total| line.count("kernel", done, total));
    line.clear();
    writeln!(
        crate::terminal::stdout(),
        "{} on {}: {} more kernels in {}",
        inspection.origin(),
        inspection.device().name,
        compiled?,
        folder.display()
    )?;
    Ok(ExitCode::SUCCESS)
}
