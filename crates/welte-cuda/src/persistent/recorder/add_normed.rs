//! Norms after a part, with the sum that follows each of them (`kernels/persistent/add_normed.cuh`).

use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::Recorder;
use welte_table::{BufferRef, NO_WEIGHT, Op, Pass, WeightId, params};

/// A norm of a whole row.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) weight: WeightId,
    pub(super) eps: f32,
    pub(super) dim: u32,
}

/// A norm after a part, and the sum that follows it.
pub(super) struct AddNormed {
    /// What is normed, the vector that it is added to, and a factor.
    pub(super) part: BufferRef,
    pub(super) to: BufferRef,
    pub(super) norm: Norm,
    pub(super) scale: f32,
    /// Another part that is added to the first before the norm, and the norms that both have of their own.
    pub(super) beside: Option<(BufferRef, [Norm; 2])>,
    /// A factor of the sum.
    pub(super) rescale: Option<f32>,
    /// The command after the sum.
    pub(super) next: usize,
}

/// The factor of a vector, if the command at `index` scales all of it; and the command after it.
pub(super) fn rescaled(pass: &Pass, index: usize, at: BufferRef, n: u32) -> (Option<f32>, usize) {
    let command = pass.commands.get(index);
    let command = command.filter(|c| c.op == Op::Scale && c.buffers[0] == at);
    let scale = command.map(|c| params::Scale::of(&c.params));
    match scale.filter(|p| (p.n, p.cap) == (n, 0.0)) {
        Some(p) => (Some(p.scale), index + 1),
        None => (None, index),
    }
}

impl Recorder<'_> {
    /// The sum that follows a norm in place.
    pub(super) fn sum_after_norm(&self, index: usize, norm: &params::Norm) -> Option<AddNormed> {
        let [part, normed, ..] = self.pass.commands[index].buffers;
        if norm.groups != 1 || normed != part {
            return None;
        }
        let (scale, next) = rescaled(self.pass, index + 1, part, norm.dim);
        let command = self.pass.commands.get(next)?;
        let to = command.buffers[1];
        let whole = params::Add::of(&command.params).n == norm.dim;
        let (rescale, after) = rescaled(self.pass, next + 1, to, norm.dim);
        (command.op == Op::Add && command.buffers[0] == part && whole).then(|| AddNormed {
            part,
            to,
            norm: Norm {
                weight: self.pass.commands[index].weights[0],
                eps: norm.eps,
                dim: norm.dim,
            },
            scale: scale.unwrap_or(1.0),
            beside: None,
            rescale,
            next: after,
        })
    }

    /// Records a norm with the sum that follows it. From then on every block has a copy of the sum.
    pub(super) fn add_normed(&mut self, index: usize, sum: &AddNormed) -> Result<(), String> {
        if self.budget.is_step {
            return Err("norms after a part in steps of several rows".to_string());
        }
        let norm = sum.norm;
        if !norm.dim.is_multiple_of(4) || sum.to.offset != 0 {
            return Err(format!("a norm of {} elements", norm.dim));
        }
        let local = self.hidden == Some(sum.to);
        let (input, reads) = self.read(sum.part)?;
        // Until then the vector is in the exchange.
        let (output, writes) = match local {
            true => (0, 0),
            false => self.read(sum.to)?,
        };
        let more = match sum.beside {
            None => None,
            Some((other, norms)) => {
                let (input, reads) = self.read(other)?;
                Some(Instruction {
                    input,
                    reads,
                    vectors: norms.map(|norm| norm.weight.into()),
                    ..self.more()
                })
            }
        };
        if !local {
            self.change(sum.to.buffer)?;
        }
        self.norm = self.norm.filter(|n| n.input.buffer != sum.to.buffer);
        self.hidden = Some(sum.to);
        self.staged = None;
        self.needs.hidden = self.needs.hidden.max(norm.dim);
        self.next = sum.next;
        let [first, second] = sum
            .beside
            .map_or([0.0; 2], |(_, norms)| norms.map(|n| n.eps));
        let constants = variants::AddNormed {
            n: norm.dim,
            eps: norm.eps,
            scale: sum.scale,
            rescales: sum.rescale.is_some(),
            beside: sum.beside.is_some(),
            eps_first: first,
            eps_second: second,
            local,
        };
        let instruction = Instruction {
            input,
            output,
            reads,
            writes,
            flags: sum.rescale.map_or(0, f32::to_bits),
            vectors: [norm.weight.into(), NO_WEIGHT.into()],
            ..Instruction::of(self.variants.add(Variant::AddNormed(constants)))
        };
        self.push_unshared(index, instruction);
        if let Some(more) = more {
            self.push_unshared(index, more);
        }
        Ok(())
    }
}
