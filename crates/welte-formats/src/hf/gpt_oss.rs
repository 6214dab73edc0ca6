//! Experts in gpt-oss's files. Gate and up are one tensor with alternating rows, and float matrices are transposed.
//! They are read as `gate_proj`, `up_proj` and `down_proj`, with a row per output.

use super::files::{Files, Place, Stored};
use super::mxfp4;
use crate::{Error, Metadata, TensorInfo, Value};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;

/// Precedes the names of the experts' tensors.
const EXPERTS: &str = ".mlp.experts.";

/// Elements of a tensor that are not contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided {
    place: Place,
    /// Bytes of an element.
    size: usize,
    /// Rows per expert, then the distances between experts, rows and columns in elements.
    rows: usize,
    expert: usize,
    row: usize,
    column: usize,
}

/// The location of a tensor's elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parts {
    Mxfp4(mxfp4::Parts),
    Strided(Strided),
}

/// The tensors that a tensor of experts becomes; none if it is another tensor.
pub(super) fn taken(
    files: &Files,
    metadata: &Metadata,
    tensor: &Stored,
) -> Result<Option<Vec<(TensorInfo, Parts)>>, Error> {
    let model = metadata.get("model_type");
    let Some((layer, part)) = tensor.name.split_once(EXPERTS) else {
        return Ok(None);
    };
    if model != Some(&Value::String("gpt_oss".into())) {
        return Ok(None);
    }
    let (module, kind) = match part.split_at(part.find("_proj").map_or(0, |at| at + 5)) {
        (module @ ("gate_up_proj" | "down_proj"), kind) => (module, kind),
        _ => return Ok(None),
    };
    let names: &[&str] = match module {
        "gate_up_proj" => &["gate_proj", "up_proj"],
        _ => &["down_proj"],
    };
    let named = |i: usize, what: &str| format!("{layer}{EXPERTS}{}.{what}", names[i]);
    let step = names.len();
    let mut found = Vec::new();
    for i in 0..step {
        found.push(match (kind, tensor.dtype) {
            (mxfp4::BLOCKS, Dtype::U8) => {
                let (info, parts) = mxfp4::joined(files, tensor)?;
                alternate(files, tensor, info.n / info.stack.max(1), step)?;
                let info = TensorInfo {
                    name: named(i, "weight"),
                    n: info.n / step,
                    ..info
                };
                (info, Parts::Mxfp4(parts.every(step, i)))
            }
            ("", _) => floats(files, tensor, named(i, "weight"), (step, i))?,
            ("_bias", _) => biases(files, tensor, named(i, "bias"), (step, i))?,
            _ => return Ok(None),
        });
    }
    Ok(Some(found))
}

/// Refuses outputs that cannot alternate.
fn alternate(files: &Files, tensor: &Stored, rows: usize, step: usize) -> Result<(), Error> {
    if rows.is_multiple_of(step) {
        return Ok(());
    }
    let problem = format!("has {rows} outputs per expert, so gate and up cannot alternate");
    Err(files.wrong(tensor, problem))
}

fn shape<const N: usize>(files: &Files, tensor: &Stored, meant: &str) -> Result<[usize; N], Error> {
    let shape: Result<[usize; N], _> = tensor.shape.as_slice().try_into();
    match shape {
        Ok(shape) if !shape.contains(&0) => Ok(shape),
        _ => {
            let problem = format!("has shape {:?}, expected {meant}", tensor.shape);
            Err(files.wrong(tensor, problem))
        }
    }
}

/// Every `step`th output of `[experts, inputs, outputs]`.
fn floats(
    files: &Files,
    tensor: &Stored,
    name: String,
    (step, first): (usize, usize),
) -> Result<(TensorInfo, Parts), Error> {
    let [experts, k, n] = shape(files, tensor, "[experts, inputs, outputs]")?;
    alternate(files, tensor, n, step)?;
    let info = TensorInfo {
        name,
        format: files.float(tensor)?,
        n: experts * n / step,
        k,
        stack: experts,
    };
    let data = strided(&info, tensor, first, [n / step, k * n, step, n]);
    Ok((info, data))
}

/// Every `step`th value of `[experts, outputs]`.
fn biases(
    files: &Files,
    tensor: &Stored,
    name: String,
    (step, first): (usize, usize),
) -> Result<(TensorInfo, Parts), Error> {
    let [experts, n] = shape(files, tensor, "[experts, outputs]")?;
    alternate(files, tensor, n, step)?;
    let info = TensorInfo {
        name,
        format: files.float(tensor)?,
        n: experts,
        k: n / step,
        stack: 1,
    };
    let data = strided(&info, tensor, first, [1, n, 0, step]);
    Ok((info, data))
}

/// Elements of a tensor, starting at `first`.
fn strided(
    info: &TensorInfo,
    tensor: &Stored,
    first: usize,
    [rows, expert, row, column]: [usize; 4],
) -> Parts {
    let size = info.format.block_bytes();
    let Place { file, start } = tensor.place;
    let place = Place {
        file,
        start: start + first * size,
    };
    Parts::Strided(Strided {
        place,
        size,
        rows,
        expert,
        row,
        column,
    })
}

/// Rows of a tensor, with contiguous elements.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let parts = match parts {
        Parts::Mxfp4(parts) => return mxfp4::rows(maps, parts, tensor, rows),
        Parts::Strided(parts) => parts,
    };
    let (map, size) = (&maps[parts.place.file], parts.size);
    let mut out = Vec::with_capacity(rows.len() * tensor.k * size);
    for row in rows {
        let at = row / parts.rows * parts.expert + row % parts.rows * parts.row;
        for k in 0..tensor.k {
            let from = parts.place.start + (at + k * parts.column) * size;
            out.extend_from_slice(map.get(from..from + size)?);
        }
    }
    Some(out)
}
