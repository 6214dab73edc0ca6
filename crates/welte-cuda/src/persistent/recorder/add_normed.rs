//! Norms after a part, with the sum that follows each of them (`kernels/persistent/add_normed.cuh`).

use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::state::Recorder;
use welte_table::{Bound, BufferRef, Found, NO_WEIGHT, Run, WeightId, step};

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

/// A norm in place and the sum that follows it.
const SUM_AFTER_NORM: Run = Run {
    steps: &[
        step!(Norm [norm] [part, part] { groups = 1, dim, eps }),
        step!(optional Scale [] [part] { n: dim, scale, cap = 0 }),
        step!(Add [] [part, to] { n: dim }),
        step!(optional Scale [] [to] { n: dim, scale: rescale, cap = 0 }),
    ],
    relate: |_| Some(()),
};

impl Norm {
    /// The norm whose weight and epsilon have these names.
    pub(super) fn of(bound: &Bound, weight: &str, eps: &str) -> Option<Norm> {
        Some(Norm {
            weight: bound.weight(weight),
            eps: bound.float(eps)?,
            dim: bound.word("dim")?,
        })
    }
}

impl AddNormed {
    /// The sum of a run whose operands have these names.
    pub(super) fn of(found: &Found, part: &str, to: &str) -> Option<AddNormed> {
        let bound = &found.bound;
        Some(AddNormed {
            part: bound.place(part)?,
            to: bound.place(to)?,
            norm: Norm::of(bound, "norm", "eps")?,
            scale: bound.float("scale").unwrap_or(1.0),
            beside: None,
            rescale: bound.float("rescale"),
            next: found.end,
        })
    }
}

impl Recorder<'_> {
    /// The sum that follows a norm in place.
    pub(super) fn sum_after_norm(&self, index: usize) -> Option<AddNormed> {
        let found = SUM_AFTER_NORM.at(&self.pass.commands, index)?;
        AddNormed::of(&found, "part", "to")
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
        let read = self.read(sum.part)?;
        // Until then the vector is in the exchange.
        let (local, to) = self.read_or_own(sum.to)?;
        let more = match sum.beside {
            None => None,
            Some((other, norms)) => Some(self.more(other)?.with(norms.map(|norm| norm.weight))),
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
        let instruction = self.instruction(Variant::AddNormed(constants));
        let instruction = Instruction {
            flags: sum.rescale.map_or(0, f32::to_bits),
            ..instruction.with([norm.weight, NO_WEIGHT])
        };
        self.push_unshared(index, instruction.reading(read).writing(to));
        if let Some(more) = more {
            self.push_unshared(index, more);
        }
        Ok(())
    }
}
