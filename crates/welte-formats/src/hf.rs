//! Directories in Hugging Face layout: `config.json` beside safetensors files.

use crate::{Checkpoint, Dialect, Error, Metadata, TensorInfo, TextFiles, Value, mapped};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// Largest JSON file that is read.
const MAX_JSON: u64 = 64 << 20;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    origin: String,
    maps: Vec<Mmap>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Per tensor: its file and where its data starts there.
    places: Vec<(usize, usize)>,
    by_name: HashMap<String, usize>,
}

impl Directory {
    /// Opens a directory that has `config.json` and `model.safetensors` or its index with all shards.
    pub fn open(path: &Path) -> Result<Directory, Error> {
        let metadata = config(path)?;
        let mut directory = Directory {
            path: path.to_path_buf(),
            origin: path.display().to_string(),
            maps: Vec::new(),
            metadata,
            tensors: Vec::new(),
            places: Vec::new(),
            by_name: HashMap::new(),
        };
        let index = path.join(INDEX);
        let single = path.join(SINGLE);
        if index.exists() {
            let map = weight_map(&index)?;
            for shard in map.values().collect::<BTreeSet<_>>() {
                directory.add(&shard_path(path, &index, shard)?)?;
            }
            if let Some((name, shard)) = map
                .iter()
                .find(|(name, _)| !directory.by_name.contains_key(*name))
            {
                return Err(Error::malformed(
                    &index,
                    format!("tensor {name}"),
                    format!("is not in {shard}"),
                ));
            }
        } else if single.exists() {
            directory.add(&single)?;
        } else {
            return Err(Error::unsupported(
                path,
                format!("has neither {SINGLE} nor {INDEX}{}", other_weights(path)),
            ));
        }
        Ok(directory)
    }

    /// Takes in one safetensors file.
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let map = mapped::map(path)?;
        let number = self.maps.len();
        for (info, start) in header(path, &map)? {
            if self
                .by_name
                .insert(info.name.clone(), self.tensors.len())
                .is_some()
            {
                return Err(Error::malformed(
                    path,
                    format!("tensor {}", info.name),
                    "is in two files",
                ));
            }
            self.tensors.push(info);
            self.places.push((number, start));
        }
        self.maps.push(map);
        Ok(())
    }
}

impl Checkpoint for Directory {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dialect(&self) -> Dialect {
        Dialect::HuggingFace
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let index = self
            .by_name
            .get(&tensor.name)
            .copied()
            .filter(|i| self.tensors[*i] == *tensor);
        let absent = || {
            Error::malformed(
                &self.path,
                format!("tensor {}", tensor.name),
                "is not there",
            )
        };
        let (file, start) = self.places[index.ok_or_else(absent)?];
        mapped::rows(&self.path, &self.maps[file], tensor, start, first, rows).map(Cow::Borrowed)
    }

    fn text_files(&self) -> TextFiles {
        let there = |name: &str| Some(self.path.join(name)).filter(|p| p.is_file());
        TextFiles {
            tokenizer_json: there("tokenizer.json"),
            tokenizer_config_json: there("tokenizer_config.json"),
            generation_config_json: there("generation_config.json"),
            chat_template: there("chat_template.jinja"),
        }
    }
}

/// Reads a JSON file of bounded size.
fn read_json(path: &Path) -> Result<Json, Error> {
    let mut text = String::new();
    let file = mapped::open_regular(path)?;
    file.take(MAX_JSON + 1)
        .read_to_string(&mut text)
        .map_err(|source| Error::io(path, source))?;
    if text.len() as u64 > MAX_JSON {
        return Err(Error::unsupported(
            path,
            format!("is larger than {MAX_JSON} bytes, too large for its kind"),
        ));
    }
    // The parser itself bounds the nesting.
    serde_json::from_str(&text)
        .map_err(|e| Error::unsupported(path, format!("is not valid JSON: {e}")))
}

/// `config.json`, flattened.
fn config(directory: &Path) -> Result<Metadata, Error> {
    let path = directory.join(CONFIG);
    if !path.exists() {
        let problem = "has no config.json; give a GGUF file, or the directory that holds config.json and the weights";
        return Err(Error::unsupported(directory, problem));
    }
    let json = read_json(&path)?;
    if !json.is_object() {
        return Err(Error::unsupported(&path, "is not a JSON object"));
    }
    let mut metadata = Metadata::new();
    flatten(&path, String::new(), &json, &mut metadata)?;
    match metadata.get("model_type") {
        Some(Value::String(name)) => {
            let name = Value::String(name.clone());
            metadata.insert("general.architecture".to_string(), name);
            Ok(metadata)
        }
        Some(_) => Err(Error::malformed(&path, "model_type", "is not text")),
        None => Err(Error::malformed(
            &path,
            "model_type",
            "is missing; it must name the architecture",
        )),
    }
}

/// Objects become keys with dots; lists of plain values stay lists, other lists become keys with numbers; null is
/// left out.
fn flatten(path: &Path, key: String, json: &Json, out: &mut Metadata) -> Result<(), Error> {
    let under = |name: &str| {
        if key.is_empty() {
            name.to_string()
        } else {
            format!("{key}.{name}")
        }
    };
    match json {
        Json::Null => return Ok(()),
        Json::Object(members) => {
            return members
                .iter()
                .try_for_each(|(name, member)| flatten(path, under(name), member, out));
        }
        Json::Array(members) if members.iter().any(|m| m.is_object() || m.is_array()) => {
            let mut numbered = members.iter().enumerate();
            return numbered
                .try_for_each(|(i, member)| flatten(path, under(&i.to_string()), member, out));
        }
        _ => {}
    }
    let value = match json {
        Json::Array(members) => Value::Array(members.iter().filter_map(plain).collect()),
        other => plain(other)
            .ok_or_else(|| Error::malformed(path, key.as_str(), "is no number, text or list"))?,
    };
    match out.insert(key.clone(), value) {
        None => Ok(()),
        Some(_) => Err(Error::malformed(path, key, "appears twice")),
    }
}

fn plain(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(b) => Some(Value::Bool(*b)),
        Json::String(s) => Some(Value::String(s.clone())),
        Json::Number(n) => n
            .as_u64()
            .map(Value::U64)
            .or(n.as_i64().map(Value::I64))
            .or(n.as_f64().map(Value::F64)),
        _ => None,
    }
}

/// The index: which file holds each tensor.
fn weight_map(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let json = read_json(path)?;
    let Some(Json::Object(map)) = json.get("weight_map") else {
        return Err(Error::malformed(
            path,
            "weight_map",
            "is missing or no object",
        ));
    };
    let entry = |(name, file): (&String, &Json)| match file {
        Json::String(file) => Ok((name.clone(), file.clone())),
        _ => Err(Error::malformed(
            path,
            format!("weight_map.{name}"),
            "is not the name of a file",
        )),
    };
    let map: BTreeMap<_, _> = map.iter().map(entry).collect::<Result<_, _>>()?;
    if map.is_empty() {
        return Err(Error::malformed(path, "weight_map", "names no tensors"));
    }
    Ok(map)
}

/// A shard beside the index: a plain file name, so that an index cannot reach elsewhere.
fn shard_path(directory: &Path, index: &Path, shard: &str) -> Result<PathBuf, Error> {
    if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
        return Err(Error::malformed(
            index,
            "weight_map",
            format!("{shard:?} is no plain file name"),
        ));
    }
    let path = directory.join(shard);
    if !path.exists() {
        return Err(Error::unsupported(
            &path,
            format!("is missing, but {INDEX} names it: fetch it"),
        ));
    }
    Ok(path)
}

/// What to add to the message that there are no weights we can read.
fn other_weights(path: &Path) -> String {
    let ends = |ending: &str| {
        let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .find(|e| e.path().extension().is_some_and(|x| x == ending))
            .map(|e| e.file_name())
    };
    match (ends("gguf"), ends("bin")) {
        (Some(name), _) => format!("; to use {}, give that file", name.to_string_lossy()),
        (_, Some(name)) => {
            format!(
                "; {} looks like a PyTorch file, which is not supported: convert it to safetensors",
                name.to_string_lossy()
            )
        }
        _ => "; fetch the weights".to_string(),
    }
}

/// A safetensors file's tensors, and where the data of each starts in the file.
fn header(path: &Path, bytes: &[u8]) -> Result<Vec<(TensorInfo, usize)>, Error> {
    let broken = |e| {
        Error::malformed(
            path,
            "header",
            format!("is not valid safetensors ({e}); fetch the file again"),
        )
    };
    let (length, metadata) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    // The data follows the header and the eight bytes of its length.
    let data = length.saturating_add(8);
    let mut found = Vec::new();
    for (name, tensor) in metadata.tensors() {
        let wrong = |problem: String| Error::malformed(path, format!("tensor {name}"), problem);
        let format = match tensor.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            other => {
                return Err(wrong(format!(
                    "has type {other:?}; supported are F32, F16, BF16"
                )));
            }
        };
        let (stack, n, k) = match tensor.shape[..] {
            [k] => (1, 1, k),
            [n, k] => (1, n, k),
            // A stack of matrices (experts) is one matrix with the rows of all.
            [stack, n, k] => (stack, stack.checked_mul(n).unwrap_or(0), k),
            _ => {
                return Err(wrong(format!(
                    "has {} dimensions; 1 to 3 are supported",
                    tensor.shape.len()
                )));
            }
        };
        if n == 0 || k == 0 {
            return Err(wrong(format!("is empty ({n} x {k})")));
        }
        let (from, to) = tensor.data_offsets;
        let size = format.bytes(k).and_then(|row| row.checked_mul(n));
        let place = data.checked_add(from).zip(data.checked_add(to));
        match place {
            Some((start, end))
                if end <= bytes.len() && start <= end && size == Some(end - start) =>
            {
                found.push((
                    TensorInfo {
                        name: name.clone(),
                        format,
                        n,
                        k,
                        stack,
                    },
                    start,
                    from,
                ));
            }
            _ => {
                return Err(wrong(
                    "has offsets that do not fit its shape or the file".to_string(),
                ));
            }
        }
    }
    // In the order of the file, which is the order to read it in.
    found.sort_by_key(|(_, _, from)| *from);
    Ok(found
        .into_iter()
        .map(|(info, start, _)| (info, start))
        .collect())
}
