//! Mixtures of experts: the choice, and the products with the chosen experts (`kernels/persistent/route.cuh`, `experts.cuh`).

use super::super::WARPS;
use super::super::arrangement::row_bytes;
use super::super::instruction::{AWAITS_CHOICE, Instruction};
use super::super::memory::MAX_OUTPUTS;
use super::super::variants::{self, Output, Variant};
use super::state::{Product, Recorder, rows_of};
use welte_table::{Command, NO_WEIGHT, Op, Pass, params};

/// The most experts of a choice: one for each lane.
const MAX_CHOSEN: u32 = 32;
/// The most experts of a router.
const MAX_EXPERTS: u32 = 1024;

/// Whether a product makes the logits that experts are chosen by.
pub(super) fn is_router(pass: &Pass, command: &Command) -> bool {
    let to = command.buffers[1].buffer;
    let routes = |c: &Command| c.op == Op::Route && c.buffers[0].buffer == to;
    command.op == Op::Matmul && pass.commands.iter().any(routes)
}

impl Recorder<'_> {
    /// What the command before a choice multiplies the router's logits by.
    pub(super) fn router_scale(&self, route: usize) -> Option<f32> {
        let pair = self.pass.commands.get(route.checked_sub(1)?..=route)?;
        let [scale, route] = pair else { return None };
        let p = params::Scale::of(&scale.params);
        let same = scale.op == Op::Scale
            && route.op == Op::Route
            && scale.buffers[0] == route.buffers[0]
            && (p.n, p.cap) == (params::Route::of(&route.params).experts, 0.0);
        same.then_some(p.scale)
    }

    pub(super) fn route(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let p = params::Route::of(&command.params);
        let [from, to, ..] = command.buffers;
        let [bias, scales, ..] = command.weights;
        if self.budget.is_step {
            return Err("experts in steps of several rows".to_string());
        }
        if p.groups != 1 {
            return Err("groups of experts".to_string());
        }
        if p.scoring > 1 {
            return Err("experts chosen by SparseMixer".to_string());
        }
        if p.used == 0 || p.used > MAX_CHOSEN || p.used > p.experts || p.experts > MAX_EXPERTS {
            return Err(format!("{} of {} experts", p.used, p.experts));
        }
        let read = self.read(from)?;
        self.choice = Some((to, false));
        self.needs.chosen = self.needs.chosen.max(p.used);
        let constants = variants::Route {
            experts: p.experts,
            used: p.used,
            renormalise: p.renormalise != 0,
            scale: p.scale,
            scoring: p.scoring,
            bias: bias != NO_WEIGHT,
            logit_scale: self.router_scale(index).unwrap_or(1.0),
        };
        let instruction = self.instruction(Variant::Route(constants));
        self.push_unshared(index, instruction.reading(read).with([bias, scales]));
        Ok(())
    }

    /// A product with the matrices of the chosen experts as the kernel sees it. Their sum is added to the output, or replaces it.
    fn experts_product(&self, command: &Command, replaces: bool) -> Product {
        let [input, _, output, ..] = command.buffers;
        let (kind, (input, norm)) = if command.op == Op::ExpertsAdd {
            let kind = if replaces { Output::Store } else { Output::Add };
            (kind, (input, None))
        } else {
            let kind = match params::ExpertsActMul::of(&command.params).matrices() {
                1 => Output::Act,
                _ => Output::ActMul,
            };
            (kind, self.before_norm(input))
        };
        Product {
            input,
            output,
            norm,
            kind,
            ..Product::of(command)
        }
    }

    pub(super) fn experts(
        &mut self,
        index: usize,
        command: &Command,
        replaces: bool,
    ) -> Result<(), String> {
        let p = self.experts_product(command, replaces);
        let sums = command.op == Op::ExpertsAdd;
        let [matrix, bias, ..] = command.weights;
        let flags = match self.choice {
            Some((choice, used)) if choice == command.buffers[1] => {
                self.choice = Some((choice, true));
                if used { 0 } else { AWAITS_CHOICE }
            }
            _ => return Err("experts that nothing chose".to_string()),
        };
        let format = self.cx.format(matrix);
        // Rows that blocks divide among themselves: of all chosen experts, or of the sum.
        let all = rows_of(command).unwrap_or(0);
        let word = |name| command.word(name).unwrap_or(0);
        let (used, experts) = (word("used"), word("experts"));
        let share = all.div_ceil(self.blocks);
        let shape = self.shape(format, &p, all, MAX_OUTPUTS)?;
        let (sets, row) = (shape.sets, shape.sets * row_bytes(format, p.k));
        let (lanes, rows) = shape.arrange()?;
        if sums && share > MAX_OUTPUTS {
            return Err(format!("{share} rows of a sum in a block"));
        }
        let (local, read) = self.read_or_own(p.input)?;
        if p.kind == Output::Add && self.is_unread(p.output.buffer)? {
            return Err("experts' sum right after another one".to_string());
        }
        let (mut output, mut stride, mut vector) = (p.output, p.stride, p.n);
        let whole = self.exchange_after(index, p.output)?;
        if let Some(whole) = &whole {
            if whole.vectors != if sums { 1 } else { used } || sums && whole.at != p.output {
                return Err("an exchange into another vector than that of experts".to_string());
            }
            (output, stride, vector) = (whole.at, whole.stride, whole.width);
        }
        if !sums {
            self.set_row_width(output, stride);
        }
        let write = self.write(output)?;
        // The input of each expert is staged, or one for all.
        let inputs = if sums { used } else { 1 };
        let unit = if format.rounds_activations() { 48 } else { 32 };
        let scratchpad = &mut self.needs.scratchpad.any;
        *scratchpad = (*scratchpad).max(WARPS * inputs * shape.units.div_ceil(WARPS) * unit);
        self.staged = None;
        self.needs.slot = self.needs.slot.max(rows * row);
        self.needs.span = self.needs.span.max(1);
        let outputs = (sets * share.max(rows)).min(MAX_OUTPUTS);
        self.needs.outputs = self.needs.outputs.max(outputs);
        let constants = variants::Product {
            local,
            bias: bias != NO_WEIGHT,
            used,
            experts,
            vector,
            exchanged: whole.is_some(),
            ..p.constants(format, lanes, rows)
        };
        let variant = self.product_variant(format, constants, rows * row);
        let instruction = Instruction {
            flags,
            weight: matrix.into(),
            ..Instruction::of(variant).with([p.norm_weight(), bias])
        };
        let shares = self.divider.divide(all);
        self.push(index, instruction.reading(read).writing(write), shares);
        Ok(())
    }
}
