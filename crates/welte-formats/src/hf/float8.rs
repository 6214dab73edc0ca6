//! F8_E4M3 weights: `X` with scales in `X_scale` or `X_scale_inv`. Both kinds are factors: one per tensor, per row or
//! per rectangle. Weights become blocks of 128 with a scale each. Rows that are not whole blocks become BF16. Scales of
//! activations are ignored, since activations are not rounded.

use super::files::{Files, Place, Stored};
use crate::{Error, Metadata, TensorInfo, Value, quant};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;
use std::path::Path;
use welte_table::Format;

/// Suffixes of the scales' names.
const SCALES: [&str; 2] = ["_scale", "_scale_inv"];

/// Suffixes of ignored scales: those of activations, keys and values.
const IGNORED: [&str; 7] = [
    ".input_scale",
    ".input_scale_ub",
    ".activation_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
];

/// The default rectangle of a scale: rows, columns.
const RECTANGLE: (usize, usize) = (128, 128);

/// Bytes of a block's scale.
const SCALE: usize = 4;

/// The location of a weight and its scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    weight: Place,
    scales: Place,
    dtype: Dtype,
    /// The rectangle of a scale: rows and columns.
    each: (usize, usize),
    /// Scales per row of rectangles.
    across: usize,
}

/// True for tensors that are read with a weight, or ignored.
pub(super) fn is_part(files: &Files, tensor: &Stored) -> Result<bool, Error> {
    let name = tensor.name.as_str();
    if IGNORED.iter().any(|end| name.ends_with(end)) {
        return Ok(true);
    }
    let Some(weight) = SCALES.iter().find_map(|end| name.strip_suffix(end)) else {
        return Ok(false);
    };
    match files.tensor(weight).map(|t| t.dtype) {
        Some(Dtype::F8_E4M3) => Ok(true),
        _ if !weight.ends_with(".weight") => Ok(false),
        found => {
            let kind = found.map_or("is missing".to_string(), |t| format!("has type {t:?}"));
            let problem = format!("is a scale of {weight}, which must be F8_E4M3 but {kind}");
            Err(files.wrong(tensor, problem))
        }
    }
}

/// The rectangle of a scale in the configuration.
pub(super) fn block(config: &Path, metadata: &Metadata) -> Result<(usize, usize), Error> {
    const KEYS: [&str; 2] = [
        "quantization_config.weight_block_size",
        "quantization_config.config_groups.group_0.weights.block_structure",
    ];
    let Some((key, value)) = KEYS.iter().find_map(|k| Some((*k, metadata.get(*k)?))) else {
        return Ok(RECTANGLE);
    };
    let wrong = || {
        let problem = "must be two positive integers, the second a multiple of 128";
        Error::malformed(config, key, problem)
    };
    let Value::Array(sides) = value else {
        return Err(wrong());
    };
    match sides[..] {
        [Value::U64(rows), Value::U64(columns)]
            if rows > 0 && columns > 0 && columns.is_multiple_of(128) =>
        {
            let side = |v| usize::try_from(v).map_err(|_| wrong());
            Ok((side(rows)?, side(columns)?))
        }
        _ => Err(wrong()),
    }
}

/// A weight joined with its scales.
pub(super) fn joined(
    files: &Files,
    weight: &Stored,
    block: (usize, usize),
) -> Result<(TensorInfo, Parts), Error> {
    let [n, k] = weight.shape[..] else {
        let problem = format!(
            "is F8_E4M3 with {} dimensions; 2 are supported",
            weight.shape.len()
        );
        return Err(files.wrong(weight, problem));
    };
    weight.matrix().map_err(|p| files.wrong(weight, p))?;
    let names = SCALES.map(|end| format!("{}{end}", weight.name));
    let Some(scales) = names.iter().find_map(|name| files.tensor(name)) else {
        let problem = format!("is F8_E4M3, but {} is missing (or {})", names[0], names[1]);
        return Err(files.wrong(weight, problem));
    };
    if !matches!(scales.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
        let problem = format!("has type {:?}; scales are F32, BF16 or F16", scales.dtype);
        return Err(files.wrong(scales, problem));
    }
    let across = k.div_ceil(block.1);
    let (each, across) = match scales.shape[..] {
        [] | [1] | [1, 1] => ((n, k), 1),
        [rows] | [rows, 1] if rows == n => ((1, k), 1),
        [rows, columns] if rows == n.div_ceil(block.0) && columns == across => (block, across),
        _ => {
            let problem = format!(
                "has shape {:?}; for a weight of {n} x {k} it is [], [{n}], [{n}, 1] or [{}, {across}]",
                scales.shape,
                n.div_ceil(block.0)
            );
            return Err(files.wrong(scales, problem));
        }
    };
    let whole = k.is_multiple_of(Format::F8_E4M3.block());
    let info = TensorInfo {
        name: weight.name.clone(),
        format: if whole { Format::F8_E4M3 } else { Format::BF16 },
        n,
        k,
        stack: weight.stack(),
    };
    let parts = Parts {
        weight: weight.place,
        scales: scales.place,
        dtype: scales.dtype,
        each,
        across,
    };
    Ok((info, parts))
}

/// Rows of a tensor as blocks, or as BF16.
pub(super) fn rows(
    path: &Path,
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Result<Vec<u8>, Error> {
    let wrong = |problem: String| tensor.wrong(path, problem);
    let size = parts.dtype.bitsize() / 8;
    // The scales were checked to lie in the file when it was opened.
    let scale = |row: usize, column: usize| {
        let index = row / parts.each.0 * parts.across + column / parts.each.1;
        let at = parts.scales.start + index * size;
        let bytes = maps[parts.scales.file].get(at..at + size)?;
        let mut value = [0.0];
        quant::decode(format_of(parts.dtype), bytes, &mut value);
        Some(value[0])
    };
    let mut out = Vec::with_capacity(rows.len() * tensor.format.bytes(tensor.k).unwrap_or(0));
    let block = Format::F8_E4M3.block();
    for row in rows {
        let at = parts.weight.start + row * tensor.k;
        let bytes = maps[parts.weight.file].get(at..at + tensor.k);
        let bytes = bytes.ok_or_else(|| wrong(format!("ends before row {row}")))?;
        let nan = |byte: &u8| byte & 0x7f == 0x7f;
        // Most rows have no NaN, so check without a branch first.
        if bytes.iter().fold(false, |any, byte| any | nan(byte)) {
            let at = bytes.iter().position(nan).unwrap_or(0);
            let problem =
                format!("row {row} has NaN at {at}: the model is damaged; download it again");
            return Err(wrong(problem));
        }
        for (i, bytes) in bytes.chunks(block).enumerate() {
            let scale = scale(row, i * block).filter(|s| s.is_finite());
            let scale = scale.ok_or_else(|| {
                wrong(format!(
                    "has no usable scale for row {row}, column {}: the model is damaged; download it again",
                    i * block
                ))
            })?;
            let mut whole = [0; SCALE + 128];
            whole[..SCALE].copy_from_slice(&scale.to_le_bytes());
            whole[SCALE..SCALE + bytes.len()].copy_from_slice(bytes);
            if tensor.format == Format::F8_E4M3 {
                out.extend_from_slice(&whole);
                continue;
            }
            let mut values = [0.0; 128];
            quant::decode(Format::F8_E4M3, &whole, &mut values);
            let from = out.len();
            out.resize(from + 2 * bytes.len(), 0);
            quant::encode(tensor.format, &values[..bytes.len()], &mut out[from..]);
        }
    }
    Ok(out)
}

fn format_of(scales: Dtype) -> Format {
    match scales {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        _ => Format::BF16,
    }
}
