//! Directories in Hugging Face layout: `config.json` and safetensors files.

mod float8;
mod gpt_oss;
mod mlx;
mod mxfp4;
mod nvfp4;
mod packed;
mod sentence;

use crate::tensors::Tensors;
use crate::{Checkpoint, Dialect, Error, Metadata, TensorInfo, TextFiles, Value, mapped};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// The largest JSON file that is read, in bytes.
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
    tensors: Tensors,
    /// The location of each tensor's rows.
    data: Vec<Data>,
}

/// The start of data: file number and byte.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    start: usize,
}

/// The location of a tensor's rows.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Stored as they are read.
    Plain(Place),
    /// F8_E4M3 with separate scales.
    Float8(float8::Parts),
    /// MXFP4 with separate scales.
    Mxfp4(mxfp4::Parts),
    /// MLX's separate integers, scales and biases.
    Mlx(mlx::Parts),
    /// NVFP4 with separate scales and a factor.
    Nvfp4(nvfp4::Parts),
    /// Separate integers, scales and zero points of AWQ, GPTQ and compressed-tensors.
    Packed(packed::Parts),
    /// Floats that are not contiguous.
    Strided(gpt_oss::Strided),
}

/// A tensor as stored in a file.
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    place: Place,
}

/// The safetensors files of a directory.
#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    maps: Vec<Mmap>,
    stored: Vec<Stored>,
    by_name: HashMap<String, usize>,
}

impl Directory {
    /// Opens a directory with `config.json` and either `model.safetensors` or its index and all shards.
    pub fn open(path: &Path) -> Result<Directory, Error> {
        let mut metadata = config(path)?;
        refuse_methods(&path.join(CONFIG), &metadata)?;
        let mut files = Files::open(path)?;
        sentence::add(path, &mut metadata, &mut files)?;
        let mut directory = Directory {
            path: path.to_path_buf(),
            origin: path.display().to_string(),
            maps: Vec::new(),
            metadata,
            tensors: Tensors::default(),
            data: Vec::new(),
        };
        for tensor in &files.stored {
            for (info, data) in directory.take_in(&files, tensor)? {
                let name = info.name.clone();
                if !directory.tensors.add(info) {
                    return Err(files.wrong(tensor, format!("duplicates {name}")));
                }
                directory.data.push(data);
            }
        }
        directory.maps = files.maps;
        Ok(directory)
    }

    /// The tensors that a stored tensor becomes. Parts of another tensor become none.
    fn take_in(&self, files: &Files, tensor: &Stored) -> Result<Vec<(TensorInfo, Data)>, Error> {
        let quantised = mlx::Quantised {
            config: &self.path.join(CONFIG),
            metadata: &self.metadata,
            files,
        };
        if let Some(found) = nvfp4::taken(files, tensor)? {
            return Ok(found);
        }
        let packed = packed::Quantised {
            config: &self.path.join(CONFIG),
            metadata: &self.metadata,
            files,
        };
        if let Some(found) = packed.taken(tensor)? {
            return Ok(found);
        }
        if float8::is_part(files, tensor)?
            || mxfp4::is_part(files, tensor)
            || quantised.is_part(tensor)?
        {
            return Ok(Vec::new());
        }
        if let Some(experts) = gpt_oss::taken(files, &self.metadata, tensor)? {
            return Ok(experts);
        }
        match tensor.dtype {
            Dtype::U32 => return Ok(vec![quantised.joined(tensor)?]),
            Dtype::F8_E4M3 => {
                let block = float8::block(&self.path.join(CONFIG), &self.metadata)?;
                return Ok(vec![float8::joined(files, tensor, block)?]);
            }
            Dtype::U8 if tensor.name.ends_with(mxfp4::BLOCKS) => {
                let (info, parts) = mxfp4::joined(files, tensor)?;
                return Ok(vec![(info, Data::Mxfp4(parts))]);
            }
            _ => {}
        }
        // Old exporters of BERT store the numbers from 0 on.
        if tensor.name.ends_with("embeddings.position_ids") {
            return Ok(Vec::new());
        }
        let format = files.float(tensor)?;
        let (n, k) = tensor.matrix().map_err(|p| files.wrong(tensor, p))?;
        let name = tensor.name.clone();
        let stack = tensor.stack();
        let info = TensorInfo {
            name,
            format,
            n,
            k,
            stack,
        };
        Ok(vec![(info, Data::Plain(tensor.place))])
    }
}

impl Files {
    fn open(path: &Path) -> Result<Files, Error> {
        let mut files = Files::default();
        let index = path.join(INDEX);
        let single = path.join(SINGLE);
        if index.exists() {
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
        } else if single.exists() {
            files.add(single)?;
        } else {
            return Err(Error::unsupported(
                path,
                format!("has neither {SINGLE} nor {INDEX}{}", other_weights(path)),
            ));
        }
        Ok(files)
    }

    /// Adds a safetensors file.
    fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        self.add_as(path, "")
    }

    /// Adds a safetensors file whose tensors get names that begin with `prefix`.
    fn add_as(&mut self, path: PathBuf, prefix: &str) -> Result<(), Error> {
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

    fn tensor(&self, name: &str) -> Option<&Stored> {
        self.by_name.get(name).map(|i| &self.stored[*i])
    }

    /// The format of a float tensor.
    fn float(&self, tensor: &Stored) -> Result<Format, Error> {
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

    fn wrong(&self, tensor: &Stored, problem: impl Into<String>) -> Error {
        let path = &self.paths[tensor.place.file];
        Error::malformed(path, format!("tensor {}", tensor.name), problem)
    }
}

impl Stored {
    /// The number of stacked matrices.
    fn stack(&self) -> usize {
        match self.shape[..] {
            [stack, _, _] => stack,
            _ => 1,
        }
    }

    /// Rows and elements per row, or an error. Stacked matrices (experts) become one matrix with the rows of all.
    fn matrix(&self) -> Result<(usize, usize), String> {
        let (n, k) = match self.shape[..] {
            [] => (1, 1),
            [k] => (1, k),
            [n, k] => (n, k),
            [stack, n, k] => (stack.checked_mul(n).unwrap_or(0), k),
            _ => {
                return Err(format!(
                    "has {} dimensions; at most 3 are supported",
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
        self.tensors.list()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let path = self.path.as_path();
        let (number, rows) = self.tensors.rows(path, tensor, first, rows)?;
        let damaged = || {
            let problem = "has a scale that is no number or negative: the model is damaged; download it again";
            tensor.wrong(path, problem)
        };
        let found = match self.data[number] {
            Data::Plain(Place { file, start }) => {
                mapped::rows(&self.maps[file], tensor, start, rows).map(Cow::Borrowed)
            }
            Data::Float8(parts) => {
                let rows = float8::rows(path, &self.maps, parts, tensor, rows)?;
                Some(Cow::Owned(rows))
            }
            Data::Mxfp4(parts) => mxfp4::rows(&self.maps, parts, tensor, rows).map(Cow::Owned),
            Data::Strided(parts) => gpt_oss::rows(&self.maps, parts, tensor, rows).map(Cow::Owned),
            Data::Nvfp4(parts) => {
                let rows = nvfp4::rows(&self.maps, parts, tensor, rows);
                Some(Cow::Owned(rows.ok_or_else(damaged)?))
            }
            Data::Packed(parts) => {
                let rows = packed::rows(&self.maps, parts, tensor, rows);
                Some(Cow::Owned(rows.ok_or_else(damaged)?))
            }
            Data::Mlx(parts) => mlx::rows(&self.maps, parts, tensor, rows).map(Cow::Owned),
        };
        found.ok_or_else(|| tensor.wrong(path, "is not completely in the file"))
    }

    fn release(&self) {
        self.maps.iter().for_each(mapped::release);
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

/// Reads a JSON file of limited size.
fn read_json(path: &Path) -> Result<Json, Error> {
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
        .map_err(|e| Error::unsupported(path, format!("is not valid JSON: {e}")))
}

/// The flattened `config.json`.
fn config(directory: &Path) -> Result<Metadata, Error> {
    let path = directory.join(CONFIG);
    if !path.exists() {
        let problem = "has no config.json; give a GGUF file, or the directory that contains config.json and the weights";
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
        // Its contents can be listed still.
        None => Ok(metadata),
    }
}

/// The supported values of `quant_method`.
const METHODS: [&str; 7] = [
    "fp8",
    "fbgemm_fp8",
    "compressed-tensors",
    "mxfp4",
    "awq",
    "gptq",
    "modelopt",
];
/// The supported values of compressed-tensors' `format`.
const COMPRESSED: [&str; 6] = [
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "int-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
];

/// Refuses quantisation methods that are not supported.
fn refuse_methods(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    const METHOD: &str = "quantization_config.quant_method";
    let said = |key: &str, supported: &[&str]| match metadata.get(key) {
        None => Ok(()),
        Some(Value::String(name)) if supported.contains(&name.as_str()) => Ok(()),
        Some(value) => {
            let name = match value {
                Value::String(name) => name,
                _ => "not text",
            };
            let problem = format!(
                "is {name}; supported are {}; use a version of the model in one of those, in GGUF or unquantised",
                supported.join(", ")
            );
            Err(Error::malformed(path, key, problem))
        }
    };
    said(METHOD, &METHODS)?;
    if metadata.get(METHOD) == Some(&Value::String("compressed-tensors".into())) {
        said("quantization_config.format", &COMPRESSED)?;
    }
    Ok(())
}

/// Objects become keys with dots. Lists of plain values stay lists, other lists become numbered keys. Null is left out.
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
            .ok_or_else(|| Error::malformed(path, key.as_str(), "is not a number, text or list"))?,
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
            format!("is missing, but {INDEX} lists it: download it"),
        ));
    }
    Ok(path)
}

/// A hint about other weights in the directory.
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
        _ => "; download the weights".to_string(),
    }
}

/// The tensors of a safetensors file, in file order, which is the fastest order to read them.
fn header(path: &Path, bytes: &[u8], file: usize) -> Result<Vec<Stored>, Error> {
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
