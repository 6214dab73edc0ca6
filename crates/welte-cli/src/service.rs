//! `welte service`: a server that starts with the session of this user, through systemd or launchd.

use crate::own;
use anyhow::{Context, bail};
use clap::Subcommand;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start `welte serve` now and at every login
    Install {
        /// Write the service's file and start nothing
        #[arg(long)]
        no_start: bool,
        /// Arguments of `welte serve`, after -- [default: --models-cached]
        #[arg(last = true, value_name = "ARGUMENT")]
        serve: Vec<String>,
    },
    /// Show whether it runs
    Status,
    /// Stop it, and remove its file
    Remove,
}

/// What manages services here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manager {
    Systemd,
    Launchd,
}

const NAME: &str = "welte";
const LABEL: &str = "welte.serve";

/// `absolute` makes the paths among the arguments of `welte serve` absolute: the service starts in another folder.
pub(crate) fn run(
    args: &ServiceArgs,
    absolute: impl Fn(&[String]) -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<ExitCode> {
    let manager = match std::env::consts::OS {
        "linux" => Manager::Systemd,
        "macos" => Manager::Launchd,
        other => bail!("services are supported on Linux and macOS; this is {other}"),
    };
    let file = manager.file(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let shown = file.display();
    match &args.action {
        Action::Install { no_start, serve } => {
            let text = manager.text(&own::words()?, &absolute(serve)?)?;
            let folder = file.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            write_private(&file, &text).with_context(|| shown.to_string())?;
            eprintln!("{shown}: written");
            if *no_start {
                Ok(ExitCode::SUCCESS)
            } else {
                // A job of launchd that is loaded already would go on with its former arguments.
                for mut command in manager.before_start(&file) {
                    let _ = command.output();
                }
                each(&manager.start(&file))
            }
        }
        Action::Status => {
            if !file.exists() {
                eprintln!("{shown}: not installed; `welte service install` does that");
                return Ok(ExitCode::from(1));
            }
            each(&manager.status())
        }
        Action::Remove => {
            if !file.exists() {
                bail!("{shown}: not installed");
            }
            // A service that does not run cannot be stopped, and its file still goes.
            let stopped = each(&manager.stop(&file));
            fs::remove_file(&file).with_context(|| shown.to_string())?;
            eprintln!("{shown}: removed");
            if let Err(error) = stopped {
                eprintln!("note: {error:#}");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes a file that only its user reads: the arguments may have a key.
fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut open = options.open(file)?;
    #[cfg(unix)]
    open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    std::io::Write::write_all(&mut open, text.as_bytes())
}

impl Manager {
    fn file(self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<PathBuf> {
        let home = || {
            variable("HOME")
                .map(PathBuf::from)
                .context("HOME is not set")
        };
        Ok(match self {
            Manager::Systemd => match variable("XDG_CONFIG_HOME") {
                Some(folder) => PathBuf::from(folder),
                None => home()?.join(".config"),
            }
            .join("systemd/user")
            .join(format!("{NAME}.service")),
            Manager::Launchd => home()?.join(format!("Library/LaunchAgents/{LABEL}.plist")),
        })
    }

    fn text(self, program: &[String], serve: &[String]) -> anyhow::Result<String> {
        let cached = ["--models-cached".to_string()];
        let serve = if serve.is_empty() { &cached } else { serve };
        let words = program.iter().map(String::as_str);
        let words = words
            .chain(["serve"])
            .chain(serve.iter().map(String::as_str));
        if let Some(word) = words.clone().find(|word| word.contains(char::is_control)) {
            bail!("{word:?}: a service's arguments cannot contain control characters");
        }
        Ok(match self {
            Manager::Systemd => {
                let words: Vec<String> = words.map(systemd_word).collect();
                format!(
                    "[Unit]\nDescription=Welte, an LLM server\n\n[Service]\nExecStart={}\nRestart=on-failure\nNoNewPrivileges=yes\n\n[Install]\nWantedBy=default.target\n",
                    words.join(" ")
                )
            }
            Manager::Launchd => {
                let words = words.map(|word| format!("    <string>{}</string>\n", xml(word)));
                format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n<plist version=\"1.0\">\n<dict>\n  <key>Label</key>\n  <string>{LABEL}</string>\n  <key>ProgramArguments</key>\n  <array>\n{}  </array>\n  <key>RunAtLoad</key>\n  <true/>\n  <key>KeepAlive</key>\n  <dict>\n    <key>SuccessfulExit</key>\n    <false/>\n  </dict>\n</dict>\n</plist>\n",
                    words.collect::<String>()
                )
            }
        })
    }

    /// What may fail: there may be nothing to end.
    fn before_start(self, file: &Path) -> Vec<Command> {
        match self {
            Manager::Systemd => Vec::new(),
            Manager::Launchd => vec![launchctl(&["unload"], Some(file))],
        }
    }

    fn start(self, file: &Path) -> Vec<Command> {
        match self {
            Manager::Systemd => vec![
                systemctl(&["daemon-reload"]),
                systemctl(&["enable", NAME]),
                systemctl(&["restart", NAME]),
            ],
            Manager::Launchd => vec![launchctl(&["load", "-w"], Some(file))],
        }
    }

    fn status(self) -> Vec<Command> {
        match self {
            Manager::Systemd => vec![systemctl(&["status", "--no-pager", NAME])],
            Manager::Launchd => vec![launchctl(&["list", LABEL], None)],
        }
    }

    fn stop(self, file: &Path) -> Vec<Command> {
        match self {
            Manager::Systemd => vec![systemctl(&["disable", "--now", NAME])],
            Manager::Launchd => vec![launchctl(&["unload", "-w"], Some(file))],
        }
    }
}

/// An argument in a unit file: quoted, without specifiers and variables.
fn systemd_word(word: &str) -> String {
    let word = word.replace('\\', r"\\").replace('"', "\\\"");
    format!("\"{}\"", word.replace('%', "%%").replace('$', "$$"))
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn systemctl(args: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.arg("--user").args(args);
    command
}

fn launchctl(args: &[&str], file: Option<&Path>) -> Command {
    let mut command = Command::new("launchctl");
    command.args(args).args(file);
    command
}

/// Runs commands until one fails. The last one's exit code is ours.
fn each(commands: &[Command]) -> anyhow::Result<ExitCode> {
    let mut code = 0;
    for command in commands {
        let program = command.get_program().to_string_lossy().into_owned();
        let args: Vec<_> = command.get_args().collect();
        let status = Command::new(&program).args(&args).status();
        let status = status.with_context(|| format!("{program} cannot be started"))?;
        code = status.code().unwrap_or(1);
        if !status.success() {
            break;
        }
    }
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_service_as_they_are() {
        let program = &["/opt/my tools/welte".to_string()];
        let serve = ["-m".to_string(), r#"a "50%" $model.gguf"#.to_string()];
        let unit = Manager::Systemd.text(program, &serve).unwrap();
        let line = r#"ExecStart="/opt/my tools/welte" "serve" "-m" "a \"50%%\" $$model.gguf""#;
        assert!(unit.contains(line), "{unit}");
        let plist = Manager::Launchd
            .text(program, &["<&>".to_string()])
            .unwrap();
        assert!(plist.contains("<string>&lt;&amp;&gt;</string>"), "{plist}");
        let cached = Manager::Systemd.text(program, &[]).unwrap();
        assert!(cached.contains("\"--models-cached\""), "{cached}");
        let broken = Manager::Systemd.text(program, &["a\nExecStartPost=b".to_string()]);
        assert!(
            broken
                .unwrap_err()
                .to_string()
                .contains("control characters")
        );
    }

    #[test]
    fn files_lie_where_the_managers_look() {
        let home = |name: &str| (name == "HOME").then(|| "/home/x".to_string());
        let unit = Manager::Systemd.file(home).unwrap();
        assert_eq!(
            unit,
            Path::new("/home/x/.config/systemd/user/welte.service")
        );
        let plist = Manager::Launchd.file(home).unwrap();
        assert_eq!(
            plist,
            Path::new("/home/x/Library/LaunchAgents/welte.serve.plist")
        );
        assert!(Manager::Systemd.file(|_| None).is_err());
    }
}
