//! Arguments that hold in every folder.

use crate::args::Cli;
use anyhow::{Context, bail};
use clap::CommandFactory;
use std::ffi::OsString;
use std::path::Path;

/// The arguments of `welte serve` as a service needs them: it starts in another folder, so that paths are absolute. Wrong ones end
/// the process with the error of `welte serve`.
pub(crate) fn absolute(serve: &[String]) -> anyhow::Result<Vec<String>> {
    let words = ["welte", "serve"].map(OsString::from);
    let line = crate::llama_flags::translate(words.into_iter().chain(serve.iter().map(Into::into)));
    if let Some(error) = line.error {
        bail!("{error}");
    }
    let command = Cli::command();
    let command = command
        .find_subcommand("serve")
        .context("the command serve is missing")?;
    if let Err(error) = Cli::command().try_get_matches_from(&line.args) {
        error.exit();
    }
    let mut flag = None;
    let mut all = Vec::new();
    for word in line.args.iter().skip(2) {
        let word = word.to_str().context("an argument is not UTF-8")?;
        // The argument that takes this word, and what is before the word.
        let (taken, before, value) = match (flag.take(), word.split_once('=')) {
            (Some(flag), _) => (Some(flag), "", word),
            (None, Some((name, value))) if word.starts_with("--") => {
                (named(command, name), name, value)
            }
            (None, _) if word.starts_with('-') => {
                let arg = named(command, word).filter(|arg| arg.get_action().takes_values());
                match word.char_indices().nth(2) {
                    // A short flag with its value.
                    Some((at, _)) if arg.is_some() && !word.starts_with("--") => {
                        (arg, &word[..at], word[at..].trim_start_matches('='))
                    }
                    _ => {
                        flag = arg;
                        (None, "", word)
                    }
                }
            }
            (None, _) => (command.get_positionals().next(), "", word),
        };
        let equals = if before.starts_with("--") { "=" } else { "" };
        let value = match taken.map(place) {
            Some(Place::Path) => absolute_path(value)?,
            // Other words name models.
            Some(Place::Model) if Path::new(value).exists() => absolute_path(value)?,
            _ => value.to_string(),
        };
        all.push(format!("{before}{equals}{value}"));
    }
    Ok(all)
}

/// The flag of this name, as `--model` or `-m`.
fn named<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    let long = word.strip_prefix("--");
    let short = word.strip_prefix('-').and_then(|rest| rest.chars().next());
    command.get_arguments().find(|arg| match long {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some() && arg.get_short() == short,
    })
}

/// What an argument names.
enum Place {
    /// A file or a folder, which need not exist yet.
    Path,
    Model,
    Nothing,
}

fn place(arg: &clap::Arg) -> Place {
    let names = arg.get_value_names().unwrap_or_default();
    let is = |kind: &[&str]| names.iter().any(|name| kind.contains(&name.as_str()));
    match () {
        () if is(&["FILE", "DIR", "FOLDER"]) => Place::Path,
        () if is(&["MODEL"]) => Place::Model,
        () => Place::Nothing,
    }
}

fn absolute_path(word: &str) -> anyhow::Result<String> {
    let path = std::path::absolute(word).with_context(|| word.to_string())?;
    Ok(path
        .to_str()
        .context("the path of this folder is not UTF-8")?
        .to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_of_a_service_are_absolute() {
        let folder = std::env::current_dir().unwrap().display().to_string();
        let absolute = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            super::absolute(&words).unwrap().join(" ")
        };
        // The tests run in the crate's folder.
        let words = [
            "-m",
            "Cargo.toml",
            "--alias",
            "src",
            "--models-dir=src",
            "-hf",
            "a/b",
            "--prefix-cache",
            "not-there-yet",
        ];
        assert_eq!(
            absolute(&words),
            format!(
                "-m {folder}/Cargo.toml --alias src --models-dir={folder}/src --hf-repo a/b --prefix-cache {folder}/not-there-yet"
            )
        );
        // Values may stand at their flags.
        assert_eq!(
            absolute(&["-c8192", "Cargo.toml"]),
            format!("-c8192 {folder}/Cargo.toml")
        );
        assert_eq!(
            absolute(&["-mCargo.toml"]),
            format!("-m{folder}/Cargo.toml")
        );
        assert_eq!(absolute(&["Cargo.toml"]), format!("{folder}/Cargo.toml"));
        assert_eq!(
            absolute(&["-m", "synthetic:qwen3-0.6b:q4_0"]),
            "-m synthetic:qwen3-0.6b:q4_0"
        );
    }
}
