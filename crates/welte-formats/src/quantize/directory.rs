//! Writes the weights of a Hugging Face directory.

use super::{BATCH, Quantisation, convert, size};
use crate::{Checkpoint, Dialect, Error, TensorInfo};
use serde_json::{Map, Value as Json, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use welte_table::Format;

/// The file of the weights.
const WEIGHTS: &str = "model.safetensors";

/// Writes the tensors of a Hugging Face checkpoint to `model.safetensors` in a folder, all of them in F32, F16 or BF16. The file gets its
/// name when it is complete. `progress` receives the bytes of tensors written and their total.
pub fn write_weights(
    input: &dyn Checkpoint,
    folder: &Path,
    to: &Quantisation,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let origin = Path::new(input.origin());
    if input.dialect() != Dialect::HuggingFace {
        let problem = "has the names of a GGUF file; translate it to a directory first";
        return Err(Error::unsupported(origin, problem));
    }
    let format = to.recipe.format();
    let dtype = dtype(format).ok_or_else(|| {
        let name = to.recipe.name();
        let problem = format!("a directory has no weights in {name}; use F32, F16 or BF16");
        Error::unsupported(folder, problem)
    })?;
    let planned = |tensor: &TensorInfo| TensorInfo {
        format,
        ..tensor.clone()
    };
    let plan: Vec<TensorInfo> = input.tensors().iter().map(planned).collect();
    let target = folder.join(WEIGHTS);
    let temporary = folder.join(format!("{WEIGHTS}.part-{}", std::process::id()));
    let written = write(input, &temporary, &plan, dtype, to.threads, progress)
        .and_then(|()| std::fs::rename(&temporary, &target).map_err(|e| Error::io(&target, e)));
    if written.is_err() {
        // An incomplete file is of no use.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write(
    input: &dyn Checkpoint,
    path: &Path,
    plan: &[TensorInfo],
    dtype: &str,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let io = |source| Error::io(path, source);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(io)?);
    file.write_all(&head(plan, dtype)).map_err(io)?;
    let total = size(plan);
    let mut done = 0;
    progress(done, total);
    for (from, planned) in input.tensors().iter().zip(plan) {
        let step = (BATCH / from.k.max(1)).clamp(1, from.n.max(1));
        for first in (0..from.n).step_by(step) {
            let rows = first..from.n.min(first + step);
            let bytes = convert(input, from, planned.format, None, rows, threads)?;
            file.write_all(&bytes).map_err(io)?;
            done += bytes.len() as u64;
            progress(done, total);
        }
    }
    file.flush().map_err(io)?;
    file.get_ref().sync_all().map_err(io)
}

/// Everything before the data: its length, and where each tensor is.
fn head(plan: &[TensorInfo], dtype: &str) -> Vec<u8> {
    let mut all = Map::new();
    all.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut at = 0u64;
    for tensor in plan {
        let TensorInfo { n, k, stack, .. } = *tensor;
        let shape = match stack {
            0 | 1 if n == 1 => vec![k],
            0 | 1 => vec![n, k],
            _ => vec![stack, n / stack, k],
        };
        let end = at + size(std::slice::from_ref(tensor));
        let place = json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, end] });
        all.insert(tensor.name.clone(), place);
        at = end;
    }
    let mut text = Json::Object(all).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend(text);
    head
}

fn dtype(format: Format) -> Option<&'static str> {
    match format {
        Format::F32 => Some("F32"),
        Format::F16 => Some("F16"),
        Format::BF16 => Some("BF16"),
        _ => None,
    }
}
