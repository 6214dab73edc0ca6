//! Mixtures of experts: the choice, and the products with the chosen experts (`kernels/persistent/route.cuh`, `experts.cuh`).

use super::super::WARPS;
use super::super::arrangement::{ProductShape, row_bytes, slot_limit};
use super::super::instruction::{AWAITS_CHOICE, Instruction};
use super::super::memory::MAX_OUTPUTS;
use super::super::variants::{self, Output, Variant};
use super::state::{InputNorm, Recorder, rows_of};
use crate::layout;
use welte_table::{BufferRef, Command, NO_WEIGHT, Op, Pass, params};

/// A product with the matrices of the chosen experts.
struct ExpertsProduct {
    input: BufferRef,
    output: BufferRef,
    norm: Option<InputNorm>,
    kind: Output,
    act: u32,
    /// Of one expert.
    n: u32,
    k: u32,
    used: u32,
    experts: u32,
    /// Rows that blocks divide among themselves: of all chosen experts, or of the sum.
    rows: u32,
}

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
        let (input, reads) = self.read(from)?;
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
        let instruction = Instruction {
            input,
            reads,
            vectors: [bias.into(), scales.into()],
            ..Instruction::of(self.variants.add(Variant::Route(constants)))
        };
        self.push_unshared(index, instruction);
        Ok(())
    }

    /// An experts' product as the kernel sees it. Their sum is added to the output, or replaces it.
    fn experts_product(&self, command: &Command, replaces: bool) -> ExpertsProduct {
        let (input, output) = (command.buffers[0], command.buffers[2]);
        if command.op == Op::ExpertsAdd {
            let p = params::ExpertsAdd::of(&command.params);
            return ExpertsProduct {
                input,
                output,
                norm: None,
                kind: if replaces { Output::Store } else { Output::Add },
                act: 0,
                n: p.n,
                k: p.k,
                used: p.used,
                experts: p.experts,
                rows: p.n,
            };
        }
        let p = params::ExpertsActMul::of(&command.params);
        let (input, norm) = self.before_norm(input);
        ExpertsProduct {
            input,
            output,
            norm,
            kind: match p.matrices() {
                1 => Output::Act,
                _ => Output::ActMul,
            },
            act: p.act,
            n: p.n,
            k: p.k,
            used: p.used,
            experts: p.experts,
            rows: rows_of(command).unwrap_or(0),
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
        let sets = if p.kind == Output::ActMul { 2 } else { 1 };
        let row = sets * row_bytes(format, p.k);
        let slot = slot_limit(format, self.cx.gpu.shared_per_block);
        let fit = (slot / row.max(1)).clamp(1, MAX_OUTPUTS / sets);
        let share = p.rows.div_ceil(self.blocks);
        let shape = ProductShape::new(format, p.k, share, sets, fit)?;
        let (lanes, rows) = shape
            .arrange()
            .ok_or_else(|| format!("rows of {} elements", p.k))?;
        if sums && share > MAX_OUTPUTS {
            return Err(format!("{share} rows of a sum in a block"));
        }
        let local = self.hidden == Some(p.input);
        let (input, reads) = if local { (0, 0) } else { self.read(p.input)? };
        if p.kind == Output::Add && self.is_unread(p.output.buffer)? {
            return Err("experts' sum right after another one".to_string());
        }
        if !sums {
            let stride = params::ExpertsActMul::of(&command.params).y_stride;
            self.set_row_width(p.output, stride);
        }
        let (output, writes) = self.write(p.output)?;
        // The input of each expert is staged, or one for all.
        let inputs = if sums { p.used } else { 1 };
        let unit = if format.rounds_activations() { 48 } else { 32 };
        let scratchpad = &mut self.needs.scratchpad.any;
        *scratchpad = (*scratchpad).max(WARPS * inputs * shape.units.div_ceil(WARPS) * unit);
        self.staged = None;
        self.needs.slot = self.needs.slot.max(rows * row);
        self.needs.span = self.needs.span.max(1);
        let outputs = (sets * share.max(rows)).min(MAX_OUTPUTS);
        self.needs.outputs = self.needs.outputs.max(outputs);
        let constants = variants::Product {
            n: p.n,
            k: p.k,
            output: p.kind,
            act: p.act,
            lanes,
            rows,
            norm: p.norm.is_some(),
            eps: p.norm.map_or(0.0, |norm| norm.eps),
            local,
            bias: bias != NO_WEIGHT,
            scale: 1.0,
            span: 1,
            block_meta: layout::side_bytes(format),
            used: p.used,
            experts: p.experts,
            ..variants::Product::default()
        };
        let instruction = Instruction {
            input,
            output,
            reads,
            writes,
            flags,
            weight: matrix.into(),
            vectors: [
                p.norm.map_or(NO_WEIGHT, |norm| norm.weight).into(),
                bias.into(),
            ],
            ..Instruction::of(self.product_variant(format, constants, rows * row))
        };
        let shares = self.divider.divide(p.rows);
        self.push(index, instruction, shares);
        Ok(())
    }
}
