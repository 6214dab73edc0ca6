//! `welte completions` and `welte man`: what shells and `man` read, from the description of the command line.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use anyhow::Context;
use clap::CommandFactory;
use std::io::Write;
use std::process::ExitCode;

/// Writes a shell's completions to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "welte", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for each command.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let shown = args.folder.display();
    std::fs::create_dir_all(&args.folder).with_context(|| format!("{shown}: cannot be made"))?;
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .with_context(|| format!("{shown}: cannot be written"))?;
    eprintln!("{shown}: add its parent to MANPATH, or copy the pages to a folder man1 there");
    Ok(ExitCode::SUCCESS)
}
