//! The `welte` binary. Exit codes: 0 done, 1 an error in input or model, 2 wrong usage, 130 interrupted.

mod args;
mod bench;
mod chat;
mod doctor;
mod floor;
mod hub;
mod inspect;
mod ladder;
mod perplexity;
mod picture;
mod profile;
mod profile_page;
mod quantize;
mod run;
mod source;
mod synth;
mod tokenize;
mod trace;

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
    let done = hub::bring(&mut cli.command).and_then(|()| dispatch(cli.command));
    match done {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain_of(&error));
            ExitCode::from(1)
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => run::chat(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Synth(args) => synth::run(&args),
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

/// The error and its causes on one line; a cause that the text above it already tells is not told again.
fn chain_of(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |text, cause| match text {
            _ if text.is_empty() => cause,
            _ if text.contains(&cause) => text,
            _ => format!("{text}: {cause}"),
        })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
