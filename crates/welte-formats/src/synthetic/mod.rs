//! Synthetic models: real shapes, random weights from a seed, no download.

mod fill;
mod gemma3n;
mod gemma4;
mod hybrid;
mod keys;
mod latent;
mod layout;
mod metadata;
mod plain;
mod recipe;
mod shape;
mod shapes;
mod vocabulary;

pub use fill::blocks as random_blocks;
pub use shape::{
    DeltaShape, Family, Gemma3n, Gemma4, Hybrid, LatentShape, Llama3Scaling, Shape, SsmShape,
};
pub use shapes::names;

use crate::tensors::Tensors;
use crate::{Checkpoint, Dialect, Error, Metadata, TensorInfo, gguf};
use fill::Fill;
use layout::Layout;
use metadata::metadata;
use recipe::Recipe;
use std::borrow::Cow;
use std::path::Path;
use welte_table::Format;

/// The approximate number of bytes made at a time when writing a file.
const PIECE: usize = 32 << 20;

/// A synthetic checkpoint with GGUF names. Rows are made on request and are always the same.
#[derive(Debug)]
pub struct Synthetic {
    origin: String,
    shape: Shape,
    seed: u64,
    metadata: Metadata,
    tensors: Tensors,
    fills: Vec<Fill>,
}

impl Synthetic {
    /// Parses `SHAPE[,KEY=VALUE...]:FORMAT`, such as `qwen3-0.6b:q4_0`, `llama-1b,layers=2:q8_0` or
    /// `custom,arch=llama,layers=2,dim=256,heads=4,kv_heads=2,head_dim=64,ffn=512,vocab=1000,seed=7:q4_k_m`.
    pub fn parse(text: &str) -> Result<Synthetic, Error> {
        let origin = format!("synthetic:{text}");
        let refuse = |problem: String| Error::unsupported(Path::new(&origin), problem);
        let Some((shape, format)) = text.rsplit_once(':') else {
            return Err(refuse(
                "lacks a format: write SHAPE:FORMAT, such as qwen3-0.6b:q4_0".to_string(),
            ));
        };
        let recipe = Recipe::from_name(format).ok_or_else(|| {
            let ours = Format::ALL.into_iter().filter(|f| gguf::type_id(*f).is_some());
            let ours: Vec<&str> = ours.map(Format::name).collect();
            refuse(format!(
                "format {format} is unknown; known are {}, Q4_K_M, Q5_K_M, MXFP4_MOE, MLXb_g and MLXb_g_F16 (b bits in groups of g)",
                ours.join(", ")
            ))
        })?;
        let mut words = shape.split(',');
        let name = words.next().unwrap_or_default();
        let mut shape = Shape::named(&name.to_ascii_lowercase()).ok_or_else(|| {
            refuse(format!(
                "shape {name} is unknown; known are {}",
                names().collect::<Vec<_>>().join(", ")
            ))
        })?;
        let mut seed = 0;
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| refuse(format!("{word}: expected KEY=VALUE")))?;
            if key == "seed" {
                seed = value
                    .parse()
                    .map_err(|_| refuse(format!("seed={value}: expected a number")))?;
            } else {
                shape.set(key, value).map_err(&refuse)?;
            }
        }
        shape.check().map_err(&refuse)?;
        let metadata = metadata(&shape, name, recipe);
        let mut made = Synthetic {
            metadata,
            seed,
            tensors: Tensors::default(),
            fills: Vec::new(),
            shape: shape.clone(),
            origin,
        };
        made.lay_out(&shape, recipe);
        Ok(made)
    }

    /// The model's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    fn lay_out(&mut self, shape: &Shape, recipe: Recipe) {
        let mut layout = Layout::new(&mut self.tensors, &mut self.fills, shape, recipe);
        match &shape.family {
            Family::Gemma4(own) => gemma4::lay_out(&mut layout, shape, own),
            Family::Gemma3n(own) => gemma3n::lay_out(&mut layout, shape, own),
            Family::Hybrid(own) => hybrid::lay_out(&mut layout, shape, own),
            Family::Latent(own) => latent::lay_out(&mut layout, shape, own),
            _ => plain::lay_out(&mut layout, shape),
        }
    }

    /// Fills `out`, a whole number of rows, with the rows from `first` on.
    fn make(&self, index: usize, first: usize, row_bytes: usize, out: &mut [u8]) {
        let TensorInfo {
            name, format, k, ..
        } = &self.tensors.list()[index];
        let key = fill::key(self.seed, name);
        for (i, row) in out.chunks_exact_mut(row_bytes).enumerate() {
            fill::row(
                &self.fills[index],
                *format,
                *k,
                key,
                (first + i) as u64,
                row,
            );
        }
    }

    /// Makes rows on all cores.
    fn make_together(&self, index: usize, first: usize, rows: usize, out: &mut Vec<u8>) {
        let tensor = &self.tensors.list()[index];
        let row = tensor.format.bytes(tensor.k).unwrap_or(1);
        out.resize(rows * row, 0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = rows.div_ceil(threads);
        std::thread::scope(|scope| {
            for (i, part) in out.chunks_mut((share * row).max(1)).enumerate() {
                scope.spawn(move || self.make(index, first + i * share, row, part));
            }
        });
    }
}

impl Checkpoint for Synthetic {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.list()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let path = Path::new(&self.origin);
        let (number, rows) = self.tensors.rows(path, tensor, first, rows)?;
        let row = tensor.format.bytes(tensor.k);
        let bytes = row.and_then(|row| row.checked_mul(rows.len()));
        let (Some(row), Some(bytes)) = (row, bytes) else {
            return Err(tensor.wrong(path, "is too large"));
        };
        let mut out = vec![0; bytes];
        self.make(number, rows.start, row, &mut out);
        Ok(Cow::Owned(out))
    }
}

/// Writes a synthetic model as a GGUF file. `progress` receives the bytes written and their total.
pub fn write(
    model: &Synthetic,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let row_bytes = |t: &TensorInfo| t.format.bytes(t.k).unwrap_or(1);
    let total = model
        .tensors()
        .iter()
        .map(|t| (row_bytes(t) * t.n) as u64)
        .sum();
    let mut writer = gguf::Writer::create(path, &model.metadata, model.kinds(), model.tensors())?;
    let pieces = model
        .tensors()
        .iter()
        .enumerate()
        .flat_map(|(index, tensor)| {
            let step = (PIECE / row_bytes(tensor)).max(1);
            let firsts = (0..tensor.n).step_by(step);
            firsts.map(move |first| (index, first, step.min(tensor.n - first)))
        });
    let (mut made, mut next, mut done) = (Vec::new(), Vec::new(), 0);
    // The next piece is made while one is written.
    for (index, first, rows) in pieces {
        let written = std::thread::scope(|scope| {
            scope.spawn(|| model.make_together(index, first, rows, &mut next));
            writer.write(&made)
        });
        written?;
        done += made.len() as u64;
        progress(done, total);
        std::mem::swap(&mut made, &mut next);
    }
    writer.write(&made)?;
    progress(total, total);
    writer.finish()
}
