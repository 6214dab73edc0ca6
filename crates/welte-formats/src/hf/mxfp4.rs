//! MXFP4 weights as gpt-oss stores them: `X_blocks` (u8, 16 for each 32 elements, which are neighbours in a byte) and
//! `X_scales` (u8, an exponent for each 32) become one tensor `X` with GGUF's blocks.

use super::{Files, Place, Stored};
use crate::{Error, TensorInfo};
use memmap2::Mmap;
use safetensors::Dtype;
use std::path::Path;
use welte_table::Format;

/// What follows a tensor's name in those of its parts.
pub(super) const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// Bytes of a block in the file.
const BYTES: usize = 16;

/// Where the two parts of a weight begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    blocks: Place,
    scales: Place,
    /// Which rows of the file are meant: every so many, from this one on.
    step: usize,
    first: usize,
}

impl Parts {
    /// Every `step`th row, from `first` on.
    pub(super) fn every(self, step: usize, first: usize) -> Parts {
        Parts {
            step,
            first,
            ..self
        }
    }
}

/// True for scales: they are read with their blocks.
pub(super) fn is_part(files: &Files, tensor: &Stored) -> bool {
    let name = tensor.name.strip_suffix(SCALES);
    tensor.dtype == Dtype::U8
        && name.is_some_and(|name| files.tensor(&format!("{name}{BLOCKS}")).is_some())
}

/// Blocks with their scales. A stack of matrices (experts) is one matrix with the rows of all.
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
                "has shape {:?}; [rows, blocks, 16] or [experts, rows, blocks, 16] is meant",
                blocks.shape
            );
            return Err(files.wrong(blocks, problem));
        }
    };
    if scales.dtype != Dtype::U8 || scales.shape != blocks.shape[..blocks.shape.len() - 1] {
        let problem = format!(
            "has type {:?} and shape {:?}; U8 and {:?} belong to its blocks",
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

/// Rows `first..first + rows` of a tensor as blocks.
pub(super) fn rows(
    path: &Path,
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    first: usize,
    rows: usize,
) -> Result<Vec<u8>, Error> {
    let across = tensor.k / Format::MXFP4.block();
    let end = first.checked_add(rows).filter(|end| *end <= tensor.n);
    let fault = || {
        let problem = format!("has no rows from {first} on (it has {})", tensor.n);
        Error::malformed(path, format!("tensor {}", tensor.name), problem)
    };
    let end = end.ok_or_else(fault)?;
    // `end` rows lie in the file, as was seen when it was opened.
    let part = |row: usize, place: Place, each: usize| {
        let from = place.start + (row * parts.step + parts.first) * across * each;
        let part = maps[place.file].get(from..from + across * each);
        part.ok_or_else(fault)
    };
    let mut out = Vec::with_capacity(rows * across * Format::MXFP4.block_bytes());
    for row in first..end {
        let (scales, blocks) = (part(row, parts.scales, 1)?, part(row, parts.blocks, BYTES)?);
        for (scale, block) in scales.iter().zip(blocks.as_chunks::<BYTES>().0) {
            out.push(*scale);
            // Element e is the low half of byte e / 2 if e is even.
            let element = |e: usize| block[e / 2] >> (4 * (e % 2)) & 15;
            out.extend((0..BYTES).map(|j| element(j) | element(j + 16) << 4));
        }
    }
    Ok(out)
}
