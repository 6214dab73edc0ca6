//! Help that fits on a screen: `--help` of the longest commands shows the flags that most need, in groups; `--help-all` shows all.

use crate::args::Cli;
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// A heading, and the flags under it.
type Group = (&'static str, &'static [&'static str]);

/// Commands with many flags, and those that their help shows.
const SHORT: [(&str, &[Group]); 3] = [("run", RUN), ("chat", RUN), ("serve", SERVE)];

const RUN: &[Group] = &[
    ("Model", &["model", "hf_repo"]),
    ("Prompt", &["prompt", "file", "system_prompt", "no_chat"]),
    ("Device and memory", &["device", "ctx_size", "threads"]),
    (
        "Sampling",
        &["predict", "seed", "temperature", "top_k", "top_p", "stop"],
    ),
    ("Form of the answer", &["json_schema", "grammar"]),
    ("Figures", &["verbose"]),
];

const SERVE: &[Group] = &[
    ("Models", &["model", "hf_repo", "models_dir", "alias"]),
    (
        "Device and memory",
        &["device", "ctx_size", "parallel", "threads"],
    ),
    (
        "Answers",
        &["predict", "temperature", "chat_template_file", "reasoning"],
    ),
    (
        "Clients",
        &[
            "host", "port", "api_key", "cors", "strict", "metrics", "verbose",
        ],
    ),
];

const ALL: &str = "--help-all";

/// The command line's description. The long help is shown if the arguments ask for it.
pub(crate) fn command(args: &mut [OsString]) -> Command {
    let mut command = Cli::command();
    let end = args.iter().position(|arg| arg == "--");
    let end = end.unwrap_or(args.len());
    let all = args[..end].iter_mut().find(|arg| *arg == ALL);
    if let Some(all) = all {
        *all = "--help".into();
        return command;
    }
    for (name, groups) in SHORT {
        command = command.mut_subcommand(name, |command| short(command, groups));
    }
    command
}

/// A command whose help shows these flags only.
fn short(command: Command, groups: &[Group]) -> Command {
    let total = command.get_opts().count();
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let group = groups.iter().find(|(_, ids)| ids.contains(&id));
        match group {
            Some((heading, _)) => arg.help_heading(*heading),
            None if arg.is_positional() => arg,
            None => arg.hide(true),
        }
    });
    let shown: usize = groups.iter().map(|(_, ids)| ids.len()).sum();
    let more = total.saturating_sub(shown);
    command.after_help(format!("{ALL} shows {more} more."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_on_a_screen() {
        for (name, groups) in SHORT {
            let mut args = ["welte", name, "--help"].map(OsString::from);
            let mut command = command(&mut args).term_width(100);
            let shown = command.find_subcommand_mut(name).unwrap();
            let text = shown.render_help().to_string();
            assert!(
                text.lines().count() <= 60,
                "{name}: {}",
                text.lines().count()
            );
            for (heading, ids) in groups {
                assert!(text.contains(heading), "{text}");
                for id in *ids {
                    let known = Cli::command();
                    let known = known.find_subcommand(name).unwrap();
                    assert!(known.get_arguments().any(|arg| arg.get_id() == id), "{id}");
                }
            }
            assert!(text.contains(ALL));
        }
    }

    #[test]
    fn help_all_shows_everything() {
        let mut args = ["welte", "serve", ALL].map(OsString::from);
        let mut command = command(&mut args);
        assert_eq!(args[2], "--help");
        let serve = command.find_subcommand_mut("serve").unwrap();
        let text = serve.render_help().to_string();
        assert!(text.contains("--checkpoints") && text.contains("--xtc-threshold"));
        let mut args = ["welte", "run", "--", ALL].map(OsString::from);
        super::command(&mut args);
        assert_eq!(args[3], ALL);
    }
}
