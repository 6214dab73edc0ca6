//! `welte inspect`: what a model is, what it needs, and its table.

use crate::args::{InspectArgs, Picture};
use crate::source;
use std::io::Write;
use std::process::ExitCode;
use welte::Model;
use welte_table::dump;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let inspection = Model::inspect(&source, &args.load.options()?)?;
    let (program, header) = (inspection.program(), inspection.header());
    let shown = match args.output {
        Picture::Text => dump::text(program, &header),
        Picture::Json => dump::json(program, &header),
        Picture::Dot => dump::dot(program, &header),
        Picture::Html => dump::html(program, &header),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(shown.as_bytes())?;
    if !shown.ends_with('\n') {
        writeln!(out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
