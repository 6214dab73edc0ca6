//! What a checkpoint contains, and how much of it a known architecture explains. It helps to add an architecture.

use crate::arch::Architecture;
use crate::keys::Keys;
use crate::{CompileOptions, Error, compile};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};

/// The most characters of a value that are shown.
const SHOWN: usize = 60;

/// The contents of a checkpoint beside those of the most similar architecture.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The architecture that the checkpoint names.
    pub architecture: String,
    /// Keys that describe the model, with their values.
    pub keys: Vec<(String, String)>,
    /// Tensors by the pattern of their names.
    pub tensors: Vec<Pattern>,
    /// The most similar architecture; `None` if the checkpoint has no tensor of any.
    pub nearest: Option<Nearest>,
}

/// Tensors whose names differ only in numbers.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The name, with `{}` for the number of the layer and `[]` for further numbers.
    pub name: String,
    /// How many there are.
    pub count: usize,
    /// Their sizes and formats, such as `4096 x 1024 Q4_K`.
    pub kinds: BTreeSet<String>,
    /// Whether the most similar architecture has them.
    pub known: bool,
}

/// The most similar architecture.
#[derive(Clone, Debug)]
pub struct Nearest {
    /// Its name.
    pub name: &'static str,
    /// The names of its tensors that the checkpoint lacks. Some are optional.
    pub missing: Vec<String>,
    /// The first obstacle when the checkpoint is read as this architecture; `None` if there is none.
    pub obstacle: Option<String>,
}

/// Compares a checkpoint with every architecture.
pub fn survey(checkpoint: &dyn Checkpoint) -> Survey {
    let said = match checkpoint.metadata().get("general.architecture") {
        Some(Value::String(name)) => name.clone(),
        _ => String::new(),
    };
    let mut tensors = patterns(checkpoint);
    let found: BTreeSet<String> = tensors.iter().map(|t| t.name.clone()).collect();
    let mut best: Option<((usize, u8), &Architecture, Option<Error>)> = None;
    for one in Architecture::all() {
        let names = templates(one, checkpoint.dialect());
        let known = found.iter().filter(|name| names.contains(*name)).count();
        if known == 0 {
            continue;
        }
        let (stage, obstacle) = read_as(one, checkpoint, &said);
        let rank = (known, stage);
        if best.as_ref().is_none_or(|(most, ..)| rank > *most) {
            best = Some((rank, one, obstacle));
        }
    }
    let nearest = best.map(|(_, one, obstacle)| {
        let names = templates(one, checkpoint.dialect());
        let weights = names.iter().filter(|name| !name.ends_with(".bias"));
        let missing = weights.filter(|name| !found.contains(*name));
        let nearest = Nearest {
            name: one.name,
            missing: missing.cloned().collect(),
            obstacle: obstacle.map(|error| cut(&error.to_string(), 5 * SHOWN)),
        };
        for pattern in &mut tensors {
            pattern.known = names.contains(&pattern.name);
        }
        nearest
    });
    Survey {
        keys: keys(checkpoint, &said),
        architecture: said,
        tensors,
        nearest,
    }
}

/// How far a checkpoint can be read as an architecture, and what stops it: its keys (0), its tensors (1) or nothing (2).
fn read_as(
    one: &'static Architecture,
    checkpoint: &dyn Checkpoint,
    said: &str,
) -> (u8, Option<Error>) {
    let spec = match crate::read::read(checkpoint, one, said) {
        Ok(spec) => spec,
        Err(error) => return (0, Some(error)),
    };
    match compile(&spec, checkpoint, &CompileOptions::default()) {
        Ok(_) => (2, None),
        Err(error) => (1, Some(error)),
    }
}

/// Keys of the model itself: in GGUF those of its architecture, if it names one. Else all that do not describe text or
/// quantisation.
fn keys(checkpoint: &dyn Checkpoint, said: &str) -> Vec<(String, String)> {
    let prefix = Keys::new(checkpoint, said).name("", "");
    let other = [
        "general.",
        "tokenizer.",
        "quantization",
        "_name_or_path",
        "transformers_version",
    ];
    let of_model = |key: &str| match checkpoint.dialect() {
        Dialect::Gguf if !said.is_empty() => key.starts_with(&prefix),
        _ => !other.iter().any(|start| key.starts_with(start)),
    };
    let all = checkpoint
        .metadata()
        .iter()
        .filter(|(key, _)| of_model(key));
    all.map(|(key, value)| (plain(key), shown(value))).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::String(v) => plain(v),
        Value::Array(list) => {
            let few: Vec<String> = list.iter().take(4).map(shown).collect();
            let more = if list.len() > 4 { ", ..." } else { "" };
            format!("[{}{more}] ({} values)", few.join(", "), list.len())
        }
    }
}

fn plain(text: &str) -> String {
    cut(text, SHOWN)
}

/// A hostile text must not fill the terminal.
fn cut(text: &str, max_len: usize) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(max_len)
        .collect()
}

/// The tensors of a checkpoint by pattern, in the order of the file.
fn patterns(checkpoint: &dyn Checkpoint) -> Vec<Pattern> {
    let mut places = BTreeMap::new();
    let mut all: Vec<Pattern> = Vec::new();
    for tensor in checkpoint.tensors() {
        let name = pattern(&tensor.name);
        let place = *places.entry(name.clone()).or_insert(all.len());
        if place == all.len() {
            all.push(Pattern {
                name,
                count: 0,
                kinds: BTreeSet::new(),
                known: false,
            });
        }
        let stack = match tensor.stack {
            1 => String::new(),
            stack => format!("{stack} x "),
        };
        let rows = tensor.n / tensor.stack.max(1);
        all[place].count += 1;
        let format = tensor.format.name();
        all[place]
            .kinds
            .insert(format!("{stack}{rows} x {} {format}", tensor.k));
    }
    all
}

/// A name with `{}` in place of its first number and `[]` in place of further ones, and without a multimodal prefix.
fn pattern(name: &str) -> String {
    let name = name.strip_prefix("language_model.").map_or_else(
        || name.replacen("model.language_model.", "model.", 1),
        String::from,
    );
    let mut numbers = 0;
    let parts = name.split('.').map(|part| {
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return part;
        }
        numbers += 1;
        if numbers == 1 { "{}" } else { "[]" }
    });
    plain(&parts.collect::<Vec<_>>().join("."))
}

/// The full names of an architecture's tensors.
fn templates(one: &Architecture, dialect: Dialect) -> BTreeSet<String> {
    // The fields of `Names` are texts and lists of texts, so every second piece between quotes is a name.
    let all = format!("{:?}", one.names(dialect));
    let names = all.split('"').skip(1).step_by(2);
    names
        .flat_map(|name| match name {
            full if [".weight", ".sinks", "_sink_bias", ".bias"]
                .iter()
                .any(|end| full.ends_with(end)) =>
            {
                vec![full.to_string()]
            }
            stem => vec![format!("{stem}.weight"), format!("{stem}.bias")],
        })
        .collect()
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = match plain(&self.architecture) {
            name if name.is_empty() => "(not named)".into(),
            name => name,
        };
        writeln!(f, "architecture  {named}")?;
        let (own, shared) = match &self.nearest {
            Some(Nearest { name, obstacle, .. }) => {
                writeln!(f, "most similar  {name}")?;
                if let Some(obstacle) = obstacle {
                    writeln!(f, "read as {name}: {obstacle}")?;
                }
                (format!("tensors that {name} does not have"), *name)
            }
            None => {
                writeln!(
                    f,
                    "most similar  none; no tensor has a name of a supported architecture"
                )?;
                ("tensors".into(), "")
            }
        };
        let keys = self
            .keys
            .iter()
            .map(|(key, value)| format!("{key} = {value}"));
        list(f, "keys", keys)?;
        let tensors = |known| self.tensors.iter().filter(move |t| t.known == known);
        list(f, &own, tensors(false).map(line))?;
        list(
            f,
            &format!("tensors that {shared} has too"),
            tensors(true).map(line),
        )?;
        if let Some(Nearest { name, missing, .. }) = &self.nearest {
            let title =
                format!("names of {name} that are not in this checkpoint (some are optional)");
            list(f, &title, missing.iter().cloned())?;
        }
        if self.tensors.is_empty() {
            writeln!(f, "\nIt has no tensors.")?;
        }
        write!(
            f,
            "\nTo add an architecture, see \"How to add\" in ARCHITECTURE.md: one file in crates/welte-models/src/arch/."
        )
    }
}

fn line(tensor: &Pattern) -> String {
    let kinds: Vec<&str> = tensor.kinds.iter().take(3).map(String::as_str).collect();
    let more = if tensor.kinds.len() > 3 { ", ..." } else { "" };
    let (count, name) = (tensor.count, &tensor.name);
    format!("{count:4} x {name}  ({}{more})", kinds.join(", "))
}

/// Lines under a title, or nothing if there are no lines.
fn list(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    lines: impl Iterator<Item = String>,
) -> fmt::Result {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        writeln!(f, "\n{title}")?;
    }
    lines.try_for_each(|line| writeln!(f, "  {line}"))
}
