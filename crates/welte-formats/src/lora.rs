//! Opens adapters: GGUF files of llama.cpp, and directories of PEFT.

use crate::adapter::{AdapterFile, Data, Pair, joined, number};
use crate::gguf::Gguf;
use crate::hf::peft;
use crate::{Checkpoint, Dialect, Error, Metadata, Value, open};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use welte_table::Format;

const A: &str = ".lora_a";
const B: &str = ".lora_b";

impl AdapterFile {
    /// Opens a GGUF file, or a directory with `adapter_config.json` and `adapter_model.safetensors`.
    pub fn open(path: &Path) -> Result<AdapterFile, Error> {
        if path.is_dir() {
            return peft::open(path);
        }
        let name = path.file_name().and_then(|name| name.to_str());
        if let (Some(peft::CONFIG | peft::WEIGHTS), Some(directory)) = (name, path.parent()) {
            return peft::open(directory);
        }
        if !open::is_gguf(path)? {
            return Err(Error::unsupported(
                path,
                "is no adapter: give a GGUF file, or a directory with adapter_config.json and adapter_model.safetensors",
            ));
        }
        of_gguf(path, Gguf::open(path)?)
    }
}

impl Data for Gguf {
    fn bytes(&self, name: &str) -> Result<(Format, Cow<'_, [u8]>), Error> {
        let info = self.tensor(name);
        let info =
            info.ok_or_else(|| Error::malformed(Path::new(self.origin()), name, "is missing"))?;
        Ok((info.format, self.rows(info, 0, info.n)?))
    }
}

/// The text of a key.
fn text<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a str> {
    match metadata.get(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn of_gguf(path: &Path, file: Gguf) -> Result<AdapterFile, Error> {
    let metadata = file.metadata();
    let kind = text(metadata, "general.type").unwrap_or("model");
    if kind != "adapter" {
        return Err(Error::malformed(
            path,
            "general.type",
            format!("is '{kind}': the file is no adapter"),
        ));
    }
    let method = text(metadata, "adapter.type").unwrap_or("");
    if method != "lora" {
        let problem = format!("is '{method}': only lora is supported");
        return Err(Error::malformed(path, "adapter.type", problem));
    }
    if let Some(key) = metadata
        .keys()
        .find(|key| key.starts_with("adapter.alora."))
    {
        let problem = "is set: adapters that begin with an invocation (aLoRA) are not supported";
        return Err(Error::malformed(path, key, problem));
    }
    let alpha = number(metadata, "adapter.lora.alpha");
    let alpha = alpha.ok_or_else(|| {
        let problem = "is missing, or not a number: it is needed for the adapter's scale";
        Error::malformed(path, "adapter.lora.alpha", problem)
    })?;
    let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
    for info in file.tensors() {
        let name = &info.name;
        let half = |end| name.strip_suffix(end).map(str::to_string);
        let (target, is_a) = match (half(A), half(B)) {
            (Some(target), _) => (target, true),
            (_, Some(target)) => (target, false),
            _ => {
                let problem = "is no half of a low-rank pair: names end in .lora_a or .lora_b";
                return Err(Error::malformed(path, format!("tensor {name}"), problem));
            }
        };
        let stack = info.stack.max(1);
        let shape = [stack, info.n / stack, info.k];
        let table = target == "token_embd.weight";
        let pair = pairs.entry(target).or_default();
        (pair.table, pair.flipped) = (table, table);
        let half = if is_a { &mut pair.a } else { &mut pair.b };
        *half = Some((name.clone(), shape));
    }
    // An alpha of 0 means none.
    let scale = |_: &str, rank: usize| {
        Ok(match alpha {
            0.0 => 1.0,
            alpha => (alpha / rank as f64) as f32,
        })
    };
    let architecture = text(metadata, "general.architecture").map(str::to_string);
    let base = text(metadata, "general.base_model.0.name").map(str::to_string);
    let mut adapter = joined(path, Dialect::Gguf, pairs, &scale, Box::new(file))?;
    (adapter.architecture, adapter.base) = (architecture, base);
    Ok(adapter)
}
