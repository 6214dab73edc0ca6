//! How this program is started anew: by `welte launch`, and by services.

use anyhow::Context;
use std::sync::OnceLock;

static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Says which words start the command line where that is not a program of its own.
pub fn started_by(words: Vec<String>) {
    let _ = WORDS.set(words);
}

/// The words that start this program.
pub(crate) fn words() -> anyhow::Result<Vec<String>> {
    if let Some(words) = WORDS.get() {
        return Ok(words.clone());
    }
    let program = std::env::current_exe().context("the path of welte is not known")?;
    let program = program.to_str().context("the path of welte is not UTF-8")?;
    Ok(vec![program.to_string()])
}
