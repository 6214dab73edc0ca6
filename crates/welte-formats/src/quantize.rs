//! Quantisation: writes a checkpoint in other formats.

mod recipe;

pub use recipe::Recipe;
pub(crate) use recipe::{file_type, fitting, more_bits};

use crate::gguf::{Kind, Writer};
use crate::quant::{decode, encode};
use crate::{Checkpoint, Dialect, Error, TensorInfo, Value};
use std::path::Path;
use welte_table::Format;

/// The approximate number of elements in memory at a time.
const BATCH: usize = 4 << 20;

/// Writes `input` to a GGUF file at `output`, each tensor in the format that the recipe chooses. `progress` receives
/// the bytes of tensors written and their total. The output gets its name when it is complete; an error leaves no file.
///
/// Tensors that have their format already are copied. A tensor in another block format is decoded and encoded again,
/// which adds both errors: see [`requantised`].
pub fn quantize(
    input: &dyn Checkpoint,
    output: &Path,
    recipe: Recipe,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    check(input, output)?;
    let plan = recipe.plan(input);
    let total = plan
        .iter()
        .map(bytes)
        .try_fold(0, u64::checked_add)
        .unwrap_or(u64::MAX);
    let mut writer = create(input, output, recipe, &plan)?;
    let mut done = 0;
    progress(done, total);
    for (from, to) in input.tensors().iter().zip(&plan) {
        let step = (BATCH / from.k.max(1)).clamp(1, from.n.max(1));
        for first in (0..from.n).step_by(step) {
            let encoded = convert(
                input,
                from,
                to.format,
                first..from.n.min(first + step),
                threads,
            )?;
            writer.write(&encoded)?;
            done += encoded.len() as u64;
            progress(done, total);
        }
    }
    writer.finish()
}

/// Tensors that the recipe converts from one block format to another. A source of higher precision would lose less.
pub fn requantised(input: &dyn Checkpoint, recipe: Recipe) -> Vec<TensorInfo> {
    let changed = |(from, to): &(&TensorInfo, TensorInfo)| {
        from.format.is_quantised() && from.format != to.format
    };
    input
        .tensors()
        .iter()
        .zip(recipe.plan(input))
        .filter(changed)
        .map(|(from, _)| from.clone())
        .collect()
}

fn check(input: &dyn Checkpoint, output: &Path) -> Result<(), Error> {
    let origin = Path::new(input.origin());
    let foreign =
        |t: &&TensorInfo| t.format.is_quantised() && crate::gguf::type_id(t.format).is_none();
    if let Some(tensor) = input.tensors().iter().find(foreign) {
        let problem = format!(
            "tensor {} is already quantised ({}), in a format that GGUF lacks; start from the original model",
            tensor.name,
            tensor.format.name()
        );
        return Err(Error::unsupported(origin, problem));
    }
    if input.dialect() != Dialect::Gguf {
        let problem = "is not a GGUF file; convert the directory to GGUF first, for example with llama.cpp's \
                       convert_hf_to_gguf.py";
        return Err(Error::unsupported(origin, problem));
    }
    let same = |a: &Path, b: &Path| {
        a.canonicalize()
            .is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
    };
    if same(origin, output) {
        return Err(Error::unsupported(
            output,
            "is the input; choose another output file",
        ));
    }
    Ok(())
}

fn create(
    input: &dyn Checkpoint,
    output: &Path,
    recipe: Recipe,
    plan: &[TensorInfo],
) -> Result<Writer, Error> {
    let (mut metadata, mut kinds) = (input.metadata().clone(), input.kinds().clone());
    let mut set = |key: &str, value: u32| {
        metadata.insert(key.to_string(), Value::U64(value.into()));
        kinds.insert(key.to_string(), Kind::U32);
    };
    set("general.file_type", recipe.file_type());
    if plan.iter().any(|t| t.format.is_quantised()) {
        set("general.quantization_version", 2);
    }
    Writer::create(output, &metadata, &kinds, plan)
}

fn bytes(tensor: &TensorInfo) -> u64 {
    tensor
        .format
        .bytes(tensor.k)
        .map_or(0, |row| (row as u64).saturating_mul(tensor.n as u64))
}

/// Rows of a tensor in another format. The threads share the rows.
fn convert(
    input: &dyn Checkpoint,
    from: &TensorInfo,
    format: Format,
    rows: std::ops::Range<usize>,
    threads: usize,
) -> Result<Vec<u8>, Error> {
    if from.format == format {
        return Ok(input.rows(from, rows.start, rows.len())?.into_owned());
    }
    let Some(row_bytes) = format.bytes(from.k).filter(|bytes| *bytes > 0) else {
        let problem = format!(
            "rows of {} elements cannot be stored as {}",
            from.k,
            format.name()
        );
        return Err(from.wrong(Path::new(input.origin()), problem));
    };
    let mut out = vec![0; row_bytes * rows.len()];
    let share = rows.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let parts = rows.step_by(share).zip(out.chunks_mut(share * row_bytes));
        let workers: Vec<_> = parts
            .map(|(first, out)| {
                scope.spawn(move || convert_rows(input, from, format, first, out, row_bytes))
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    Ok(out)
}

fn convert_rows(
    input: &dyn Checkpoint,
    from: &TensorInfo,
    format: Format,
    first: usize,
    out: &mut [u8],
    row_bytes: usize,
) -> Result<(), Error> {
    let mut values = vec![0f32; from.k];
    let largest = if matches!(format, Format::F32 | Format::BF16) {
        f32::MAX
    } else {
        65504.0
    };
    for (row, out) in (first..).zip(out.chunks_mut(row_bytes)) {
        decode(from.format, &input.rows(from, row, 1)?, &mut values);
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            let problem = format!(
                "row {row} has {} at {at}: the model is damaged; download it again",
                values[at]
            );
            return Err(from.wrong(Path::new(input.origin()), problem));
        }
        if let Some(at) = values.iter().position(|v| v.abs() > largest) {
            let name = format.name();
            let problem = format!(
                "row {row} has {} at {at}, too large for {name}; use F32 or BF16",
                values[at]
            );
            return Err(from.wrong(Path::new(input.origin()), problem));
        }
        encode(format, &values, out);
    }
    Ok(())
}
