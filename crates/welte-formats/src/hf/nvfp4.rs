//! NVFP4 weights: floats of four bits, an E4M3 scale for every 16 of them, and a factor for the matrix.
//!
//! | | floats, two in a byte | scales | factor |
//! |---|---|---|---|
//! | modelopt | `weight` | `weight_scale` | `weight_scale_2` |
//! | compressed-tensors | `weight_packed` | `weight_scale` | the inverse of `weight_global_scale` |

use super::files::{Files, Place, Stored};
use crate::{Error, TensorInfo};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;
use welte_table::Format;

/// Elements that share a scale.
const EACH: usize = 16;

/// The smallest byte of a scale that is NaN or negative.
const NAN: u8 = 0x7f;

/// Suffixes of the floats, of their factor, and whether the factor is inverted.
const KINDS: [(&str, &str, bool); 2] = [
    ("weight", "weight_scale_2", false),
    ("weight_packed", "weight_global_scale", true),
];

/// The location of a weight's parts, and its factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    floats: Place,
    scales: Place,
    factor: f32,
}

/// The tensor that the floats of a module become; nothing for its other parts; `None` for other tensors.
pub(super) fn taken(
    files: &Files,
    tensor: &Stored,
) -> Result<Option<Vec<(TensorInfo, Parts)>>, Error> {
    let Some((module, part)) = tensor.name.rsplit_once('.') else {
        return Ok(None);
    };
    let named = |part: &str| files.tensor(&format!("{module}.{part}"));
    for (floats, factor, inverted) in KINDS {
        let Some(weight) = named(floats).filter(|weight| weight.dtype == Dtype::U8) else {
            continue;
        };
        if part == floats {
            let scales = named("weight_scale").ok_or_else(|| {
                let problem = format!("has no scales: {module}.weight_scale is missing");
                files.wrong(weight, problem)
            })?;
            let name = format!("{module}.{factor}");
            let factor = files
                .tensor(&name)
                .ok_or_else(|| files.wrong(weight, format!("has no factor: {name} is missing")))?;
            let factor = read_factor(files, factor, inverted)?;
            return Ok(Some(vec![joined(files, module, weight, scales, factor)?]));
        }
        if [factor, "weight_scale", "input_global_scale", "input_scale"].contains(&part) {
            return Ok(Some(Vec::new()));
        }
    }
    Ok(None)
}

fn read_factor(files: &Files, tensor: &Stored, inverted: bool) -> Result<f32, Error> {
    let Place { file, start } = tensor.place;
    let one = tensor.dtype == Dtype::F32 && tensor.shape.iter().product::<usize>() == 1;
    let bytes = files.maps[file].get(start..).and_then(|b| b.first_chunk());
    let stored = bytes
        .filter(|_| one)
        .map(|bytes| f32::from_le_bytes(*bytes));
    let factor = stored.map(|v| if inverted { 1.0 / v } else { v });
    factor
        .filter(|v| v.is_finite() && *v >= 0.0)
        .ok_or_else(|| {
            let problem = format!(
                "must be one F32 that is finite and positive; its type is {:?} and its shape {:?}",
                tensor.dtype, tensor.shape
            );
            files.wrong(tensor, problem)
        })
}

fn joined(
    files: &Files,
    module: &str,
    weight: &Stored,
    scales: &Stored,
    factor: f32,
) -> Result<(TensorInfo, Parts), Error> {
    let (n, half) = match weight.shape[..] {
        [n, half] if n > 0 && half > 0 => (n, half),
        _ => {
            let problem = format!("has shape {:?}, expected [rows, bytes]", weight.shape);
            return Err(files.wrong(weight, problem));
        }
    };
    let k = half.saturating_mul(2);
    let block = Format::NVFP4_F32.block();
    if !k.is_multiple_of(block) {
        let problem = format!("has rows of {k} elements; they must be multiples of {block}");
        return Err(files.wrong(weight, problem));
    }
    if scales.dtype != Dtype::F8_E4M3 || scales.shape != [n, k / EACH] {
        let problem = format!(
            "has type {:?} and shape {:?}, expected F8_E4M3 and [{n}, {}]",
            scales.dtype,
            scales.shape,
            k / EACH
        );
        return Err(files.wrong(scales, problem));
    }
    let info = TensorInfo {
        name: format!("{module}.weight"),
        format: Format::NVFP4_F32,
        n,
        k,
        stack: 1,
    };
    let parts = Parts {
        floats: weight.place,
        scales: scales.place,
        factor,
    };
    Ok((info, parts))
}

/// Rows of a tensor as blocks. `None` if a scale is negative or NaN, or the file ends before.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let part = |row: usize, place: Place, bytes: usize| {
        let from = place.start + row * bytes;
        maps[place.file].get(from..from + bytes)
    };
    let mut out = Vec::with_capacity(rows.len() * tensor.format.bytes(tensor.k)?);
    for row in rows {
        let scales = part(row, parts.scales, tensor.k / EACH)?;
        let floats = part(row, parts.floats, tensor.k / 2)?;
        if scales.iter().any(|scale| *scale >= NAN) {
            return None;
        }
        for (scales, floats) in scales
            .as_chunks::<4>()
            .0
            .iter()
            .zip(floats.as_chunks::<32>().0)
        {
            out.extend_from_slice(&parts.factor.to_le_bytes());
            out.extend_from_slice(scales);
            for eight in floats.as_chunks::<8>().0 {
                // Element e is the low half of byte e / 2 if e is even, else the high half.
                let element = |e: usize| eight[e / 2] >> (4 * (e % 2)) & 15;
                out.extend((0..8).map(|j| element(j) | element(j + 8) << 4));
            }
        }
    }
    Some(out)
}
