//! MLX's quantised weights: `X.weight` (integers packed into u32), `X.scales` and `X.biases` become one tensor, whose
//! blocks contain all three.

use super::files::{Files, Place, Stored};
use crate::{Error, Metadata, TensorInfo, Value};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;
use std::path::Path;
use welte_table::{Affine, Format};

/// The start of the three parts of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    weight: Place,
    scales: Place,
    biases: Place,
}

/// The parts of a directory that quantised tensors depend on.
pub(super) struct Quantised<'a> {
    /// `config.json`
    pub(super) config: &'a Path,
    pub(super) metadata: &'a Metadata,
    pub(super) files: &'a Files,
}

impl Quantised<'_> {
    /// True for scales and biases, which are read with their weight.
    pub(super) fn is_part(&self, tensor: &Stored) -> Result<bool, Error> {
        let name = &tensor.name;
        let module = name
            .strip_suffix(".scales")
            .or(name.strip_suffix(".biases"));
        let Some(module) = module.filter(|_| self.key().is_some()) else {
            return Ok(false);
        };
        let weight = self.files.tensor(&format!("{module}.weight"));
        if weight.is_some_and(|weight| weight.dtype == Dtype::U32) {
            return Ok(true);
        }
        let problem = format!("belongs to a packed {module}.weight, which is missing");
        Err(self.files.wrong(tensor, problem))
    }

    /// A packed weight joined with its scales and biases.
    pub(super) fn joined(&self, weight: &Stored) -> Result<(TensorInfo, Parts), Error> {
        let Some(module) = weight.name.strip_suffix(".weight") else {
            let problem = "has type U32, which only packed weights have (X.weight)";
            return Err(self.files.wrong(weight, problem));
        };
        let (bits, group) = self.recipe(module)?;
        let part = |kind: &str| {
            let name = format!("{module}.{kind}");
            self.files.tensor(&name).ok_or_else(|| {
                let problem = format!("is packed, but {name} is missing");
                self.files.wrong(weight, problem)
            })
        };
        let (scales, biases) = (part("scales")?, part("biases")?);
        let bf16 = match scales.dtype {
            Dtype::BF16 => true,
            Dtype::F16 => false,
            other => {
                let problem = format!("has type {other:?}; scales are F16 or BF16");
                return Err(self.files.wrong(scales, problem));
            }
        };
        if biases.dtype != scales.dtype || biases.shape != scales.shape {
            let problem = format!(
                "has type {:?} and shape {:?}, its scales {:?} and {:?}",
                biases.dtype, biases.shape, scales.dtype, scales.shape
            );
            return Err(self.files.wrong(biases, problem));
        }
        let affine = Affine::new(bits, group, bf16).ok_or_else(|| {
            let problem = format!("has {bits} bits in groups of {group}, which is not supported");
            self.files.wrong(weight, problem)
        })?;
        let (n, k) = self.shape(weight, scales, affine)?;
        let info = TensorInfo {
            name: weight.name.clone(),
            format: Format::Affine(affine),
            n,
            k,
            stack: weight.stack(),
        };
        let parts = Parts {
            weight: weight.place,
            scales: scales.place,
            biases: biases.place,
        };
        Ok((info, parts))
    }

    /// Rows and elements per row. The dimensions of weight and scales agree except the last, which the group size
    /// relates.
    fn shape(
        &self,
        weight: &Stored,
        scales: &Stored,
        affine: Affine,
    ) -> Result<(usize, usize), Error> {
        let (n, words) = weight.matrix().map_err(|p| self.files.wrong(weight, p))?;
        let (_, groups) = scales.matrix().map_err(|p| self.files.wrong(scales, p))?;
        let k = groups.checked_mul(affine.group());
        let bits = k.and_then(|k| k.checked_mul(affine.bits()));
        let front = |tensor: &Stored| tensor.shape.split_last().map(|(_, front)| front.to_vec());
        let same = weight.shape.len() > 1 && front(weight) == front(scales);
        match (k, bits) {
            (Some(k), Some(bits)) if same && words.checked_mul(32) == Some(bits) => Ok((n, k)),
            _ => {
                let problem = format!(
                    "has shape {:?}, its scales {:?}: with {} bits in groups of {} (config.json) they do not \
                     belong together",
                    weight.shape,
                    scales.shape,
                    affine.bits(),
                    affine.group()
                );
                Err(self.files.wrong(weight, problem))
            }
        }
    }

    /// The key in `config.json` that describes the quantisation. Other tools use the second key too, but add their
    /// name.
    fn key(&self) -> Option<&'static str> {
        let has = |key: &str| self.metadata.contains_key(key);
        if has("quantization.bits") || has("quantization.group_size") || has("quantization.mode") {
            return Some("quantization");
        }
        let other = has("quantization_config.quant_method") || !has("quantization_config.bits");
        (!other).then_some("quantization_config")
    }

    /// Bits and group size of a module: its own, or else the general ones.
    fn recipe(&self, module: &str) -> Result<(usize, usize), Error> {
        let Some(key) = self.key() else {
            let problem = format!(
                "is missing, but {module}.weight is packed (U32): MLX writes bits and group_size there"
            );
            return Err(Error::malformed(self.config, "quantization", problem));
        };
        if self.metadata.get(&format!("{key}.{module}")) == Some(&Value::Bool(false)) {
            let problem = format!("is false, but {module}.weight is packed (U32)");
            let field = format!("{key}.{module}");
            return Err(Error::malformed(self.config, field, problem));
        }
        let field = |what: &str| {
            let own = format!("{key}.{module}.{what}");
            if self.metadata.contains_key(&own) {
                own
            } else {
                format!("{key}.{what}")
            }
        };
        let wrong = |field: String, problem: String| Error::malformed(self.config, field, problem);
        let mode = field("mode");
        match self.metadata.get(&mode) {
            None => (),
            Some(Value::String(name)) if name == "affine" => (),
            Some(other) => {
                let name = match other {
                    Value::String(name) => name,
                    _ => "not text",
                };
                let problem = format!(
                    "is {name}; only MLX's affine mode is supported: convert the model with it"
                );
                return Err(wrong(mode, problem));
            }
        }
        let number = |what: &str, known: &[usize]| {
            let field = field(what);
            let listed = || known.iter().map(usize::to_string).collect::<Vec<_>>();
            match self.metadata.get(&field) {
                Some(Value::U64(v)) if known.contains(&(*v as usize)) => Ok(*v as usize),
                Some(Value::U64(v)) => {
                    let problem = format!("is {v}; supported are {}", listed().join(", "));
                    Err(wrong(field, problem))
                }
                Some(_) => Err(wrong(field, "is not an integer".to_string())),
                None => Err(wrong(field, "is missing".to_string())),
            }
        };
        Ok((
            number("bits", &Affine::BITS)?,
            number("group_size", &Affine::GROUPS)?,
        ))
    }
}

/// Rows of a tensor as blocks.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let groups = tensor.k / tensor.format.block();
    let quants = tensor.format.block_bytes() - 4;
    let part = |place: Place, each: usize| {
        let from = place.start + rows.start * groups * each;
        maps[place.file].get(from..from + rows.len() * groups * each)
    };
    let (scales, biases) = (part(parts.scales, 2)?, part(parts.biases, 2)?);
    let weight = part(parts.weight, quants)?;
    let mut out = Vec::with_capacity(rows.len() * groups * (4 + quants));
    let halves = scales.chunks_exact(2).zip(biases.chunks_exact(2));
    for ((scale, bias), quants) in halves.zip(weight.chunks_exact(quants)) {
        out.extend_from_slice(scale);
        out.extend_from_slice(bias);
        out.extend_from_slice(quants);
    }
    Some(out)
}
