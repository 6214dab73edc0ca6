//! Recording: each command of the decode pass, or two that belong together, becomes one instruction.

mod add_normed;
mod attention;
mod beside;
mod experts;
mod layer_inputs;
mod recurrent;
mod shared;

use super::arrangement::{
    Chunks, ProductShape, TENSOR_LINES, row_bytes, slot_limit, slots_in_flight, staged_bytes, tiles,
};
use super::checks::{Checked, check_program, possible};
use super::instruction::{Instruction, REUSES_INPUT};
use super::memory::{MAX_OUTPUTS, STEP_OUTPUTS, SharedMemoryBudget, SharedMemoryNeeds};
use super::share::{RowDivider, Share};
use super::variants::{self, Output, TUNED_VARIANTS, Variant, Variants, tuning_index};
use super::{Inputs, MAX_ROPES, MIN_PAGES, Recording, SLOTS, WARPS};
use crate::context::saved_bytes;
use crate::layout;
use crate::ops::sample::{shared_bytes, slice};
use beside::BESIDE;
use experts::is_router;
use recurrent::{Convolved, is_small_part};
use shared::{SharedExpert, gate_rows, is_score};
use std::collections::BTreeMap;
use welte_table::{
    BufferId, BufferRef, CacheKind, Command, Extent, Format, NO_WEIGHT, Op, Pass, Run, WeightId,
    accesses, params, step,
};

/// A vector of activations in the exchange.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    start: u32,
    /// Writes so far in this turn.
    writes: u32,
    /// Whether it was read since its last write.
    read: bool,
}

/// The norm of a product's input.
#[derive(Clone, Copy)]
struct InputNorm {
    weight: WeightId,
    eps: f32,
    /// Whether it norms as many groups as there are slices, each by itself.
    grouped: bool,
}

impl InputNorm {
    /// Of the whole input, if there is a weight.
    fn of(weight: WeightId, eps: f32) -> Option<InputNorm> {
        (weight != NO_WEIGHT).then_some(InputNorm {
            weight,
            eps,
            grouped: false,
        })
    }
}

/// A norm that the next products take over, with its output and its input.
#[derive(Clone, Copy)]
struct PendingNorm {
    output: BufferRef,
    input: BufferRef,
    norm: InputNorm,
}

/// Activations without a gate that products take over: SiLU, both kinds of GELU, and the square of ReLU.
const ACTIVATIONS: [u32; 4] = [0, 1, 2, 4];

/// What tells inputs in shared memory apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StagedInput {
    input: BufferRef,
    norm: WeightId,
    /// Whether it is rounded to 8-bit blocks.
    blocks: bool,
    k: u32,
    /// Tells other differences apart, in a step.
    arrangement: u32,
}

struct Recorder<'a> {
    cx: &'a Inputs<'a>,
    pass: &'a Pass,
    budget: SharedMemoryBudget,
    blocks: u32,
    /// Floats of one row of each buffer.
    widths: BTreeMap<BufferId, u64>,
    /// By buffer and width of its rows: a write of a narrower row would leave the end of the vector with old tags.
    vectors: BTreeMap<(BufferId, u32), Vector>,
    /// The width of the rows that each buffer has now, where it is known.
    row_widths: BTreeMap<BufferId, u32>,
    /// Floats of the exchange so far.
    exchange: u32,
    norm: Option<PendingNorm>,
    /// The input that was staged last.
    staged: Option<StagedInput>,
    logits: BufferRef,
    variants: Variants,
    needs: SharedMemoryNeeds,
    /// Floats for the results of attention's splits, and where those of each kind of attention begin.
    split_floats: u32,
    split_starts: Vec<u32>,
    divider: RowDivider,
    program: Vec<Instruction>,
    commands: Vec<usize>,
    /// `[instruction][block]`.
    shares: Vec<Vec<Share>>,
    in_flight: [u8; TUNED_VARIANTS],
    /// Frequencies of each rope, and where its angles begin.
    freqs: Vec<(WeightId, u32)>,
    /// The append, with or without rope, or the rope of queries alone, whose attention comes next.
    rope: Option<usize>,
    /// The norm of values before it.
    value_norm: Option<usize>,
    /// The bias and the activation that the products before them have taken over.
    bias: Option<usize>,
    activation: Option<usize>,
    /// Commands before this one are part of an instruction already.
    next: usize,
    /// The vector that blocks have copies of, once they have.
    hidden: Option<BufferRef>,
    /// The last choice of experts, and whether a product has used it.
    choice: Option<(BufferRef, bool)>,
    /// The shared expert beside the last choice.
    shared: Option<SharedExpert>,
    /// Where the table has the result of the last product with a gate, and where it is.
    gated: Option<(BufferRef, BufferRef)>,
    /// The last convolution that products have taken over.
    convolved: Option<Convolved>,
    kv_format: Format,
    several_sizes: bool,
}

/// A product as the kernel sees it.
struct Product {
    matrix: WeightId,
    input: BufferRef,
    output: BufferRef,
    norm: Option<InputNorm>,
    kind: Output,
    act: u32,
    n: u32,
    k: u32,
    /// Floats from one row of the output to the next, which tell vectors of a buffer apart.
    stride: u32,
    /// The value whose sigmoid multiplies all results.
    score: Option<BufferRef>,
    /// The inputs that results multiply, behind the activation.
    inputs: Option<BufferRef>,
}

impl Product {
    /// What a command alone says.
    fn of(command: &Command) -> Product {
        let word = |name| command.word(name).unwrap_or(0);
        Product {
            matrix: command.weights[0],
            input: command.buffers[0],
            output: command.buffers[1],
            norm: InputNorm::of(command.weights[1], f32::from_bits(word("eps"))),
            kind: Output::Store,
            act: word("act"),
            n: word("n"),
            k: word("k"),
            stride: word("y_stride"),
            score: None,
            inputs: None,
        }
    }
}

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
    let products = (0..pass.commands.len()).filter(|index| !is_small(pass, *index));
    let rows = products.filter_map(|i| gate_rows(pass, i).or_else(|| rows_of(&pass.commands[i])));
    let rows = rows.min();
    let blocks = rows.unwrap_or(1).min(cx.gpu.sms).max(1);
    let mut recorder = Recorder {
        cx,
        pass,
        budget,
        blocks,
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
        freqs: Vec::new(),
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

/// A norm of groups in place without a weight, and the weights of all groups.
const NORM_OF_GROUPS: Run = Run {
    steps: &[
        step!(Norm [none] [x, x] { dim, groups }),
        step!(Multiply [weight] [x, x] { n }),
    ],
    relate: |b| {
        let all = b.word("dim")?.checked_mul(b.word("groups")?);
        (all == b.word("n") && b.weight("none") == NO_WEIGHT).then_some(())
    },
};

/// Whether a warp's slice of a row is one of as many equal groups.
fn slices_are_groups(format: Format, k: u32) -> bool {
    let unit = if format.rounds_activations() { 32 } else { 8 };
    let one_chunk = Chunks::of(format, k).is_none_or(|chunks| chunks.count == 1);
    one_chunk && k.is_multiple_of(unit * WARPS)
}

/// Whether blocks may have no rows of a product.
fn is_small(pass: &Pass, index: usize) -> bool {
    is_router(pass, &pass.commands[index]) || is_score(pass, index) || is_small_part(pass, index)
}

/// The command after a product and those that fill other parts of the same vector.
fn after_parts<'a>(pass: &'a Pass, index: usize, p: &Product) -> Option<(usize, &'a Command)> {
    let mut rest = pass.commands.iter().enumerate().skip(index + 1);
    rest.find(|(_, c)| {
        let fills = matches!(c.op, Op::Matmul | Op::NormMatmul) && p.kind == Output::Store;
        !(fills && c.buffers[1].buffer == p.output.buffer)
    })
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

/// Rows of a product, which blocks divide among themselves.
pub(super) fn rows_of(command: &Command) -> Option<u32> {
    let n = command.word("n")?;
    match command.op {
        Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul | Op::ExpertsAdd => {
            Some(n)
        }
        Op::ExpertsActMul => Some(n.saturating_mul(command.word("used")?)),
        _ => None,
    }
}

impl Recorder<'_> {
    fn command(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let words = &command.params;
        let [first, second, ..] = command.buffers;
        let matrix = command.weights[0];
        if index < self.next || self.is_begun(index) || self.is_convolved(index) {
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
            // The head or the choice takes it over.
            Op::Scale if command.buffers[0] == self.logits => return Ok(()),
            Op::Scale if self.router_scale(index + 1).is_some() => return Ok(()),
            Op::Sample => return Ok(()),
            op => return Err(format!("{} is not among its instructions", op.name())),
        };
        self.product(index, &product)
    }

    /// What a product reads in place of a vector, and the norm that it takes over.
    fn before_norm(&self, at: BufferRef) -> (BufferRef, Option<InputNorm>) {
        let pending = self.norm.filter(|norm| norm.output == at);
        (
            pending.map_or(at, |norm| norm.input),
            pending.map(|norm| norm.norm),
        )
    }

    /// The weights that multiply the result of a norm of groups in place, if one product is all that reads it afterwards.
    fn weight_of_groups(&mut self, index: usize) -> Option<WeightId> {
        let found = NORM_OF_GROUPS.at(&self.pass.commands, index)?;
        let normed = self.is_normed_once(index + 1, found.bound.word("n")?);
        normed.then(|| {
            self.next = found.end;
            found.bound.weight("weight")
        })
    }

    /// Whether the product that follows a norm of `n` values in place is all that reads its result.
    fn is_normed_once(&self, index: usize, n: u32) -> bool {
        let at = self.pass.commands[index].buffers[0];
        let Some([product, rest @ ..]) = self.pass.commands.get(index + 1..) else {
            return false;
        };
        let whole = params::MatmulAdd::of(&product.params).k == n;
        let mut uses = rest.iter().flat_map(accesses);
        let next = uses.find(|access| access.at.buffer == at.buffer);
        let reads = product.op == Op::MatmulAdd && product.buffers[0] == at && whole;
        reads && next.is_none_or(|access| access.writes)
    }

    /// The vector of a buffer. The first use reserves its place in the exchange.
    fn vector(&mut self, buffer: BufferId) -> Result<&mut Vector, String> {
        let row_width = self.row_widths.get(&buffer).copied().unwrap_or(0);
        let key = (buffer, row_width);
        if !self.vectors.contains_key(&key) {
            let floats = self.widths.get(&buffer).copied().unwrap_or(0);
            let start = self.exchange;
            self.exchange = u32::try_from(floats)
                .ok()
                .and_then(|floats| start.checked_add(floats.next_multiple_of(32)))
                .ok_or("its vectors are too long")?;
            let vector = Vector {
                start,
                writes: 0,
                read: true,
            };
            self.vectors.insert(key, vector);
        }
        self.vectors
            .get_mut(&key)
            .ok_or_else(|| "no such vector".to_string())
    }

    /// Where a vector is read from, and which write the reader waits for.
    fn read(&mut self, at: BufferRef) -> Result<(u32, u8), String> {
        if !at.offset.is_multiple_of(16) {
            return Err("an input that is not aligned".to_string());
        }
        let vector = self.vector(at.buffer)?;
        if vector.writes == 0 {
            return Err("an input that nothing wrote".to_string());
        }
        vector.read = true;
        let writes = u8::try_from(vector.writes).map_err(|_| "too many layers")?;
        Ok((vector.start + at.offset / 4, writes))
    }

    /// Where a vector is written, and the number of the write. Parts that are written without a read in between are one write.
    fn write(&mut self, at: BufferRef) -> Result<(u32, u8), String> {
        self.change(at.buffer)?;
        let vector = self.vector(at.buffer)?;
        if vector.read {
            vector.writes += 1;
            vector.read = false;
        }
        let writes = u8::try_from(vector.writes).map_err(|_| "too many layers")?;
        Ok((vector.start + at.offset / 4, writes))
    }

    /// Notes how wide the rows are that a buffer has from now on.
    fn set_row_width(&mut self, at: BufferRef, width: u32) {
        self.row_widths.insert(at.buffer, width);
    }

    /// Notes that a vector changes.
    fn change(&mut self, buffer: BufferId) -> Result<(), String> {
        // Products read the vector before its norm, so from now on they would read another one.
        self.norm = self.norm.filter(|norm| norm.input.buffer != buffer);
        match self.hidden.filter(|hidden| hidden.buffer == buffer) {
            Some(_) => Err("a sum without a norm after sums with norms".to_string()),
            None => Ok(()),
        }
    }

    fn push(&mut self, index: usize, instruction: Instruction, shares: Vec<Share>) {
        self.program.push(instruction);
        self.commands.push(index);
        self.shares.push(shares);
    }

    /// The product of a `matmul` command, with the norm before it.
    fn plain_product(&self, command: &Command) -> Product {
        let (input, norm) = self.before_norm(self.ungated(command.buffers[0]));
        Product {
            input,
            norm,
            ..Product::of(command)
        }
    }

    /// The product of gate and up, with the norm before it.
    fn gate_up(&self, command: &Command) -> Product {
        Product {
            kind: Output::ActMul,
            ..Product::of(command)
        }
    }

    /// Appends an instruction whose work the blocks do not share out by rows of a matrix.
    fn push_unshared(&mut self, index: usize, instruction: Instruction) {
        let shares = vec![Share { first: 0, rows: 0 }; self.blocks as usize];
        self.push(index, instruction, shares);
    }

    /// An instruction that carries what the one before it has no place for.
    fn more(&mut self) -> Instruction {
        Instruction::of(self.variants.add(Variant::More))
    }

    fn embed(&mut self, index: usize, command: &Command) -> Result<(), String> {
        if self.layer_inputs(index)? {
            return Ok(());
        }
        let table = command.weights[0];
        let (output, writes) = self.write(command.buffers[1])?;
        let p = params::Embed::of(&command.params);
        let embedding = variants::Embedding {
            n: p.n,
            k: p.k,
            scale: p.scale,
        };
        let format = self.cx.format(table);
        let variant = self.variants.add(Variant::Embed(format, embedding));
        let instruction = Instruction {
            output,
            writes,
            weight: table.into(),
            ..Instruction::of(variant)
        };
        self.push_unshared(index, instruction);
        Ok(())
    }

    fn product(&mut self, index: usize, p: &Product) -> Result<(), String> {
        let format = self.cx.format(p.matrix);
        let sets = if p.kind == Output::ActMul { 2 } else { 1 };
        let row = sets * row_bytes(format, p.k);
        let slot = slot_limit(format, self.cx.gpu.shared_per_block);
        let blocks = format.rounds_activations();
        let chunks = Chunks::of(format, p.k);
        // The bits of a product depend on the lanes, and with F16 and F32 on the rows of a slot. So both kernels have the same.
        let outputs = if blocks { MAX_OUTPUTS } else { STEP_OUTPUTS };
        let fit = (slot / row.max(1)).clamp(1, outputs / sets);
        let shape = ProductShape::new(format, p.k, p.n.div_ceil(self.blocks), sets, fit)?;
        let local = self.hidden == Some(p.input);
        let (input, reads) = match local {
            true => (0, 0),
            false => self.read(p.input)?,
        };
        let known = self.staged;
        let flags = self.stage(format, p);
        let follows = p.kind == Output::Add && self.is_unread(p.output.buffer)?;
        if matches!(p.kind, Output::Store | Output::ActMul) {
            self.set_row_width(p.output, p.stride);
        }
        let (output, writes) = match p.kind {
            Output::Logits => (0, 0),
            _ => self.write(p.output)?,
        };
        let (lanes, rows) = shape
            .arrange()
            .ok_or_else(|| format!("rows of {} elements", p.k))?;
        let is_step = self.budget.is_step;
        let (line, lanes, rows, span) = match chunks {
            None if is_step && blocks => {
                let (rows, span) = tiles(row / sets, sets, slot, self.budget.bytes_at_once);
                (row / sets, lanes, rows, span)
            }
            None => (row / sets, lanes, rows, 1),
            Some(chunks) => {
                let (line, tile) = match is_step {
                    true => (chunks.bytes, TENSOR_LINES),
                    false => (row / sets, TENSOR_LINES / chunks.count),
                };
                let rows = Chunks::rows(line, tile, sets, shape.share, slot, self.budget.outputs);
                (line, 8 * chunks.count, rows, 1)
            }
        };
        let partial = p.n < self.blocks;
        if partial {
            if is_step {
                return Err("a product with few rows in steps of several rows".to_string());
            }
            // Blocks without rows stage nothing.
            self.staged = known.filter(|_| flags == REUSES_INPUT);
        }
        let staged = self.staged_chunks(chunks, p);
        let slot = sets * rows * line;
        self.need(format, p, &shape, slot, rows, span);
        if p.norm.is_some_and(|norm| norm.grouped) && !slices_are_groups(format, p.k) {
            return Err(format!(
                "a norm of groups before a product in {}",
                format.name()
            ));
        }
        let bias = self.bias_of(index, p);
        let (kind, act) = match self.activation_of(index, p) {
            Some(act) => (Output::Act, act),
            None => (p.kind, p.act),
        };
        let last = self.commands.last().map(|last| &self.pass.commands[*last]);
        let attends = |op| matches!(op, Op::Attention | Op::GatedDelta | Op::Mamba2);
        let attended = last.is_some_and(|c| attends(c.op) && c.buffers[2] == p.input);
        let (scale, cap) = match p.kind {
            Output::Logits => self.logits_scale(index),
            _ => (1.0, 0.0),
        };
        let mut constants = variants::Product {
            n: p.n,
            k: p.k,
            output: kind,
            act,
            lanes,
            rows,
            norm: p.norm.is_some(),
            grouped: p.norm.is_some_and(|norm| norm.grouped),
            eps: p.norm.map_or(0.0, |norm| norm.eps),
            attended,
            local,
            bias: bias.is_some(),
            bias_at: bias.map_or(0, |(_, at)| at),
            scale,
            cap,
            span,
            block_meta: layout::side_bytes(format),
            chunks: chunks.map_or(0, |chunks| chunks.count),
            staged,
            partial,
            gated: p.score.is_some(),
            follows,
            gates_inputs: p.inputs.is_some(),
            ..variants::Product::default()
        };
        let more = match p.score.or(p.inputs) {
            None => self.conv_of(index, p, &mut constants)?,
            Some(from) => {
                let (input, reads) = self.read(from)?;
                Some(Instruction {
                    input,
                    reads,
                    ..self.more()
                })
            }
        };
        let variant = self.product_variant(format, constants, slot);
        let shares = self.divider.divide(p.n);
        let norm = p.norm.map_or(NO_WEIGHT, |norm| norm.weight);
        let added = bias.map_or(NO_WEIGHT, |(weight, _)| weight);
        let instruction = Instruction {
            input,
            output,
            reads,
            writes,
            flags,
            weight: p.matrix.into(),
            vectors: [norm.into(), added.into()],
            ..Instruction::of(variant)
        };
        self.push(index, instruction, shares);
        if let Some(more) = more {
            self.push_unshared(index, more);
        }
        Ok(())
    }

    /// Whether nothing has read a vector since it was last written. A sum that is added to it is another write.
    fn is_unread(&mut self, buffer: BufferId) -> Result<bool, String> {
        let vector = self.vector(buffer)?;
        Ok(!std::mem::replace(&mut vector.read, true))
    }

    /// The number of a product's variant, whose slots have so many bytes.
    fn product_variant(&mut self, format: Format, constants: variants::Product, slot: u32) -> u32 {
        let variant = self.variants.add(Variant::Product(format, constants));
        let in_flight = slots_in_flight(slot);
        let entry = &mut self.in_flight[tuning_index(variant)];
        // Several variants may share an entry.
        *entry = if *entry == 0 {
            in_flight
        } else {
            in_flight.min(*entry)
        };
        variant
    }

    /// Notes which input is staged now. Returns the flag that says whether it was staged before.
    fn stage(&mut self, format: Format, p: &Product) -> u32 {
        let blocks = format.rounds_activations();
        let chunks = Chunks::of(format, p.k);
        let arrangement = match chunks {
            Some(chunks) => chunks.count,
            None if self.budget.is_step && blocks => layout::side_bytes(format),
            None => 0,
        };
        let staged = StagedInput {
            input: p.input,
            norm: p.norm.map_or(NO_WEIGHT, |norm| norm.weight),
            blocks,
            k: p.k,
            arrangement,
        };
        let reused = self.staged.replace(staged) == Some(staged);
        if self.staged_chunks(chunks, p) < chunks.map_or(0, |chunks| chunks.count) {
            // Only the last chunk stays.
            self.staged = None;
        }
        if reused { REUSES_INPUT } else { 0 }
    }

    /// How many chunks of a BF16 product's input are staged together. In a step a long input is staged chunk by chunk, for more rows.
    /// Several products may share a normed input, so that is staged whole.
    fn staged_chunks(&self, chunks: Option<Chunks>, p: &Product) -> u32 {
        match chunks {
            None => 0,
            Some(Chunks { count: 4, .. }) if self.budget.is_step && p.norm.is_none() => 1,
            Some(chunks) => chunks.count,
        }
    }

    /// Adds a product's needs of shared memory. `slot` has `rows` rows (of each set) in so many bytes.
    fn need(
        &mut self,
        format: Format,
        p: &Product,
        shape: &ProductShape,
        slot: u32,
        rows: u32,
        span: u32,
    ) {
        let chunks = Chunks::of(format, p.k);
        let pieces = self.staged_chunks(chunks, p);
        let needs = &mut self.needs;
        needs.slot = needs.slot.max(slot);
        needs.span = needs.span.max(span);
        let at_once = match p.kind {
            Output::Logits => rows * span,
            _ => shape.share.next_multiple_of(rows * span),
        };
        let outputs = (shape.sets * at_once).min(self.budget.outputs);
        needs.outputs = needs.outputs.max(outputs);
        let units = shape.units.div_ceil(WARPS);
        let most = |to: &mut u32, bytes: u32| *to = (*to).max(WARPS * bytes);
        let scratchpad = &mut needs.scratchpad;
        if let Some(chunks) = chunks {
            let to = match self.budget.is_step {
                true => &mut scratchpad.row,
                false => &mut scratchpad.any,
            };
            most(to, pieces * chunks.staged);
            return;
        }
        match (self.budget.is_step, format.rounds_activations()) {
            (false, true) => most(&mut scratchpad.any, units * 48),
            (false, false) => most(&mut scratchpad.any, units * 32),
            (true, true) => {
                let unit = 64 + 2 * layout::side_bytes(format);
                most(&mut scratchpad.pair, staged_bytes(units, unit));
            }
            (true, false) => most(&mut scratchpad.row, staged_bytes(units, 32)),
        }
    }

    /// What the command after the head multiplies logits by, and their soft cap.
    fn logits_scale(&self, index: usize) -> (f32, f32) {
        let next = self.pass.commands.get(index + 1);
        let next = next.filter(|c| c.op == Op::Scale && c.buffers[0] == self.logits);
        let scale = next.map(|c| params::Scale::of(&c.params));
        scale.map_or((1.0, 0.0), |s| (s.scale, s.cap))
    }

    /// The bias that follows a product, or several that fill one vector together: its weights, and which of them belongs to
    /// this product's first row.
    fn bias_of(&mut self, index: usize, p: &Product) -> Option<(WeightId, u32)> {
        let (place, command) = after_parts(self.pass, index, p)?;
        let y = command.buffers[0];
        let kinds = matches!(p.kind, Output::Store | Output::Add);
        if !kinds || command.op != Op::Bias || y.buffer != p.output.buffer {
            return None;
        }
        let at = p.output.offset.checked_sub(y.offset)? / 4;
        let all = at.checked_add(p.n)? <= params::Bias::of(&command.params).n;
        all.then(|| {
            self.bias = Some(place);
            (command.weights[0], at)
        })
    }

    /// The activation that follows a product, or several that fill one vector together, and their bias.
    fn activation_of(&mut self, index: usize, p: &Product) -> Option<u32> {
        let (place, command) = after_parts(self.pass, index, p)?;
        let (place, command) = match self.bias == Some(place) {
            true => (place + 1, self.pass.commands.get(place + 1)?),
            false => (place, command),
        };
        let y = command.buffers[0];
        if p.kind != Output::Store || command.op != Op::Act || y.buffer != p.output.buffer {
            return None;
        }
        let act = params::Act::of(&command.params);
        let at = p.output.offset.checked_sub(y.offset)? / 4;
        let all = at.checked_add(p.n)? <= act.n;
        (all && ACTIVATIONS.contains(&act.act)).then(|| {
            self.activation = Some(place);
            act.act
        })
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
            ("SHARED_BYTES", gpu.shared_per_block),
            ("HEAD_DIM", checked.head_dim),
            ("PAGE", program.page),
            ("KV_Q8", (checked.kv_format == Format::Q8_0).into()),
        ];
        if is_step {
            defines.push(("STEP_ROWS", rows));
            defines.push(("EXCHANGE_FLOATS", exchange));
        }
        let blocks = self.blocks as usize;
        let shares = (0..blocks).flat_map(|block| self.shares.iter().map(move |s| s[block]));
        let mut freqs = [NO_WEIGHT.into(); MAX_ROPES];
        for (place, (id, _)) in freqs.iter_mut().zip(&self.freqs) {
            *place = (*id).into();
        }
        Ok(Recording {
            rows,
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
            freqs,
            variants: self.variants,
            defines,
        })
    }
}
