//! Quantisation: writes a checkpoint in other formats.

mod directory;
mod recipe;

pub use directory::write_weights;
pub use recipe::Recipe;
pub(crate) use recipe::{file_type, fitting, more_bits};

use crate::gguf::{Kind, Writer};
use crate::importance::Importance;
use crate::quant::{decode, encode_weighted};
use crate::{Checkpoint, Dialect, Error, TensorInfo, Value};
use std::path::Path;
use welte_table::Format;

/// The approximate number of elements in memory at a time.
const BATCH: usize = 4 << 20;

/// How a checkpoint is written in other formats.
#[derive(Clone, Debug)]
pub struct Quantisation {
    /// The mixture of formats.
    pub recipe: Recipe,
    /// Formats of tensors whose names contain a text. The first that fits goes before the recipe.
    pub overrides: Vec<(String, Format)>,
    /// How much the columns of each tensor matter.
    pub importance: Option<Importance>,
    /// Threads that share the rows of a tensor.
    pub threads: usize,
}

impl Quantisation {
    /// By a recipe alone.
    pub fn new(recipe: Recipe, threads: usize) -> Quantisation {
        Quantisation {
            recipe,
            overrides: Vec::new(),
            importance: None,
            threads,
        }
    }

    /// The tensors in their new formats. An override that no tensor follows, or that a tensor cannot follow, is an error.
    pub fn plan(&self, input: &dyn Checkpoint) -> Result<Vec<TensorInfo>, Error> {
        let origin = Path::new(input.origin());
        let mut plan = self.recipe.plan(input);
        let mut used = vec![false; self.overrides.len()];
        for tensor in &mut plan {
            let fits = |(part, _): &(String, Format)| tensor.name.contains(part.as_str());
            let Some(at) = self.overrides.iter().position(fits) else {
                continue;
            };
            used[at] = true;
            let format = self.overrides[at].1;
            if format.bytes(tensor.k).is_none_or(|bytes| bytes == 0) {
                let problem = format!(
                    "rows of {} elements cannot be stored as {}",
                    tensor.k,
                    format.name()
                );
                return Err(tensor.wrong(origin, problem));
            }
            tensor.format = format;
        }
        match used.iter().position(|used| !used) {
            Some(at) => {
                let problem = format!("no tensor has '{}' in its name", self.overrides[at].0);
                Err(Error::unsupported(origin, problem))
            }
            None => Ok(plan),
        }
    }
}

/// Writes `input` to a GGUF file at `output`, each tensor in the format that the plan says. `progress` receives
/// the bytes of tensors written and their total. With an importance matrix, errors in columns with large inputs weigh more. The output gets its name when it is complete; an error leaves no file.
///
/// Tensors that have their format already are copied. A tensor in another block format is decoded and encoded again,
/// which adds both errors: see [`requantised`].
pub fn quantize(
    input: &dyn Checkpoint,
    output: &Path,
    to: &Quantisation,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    check(input, output)?;
    let plan = to.plan(input)?;
    let total = size(&plan);
    let importance = to.importance.as_ref();
    let mut writer = create(input, output, to.recipe, &plan)?;
    let mut done = 0;
    progress(done, total);
    for (from, planned) in input.tensors().iter().zip(&plan) {
        let weights = match importance.map(|importance| importance.of(from)) {
            Some(Ok(weights)) => weights,
            Some(Err(problem)) => return Err(from.wrong(Path::new(input.origin()), problem)),
            None => None,
        };
        let step = (BATCH / from.k.max(1)).clamp(1, from.n.max(1));
        for first in (0..from.n).step_by(step) {
            let encoded = convert(
                input,
                from,
                planned.format,
                weights.as_deref(),
                first..from.n.min(first + step),
                to.threads,
            )?;
            writer.write(&encoded)?;
            done += encoded.len() as u64;
            progress(done, total);
        }
    }
    writer.finish()
}

/// Tensors that a plan converts from one block format to another. A source of higher precision would lose less.
pub fn requantised(input: &dyn Checkpoint, plan: &[TensorInfo]) -> Vec<TensorInfo> {
    let changed = |(from, to): &(&TensorInfo, &TensorInfo)| {
        from.format.is_quantised() && from.format != to.format
    };
    input
        .tensors()
        .iter()
        .zip(plan)
        .filter(changed)
        .map(|(from, _)| from.clone())
        .collect()
}

/// The bytes of all tensors.
pub fn size(plan: &[TensorInfo]) -> u64 {
    let sizes = plan.iter().map(bytes);
    sizes.fold(0, u64::saturating_add)
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
        let problem = "has the names of a Hugging Face directory; translate it to GGUF first";
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
    Writer::create_like(output, &metadata, &kinds, plan, &|tensor| {
        input.dimensions(tensor)
    })
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
    weights: Option<&[Vec<f32>]>,
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
                scope.spawn(move || {
                    convert_rows(input, from, format, weights, first, out, row_bytes)
                })
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
    weights: Option<&[Vec<f32>]>,
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
        let matrix = from.n / from.stack.max(1);
        let weights = weights.map(|weights| &*weights[row / matrix.max(1)]);
        encode_weighted(format, &values, weights, out);
    }
    Ok(())
}
