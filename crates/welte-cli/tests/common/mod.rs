//! The binary, started as a user starts it.

#![allow(dead_code)] // Not every test uses every part.

use std::process::{Command, Output, Stdio};

/// Measured speeds are stored beside the build, not in the user's cache: these runs disturb each other.
pub(crate) fn command(args: &[&str]) -> Command {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    if std::env::var_os("XDG_CACHE_HOME").is_none() {
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    }
    command
        .args(args)
        .current_dir(root)
        .env_remove("WELTE_MODEL");
    command
}

pub(crate) fn welte(args: &[&str]) -> Output {
    command(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start: {error}"))
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command must fail with this code, and its message must contain all of these words.
pub(crate) fn refused(args: &[&str], code: i32, says: &[&str]) {
    let output = welte(args);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for word in says {
        assert!(text.contains(word), "{args:?}: {text:?} lacks {word:?}");
    }
    assert!(!text.contains("panicked"), "{text}");
}
