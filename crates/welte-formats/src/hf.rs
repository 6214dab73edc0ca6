//! Directories in Hugging Face layout: `config.json` and safetensors files, or those of PyTorch.

mod files;
mod float8;
mod gpt_oss;
mod jina_clip;
mod json;
mod mlx;
mod mxfp4;
mod nvfp4;
mod packed;
mod parametrized;
pub(crate) mod peft;
mod sentence;

use crate::checkpoint::TOKEN_MAP;
use crate::tensors::Tensors;
use crate::{Checkpoint, Dialect, Error, Metadata, TensorInfo, TextFiles, Value, mapped};
use files::{Files, Place, Stored, read_json};
use json::flatten;
use memmap2::Mmap;
use safetensors::Dtype;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use welte_table::Format;

const CONFIG: &str = "config.json";
/// Matrices that BGE-M3 has beside its weights, in files of PyTorch: what a token weighs, and its vector.
const OF_TOKENS: [&str; 2] = ["sparse_linear", "colbert_linear"];
/// Ends of names of tensors that nothing reads: the numbers from 0 on in old BERTs, how long a batch norm was trained, and where the
/// codebooks of LFM2-Audio begin.
const UNREAD: [&str; 3] = [
    "embeddings.position_ids",
    "batch_norm.num_batches_tracked",
    "codebook_offsets",
];

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
    /// Experts of gpt-oss.
    GptOss(gpt_oss::Parts),
    /// A weight with a separate change of low rank.
    Parametrized(parametrized::Parts),
}

impl Directory {
    /// Opens a directory with `config.json` and either `model.safetensors` or its index and all shards, or `pytorch_model.bin` in their
    /// place.
    pub fn open(path: &Path) -> Result<Directory, Error> {
        let mut metadata = config(path)?;
        refuse_methods(&path.join(CONFIG), &metadata)?;
        let mut files = Files::open(path)?;
        sentence::add(path, &mut metadata, &mut files)?;
        for name in OF_TOKENS {
            let file = path.join(format!("{name}.pt"));
            if file.is_file() {
                files.add_as(file, &format!("{name}."))?;
            }
        }
        jina_clip::add(&path.join(CONFIG), &mut metadata)?;
        jina_clip::leave_out_prompts(&mut metadata);
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
            return Ok(as_data(found, Data::Nvfp4));
        }
        let packed = packed::Quantised {
            config: &self.path.join(CONFIG),
            metadata: &self.metadata,
            files,
        };
        if let Some(found) = packed.taken(tensor)? {
            return Ok(as_data(found, Data::Packed));
        }
        if float8::is_part(files, tensor)?
            || mxfp4::is_part(files, tensor)
            || quantised.is_part(tensor)?
        {
            return Ok(Vec::new());
        }
        let config = self.path.join(CONFIG);
        if let Some(found) = parametrized::taken(&config, &self.metadata, files, tensor)? {
            return Ok(as_data(found, Data::Parametrized));
        }
        if let Some(experts) = gpt_oss::taken(files, &self.metadata, tensor)? {
            return Ok(as_data(experts, Data::GptOss));
        }
        match tensor.dtype {
            Dtype::U32 => return Ok(as_data([quantised.joined(tensor)?], Data::Mlx)),
            Dtype::F8_E4M3 => {
                let block = float8::block(&self.path.join(CONFIG), &self.metadata)?;
                let joined = float8::joined(files, tensor, block)?;
                return Ok(as_data([joined], Data::Float8));
            }
            Dtype::U8 if tensor.name.ends_with(mxfp4::BLOCKS) => {
                return Ok(as_data([mxfp4::joined(files, tensor)?], Data::Mxfp4));
            }
            _ => {}
        }
        if UNREAD.iter().any(|end| tensor.name.ends_with(end)) {
            return Ok(Vec::new());
        }
        // Which tokens a draft head knows is said twice.
        if tensor.name == "t2d" {
            return Ok(Vec::new());
        }
        let (n, k) = tensor.matrix().map_err(|p| files.wrong(tensor, p))?;
        let (format, k) = match tensor.dtype {
            Dtype::I64 if tensor.name == TOKEN_MAP => (Format::F32, 2 * k),
            _ => (files.float(tensor)?, k),
        };
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

fn as_data<P>(
    found: impl IntoIterator<Item = (TensorInfo, P)>,
    data: fn(P) -> Data,
) -> Vec<(TensorInfo, Data)> {
    let found = found.into_iter();
    found.map(|(info, parts)| (info, data(parts))).collect()
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
            let problem = "has a scale that is negative or not a number: the model is damaged; download it again";
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
            Data::Parametrized(parts) => {
                parametrized::rows(&self.maps, parts, tensor, rows).map(Cow::Owned)
            }
            Data::GptOss(parts) => gpt_oss::rows(&self.maps, parts, tensor, rows).map(Cow::Owned),
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
            tekken_json: there("tekken.json"),
            tokenizer_config_json: there("tokenizer_config.json"),
            generation_config_json: there("generation_config.json"),
            chat_template: there("chat_template.jinja").or_else(|| there("chat_template.json")),
        }
    }
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
    let name = match metadata.get("model_type") {
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => return Err(Error::malformed(&path, "model_type", "is not text")),
        None => of_class(&metadata).map(str::to_string),
    };
    // Its contents can be listed still without a name.
    if let Some(name) = name {
        metadata.insert("general.architecture".to_string(), Value::String(name));
    }
    Ok(metadata)
}

/// The architecture of a configuration that names its class only, as LFM2-Audio's do.
fn of_class(metadata: &Metadata) -> Option<&'static str> {
    let Some(Value::Array(classes)) = metadata.get("architectures") else {
        return None;
    };
    let class = Value::String("Lfm2AudioForConditionalGeneration".into());
    classes.contains(&class).then_some("lfm2_audio")
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
