//! The safetensors files of a directory, or those of PyTorch in their place, and the tensors in them.

use crate::{Error, mapped, torch};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// The largest JSON file that is read, in bytes.
const MAX_JSON: u64 = 64 << 20;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What older models have in their place: files of `torch.save`.
const TORCH_SINGLE: &str = "pytorch_model.bin";
const TORCH_INDEX: &str = "pytorch_model.bin.index.json";
/// Of these files the first that exists is read. A single file of PyTorch comes before an index, whose parts need not be there.
const ACCEPTED: [&str; 4] = [INDEX, SINGLE, TORCH_SINGLE, TORCH_INDEX];
/// What training leaves beside weights.
const OF_TRAINING: [&str; 3] = ["training_args.bin", "optimizer.bin", "scheduler.bin"];

/// The start of data: file number and byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) file: usize,
    pub(super) start: usize,
}

/// A tensor as stored in a file.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) place: Place,
}

/// The safetensors files of a directory.
#[derive(Default)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    pub(super) maps: Vec<Mmap>,
    pub(super) stored: Vec<Stored>,
    pub(super) by_name: HashMap<String, usize>,
}

impl Files {
    pub(super) fn open(path: &Path) -> Result<Files, Error> {
        let mut files = Files::default();
        let found = ACCEPTED.into_iter().find(|name| path.join(name).exists());
        let Some(name) = found else {
            let problem = format!("has none of {}{}", ACCEPTED.join(", "), other_weights(path));
            return Err(Error::unsupported(path, problem));
        };
        if name == INDEX || name == TORCH_INDEX {
            let index = path.join(name);
            let map = weight_map(&index)?;
            for shard in map.values().collect::<BTreeSet<_>>() {
                files.add(shard_path(path, &index, shard)?)?;
            }
            if let Some((name, shard)) = map
                .iter()
                .find(|(name, _)| !files.by_name.contains_key(*name))
            {
                return Err(Error::malformed(
                    &index,
                    format!("tensor {name}"),
                    format!("is not in {shard}"),
                ));
            }
        } else {
            files.add(path.join(name))?;
        }
        Ok(files)
    }

    /// Adds a file of weights.
    pub(super) fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        self.add_as(path, "")
    }

    /// Adds a file of weights whose tensors get names that begin with `prefix`.
    pub(super) fn add_as(&mut self, path: PathBuf, prefix: &str) -> Result<(), Error> {
        let map = mapped::map(&path)?;
        for mut tensor in header(&path, &map, self.maps.len())? {
            tensor.name.insert_str(0, prefix);
            let (name, number) = (tensor.name.clone(), self.stored.len());
            if self.by_name.insert(name, number).is_some() {
                return Err(Error::malformed(
                    &path,
                    format!("tensor {}", tensor.name),
                    "is in two files",
                ));
            }
            self.stored.push(tensor);
        }
        self.maps.push(map);
        self.paths.push(path);
        Ok(())
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&Stored> {
        self.by_name.get(name).map(|i| &self.stored[*i])
    }

    /// The format of a float tensor.
    pub(super) fn float(&self, tensor: &Stored) -> Result<Format, Error> {
        match tensor.dtype {
            Dtype::F32 => Ok(Format::F32),
            Dtype::F16 => Ok(Format::F16),
            Dtype::BF16 => Ok(Format::BF16),
            other => {
                let problem = format!("has type {other:?}; supported are F32, F16, BF16, F8_E4M3");
                Err(self.wrong(tensor, problem))
            }
        }
    }

    pub(super) fn wrong(&self, tensor: &Stored, problem: impl Into<String>) -> Error {
        let path = &self.paths[tensor.place.file];
        Error::malformed(path, format!("tensor {}", tensor.name), problem)
    }
}

impl Stored {
    /// The number of stacked matrices.
    pub(super) fn stack(&self) -> usize {
        match self.shape[..] {
            [stack, _, _] => stack,
            _ => 1,
        }
    }

    /// Rows and elements per row, or an error. Stacked matrices (experts) become one matrix with the rows of all.
    pub(super) fn matrix(&self) -> Result<(usize, usize), String> {
        let (n, k) = match self.shape[..] {
            [] => (1, 1),
            [k] => (1, k),
            [n, k] => (n, k),
            [stack, n, k] => (stack.checked_mul(n).unwrap_or(0), k),
            // The kernels of a convolution, one to a row.
            [n, ref kernel @ ..] if kernel.len() <= 4 => {
                let size = kernel.iter().try_fold(1, |a: usize, b| a.checked_mul(*b));
                (n, size.unwrap_or(0))
            }
            _ => {
                return Err(format!(
                    "has {} dimensions; at most 5 are supported",
                    self.shape.len()
                ));
            }
        };
        if n == 0 || k == 0 {
            return Err(format!("is empty ({n} x {k})"));
        }
        Ok((n, k))
    }
}

/// Reads a JSON file of limited size.
pub(super) fn read_json(path: &Path) -> Result<Json, Error> {
    let mut text = String::new();
    let file = mapped::open_regular(path)?;
    file.take(MAX_JSON + 1)
        .read_to_string(&mut text)
        .map_err(|source| Error::io(path, source))?;
    if text.len() as u64 > MAX_JSON {
        return Err(Error::unsupported(
            path,
            format!("is larger than the limit of {MAX_JSON} bytes"),
        ));
    }
    // The parser limits the nesting.
    serde_json::from_str(&text)
        .or_else(|error| match without_infinities(&text) {
            Some(text) => serde_json::from_str(&text),
            None => Err(error),
        })
        .map_err(|e| Error::unsupported(path, format!("is not valid JSON: {e}")))
}

/// A text with null in place of the numbers that Python writes and JSON does not have, if there are any.
fn without_infinities(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let (mut in_text, mut found) = (false, false);
    while let Some(first) = rest.chars().next() {
        let number = ["-Infinity", "Infinity", "NaN"]
            .into_iter()
            .find(|number| !in_text && rest.starts_with(number));
        let length = match (number, first) {
            (Some(number), _) => {
                found = true;
                out.push_str("null");
                rest = &rest[number.len()..];
                continue;
            }
            // The character after it, whatever it is.
            (_, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (_, '"') => {
                in_text = !in_text;
                1
            }
            (_, other) => other.len_utf8(),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    found.then_some(out)
}

/// The index: the file of each tensor.
fn weight_map(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let json = read_json(path)?;
    let Some(Json::Object(map)) = json.get("weight_map") else {
        return Err(Error::malformed(
            path,
            "weight_map",
            "is missing or not an object",
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

/// The path of a shard. Only plain file names are allowed, so that an index cannot reach other directories.
fn shard_path(directory: &Path, index: &Path, shard: &str) -> Result<PathBuf, Error> {
    if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
        return Err(Error::malformed(
            index,
            "weight_map",
            format!("{shard:?} is not a plain file name"),
        ));
    }
    let path = directory.join(shard);
    if !path.exists() {
        return Err(Error::unsupported(
            &path,
            format!(
                "is missing, but {} lists it: download it",
                index.file_name().unwrap_or_default().display()
            ),
        ));
    }
    Ok(path)
}

/// A hint about other weights in the directory.
fn other_weights(path: &Path) -> String {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !OF_TRAINING.contains(&name.as_str()))
        .collect();
    let find = |ending: &str, part: bool| {
        let mut names = names.iter();
        names.find(|name| name.ends_with(ending) && name.contains("-of-") == part)
    };
    let index = |part: &str, index: &str| {
        format!("; {part} is a part, whose {index} is missing: download it")
    };
    if let Some(name) = find(".gguf", false).or(find(".gguf", true)) {
        format!("; to use {name}, give that file")
    } else if let Some(part) = find(".safetensors", true) {
        index(part, INDEX)
    } else if let Some(part) = find(".bin", true) {
        index(part, TORCH_INDEX)
    } else if let Some(name) = find(".bin", false) {
        format!(
            "; {name} looks like a PyTorch file: rename it to {TORCH_SINGLE}, or convert it to safetensors"
        )
    } else {
        "; download the weights".to_string()
    }
}

/// The tensors of a file, in file order, which is the fastest order to read them.
fn header(path: &Path, bytes: &[u8], file: usize) -> Result<Vec<Stored>, Error> {
    if torch::is_name(path) {
        let stored = |tensor: torch::Tensor| Stored {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            place: Place {
                file,
                start: tensor.start,
            },
        };
        let tensors = torch::tensors(path, bytes)?;
        return Ok(tensors.into_iter().map(stored).collect());
    }
    let broken = |e| {
        Error::malformed(
            path,
            "header",
            format!("is not valid safetensors ({e}); download the file again"),
        )
    };
    let (length, metadata) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    // The data follows the length (eight bytes) and the header.
    let data = length.saturating_add(8);
    let mut found = Vec::new();
    for (name, tensor) in metadata.tensors() {
        let (from, to) = tensor.data_offsets;
        let elements = tensor
            .shape
            .iter()
            .try_fold(1, |a: usize, b| a.checked_mul(*b));
        let size = elements.and_then(|n| n.checked_mul(tensor.dtype.bitsize()));
        let place = data.checked_add(from).zip(data.checked_add(to));
        match place {
            Some((start, end))
                if end <= bytes.len()
                    && start <= end
                    && size.map(|s| s / 8) == Some(end - start) =>
            {
                found.push(Stored {
                    name,
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    place: Place { file, start },
                });
            }
            _ => {
                return Err(Error::malformed(
                    path,
                    format!("tensor {name}"),
                    "has offsets that do not fit its shape or the file",
                ));
            }
        }
    }
    found.sort_by_key(|tensor| tensor.place.start);
    Ok(found)
}
