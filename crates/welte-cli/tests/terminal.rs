//! What comes from elsewhere controls no terminal, and reaches a file or a pipe unchanged.
#![cfg(unix)]

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

/// Sets the title of a terminal's window.
const HOSTILE: &str = "\x1b]0;owned\x07";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    command
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("WELTE_MODEL")
        .stdin(Stdio::null());
    command
}

/// What a command prints to a terminal, on standard output and standard error.
fn on_terminal(args: &[&str]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let name = OsStr::from_bytes(name.to_bytes());
    let side = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(name)
            .unwrap()
    };
    let mut child = command(args).stdout(side()).stderr(side()).spawn().unwrap();
    let mut text = Vec::new();
    // Reading fails once no process has the other side any more.
    let _ = File::from(terminal).read_to_end(&mut text);
    child.wait().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

fn in_pipes(args: &[&str]) -> String {
    let output = command(args).output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_terminal_gets_no_sequences_from_elsewhere_and_a_pipe_gets_all() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, format!("{{{{ raise_exception('{HOSTILE}') }}}}")).unwrap();
    let template = template.to_str().unwrap();
    let model = format!("no{HOSTILE}where.gguf");
    let grammar = r#"root ::= "before\x1b]0;owned\x07after""#;
    let cases: [(&str, &[&str], &str); 3] = [
        (
            "an answer",
            &["run", "Hello", "-n", "40", "--grammar", grammar],
            "beforeafter",
        ),
        ("a name", &["run", "Hello", "-m", &model], "nowhere.gguf"),
        (
            "a template",
            &["run", "Hello", "--chat-template-file", template],
            "raised: ",
        ),
    ];
    for (source, args, shown) in cases {
        let args = [args, &["--device", "cpu", "-t", "2"]].concat();
        let text = on_terminal(&args);
        assert!(text.contains(shown), "{source}: {text:?}");
        assert!(!text.contains("owned"), "{source}: {text:?}");
        assert!(!text.contains("\x1b]"), "{source}: {text:?}");
        let text = in_pipes(&args);
        assert!(text.contains(HOSTILE), "{source}: {text:?}");
    }
}
