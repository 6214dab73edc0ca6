//! Models from the hub: `-hf` on every command, `welte pull`, `list` and `rm`.

use crate::args::Command;
use crate::{short, source};

#[cfg(feature = "hub")]
pub(crate) use cache::{list, pull, rm};

/// Replaces `-hf NAME` by `-m PATH`. Downloads the model if it is not in the cache.
pub(crate) fn fetch(command: &mut Command) -> anyhow::Result<()> {
    let encoder = match command {
        Command::Run(args) | Command::Chat(args) => args.eyes.wants_encoder(),
        Command::Inspect(args) => args.eyes.wants_encoder(),
        Command::Embed(args) => args.wants_encoder(),
        Command::Transcribe(args) => args.mmproj.is_none(),
        _ => false,
    };
    let (name, model) = match command {
        Command::Run(args) | Command::Chat(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Inspect(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Profile(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Tune(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Perplexity(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Imatrix(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Embed(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Transcribe(args) => (&args.hf_repo, &mut args.model),
        Command::Rerank(args) => (&args.load.hf_repo, &mut args.load.model),
        Command::Bench(args) => (&args.hf_repo, &mut args.model),
        Command::Tokenize(args) => (&args.hf_repo, &mut args.model),
        _ => return Ok(()),
    };
    if let Some(name) = name {
        *model = Some(path(name, encoder)?);
    }
    let words = match command {
        Command::Run(args) | Command::Chat(args) if args.load.model.is_none() => &mut args.words,
        _ => return Ok(()),
    };
    // A first word of two, or the only one, may be a model's short name; a file of that name comes first.
    if let Some(first) = words.first_mut()
        && first.contains(':')
        && !source::is_model(first)
        && let Some(name) = short::on_hub(first)
    {
        *first = path(name, encoder)?;
    }
    Ok(())
}

/// The file or folder of a model. Downloads the model if it is not in the cache, with the encoder of images beside it.
#[cfg(feature = "hub")]
pub(crate) fn path(name: &str, encoder: bool) -> anyhow::Result<String> {
    let name = short::on_hub(name).unwrap_or(name).parse()?;
    let pulled = cache::fetched(&name, encoder, |hub, name, tell| hub.get(name, tell))?;
    Ok(pulled.path.display().to_string())
}

#[cfg(not(feature = "hub"))]
pub(crate) fn path(name: &str, _encoder: bool) -> anyhow::Result<String> {
    anyhow::bail!(
        "-hf {name}: this binary was built without the feature hub; give a file or directory with -m"
    )
}

/// Names and paths of the models in the cache.
#[cfg(feature = "hub")]
pub(crate) fn cached() -> anyhow::Result<Vec<(String, String)>> {
    let repos = welte_hub::Hub::from_env()?.repos()?;
    let models = repos.iter().flat_map(welte_hub::CachedRepo::models);
    let named = models.map(|model| (model.name, model.path.display().to_string()));
    Ok(named.collect())
}

#[cfg(not(feature = "hub"))]
pub(crate) fn cached() -> anyhow::Result<Vec<(String, String)>> {
    anyhow::bail!("--models-cached: this binary was built without the feature hub")
}

/// Names and recipes of the created models.
#[cfg(feature = "hub")]
pub(crate) fn created() -> anyhow::Result<Vec<(String, welte_server::Recipe)>> {
    let recipes = crate::recipes::recipes()?;
    let mut all = Vec::new();
    for name in recipes.names()? {
        match recipes.get(&name) {
            Ok(recipe) => all.extend(recipe.map(|recipe| (name, recipe))),
            // One broken file does not hide the others.
            Err(problem) => eprintln!("note: {problem}"),
        }
    }
    Ok(all)
}

#[cfg(not(feature = "hub"))]
pub(crate) fn created() -> anyhow::Result<Vec<(String, welte_server::Recipe)>> {
    Ok(Vec::new())
}

#[cfg(feature = "hub")]
mod cache {
    use crate::args::{Kept, ListArgs, Plain, PullArgs, RmArgs};
    use crate::{recipes, short};
    use std::io::{IsTerminal, Write};
    use std::process::ExitCode;
    use std::time::{Duration, Instant};
    use welte_hub::{CachedRepo, Error, Event, Hub, ModelName, Pulled, Report, Settings, human};

    pub(crate) fn pull(args: &PullArgs) -> anyhow::Result<ExitCode> {
        let pulled = fetched(&args.name, !args.no_mmproj, |hub, name, tell| {
            hub.pull(name, tell)
        })?;
        if pulled.bytes == 0 {
            eprintln!("{}: already in the cache", args.name);
        }
        writeln!(crate::terminal::stdout(), "{}", pulled.path.display())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Fetches a model with a progress line.
    pub(crate) fn fetched(
        name: &ModelName,
        encoders: bool,
        fetch: impl FnOnce(&Hub, &ModelName, &mut dyn FnMut(&Report)) -> Result<Pulled, Error>,
    ) -> anyhow::Result<Pulled> {
        let mut settings = Settings::from_env()?;
        settings.encoders = encoders;
        let hub = Hub::new(settings);
        let mut line = Line::default();
        let start = Instant::now();
        let pulled = fetch(&hub, name, &mut |report| line.tell(report));
        line.clear();
        let pulled = pulled?;
        if pulled.bytes > 0 {
            let seconds = start.elapsed().as_secs_f64();
            eprintln!(
                "{name}: {} in {seconds:.1} s, {:.1} MB/s, {}",
                human(pulled.bytes),
                pulled.bytes as f64 / seconds / 1e6,
                match pulled.unchecked {
                    0 => "checksums match".to_string(),
                    n => format!(
                        "{n} not checked: {} has no checksums",
                        hub.settings().endpoint
                    ),
                }
            );
        }
        Ok(pulled)
    }

    /// A progress line on a terminal; otherwise one line per finished file.
    #[derive(Default)]
    struct Line {
        /// When the download began, and the bytes that an earlier attempt had left.
        begun: Option<(Instant, u64)>,
        shown: Option<Instant>,
        waiting: bool,
    }

    impl Line {
        fn tell(&mut self, report: &Report) {
            let now = Instant::now();
            match report.event {
                Event::Waiting if !self.waiting => {
                    self.clear();
                    eprintln!(
                        "{}: another process is downloading it; waiting",
                        report.file
                    );
                    self.waiting = true;
                }
                Event::Waiting => {}
                Event::Done => {
                    self.clear();
                    eprintln!("{}: done", report.file);
                }
                Event::Downloading => self.show(now, report),
            }
        }

        fn show(&mut self, now: Instant, report: &Report) {
            let (start, there) = *self.begun.get_or_insert((now, report.done));
            let recent = |shown: Instant| now.duration_since(shown) < Duration::from_millis(100);
            if !std::io::stderr().is_terminal() || self.shown.is_some_and(recent) {
                return;
            }
            self.shown = Some(now);
            let rate =
                (report.done - there) as f64 / now.duration_since(start).as_secs_f64().max(1e-3);
            let left = match rate {
                0.0 => String::new(),
                rate => format!(", {:.0} s left", (report.total - report.done) as f64 / rate),
            };
            eprint!(
                "\r\x1b[K{}: {} % of {}, {:.1} MB/s{left}",
                crate::terminal::plain(report.file),
                100 * report.done / report.total.max(1),
                human(report.total),
                rate / 1e6
            );
            let _ = std::io::stderr().flush();
        }

        fn clear(&mut self) {
            if self.shown.take().is_some() {
                eprint!("\r\x1b[K");
            }
        }
    }

    pub(crate) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
        if args.available {
            return available(args.output);
        }
        let hub = Hub::from_env()?;
        let models: Vec<_> = hub.repos()?.iter().flat_map(CachedRepo::models).collect();
        let created = super::created()?;
        let mut out = crate::terminal::stdout();
        if args.output == Plain::Json {
            let rows = models
                .iter()
                .map(|m| serde_json::json!({"name": m.name, "bytes": m.bytes, "path": m.path}));
            let created = created.iter().map(|(name, recipe)| {
                serde_json::json!({"name": name, "bytes": 0, "path": recipe.from, "created": true})
            });
            let rows = rows.chain(created);
            writeln!(out, "{:#}", serde_json::Value::from_iter(rows))?;
            return Ok(ExitCode::SUCCESS);
        }
        if models.is_empty() && created.is_empty() {
            eprintln!(
                "{}: no models; download one with `welte pull ORG/NAME`",
                hub.settings().cache.display()
            );
        }
        for model in models {
            writeln!(out, "{:>10}  {}", human(model.bytes), model.name)?;
        }
        for (name, recipe) in created {
            let base = welte_server::name_of(&recipe.from);
            writeln!(out, "{:>10}  {name} (created from {base})", "-")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Lists the short names.
    fn available(output: Plain) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if output == Plain::Json {
            let row = |(name, gigabytes, hub)| serde_json::json!({"name": name, "gigabytes": gigabytes, "hub": hub});
            writeln!(
                out,
                "{:#}",
                short::all().map(row).collect::<serde_json::Value>()
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        for (name, gigabytes, hub) in short::all() {
            writeln!(out, "{name:<22} {gigabytes:>5.1} GB  {hub}")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(crate) fn rm(args: &RmArgs) -> anyhow::Result<ExitCode> {
        let name = match &args.name {
            Kept::Hub(name) => name,
            Kept::Created(name) => {
                // It is a page of text, and its base stays.
                recipes::recipes()?
                    .remove(name)
                    .map_err(anyhow::Error::msg)?;
                writeln!(crate::terminal::stdout(), "{name}: removed")?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let removal = Hub::from_env()?.removal(name)?;
        let (bytes, count) = (removal.bytes, removal.files.len());
        if !args.yes {
            for file in &removal.files {
                eprintln!("{}: {file}", name.repo);
            }
            if !std::io::stdin().is_terminal() {
                anyhow::bail!("{name}: removing it frees {bytes} bytes; confirm with -y");
            }
            eprint!("remove {} ({})? [y/N] ", files(count), human(bytes));
            let mut answer = String::new();
            std::io::stdin().read_line(&mut answer)?;
            if !["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
                eprintln!("nothing removed");
                return Ok(ExitCode::from(1));
            }
        }
        removal.apply()?;
        writeln!(
            crate::terminal::stdout(),
            "{name}: removed {}, {bytes} bytes ({}) free",
            files(count),
            human(bytes)
        )?;
        Ok(ExitCode::SUCCESS)
    }

    fn files(count: usize) -> String {
        match count {
            1 => "1 file".to_string(),
            n => format!("{n} files"),
        }
    }
}
