//! Low-rank adapters (LoRA): GGUF files of llama.cpp and directories of PEFT.

use crate::{Dialect, Error, Metadata, Value, quant};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// The highest rank that is read.
pub const MOST_RANK: u32 = 1024;

/// An open adapter.
pub struct AdapterFile {
    path: PathBuf,
    /// How its tensors are named.
    pub dialect: Dialect,
    /// The architecture of the model that it was trained for, as far as the file says. PEFT says it nowhere.
    pub architecture: Option<String>,
    /// The model that it was trained for, as far as the file says.
    pub base: Option<String>,
    /// What it changes.
    pub tensors: Vec<AdapterTensor>,
    data: Box<dyn Data>,
}

/// What an adapter adds to a matrix, or to each of a stack of matrices: `scale * B A`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterTensor {
    /// The matrix, by its name in checkpoints of the dialect.
    pub target: String,
    /// Matrices in it: experts.
    pub stack: usize,
    /// Rows of A, columns of B.
    pub rank: usize,
    /// Rows of B: outputs. Of a table that is looked up: values of a row.
    pub n: usize,
    /// Columns of A: inputs. Of a table: its rows.
    pub k: usize,
    /// The factor.
    pub scale: f32,
    /// The matrix is looked up, not multiplied.
    pub table: bool,
    /// Names in the file.
    a: String,
    b: String,
    /// The file has A as `k` rows of `rank` values.
    flipped: bool,
}

/// The tensors of a file.
pub(crate) trait Data: Send + Sync {
    /// A tensor's format and bytes.
    fn bytes(&self, name: &str) -> Result<(Format, Cow<'_, [u8]>), Error>;
}

/// A tensor's shape: matrices, rows of each, elements of a row.
pub(crate) type Shape = [usize; 3];

/// What was found of a pair.
#[derive(Default)]
pub(crate) struct Pair {
    pub(crate) a: Option<(String, Shape)>,
    pub(crate) b: Option<(String, Shape)>,
    pub(crate) table: bool,
    /// See [`AdapterTensor::flipped`].
    pub(crate) flipped: bool,
}

impl std::fmt::Debug for AdapterFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AdapterFile").field(&self.path).finish()
    }
}

impl AdapterFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The highest rank of its tensors.
    pub fn rank(&self) -> u32 {
        let ranks = self.tensors.iter().map(|tensor| tensor.rank as u32);
        ranks.max().unwrap_or(0)
    }

    /// The values of A and B: of A `rank` rows of `k` for each matrix (of a table `k` rows of `rank`), of B `n` rows of `rank`.
    pub fn values(&self, tensor: &AdapterTensor) -> Result<[Vec<f32>; 2], Error> {
        let a = self.floats(&tensor.a, tensor.stack * tensor.rank * tensor.k)?;
        let b = self.floats(&tensor.b, tensor.stack * tensor.n * tensor.rank)?;
        let a = match tensor.flipped == tensor.table {
            true => a,
            false => transposed(&a, tensor.stack, tensor.flipped, tensor),
        };
        Ok([a, b])
    }

    fn floats(&self, name: &str, count: usize) -> Result<Vec<f32>, Error> {
        let (format, bytes) = self.data.bytes(name)?;
        let mut values = vec![0.0; count];
        if format.bytes(count) != Some(bytes.len()) {
            return Err(self.wrong(name, "does not have the bytes of its shape"));
        }
        quant::decode(format, &bytes, &mut values);
        let finite = |v: &f32| v.is_finite() && v.abs() <= 65504.0;
        if !values.iter().all(finite) {
            let problem = "has values that are not numbers, or above 65504: the adapter is damaged, or its training has failed";
            return Err(self.wrong(name, problem));
        }
        Ok(values)
    }

    /// An error about one of its tensors.
    pub fn wrong(&self, tensor: &str, problem: impl Into<String>) -> Error {
        Error::malformed(&self.path, format!("tensor {tensor}"), problem)
    }
}

/// Each matrix the other way round.
fn transposed(values: &[f32], stack: usize, flipped: bool, tensor: &AdapterTensor) -> Vec<f32> {
    let (rows, columns) = match flipped {
        true => (tensor.k, tensor.rank),
        false => (tensor.rank, tensor.k),
    };
    let mut out = Vec::with_capacity(values.len());
    for matrix in 0..stack {
        let matrix = &values[matrix * rows * columns..][..rows * columns];
        out.extend((0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])));
    }
    out
}

/// Makes an adapter of the pairs that were found. `scale` is asked for the factor of a target, by its rank.
pub(crate) fn joined(
    path: &Path,
    dialect: Dialect,
    pairs: BTreeMap<String, Pair>,
    scale: &dyn Fn(&str, usize) -> Result<f32, Error>,
    data: Box<dyn Data>,
) -> Result<AdapterFile, Error> {
    let wrong =
        |name: &str, problem: String| Error::malformed(path, format!("tensor {name}"), problem);
    let mut tensors = Vec::new();
    for (target, pair) in pairs {
        let half = |half: Option<(String, Shape)>, which: &str| {
            half.ok_or_else(|| wrong(&target, format!("has no {which}: a low-rank pair has both")))
        };
        let (a, [stack, rows, columns]) = half(pair.a, "A")?;
        let (b, [b_stack, n, rank]) = half(pair.b, "B")?;
        let (a_rank, k) = match pair.flipped {
            true => (columns, rows),
            false => (rows, columns),
        };
        if (stack, a_rank) != (b_stack, rank) {
            let problem = format!(
                "is {stack} x {rows} x {columns}, and {b} is {b_stack} x {n} x {rank}: their ranks or numbers of matrices differ"
            );
            return Err(wrong(&a, problem));
        }
        if rank == 0 || rank > MOST_RANK as usize {
            return Err(wrong(&a, format!("has rank {rank}; from 1 to {MOST_RANK}")));
        }
        let factor = scale(&target, rank)?;
        if !factor.is_finite() {
            return Err(wrong(&target, format!("has a scale of {factor}")));
        }
        tensors.push(AdapterTensor {
            target,
            stack,
            rank,
            n,
            k,
            scale: factor,
            table: pair.table,
            a,
            b,
            flipped: pair.flipped,
        });
    }
    if tensors.is_empty() {
        return Err(Error::unsupported(
            path,
            "is an adapter without any low-rank pair",
        ));
    }
    Ok(AdapterFile {
        path: path.to_path_buf(),
        dialect,
        architecture: None,
        base: None,
        tensors,
        data,
    })
}

/// A number of a key.
pub(crate) fn number(metadata: &Metadata, key: &str) -> Option<f64> {
    match metadata.get(key)? {
        Value::U64(v) => Some(*v as f64),
        Value::I64(v) => Some(*v as f64),
        Value::F64(v) => Some(*v),
        _ => None,
    }
}
