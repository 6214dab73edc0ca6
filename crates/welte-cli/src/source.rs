//! Finds the model that the arguments name, and loads it with a progress line.

use anyhow::{Context, bail};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use welte::{LoadOptions, Model, Progress};
#[cfg(feature = "bundled")]
use welte_formats::files;
use welte_report::human;

/// True if the word names a model and is not a prompt.
pub(crate) fn is_model(word: &str) -> bool {
    word.starts_with("synthetic:") || (!word.is_empty() && Path::new(word).exists())
}

/// The bundled model: `$WELTE_MODEL`, `models/demo.gguf` here, where packages install it, in the source tree, or in the program.
pub(crate) fn bundled() -> Option<String> {
    if let Some(model) = std::env::var("WELTE_MODEL").ok().filter(|m| !m.is_empty()) {
        return Some(model);
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let folder = program
        .ok()
        .and_then(|path| path.parent().map(Path::to_path_buf));
    let installed = folder.map(|folder| folder.join("../share/welte/demo.gguf"));
    let here = PathBuf::from("models/demo.gguf");
    [Some(here), installed, Some(tree)]
        .into_iter()
        .flatten()
        .find(|p| p.is_file())
        .or_else(embedded)
        .map(|p| p.display().to_string())
}

/// The model in the program itself, for installs from crates.io, which have the program alone. It is written to the cache.
#[cfg(feature = "bundled")]
fn embedded() -> Option<PathBuf> {
    const MODEL: &[u8] = include_bytes!("../demo.gguf");
    let path = cache_folder()?.join(concat!("demo-", env!("CARGO_PKG_VERSION"), ".gguf"));
    if path
        .metadata()
        .is_ok_and(|there| there.len() == MODEL.len() as u64)
    {
        return Some(path);
    }
    files::create_folder(path.parent()?).ok()?;
    files::replace_file(&path, MODEL).ok()?;
    Some(path)
}

#[cfg(not(feature = "bundled"))]
fn embedded() -> Option<PathBuf> {
    None
}

/// Where what can be made again is kept for this user.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(set("HOME")?).join(".cache"));
    let folder = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(folder.join("welte"))
}

/// The model that the arguments name, or the bundled one.
pub(crate) fn pick(first: Option<&str>, second: Option<&str>) -> anyhow::Result<String> {
    match (first, second) {
        (Some(a), Some(b)) => bail!("two models are given, {a} and {b}; leave one out"),
        (Some(one), None) | (None, Some(one)) => Ok(one.to_string()),
        (None, None) => {
            bundled().context("no model is given and models/demo.gguf is not here; use -m MODEL")
        }
    }
}

/// Loads with a progress line on a terminal.
pub(crate) fn load_with(source: &str, options: &LoadOptions) -> anyhow::Result<Model> {
    load_by(source, |progress| Model::load(source, options, progress))
}

/// Loads a model in this way, with a progress line on a terminal.
pub(crate) fn load_by(
    source: &str,
    load: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Model, welte::Error>,
) -> anyhow::Result<Model> {
    let mut line = ProgressLine::new("loading", source);
    let model = load(&mut |progress| match progress {
        Progress::Weights { done, total } => line.bytes(done, total),
        Progress::Tuning { done, total } => line.count("tuning", done, total),
    });
    line.clear();
    Ok(model?)
}

/// A progress line on standard error, if that is a terminal.
pub(crate) struct ProgressLine<'a> {
    doing: &'static str,
    source: &'a str,
    start: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl<'a> ProgressLine<'a> {
    pub(crate) fn new(doing: &'static str, source: &'a str) -> Self {
        ProgressLine {
            doing,
            source,
            start: Instant::now(),
            shown: None,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Bytes read or written so far.
    pub(crate) fn bytes(&mut self, done: u64, total: u64) {
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = done as f64 / seconds.max(1e-9) / 1e9;
        let percent = 100 * done / total.max(1);
        self.show(|line| {
            format!(
                "{} {}: {percent} % of {}, {rate:.2} GB/s",
                line.doing,
                line.source,
                human(total)
            )
        });
    }

    /// Trials of tuning parameters so far.
    pub(crate) fn count(&mut self, what: &str, done: u64, total: u64) {
        self.show(|line| format!("{}: {what} {done} of {total}", line.source));
    }

    fn show(&mut self, text: impl FnOnce(&Self) -> String) {
        let now = Instant::now();
        // The first line comes late: small models load before anybody could read it.
        let since = now.duration_since(self.shown.unwrap_or(self.start));
        if !self.terminal || since < Duration::from_millis(100) {
            return;
        }
        self.shown = Some(now);
        eprint!("\r\x1b[K{}", crate::terminal::plain(&text(self)));
        let _ = std::io::stderr().flush();
    }

    pub(crate) fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin().lock())
    } else {
        std::fs::read_to_string(path)
    };
    text.with_context(|| format!("{}: cannot be read as UTF-8 text", path.display()))
}

/// At most one of these, or the bundled model.
pub(crate) fn pick_optional(given: [Option<&str>; 3]) -> anyhow::Result<String> {
    let mut given = given.into_iter().flatten();
    pick(given.next(), given.next())
}

/// Text on standard input, if that is a pipe or a file.
pub(crate) fn piped() -> anyhow::Result<Option<String>> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileTypeExt;
        // Other inputs, such as the sockets of services, may stay open for ever.
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let kind = input.and_then(|input| std::fs::File::from(input).metadata());
        let reads = kind.is_ok_and(|kind| kind.is_file() || kind.file_type().is_fifo());
        if !reads {
            return Ok(None);
        }
    }
    if std::io::stdin().is_terminal() {
        Ok(None)
    } else {
        Ok(Some(read_text("-".as_ref())?))
    }
}

/// The question after the text that it is about.
pub(crate) fn with_input(question: &str, input: Option<String>) -> String {
    match input.as_deref().map(str::trim_end).unwrap_or_default() {
        "" => question.to_string(),
        text => format!("{text}\n\n{question}"),
    }
}
