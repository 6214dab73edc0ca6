//! Importance matrices: the mean squares of what each matrix of a model is multiplied by, over a text.

use crate::perplexity::{begun, check_chunk, check_length};
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
    check_chunk(chunk, stepper.model().context())?;
    check_length(tokens, chunk, chunk)?;
    let model = stepper.model().clone();
    let program = model.program();
    let mut all = Importance {
        chunk: chunk as u32,
        ..Importance::default()
    };
    for original in tokens.chunks_exact(chunk) {
        stepper.clear();
        stepper.feed_watched(&begun(original, bos), &mut |command, context| {
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
    let words = &command.params;
    let inputs = match command.op {
        Op::Matmul => {
            let p = params::Matmul::of(words);
            Inputs {
                k: p.k as usize,
                stride: p.x_stride as usize,
                experts: 1,
                choice: None,
                own: false,
            }
        }
        Op::ExpertsActMul => {
            let p = params::ExpertsActMul::of(words);
            Inputs {
                k: p.k as usize,
                stride: p.x_stride as usize,
                experts: p.experts,
                choice: Some((p.used as usize, p.choice_stride as usize)),
                own: false,
            }
        }
        Op::ExpertsAdd => {
            let p = params::ExpertsAdd::of(words);
            Inputs {
                k: p.k as usize,
                stride: p.x_stride as usize,
                experts: p.experts,
                choice: Some((p.used as usize, p.choice_stride as usize)),
                own: true,
            }
        }
        _ => return Ok(()),
    };
    let values = read(context, command.buffers[0], rows, inputs.stride)?;
    let Some((used, stride)) = inputs.choice else {
        for x in values.chunks(inputs.stride) {
            add(all, names, 0, inputs.experts, &x[..inputs.k]);
        }
        return Ok(());
    };
    let choices = read(context, command.buffers[1], rows, stride)?;
    for (x, choice) in values.chunks(inputs.stride).zip(choices.chunks(stride)) {
        for (place, expert) in choice[..used].iter().enumerate() {
            let first = if inputs.own { place * inputs.k } else { 0 };
            let x = &x[first..][..inputs.k];
            add(all, names, expert.to_bits() as usize, inputs.experts, x);
        }
    }
    Ok(())
}

/// How the inputs of a product lie.
struct Inputs {
    /// Values of an input.
    k: usize,
    /// From one row to the next.
    stride: usize,
    experts: u32,
    /// How many experts a row uses, and the stride of their numbers; `None`: there are none.
    choice: Option<(usize, usize)>,
    /// Each expert of a row has an input of its own, one after the other.
    own: bool,
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
