//! Adapters of PEFT: a directory with `adapter_config.json` and `adapter_model.safetensors`.

use super::files::{Files, Place, read_json};
use super::json::flatten;
use crate::adapter::{AdapterFile, Data, Pair, joined, number};
use crate::{Dialect, Error, Metadata, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use welte_table::Format;

pub(crate) const CONFIG: &str = "adapter_config.json";
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";

/// What every name begins with.
const MODEL: &str = "base_model.model.";

/// Opens an adapter.
pub(crate) fn open(path: &Path) -> Result<AdapterFile, Error> {
    let config = path.join(CONFIG);
    if !config.exists() {
        let problem = format!("has no {CONFIG}, so it is no adapter of PEFT");
        return Err(Error::unsupported(path, problem));
    }
    let weights = path.join(WEIGHTS);
    if !weights.exists() {
        let pickled = path.join("adapter_model.bin").exists();
        let problem = match pickled {
            true => format!(
                "has adapter_model.bin, a PyTorch file, which can run code when opened: save it as {WEIGHTS}"
            ),
            false => format!("has no {WEIGHTS}"),
        };
        return Err(Error::unsupported(path, problem));
    }
    let mut metadata = Metadata::new();
    flatten(&config, String::new(), &read_json(&config)?, &mut metadata)?;
    refuse(&config, &metadata)?;
    let scales = Scales::of(&config, &metadata)?;
    let mut files = Files::default();
    files.add(weights.clone())?;
    let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
    for tensor in &files.stored {
        let wrong =
            |problem: &str| Error::malformed(&weights, format!("tensor {}", tensor.name), problem);
        let name = tensor.name.strip_prefix(MODEL);
        let name =
            name.ok_or_else(|| wrong("has a name that does not begin with base_model.model."))?;
        let (module, half) = half_of(name).map_err(wrong)?;
        let [n, k] = tensor.shape[..] else {
            return Err(wrong(
                "is no matrix: parts of convolutions are not supported",
            ));
        };
        files.float(tensor)?;
        let pair = pairs.entry(format!("{module}.weight")).or_default();
        pair.table = half.table;
        let place = if half.is_a { &mut pair.a } else { &mut pair.b };
        *place = Some((tensor.name.clone(), [1, n, k]));
    }
    let base = metadata.get("base_model_name_or_path");
    let base = match base {
        Some(Value::String(name)) if !name.is_empty() => Some(name.clone()),
        _ => None,
    };
    let scale = |target: &str, rank: usize| {
        let module = target.strip_suffix(".weight").unwrap_or(target);
        scales.scale(module, rank)
    };
    let data = Stored::of(files)?;
    let mut adapter = joined(path, Dialect::HuggingFace, pairs, &scale, Box::new(data))?;
    adapter.base = base;
    Ok(adapter)
}

/// Which half of a pair a tensor is.
struct Half {
    is_a: bool,
    table: bool,
}

/// A tensor's module, and which half it is. The error says what it is instead.
fn half_of(name: &str) -> Result<(&str, Half), &'static str> {
    let halves = [
        (".lora_A.weight", true, false),
        (".lora_B.weight", false, false),
        (".lora_embedding_A", true, true),
        (".lora_embedding_B", false, true),
    ];
    for (end, is_a, table) in halves {
        if let Some(module) = name.strip_suffix(end) {
            if module.ends_with(".base_layer") || module.ends_with(".experts") {
                return Err(
                    "is of a parameter of all experts (target_parameters), which is not supported",
                );
            }
            return Ok((module, Half { is_a, table }));
        }
    }
    Err(if name.contains("lora_magnitude_vector") {
        "is a magnitude: DoRA is not supported"
    } else if name.contains(".modules_to_save.") || !name.contains("lora_") {
        "replaces a tensor of the model (modules_to_save): this is not supported, only low-rank pairs are"
    } else if name.ends_with(".lora_B.bias") {
        "is a bias: adapters with lora_bias are not supported"
    } else {
        "is no half of a low-rank pair"
    })
}

/// Refuses what this is not, by name.
fn refuse(config: &Path, metadata: &Metadata) -> Result<(), Error> {
    let refuse = |key: &str, problem: String| Err(Error::malformed(config, key, problem));
    match metadata.get("peft_type") {
        Some(Value::String(kind)) if kind == "LORA" => {}
        Some(Value::String(kind)) => {
            return refuse("peft_type", format!("is {kind}: only LORA is supported"));
        }
        _ => {
            return refuse(
                "peft_type",
                "is missing: is this an adapter of PEFT?".into(),
            );
        }
    }
    let flags = [
        ("use_dora", "weight-decomposed adapters (DoRA) are"),
        ("lora_bias", "adapters with biases are"),
        ("fan_in_fan_out", "transposed matrices are"),
        ("use_qalora", "QALoRA is"),
    ];
    for (key, what) in flags {
        if metadata.get(key) == Some(&Value::Bool(true)) {
            return refuse(key, format!("is true: {what} not supported"));
        }
    }
    match metadata.get("bias") {
        None => {}
        Some(Value::String(bias)) if bias == "none" => {}
        _ => {
            return refuse(
                "bias",
                "is not \"none\": adapters that change biases are not supported".into(),
            );
        }
    }
    let lists = [
        (
            "modules_to_save",
            "whole tensors besides the low-rank pairs are",
        ),
        (
            "target_parameters",
            "pairs of the experts' joined parameters are",
        ),
        ("trainable_token_indices", "new embeddings of tokens are"),
        ("layer_replication", "repeated layers are"),
        (
            "alora_invocation_tokens",
            "adapters that begin with an invocation (aLoRA) are",
        ),
    ];
    for (key, what) in lists {
        let set = match metadata.get(key) {
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
            None => {
                let under = format!("{key}.");
                metadata.keys().any(|known| known.starts_with(&under))
            }
        };
        if set {
            return refuse(key, format!("is set: {what} not supported"));
        }
    }
    if let Some(Value::String(init)) = metadata.get("init_lora_weights") {
        let start = init.to_lowercase();
        let changing = ["pissa", "olora", "corda", "loftq", "lora_ga"];
        if changing.iter().any(|name| start.starts_with(name)) {
            let problem = format!(
                "is \"{init}\": its training changed the model's own weights. Save the adapter with path_initial_model_for_weight_conversion"
            );
            return refuse("init_lora_weights", problem);
        }
    }
    Ok(())
}

/// How strong each pair is.
struct Scales<'a> {
    config: &'a Path,
    alpha: f64,
    root: bool,
    /// By the end of a module's name.
    alphas: Vec<(String, f64)>,
}

impl Scales<'_> {
    fn of<'a>(config: &'a Path, metadata: &Metadata) -> Result<Scales<'a>, Error> {
        let alpha = number(metadata, "lora_alpha");
        let alpha = alpha
            .ok_or_else(|| Error::malformed(config, "lora_alpha", "is missing, or not a number"))?;
        let mut alphas = Vec::new();
        for (key, value) in metadata.range("alpha_pattern.".to_string()..) {
            let Some(pattern) = key.strip_prefix("alpha_pattern.") else {
                break;
            };
            // PEFT reads it as a regular expression, of which names are a part.
            let plain = pattern.strip_prefix('^').unwrap_or(pattern);
            if plain.contains(|c: char| !c.is_alphanumeric() && c != '.' && c != '_') {
                let problem = "is a regular expression: only names of modules are supported";
                return Err(Error::malformed(config, key, problem));
            }
            let value = number(&Metadata::from([(key.clone(), value.clone())]), key);
            let value = value.ok_or_else(|| Error::malformed(config, key, "is not a number"))?;
            alphas.push((pattern.to_string(), value));
        }
        Ok(Scales {
            config,
            alpha,
            root: metadata.get("use_rslora") == Some(&Value::Bool(true)),
            alphas,
        })
    }

    fn scale(&self, module: &str, rank: usize) -> Result<f32, Error> {
        let matches = |pattern: &str| match pattern.strip_prefix('^') {
            Some(whole) => module == whole,
            None => {
                let rest = module.strip_suffix(pattern);
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        };
        let own = self.alphas.iter().find(|(pattern, _)| matches(pattern));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        let by = if self.root {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        let scale = alpha / by;
        if !scale.is_finite() {
            let problem = format!("gives {module} a scale of {scale}");
            return Err(Error::malformed(self.config, "lora_alpha", problem));
        }
        Ok(scale as f32)
    }
}

/// The tensors of the file.
struct Stored {
    path: PathBuf,
    maps: Vec<memmap2::Mmap>,
    /// By name: format, place and bytes.
    tensors: HashMap<String, (Format, Place, usize)>,
}

impl Stored {
    fn of(files: Files) -> Result<Stored, Error> {
        let mut tensors = HashMap::new();
        for tensor in &files.stored {
            let format = files.float(tensor)?;
            let elements: usize = tensor.shape.iter().product();
            let bytes = format.bytes(elements).unwrap_or(0);
            tensors.insert(tensor.name.clone(), (format, tensor.place, bytes));
        }
        Ok(Stored {
            path: files.paths[0].clone(),
            maps: files.maps,
            tensors,
        })
    }
}

impl Data for Stored {
    fn bytes(&self, name: &str) -> Result<(Format, Cow<'_, [u8]>), Error> {
        let known = self.tensors.get(name);
        let bytes = known.and_then(|(format, place, bytes)| {
            let end = place.start.checked_add(*bytes)?;
            Some((*format, self.maps[place.file].get(place.start..end)?))
        });
        let (format, bytes) = bytes.ok_or_else(|| {
            Error::malformed(
                &self.path,
                format!("tensor {name}"),
                "is missing or cut off",
            )
        })?;
        Ok((format, Cow::Borrowed(bytes)))
    }
}
