//! gpt-oss's MXFP4 weights: `X_blocks` (u8, 16 per 32 elements, two neighbours per byte) and `X_scales` (u8, an
//! exponent per 32 elements) become one tensor `X` in GGUF's block layout.

use super::files::{Files, Place, Stored};
use crate::{Error, TensorInfo};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;
use welte_table::Format;

/// Suffixes of the parts' names.
pub(super) const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// Bytes of a block in the file.
const BYTES: usize = 16;

/// The start of the two parts of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    blocks: Place,
    scales: Place,
    /// The tensor consists of every `step`th row of the file, beginning with `first`.
    step: usize,
    first: usize,
}

impl Parts {
    /// Selects every `step`th row, beginning with `first`.
    pub(super) fn every(self, step: usize, first: usize) -> Parts {
        Parts {
            step,
            first,
            ..self
        }
    }
}

/// True for scales, which are read with their blocks.
pub(super) fn is_part(files: &Files, tensor: &Stored) -> bool {
    let name = tensor.name.strip_suffix(SCALES);
    tensor.dtype == Dtype::U8
        && name.is_some_and(|name| files.tensor(&format!("{name}{BLOCKS}")).is_some())
}

/// Blocks joined with their scales. Stacked matrices (experts) become one matrix with the rows of all.
pub(super) fn joined(files: &Files, blocks: &Stored) -> Result<(TensorInfo, Parts), Error> {
    let name = blocks.name.strip_suffix(BLOCKS).unwrap_or(&blocks.name);
    let scales = format!("{name}{SCALES}");
    let Some(scales) = files.tensor(&scales) else {
        let problem = format!("has no exponents: {scales} is missing");
        return Err(files.wrong(blocks, problem));
    };
    let (front, across) = match blocks.shape[..] {
        [ref front @ .., across, BYTES] if (1..=2).contains(&front.len()) => (front, across),
        _ => {
            let problem = format!(
                "has shape {:?}, expected [rows, blocks, 16] or [experts, rows, blocks, 16]",
                blocks.shape
            );
            return Err(files.wrong(blocks, problem));
        }
    };
    if scales.dtype != Dtype::U8 || scales.shape != blocks.shape[..blocks.shape.len() - 1] {
        let problem = format!(
            "has type {:?} and shape {:?}, expected U8 and {:?}",
            scales.dtype,
            scales.shape,
            &blocks.shape[..blocks.shape.len() - 1]
        );
        return Err(files.wrong(scales, problem));
    }
    let n = front.iter().product();
    let k = across.saturating_mul(Format::MXFP4.block());
    if n == 0 || k == 0 {
        return Err(files.wrong(blocks, format!("is empty ({n} x {k})")));
    }
    let info = TensorInfo {
        name: name.to_string(),
        format: Format::MXFP4,
        n,
        k,
        stack: front[..front.len() - 1].iter().product(),
    };
    let parts = Parts {
        blocks: blocks.place,
        scales: scales.place,
        step: 1,
        first: 0,
    };
    Ok((info, parts))
}

/// Rows of a tensor as blocks.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let across = tensor.k / Format::MXFP4.block();
    let part = |row: usize, place: Place, each: usize| {
        let from = place.start + (row * parts.step + parts.first) * across * each;
        maps[place.file].get(from..from + across * each)
    };
    let mut out = Vec::with_capacity(rows.len() * across * Format::MXFP4.block_bytes());
    for row in rows {
        let (scales, blocks) = (part(row, parts.scales, 1)?, part(row, parts.blocks, BYTES)?);
        for (scale, block) in scales.iter().zip(blocks.as_chunks::<BYTES>().0) {
            out.push(*scale);
            // Element e is the low half of byte e / 2 if e is even, else the high half.
            let element = |e: usize| block[e / 2] >> (4 * (e % 2)) & 15;
            out.extend((0..BYTES).map(|j| element(j) | element(j + 16) << 4));
        }
    }
    Some(out)
}
