//! The `welte` binary. Exit codes: 0 done, 1 an error in input or model, 2 wrong usage, 130 interrupted.

// First, because its macros replace those of the standard library.
#[macro_use]
mod terminal;

mod args;
mod bench;
mod catalog;
mod chat;
mod constraint;
mod doctor;
mod embed;
mod figures;
mod floor;
mod hub;
mod inspect;
mod ladder;
mod limits;
mod logprobs;
mod perplexity;
mod profile;
mod quantize;
mod remedy;
mod rerank;
mod run;
mod serve;
mod source;
mod synth;
mod texts;
mod tokenize;
mod tune;
mod wrap;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

/// When the process began.
static START: OnceLock<Instant> = OnceLock::new();

fn main() -> ExitCode {
    START.get_or_init(Instant::now);
    let mut cli = Cli::parse_from(args::long_names(std::env::args_os()));
    let done = hub::fetch(&mut cli.command).and_then(|()| dispatch(cli.command));
    match done {
        Ok(code) => code,
        // The reader of our output has closed the pipe on purpose.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", remedy::explain(&error));
            ExitCode::from(1)
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => run::chat(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Embed(args) => embed::run(&args),
        Command::Rerank(args) => rerank::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "hub")]
        Command::Pull(args) => hub::pull(&args),
        #[cfg(feature = "hub")]
        Command::List(args) => hub::list(&args),
        #[cfg(feature = "hub")]
        Command::Show(args) => hub::show(&args),
        #[cfg(feature = "hub")]
        Command::Rm(args) => hub::rm(&args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
