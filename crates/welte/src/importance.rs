//! Importance matrices: the mean squares of what each matrix of a model is multiplied by, over a text.

use crate::{Error, Stepper};
use welte_device::Context;
use welte_formats::importance::{Importance, Squares};
use welte_table::{BufferRef, Command, NO_WEIGHT, Op, Source, params};

/// Runs a tokenised text through a model and collects the squares. The text is cut into chunks of `chunk` tokens, each computed on its
/// own, with its first token replaced by `bos` if there is one. The model must be loaded without fused ops, and its prompt steps must hold
/// a chunk. `seen` gets the number of chunks done and ends the run by returning false.
pub fn importance(
    stepper: &mut Stepper,
    tokens: &[u32],
    chunk: usize,
    bos: Option<u32>,
    seen: &mut dyn FnMut(usize) -> bool,
) -> Result<Importance, Error> {
    let context = stepper.model().context();
    if chunk < 4 || chunk > context {
        return Err(Error::ChunkSize { chunk, context });
    }
    if tokens.len() < chunk {
        return Err(Error::TooShort {
            tokens: tokens.len(),
            chunk,
        });
    }
    let model = stepper.model().clone();
    let program = model.program();
    let mut all = Importance {
        chunk: chunk as u32,
        ..Importance::default()
    };
    let mut own = Vec::with_capacity(chunk);
    for original in tokens.chunks_exact(chunk) {
        own.clear();
        own.extend_from_slice(original);
        if let Some(bos) = bos {
            own[0] = bos;
        }
        stepper.clear();
        stepper.feed_watched(&own, &mut |command, context| {
            let source = match command.weights[0] {
                NO_WEIGHT => None,
                weight => program.weights.get(weight as usize),
            };
            match source.map(|weight| &weight.source) {
                // The head multiplies chosen rows only, which are no sample of the text.
                Some(Source::Parts(parts)) if command.layer.is_some() => {
                    let mut names: Vec<&str> = parts.iter().map(|p| p.tensor.as_str()).collect();
                    names.sort_unstable();
                    names.dedup();
                    collect(&mut all, &names, command, context, chunk)
                }
                _ => Ok(()),
            }
        })?;
        all.chunks += 1;
        if !seen(all.chunks as usize) {
            break;
        }
    }
    Ok(all)
}

/// Adds the inputs of one product to the tensors that are its matrix.
fn collect(
    all: &mut Importance,
    names: &[&str],
    command: &Command,
    context: &mut dyn Context,
    rows: usize,
) -> Result<(), Error> {
    let x = command.buffers[0];
    let words = &command.params;
    match command.op {
        Op::Matmul => {
            let p = params::Matmul::of(words);
            let values = read(context, x, rows, p.x_stride as usize)?;
            add_rows(all, names, &values, p.k as usize, p.x_stride as usize);
        }
        Op::ExpertsActMul => {
            let p = params::ExpertsActMul::of(words);
            let (stride, k) = (p.x_stride as usize, p.k as usize);
            let values = read(context, x, rows, stride)?;
            let choice = read(context, command.buffers[1], rows, p.choice_stride as usize)?;
            for (x, choice) in values
                .chunks(stride)
                .zip(choice.chunks(p.choice_stride as usize))
            {
                for expert in &choice[..p.used as usize] {
                    add(all, names, expert.to_bits() as usize, p.experts, &x[..k]);
                }
            }
        }
        Op::ExpertsAdd => {
            let p = params::ExpertsAdd::of(words);
            let (stride, k) = (p.x_stride as usize, p.k as usize);
            let values = read(context, x, rows, stride)?;
            let choice = read(context, command.buffers[1], rows, p.choice_stride as usize)?;
            for (x, choice) in values
                .chunks(stride)
                .zip(choice.chunks(p.choice_stride as usize))
            {
                let used = choice[..p.used as usize].iter().zip(x.chunks(k));
                for (expert, x) in used {
                    add(all, names, expert.to_bits() as usize, p.experts, x);
                }
            }
        }
        _ => (),
    }
    Ok(())
}

fn add_rows(all: &mut Importance, names: &[&str], values: &[f32], k: usize, stride: usize) {
    for row in values.chunks(stride) {
        add(all, names, 0, 1, &row[..k]);
    }
}

fn add(all: &mut Importance, names: &[&str], expert: usize, experts: u32, x: &[f32]) {
    for name in names {
        let squares = match all.tensors.get_mut(*name) {
            Some(squares) => squares,
            None => all.tensors.entry(name.to_string()).or_insert(Squares {
                sums: vec![0.0; experts as usize * x.len()],
                counts: vec![0.0; experts as usize],
            }),
        };
        squares.add(expert, x);
    }
}

/// Rows of floats of a buffer.
fn read(
    context: &mut dyn Context,
    from: BufferRef,
    rows: usize,
    stride: usize,
) -> Result<Vec<f32>, Error> {
    let mut bytes = vec![0; rows * stride * size_of::<f32>()];
    context.read_bytes(from.buffer, from.offset.into(), &mut bytes)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
}
