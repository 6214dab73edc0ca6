//! `welte ps` and `welte stop`: what a running server has loaded.

use crate::args::{Plain, PsArgs, StopArgs};
use crate::http::{ask, printable};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use welte_report::human;

/// Lists the loaded models.
pub(crate) fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.server, "GET", "/api/ps", None)?;
    let models = answer["models"].as_array();
    let models = models.context("the server's answer has no list of models")?;
    let mut out = std::io::stdout().lock();
    if args.output == Plain::Json {
        writeln!(out, "{:#}", answer["models"])?;
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        eprintln!("no model is loaded");
    }
    for model in models {
        let bytes = model["size"].as_u64().unwrap_or(0);
        let name = model["name"].as_str().unwrap_or_default();
        writeln!(out, "{:>10}  {}", human(bytes), printable(name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Unloads a model once no request uses it.
pub(crate) fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    // A request for a model that is not loaded would load it.
    let loaded = ask(&args.server, "GET", "/api/ps", None)?;
    let named = |model: &Value| {
        model["name"]
            .as_str()
            .is_some_and(|name| is_called(name, &args.model))
    };
    let mut models = loaded["models"].as_array().into_iter().flatten();
    if !models.any(named) {
        bail!(
            "{}: not loaded; `welte ps` lists what is",
            printable(&args.model)
        );
    }
    let body = json!({ "model": args.model, "keep_alive": 0 });
    ask(&args.server, "POST", "/api/generate", Some(&body))?;
    eprintln!(
        "{}: unloaded as soon as no request uses it",
        printable(&args.model)
    );
    Ok(ExitCode::SUCCESS)
}

/// Whether these names are the same but for the tag.
fn is_called(name: &str, wanted: &str) -> bool {
    let plain = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_string();
    plain(name) == plain(wanted)
}
