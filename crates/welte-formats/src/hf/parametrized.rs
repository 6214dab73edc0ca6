//! Weights with a low-rank change for each of several tasks, as torch's parametrizations store them: `X.parametrizations.weight.original`
//! and the pairs `X.parametrizations.weight.0.lora_A` and `lora_B` become one tensor `X.weight`. Models of Jina have them.

use super::files::{Files, Place, Stored};
use super::jina_clip::{Task, has_tasks, task};
use crate::quant::{decode, encode};
use crate::{Error, Metadata, TensorInfo, mapped};
use memmap2::Mmap;
use std::ops::Range;
use std::path::Path;
use welte_table::Format;

const ORIGINAL: &str = ".parametrizations.weight.original";
const PAIR: [&str; 2] = [
    ".parametrizations.weight.0.lora_A",
    ".parametrizations.weight.0.lora_B",
];

/// The start of a weight, and of what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    original: Place,
    change: Option<Change>,
}

/// What is added to a weight.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// `rank` factors for each row of the weight, and as many rows.
    factors: Half,
    rows: Half,
    rank: usize,
    scale: f32,
}

/// A matrix of a pair, that of the chosen task.
#[derive(Clone, Copy, Debug)]
struct Half {
    place: Place,
    format: Format,
}

/// The tensors that a stored tensor becomes; `None` if it is no part of such a weight.
pub(super) fn taken(
    config: &Path,
    metadata: &Metadata,
    files: &Files,
    tensor: &Stored,
) -> Result<Option<Vec<(TensorInfo, Parts)>>, Error> {
    if !has_tasks(metadata) {
        return Ok(None);
    }
    let of = |end: &str| tensor.name.strip_suffix(end);
    if let Some(stem) = PAIR.iter().find_map(|end| of(end)) {
        let is_part = files.tensor(&format!("{stem}{ORIGINAL}")).is_some();
        return Ok(is_part.then(Vec::new));
    }
    let Some(stem) = of(ORIGINAL) else {
        return Ok(None);
    };
    let (n, k) = tensor.matrix().map_err(|p| files.wrong(tensor, p))?;
    let info = TensorInfo {
        name: format!("{stem}.weight"),
        format: files.float(tensor)?,
        n,
        k,
        stack: tensor.stack(),
    };
    let change = match task(config, metadata)? {
        None => None,
        Some(task) => Some(change(files, tensor, stem, [n, k], task)?),
    };
    let original = tensor.place;
    Ok(Some(vec![(info, Parts { original, change })]))
}

/// What is added to a weight of `n` rows for a task.
fn change(
    files: &Files,
    tensor: &Stored,
    stem: &str,
    [n, k]: [usize; 2],
    task: Task,
) -> Result<Change, Error> {
    let half = |end: &str| {
        let name = format!("{stem}{end}");
        let missing = || files.wrong(tensor, format!("has no change: {name} is missing"));
        files.tensor(&name).ok_or_else(missing)
    };
    let (a, b) = (half(PAIR[0])?, half(PAIR[1])?);
    let shape = |half: &Stored| match half.shape[..] {
        [tasks, rows, columns] if tasks > task.number => Some([rows, columns]),
        _ => None,
    };
    // Tables have the factors in A, other weights in B.
    let fits = |factors: &Stored, rows: &Stored| {
        let ([of_rows, rank], own) = (shape(factors)?, shape(rows)?);
        (of_rows == n && own == [rank, k] && rank > 0).then_some(rank)
    };
    let found = fits(b, a)
        .map(|rank| (b, a, rank))
        .or_else(|| fits(a, b).map(|rank| (a, b, rank)));
    let Some((factors, rows, rank)) = found else {
        let problem = format!(
            "has shape {:?} beside {:?}, which do not make a change of {n} x {k} for {} tasks or more",
            a.shape,
            b.shape,
            task.number + 1
        );
        return Err(files.wrong(a, problem));
    };
    // The header has proven that the tensor is in the file, so no product overflows.
    let of_task = |half: &Stored| {
        let format = files.float(half)?;
        let bytes = task.number * half.shape[1] * half.shape[2] * format.block_bytes();
        let start = half.place.start + bytes;
        Ok::<_, Error>(Half {
            place: Place {
                start,
                ..half.place
            },
            format,
        })
    };
    Ok(Change {
        factors: of_task(factors)?,
        rows: of_task(rows)?,
        rank,
        scale: task.alpha / rank as f32,
    })
}

impl Half {
    /// Rows of `k` values.
    fn values(self, maps: &[Mmap], rows: Range<usize>, k: usize) -> Option<Vec<f32>> {
        let row = k * self.format.block_bytes();
        let start = self.place.start + rows.start * row;
        let bytes = maps[self.place.file].get(start..start + rows.len() * row)?;
        let mut values = vec![0.0; rows.len() * k];
        decode(self.format, bytes, &mut values);
        Some(values)
    }
}

/// Rows of a tensor with what is added to them, in the format of the weight.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let Place { file, start } = parts.original;
    let bytes = mapped::rows(&maps[file], tensor, start, rows.clone())?;
    let Some(change) = parts.change else {
        return Some(bytes.to_vec());
    };
    let mut values = vec![0.0; rows.len() * tensor.k];
    decode(tensor.format, bytes, &mut values);
    let factors = change.factors.values(maps, rows, change.rank)?;
    let added = change.rows.values(maps, 0..change.rank, tensor.k)?;
    let each = values.chunks_exact_mut(tensor.k);
    for (row, factors) in each.zip(factors.chunks_exact(change.rank)) {
        for (factor, added) in factors.iter().zip(added.chunks_exact(tensor.k)) {
            let factor = factor * change.scale;
            row.iter_mut()
                .zip(added)
                .for_each(|(v, a)| *v += factor * a);
        }
    }
    let mut joined = vec![0; bytes.len()];
    encode(tensor.format, &values, &mut joined);
    Some(joined)
}
