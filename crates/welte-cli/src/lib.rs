//! The command line, for the binary `welte` and for the Python package. Exit codes: 0 done, 1 an error in input or model,
//! 2 wrong usage, 130 interrupted.

// First, because its macros replace those of the standard library.
#[macro_use]
mod terminal;

mod absolute;
mod address;
mod args;
mod bench;
mod catalog;
mod chat;
mod client;
mod constraint;
mod conversation;
#[cfg(feature = "hub")]
mod create;
mod doctor;
mod embed;
mod figures;
mod flags;
mod fleet;
mod floor;
mod generate;
mod help;
mod hints;
mod http;
mod hub;
mod images;
mod imatrix;
mod inspect;
mod ladder;
mod launch;
mod limits;
mod llama_flags;
mod logprobs;
mod offer;
mod own;
mod perplexity;
mod profile;
mod quantize;
#[cfg(feature = "hub")]
mod recipes;
mod remote;
mod rerank;
mod run;
mod sampling;
mod serve;
mod service;
mod short;
mod show;
mod source;
mod synth;
mod templates;
mod texts;
mod tokenize;
mod transcribe;
mod tune;
mod wrap;

pub use own::started_by;

use args::{Cli, Command};
use clap::FromArgMatches;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the command that the arguments name; the first one is the name of the program. Wrong usage, and a request for help, end
/// the process.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    figures::START.get_or_init(Instant::now);
    welte::spare_addresses();
    let line = llama_flags::translate(args);
    if let Some(error) = line.error {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    let mut args = line.args;
    let matches = help::command(&mut args).get_matches_from(args);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    for note in line.notes {
        eprintln!("note: {note}");
    }
    match done(cli.command) {
        Ok(code) => code,
        // The reader of our output has closed the pipe on purpose.
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", hints::explain(&error));
            ExitCode::from(1)
        }
    }
}

/// Prepares a command's model and runs the command.
fn done(mut command: Command) -> anyhow::Result<ExitCode> {
    // A running server comes before a download.
    if let Command::Run(args) = &command
        && let Some(done) = remote::run(args)?
    {
        return Ok(done);
    }
    #[cfg(feature = "hub")]
    create::prepare(&mut command)?;
    hub::fetch(&mut command)?;
    dispatch(command)
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => run::chat(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Embed(args) => embed::run(&args),
        Command::Transcribe(args) => {
            let (model, files) = args.named()?;
            transcribe::run(&args, model, files)
        }
        Command::Rerank(args) => rerank::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Ps(args) => client::ps(&args),
        Command::Stop(args) => client::stop(&args),
        Command::Launch(args) => launch::run(&args),
        Command::Service(args) => service::run(&args, absolute::absolute),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
        #[cfg(feature = "hub")]
        Command::Create(args) => create::run(&args),
        #[cfg(feature = "hub")]
        Command::Pull(args) => hub::pull(&args),
        #[cfg(feature = "hub")]
        Command::List(args) => hub::list(&args),
        #[cfg(feature = "hub")]
        Command::Rm(args) => hub::rm(&args),
    }
}
