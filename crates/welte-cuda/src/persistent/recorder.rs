//! Recording: each command of the decode pass, or two that belong together, becomes one instruction.

mod add_normed;
mod attention;
mod beside;
mod exchange;
mod experts;
mod layer_inputs;
mod recurrent;
mod shared;
mod state;
mod tap;

use super::checks::{Checked, check_program, possible};
use super::instruction::TUNED_VARIANTS;
use super::memory::{SharedMemoryBudget, SharedMemoryNeeds, saved_bytes};
use super::share::RowDivider;
use super::tap::tap_of;
use super::variants::{self, Output, Variant, Variants};
use super::{Inputs, MAX_ROPES, MIN_PAGES, Recording, SLOTS, WARPS};
use crate::ops::sample::{shared_bytes, slice};
use beside::BESIDE;
use experts::is_router;
use recurrent::is_small_part;
use shared::{gate_rows, is_score};
pub(super) use state::rows_of;
use state::rows_of_all;
use state::{InputNorm, PendingNorm, Product, Recorder};
use std::collections::BTreeMap;
use welte_table::{
    BufferId, CacheKind, Command, Extent, Format, NO_WEIGHT, Op, Pass, accesses, params,
};

/// Records the decode pass for steps of as many rows as the budget has. The error says, in a few words, why the persistent
/// kernel cannot run it.
pub(crate) fn record(cx: &Inputs<'_>, budget: SharedMemoryBudget) -> Result<Recording, String> {
    possible(cx.gpu)?;
    let pass = cx.program.passes.first().ok_or("no pass")?;
    let checked = check_program(cx.program, pass)?;
    let is_recurrent = |kind| matches!(kind, CacheKind::Recurrent { .. });
    if budget.is_step && cx.program.caches.iter().any(|c| is_recurrent(c.kind)) {
        return Err("recurrent state in steps of several rows".to_string());
    }
    // Every block must have rows of every product, except of the small ones (docs/architecture/persistent.md).
    let products = || (0..pass.commands.len()).filter(|index| !is_small(pass, *index));
    let rows = |i: usize| gate_rows(pass, i).or_else(|| rows_of(&pass.commands[i]));
    let fewest = |rows: Option<u32>| rows.unwrap_or(1).min(cx.gpu.sms).max(1);
    let blocks = fewest(products().filter_map(rows).min());
    let of_all = |i: usize| {
        let matrix = pass.commands[i].weights[0];
        Some(rows_of_all(cx.program, matrix, rows(i)?))
    };
    let usual_blocks = fewest(products().filter_map(of_all).min());
    let mut recorder = Recorder {
        cx,
        pass,
        budget,
        blocks,
        usual_blocks,
        widths: widths(pass),
        vectors: BTreeMap::new(),
        row_widths: BTreeMap::new(),
        exchange: 0,
        norm: None,
        staged: None,
        logits: checked.logits,
        variants: Variants::default(),
        needs: SharedMemoryNeeds::default(),
        split_floats: 0,
        split_starts: Vec::new(),
        divider: RowDivider::new(blocks),
        program: Vec::new(),
        commands: Vec::new(),
        shares: Vec::new(),
        in_flight: [0; TUNED_VARIANTS],
        ropes: Vec::new(),
        rope: None,
        value_norm: None,
        bias: None,
        activation: None,
        next: 0,
        hidden: None,
        choice: None,
        shared: None,
        gated: None,
        convolved: None,
        ranks: exchange::ranks(pass),
        exchanged: None,
        tap: tap_of(cx.program)?,
        kv_format: checked.kv_format,
        several_sizes: checked.several_sizes,
    };
    for (index, command) in pass.commands.iter().enumerate() {
        recorder
            .command(index, command)
            .map_err(|why| format!("{}: {why}", pass.full_label(index)))?;
    }
    recorder.finish(checked)
}

/// Whether blocks may have no rows of a product.
fn is_small(pass: &Pass, index: usize) -> bool {
    is_router(pass, &pass.commands[index]) || is_score(pass, index) || is_small_part(pass, index)
}

/// Floats of one row of each buffer that the pass reads or writes.
fn widths(pass: &Pass) -> BTreeMap<BufferId, u64> {
    let mut widths = BTreeMap::new();
    for access in pass.commands.iter().flat_map(accesses) {
        if let Extent::Rows { width, .. } = access.extent {
            let end = u64::from(access.at.offset / 4) + width;
            let known = widths.entry(access.at.buffer).or_insert(0);
            *known = end.max(*known);
        }
    }
    widths
}

impl Recorder<'_> {
    fn command(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let words = &command.params;
        let [first, second, ..] = command.buffers;
        let matrix = command.weights[0];
        if index < self.next || self.is_begun(index) || self.is_convolved(index) {
            return Ok(());
        }
        if self.tapped(index)? {
            return Ok(());
        }
        if self.rope.is_some() && command.op != Op::Attention {
            return Err("no attention follows the append".to_string());
        }
        let product = match command.op {
            Op::Embed => return self.embed(index, command),
            // Attention takes them over.
            Op::Norm if self.is_value_norm(index) => {
                self.value_norm = Some(index);
                return Ok(());
            }
            Op::Norm if self.is_query_norm(index) => return Ok(()),
            Op::Norm => {
                let p = params::Norm::of(words);
                if let Some(sum) = self.sum_after_norm(index) {
                    return self.add_normed(index, &sum);
                }
                let norm = match p.groups {
                    1 if first != second || self.is_normed_once(index, p.dim) => Some(matrix),
                    WARPS => self.weight_of_groups(index),
                    _ => None,
                };
                self.norm = Some(PendingNorm {
                    output: second,
                    input: first,
                    norm: InputNorm {
                        weight: norm.ok_or("a norm that no product follows")?,
                        eps: p.eps,
                        grouped: p.groups != 1,
                    },
                });
                return Ok(());
            }
            Op::Matmul => self.product_with_gate(index)?,
            Op::MatmulAdd => {
                let (input, norm) = self.before_norm(first);
                let shared = self.shared_result(index);
                Product {
                    input: shared.map_or(input, |(input, _)| input),
                    norm,
                    kind: Output::Add,
                    score: shared.and_then(|(_, score)| score),
                    ..Product::of(command)
                }
            }
            Op::NormMatmul if second.buffer == self.logits.buffer => Product {
                kind: Output::Logits,
                ..Product::of(command)
            },
            Op::NormMatmul => Product::of(command),
            Op::NormMatmulActMul => match BESIDE.at(&self.pass.commands, index) {
                Some(part) => return self.beside(&part),
                None => self.gate_up(command),
            },
            // The products before it have taken it over.
            Op::Bias if self.bias == Some(index) => return Ok(()),
            Op::Act if self.activation == Some(index) => return Ok(()),
            Op::RopeAppend | Op::KvAppend | Op::Rope => {
                self.rope = Some(index);
                return Ok(());
            }
            Op::Attention => return self.attention(index, command),
            Op::Route => {
                self.begin_shared_expert(index)?;
                return self.route(index, command);
            }
            Op::Gate => return self.gated_conv(index),
            Op::GatedDelta => return self.gated_delta(index),
            Op::Mamba2 => return self.mamba2(index),
            Op::ExpertsActMul | Op::ExpertsAdd => return self.experts(index, command, false),
            // What they complete was published to all ranks.
            Op::Exchange if self.exchanged == Some(index) => return Ok(()),
            // The head or the choice takes it over.
            Op::Scale if command.buffers[0].buffer == self.logits.buffer => return Ok(()),
            Op::Scale if self.router_scale(index + 1).is_some() => return Ok(()),
            Op::Sample => return Ok(()),
            Op::Multiply => return self.keep(index, command),
            op => return Err(format!("{} is not among its instructions", op.name())),
        };
        self.product(index, &product)
    }

    fn finish(mut self, checked: Checked) -> Result<Recording, String> {
        // Only now is it known how often each vector is written in a turn.
        let per_turn: BTreeMap<u32, u8> = self
            .vectors
            .values()
            .map(|v| (v.start, v.writes as u8))
            .collect();
        let of = |at: u32| per_turn.range(..=at).next_back().map_or(0, |(_, n)| *n);
        for instruction in &mut self.program {
            instruction.reads_per_turn = of(instruction.input);
            instruction.writes_per_turn = of(instruction.output);
        }
        if self.variants.affine.len() > variants::AFFINE.len() {
            return Err("more than four kinds of MLX's formats".to_string());
        }
        for variant in &mut self.variants.all {
            if let Variant::Attention(attention) = variant {
                attention.splits_start += self.exchange;
            }
        }
        let exchange = (self.exchange + self.split_floats).next_multiple_of(4);
        let (program, gpu) = (self.cx.program, self.cx.gpu);
        let SharedMemoryBudget { rows, is_step, .. } = self.budget;
        let needs = &mut self.needs;
        if !is_step {
            // A step chooses no token.
            let slice = slice(program.vocab, self.blocks);
            let sampling = u32::try_from(shared_bytes(slice)).map_err(|_| "its vocabulary")?;
            needs.scratchpad.any = needs.scratchpad.any.max(sampling);
        }
        needs.instructions = self.program.len() as u32;
        needs.outputs = needs.outputs.next_multiple_of(32);
        needs.angles = needs.angles.max(1);
        // Few sizes, so that few kernels are compiled.
        let pages = program.context.div_ceil(program.page);
        let pages = pages.max(MIN_PAGES).next_power_of_two();
        let caches = program.caches.len() as u32;
        needs.pages = caches * pages;
        let shared = needs.divide(&self.budget, gpu.shared_per_block)?;
        let mut defines = vec![
            ("WARPS", WARPS),
            ("SLOTS", SLOTS),
            ("RING_BYTES", shared.ring),
            ("TUNED_VARIANTS", TUNED_VARIANTS as u32),
            ("SCRATCHPAD_BYTES", shared.scratchpad),
            ("OUTPUTS", needs.outputs),
            ("INSTRUCTIONS", needs.instructions),
            ("CACHES", caches),
            ("MAX_PAGES", pages),
            ("ANGLES", needs.angles),
            ("HIDDEN", needs.hidden),
            ("CHOSEN", needs.chosen),
            ("HELD", needs.held),
            ("SHARED_BYTES", gpu.shared_per_block),
            ("HEAD_DIM", checked.head_dim),
            ("PAGE", program.page),
            ("KV_Q8", (checked.kv_format == Format::Q8_0).into()),
        ];
        if is_step {
            defines.push(("STEP_ROWS", rows));
            defines.push(("EXCHANGE_FLOATS", exchange));
        }
        if self.ranks > 1 {
            defines.push(("RANKS", self.ranks));
        }
        let blocks = self.blocks as usize;
        let shares = (0..blocks).flat_map(|block| self.shares.iter().map(move |s| s[block]));
        let mut freqs = [NO_WEIGHT.into(); MAX_ROPES];
        for (place, ((id, _), _)) in freqs.iter_mut().zip(&self.ropes) {
            *place = (*id).into();
        }
        Ok(Recording {
            rows,
            ranks: self.ranks,
            is_step,
            blocks: self.blocks,
            shared: gpu.shared_per_block,
            shares: shares.collect(),
            program: self.program,
            commands: self.commands,
            scratchpad: needs.scratchpad,
            in_flight: self.in_flight,
            exchange,
            states: saved_bytes(program),
            logits: self.logits,
            tap: self.tap,
            freqs,
            variants: self.variants,
            defines,
        })
    }
}
