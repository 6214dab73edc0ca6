//! `welte show`: a model's card. Of a model in the cache also its files, of a created one its recipe.

use crate::args::{Plain, ShowArgs};
use crate::source;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use welte::{Card, Images, LoadOptions};
use welte_report::human;

pub(crate) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut options = LoadOptions::default();
    args.eyes.set(&mut options);
    let images = &options.images;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => source::pick(None, None)?,
    };
    #[cfg(feature = "hub")]
    if let Some(recipe) = crate::recipes::created(&name)? {
        return created(&recipe, images, args.output);
    }
    #[cfg(feature = "hub")]
    if !source::is_model(&name) {
        return cached(&name, images, args.output);
    }
    let card = Card::read(&name, images, None)?;
    match args.output {
        Plain::Json => print_json(&card.as_json())?,
        Plain::Text => print_lines(&lines(&card), "")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A created model: a file that `welte create` reads, with the card as its comments.
#[cfg(feature = "hub")]
fn created(
    recipe: &welte_server::Recipe,
    images: &Images,
    output: Plain,
) -> anyhow::Result<ExitCode> {
    let card = Card::read(&recipe.from, images, recipe.template.as_deref());
    match output {
        Plain::Json => {
            let mut shown = serde_json::to_value(recipe)?;
            if let Ok(card) = card {
                shown["card"] = card.as_json();
            }
            print_json(&shown)?;
        }
        Plain::Text => {
            // Without its base a model is still what its recipe says.
            match card {
                Ok(card) => print_lines(&lines(&card), "# ")?,
                Err(why) => eprintln!("note: {why}"),
            }
            write!(crate::terminal::stdout(), "{recipe}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A model in the cache.
#[cfg(feature = "hub")]
fn cached(name: &str, images: &Images, output: Plain) -> anyhow::Result<ExitCode> {
    let asked: welte_hub::ModelName = crate::short::on_hub(name).unwrap_or(name).parse()?;
    let repo = welte_hub::Hub::from_env()?.repo(&asked)?;
    let choice = asked.choice.as_deref().map(str::to_lowercase);
    let is_asked = |model: &welte_hub::CachedModel| {
        let choice = choice.as_deref();
        choice.is_none_or(|choice| model.name.to_lowercase().contains(choice))
    };
    let models: Vec<_> = repo.models().into_iter().filter(is_asked).collect();
    let cards = models.iter().map(|model| {
        let card = Card::read(&model.path.to_string_lossy(), images, None);
        (&model.name, card)
    });
    if output == Plain::Json {
        let mut shown = files_as_json(&repo);
        let cards = cards.filter_map(|(_, card)| Some(card.ok()?.as_json()));
        shown["models"] = cards.collect();
        print_json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, card) in cards {
        match card {
            Ok(card) => {
                let mut lines = lines(&card);
                lines[0].1 = name.clone();
                print_lines(&lines, "")?;
                writeln!(crate::terminal::stdout())?;
            }
            Err(why) => eprintln!("note: {name}: {why}"),
        }
    }
    print_files(&repo)?;
    Ok(ExitCode::SUCCESS)
}

/// The card's lines: names and texts.
fn lines(card: &Card) -> Vec<(&'static str, String)> {
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let formats = match card.formats.as_slice() {
        [] => String::new(),
        [one] if *one == card.format => String::new(),
        all => format!(" ({})", all.join(", ")),
    };
    let license = match (&card.license, &card.license_link) {
        (Some(name), Some(link)) => Some(format!("{name} ({link})")),
        (one, other) => one.clone().or_else(|| other.clone()),
    };
    let template = card.template.map(|template| {
        let lines = template.lines();
        if lines.is_empty() {
            "messages of users and assistants".to_string()
        } else {
            lines.join(", ")
        }
    });
    let capabilities = match card.capabilities.as_slice() {
        [] => "none".to_string(),
        all => all.join(", "),
    };
    let all = [
        ("model", Some(card.origin.clone())),
        ("name", card.name.clone()),
        ("architecture", Some(card.architecture.clone())),
        ("parameters", Some(parameters(card.parameters))),
        ("format", Some(format!("{}{formats}", card.format))),
        ("size", Some(human(card.bytes))),
        ("licence", license.or_else(|| Some("not named".to_string()))),
        ("context", number(card.context)),
        ("layers", number(card.layers)),
        ("width", number(card.width)),
        ("vocabulary", number(card.vocab)),
        ("draft", card.draft.clone()),
        ("capabilities", Some(capabilities)),
        ("template", template),
    ];
    let all = all.into_iter();
    all.filter_map(|(name, text)| Some((name, text?))).collect()
}

/// `4.02 B`, `596 M`
fn parameters(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", count as f64 / 1e6),
        _ => count.to_string(),
    }
}

fn print_lines(lines: &[(&'static str, String)], before: &str) -> anyhow::Result<()> {
    let mut out = crate::terminal::stdout();
    for (name, text) in lines {
        // A file's texts must not move the cursor, and stay one line.
        let text: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let text = crate::terminal::plain(&text);
        writeln!(out, "{before}{name:<13} {text}")?;
    }
    Ok(())
}

fn print_json(value: &Value) -> anyhow::Result<()> {
    writeln!(crate::terminal::stdout(), "{value:#}")?;
    Ok(())
}

#[cfg(feature = "hub")]
fn print_files(repo: &welte_hub::CachedRepo) -> anyhow::Result<()> {
    let mut out = crate::terminal::stdout();
    writeln!(out, "{:<13} {}", "repository", repo.name)?;
    writeln!(out, "{:<13} {}", "folder", repo.folder.display())?;
    writeln!(out, "{:<13} {}", "on disk", human(repo.bytes))?;
    if repo.unfinished > 0 {
        writeln!(
            out,
            "{:<13} {} (pull again to resume)",
            "unfinished",
            human(repo.unfinished)
        )?;
    }
    for snapshot in &repo.snapshots {
        writeln!(
            out,
            "{:<13} {} {}",
            "commit",
            snapshot.commit,
            snapshot.revisions.join(", ")
        )?;
        for file in &snapshot.files {
            writeln!(out, "{:>13}  {}", human(file.bytes), file.name)?;
        }
    }
    Ok(())
}

#[cfg(feature = "hub")]
fn files_as_json(repo: &welte_hub::CachedRepo) -> Value {
    let snapshots = repo.snapshots.iter().map(|s| {
        let files = s.files.iter().map(|f| {
            serde_json::json!({"name": f.name, "bytes": f.bytes, "path": f.path, "blob": f.blob})
        });
        serde_json::json!({"commit": s.commit, "revisions": s.revisions, "files": Value::from_iter(files)})
    });
    serde_json::json!({
        "name": repo.name, "folder": repo.folder, "bytes": repo.bytes, "unfinished": repo.unfinished,
        "snapshots": Value::from_iter(snapshots),
    })
}
