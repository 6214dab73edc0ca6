//! Norms after a part, with the sum that follows each of them (`kernels/persistent/add_normed.cuh`).

use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::Recorder;
use welte_table::{BufferRef, NO_WEIGHT, Op, WeightId, params};

/// A norm after a part, and the sum that follows it.
pub(super) struct AddNormed {
    /// What is normed, the vector that it is added to, and a factor.
    part: BufferRef,
    to: BufferRef,
    scale: f32,
    /// The command after the sum.
    next: usize,
}

impl Recorder<'_> {
    /// The sum that follows a norm in place.
    pub(super) fn sum_after_norm(&self, index: usize, norm: &params::Norm) -> Option<AddNormed> {
        let part = self.pass.commands[index].buffers[0];
        if norm.groups != 1 || self.pass.commands[index].buffers[1] != part {
            return None;
        }
        let mut next = index + 1;
        let mut command = self.pass.commands.get(next)?;
        let mut scale = 1.0;
        if command.op == Op::Scale && command.buffers[0] == part {
            let p = params::Scale::of(&command.params);
            if p.cap != 0.0 || p.n != norm.dim {
                return None;
            }
            scale = p.scale;
            next += 1;
            command = self.pass.commands.get(next)?;
        }
        let whole = params::Add::of(&command.params).n == norm.dim;
        (command.op == Op::Add && command.buffers[0] == part && whole).then(|| AddNormed {
            part,
            to: command.buffers[1],
            scale,
            next: next + 1,
        })
    }

    /// Records a norm with the sum that follows it. From then on every block has a copy of the sum.
    pub(super) fn add_normed(
        &mut self,
        index: usize,
        weight: WeightId,
        norm: &params::Norm,
        sum: &AddNormed,
    ) -> Result<(), String> {
        if self.budget.is_step {
            return Err("norms after a part in steps of several rows".to_string());
        }
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
        if !local {
            self.change(sum.to.buffer)?;
        }
        self.norm = self.norm.filter(|n| n.input.buffer != sum.to.buffer);
        self.hidden = Some(sum.to);
        self.staged = None;
        self.needs.hidden = self.needs.hidden.max(norm.dim);
        self.next = sum.next;
        let constants = variants::AddNormed {
            n: norm.dim,
            norm: true,
            eps: norm.eps,
            scale: sum.scale,
            local,
        };
        let instruction = Instruction {
            input,
            output,
            reads,
            writes,
            vectors: [weight.into(), NO_WEIGHT.into()],
            ..Instruction::of(self.variants.add(Variant::AddNormed(constants)))
        };
        self.push_unshared(index, instruction);
        Ok(())
    }
}
