//! A recording in the making: vectors, norms, products, and what each of them needs.

use super::super::Inputs;
use super::super::WARPS;
use super::super::arrangement::{
    Chunks, ProductShape, TENSOR_LINES, row_bytes, slot_limit, slots_in_flight, staged_bytes, tiles,
};
use super::super::instruction::{Instruction, REUSES_INPUT, TUNED_VARIANTS};
use super::super::memory::{MAX_OUTPUTS, STEP_OUTPUTS, SharedMemoryBudget, SharedMemoryNeeds};
use super::super::share::{RowDivider, Share};
use super::super::tap::Tap;
use super::super::variants::{self, Output, Variant, Variants, tuning_index};
use crate::layout;
use std::collections::BTreeMap;
use welte_table::{
    BufferId, BufferRef, Command, Format, NO_WEIGHT, Op, Pass, Program, Run, Source, WeightId,
    accesses, params, step,
};

/// A vector of activations in the exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vector {
    pub(super) start: u32,
    /// Writes so far in this turn.
    pub(super) writes: u32,
    /// Whether it was read since its last write.
    pub(super) read: bool,
}

/// The norm of a product's input.
#[derive(Clone, Copy)]
pub(super) struct InputNorm {
    pub(super) weight: WeightId,
    pub(super) eps: f32,
    /// Whether it norms as many groups as there are slices, each by itself.
    pub(super) grouped: bool,
}

impl InputNorm {
    /// Of the whole input, if there is a weight.
    pub(super) fn of(weight: WeightId, eps: f32) -> Option<InputNorm> {
        (weight != NO_WEIGHT).then_some(InputNorm {
            weight,
            eps,
            grouped: false,
        })
    }
}

/// A norm that the next products take over, with its output and its input.
#[derive(Clone, Copy)]
pub(super) struct PendingNorm {
    pub(super) output: BufferRef,
    pub(super) input: BufferRef,
    pub(super) norm: InputNorm,
}

/// Bytes of a row of floats at most: those of the longest BF16 rows that tensor cores multiply whole.
const MOST_ROW_BYTES: u32 = 32 << 10;

/// Activations without a gate that products take over: SiLU, both kinds of GELU, and the square of ReLU.
pub(super) const ACTIVATIONS: [u32; 4] = [0, 1, 2, 4];

/// What tells inputs in shared memory apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StagedInput {
    pub(super) input: BufferRef,
    pub(super) norm: WeightId,
    /// Whether it is rounded to 8-bit blocks.
    pub(super) blocks: bool,
    pub(super) k: u32,
    /// Tells other differences apart, in a step.
    pub(super) arrangement: u32,
}

pub(super) struct Recorder<'a> {
    pub(super) cx: &'a Inputs<'a>,
    pub(super) pass: &'a Pass,
    pub(super) budget: SharedMemoryBudget,
    pub(super) blocks: u32,
    /// Blocks that one GPU would have for the whole model. They decide how sums are divided, so ranks have the bits of one GPU.
    pub(super) usual_blocks: u32,
    /// Floats of one row of each buffer.
    pub(super) widths: BTreeMap<BufferId, u64>,
    /// By buffer and width of its rows: a write of a narrower row would leave the end of the vector with old tags.
    pub(super) vectors: BTreeMap<(BufferId, u32), Vector>,
    /// The width of the rows that each buffer has now, where it is known.
    pub(super) row_widths: BTreeMap<BufferId, u32>,
    /// Floats of the exchange so far.
    pub(super) exchange: u32,
    pub(super) norm: Option<PendingNorm>,
    /// The input that was staged last.
    pub(super) staged: Option<StagedInput>,
    pub(super) logits: BufferRef,
    pub(super) variants: Variants,
    pub(super) needs: SharedMemoryNeeds,
    /// Floats for the results of attention's splits, and where those of each kind of attention begin.
    pub(super) split_floats: u32,
    pub(super) split_starts: Vec<u32>,
    pub(super) divider: RowDivider,
    pub(super) program: Vec<Instruction>,
    pub(super) commands: Vec<usize>,
    /// `[instruction][block]`.
    pub(super) shares: Vec<Vec<Share>>,
    pub(super) in_flight: [u8; TUNED_VARIANTS],
    /// Frequencies of each rope and whether it follows axes, and where its angles begin.
    pub(super) ropes: Vec<((WeightId, bool), u32)>,
    /// The append, with or without rope, or the rope of queries alone, whose attention comes next.
    pub(super) rope: Option<usize>,
    /// The norm of values before it.
    pub(super) value_norm: Option<usize>,
    /// The bias and the activation that the products before them have taken over.
    pub(super) bias: Option<usize>,
    pub(super) activation: Option<usize>,
    /// Commands before this one are part of an instruction already.
    pub(super) next: usize,
    /// The vector that blocks have copies of, once they have.
    pub(super) hidden: Option<BufferRef>,
    /// The last choice of experts, and whether a product has used it.
    pub(super) choice: Option<(BufferRef, bool)>,
    /// The shared expert beside the last choice.
    pub(super) shared: Option<SharedExpert>,
    /// Where the table has the result of the last product with a gate, and where it is.
    pub(super) gated: Option<(BufferRef, BufferRef)>,
    /// The last convolution that products have taken over.
    pub(super) convolved: Option<Convolved>,
    /// Of a model on several GPUs; else 1.
    pub(super) ranks: u32,
    /// The last exchange of what an instruction publishes to all ranks.
    pub(super) exchanged: Option<usize>,
    /// What leaves hidden states for a draft pass.
    pub(super) tap: Option<Tap>,
    pub(super) kv_format: Format,
    pub(super) several_sizes: bool,
}

/// Columns of a matrix, whose rows are too long to be streamed and multiplied whole.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Elements of a whole row, and the first column.
    row_k: u32,
    first: u32,
}

/// A product as the kernel sees it.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) matrix: WeightId,
    pub(super) input: BufferRef,
    pub(super) output: BufferRef,
    pub(super) norm: Option<InputNorm>,
    pub(super) kind: Output,
    pub(super) act: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    /// Floats from one row of the output to the next, which tell vectors of a buffer apart.
    pub(super) stride: u32,
    /// The value whose sigmoid multiplies all results.
    pub(super) score: Option<BufferRef>,
    /// The inputs that results multiply, after the activation.
    pub(super) inputs: Option<BufferRef>,
    /// The columns, if they are not all.
    pub(super) columns: Option<Columns>,
}

impl Product {
    /// What a command alone says.
    pub(super) fn of(command: &Command) -> Product {
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
            columns: None,
        }
    }

    /// Which of the `n` values at `y` its first result is, if all of its results are among them.
    fn place_in(&self, y: BufferRef, n: u32) -> Option<u32> {
        let at = self.output.offset.checked_sub(y.offset)? / 4;
        (at.checked_add(self.n)? <= n).then_some(at)
    }

    pub(super) fn norm_weight(&self) -> WeightId {
        self.norm.map_or(NO_WEIGHT, |norm| norm.weight)
    }

    /// What the kernel is compiled with for it, as far as nothing but the product and the arrangement of its rows decides.
    pub(super) fn constants(&self, format: Format, lanes: u32, rows: u32) -> variants::Product {
        variants::Product {
            n: self.n,
            k: self.k,
            output: self.kind,
            act: self.act,
            lanes,
            rows,
            norm: self.norm.is_some(),
            grouped: self.norm.is_some_and(|norm| norm.grouped),
            eps: self.norm.map_or(0.0, |norm| norm.eps),
            row_k: self.columns.map_or(self.k, |columns| columns.row_k),
            column: self.columns.map_or(0, |columns| columns.first),
            scale: 1.0,
            span: 1,
            block_meta: layout::side_bytes(format),
            ..variants::Product::default()
        }
    }
}

/// A convolution that products before it have taken over: their results are convolved where the table has its input.
#[derive(Clone, Copy)]
pub(super) struct Convolved {
    pub(super) command: usize,
    pub(super) input: BufferRef,
    pub(super) output: BufferRef,
}

/// Where the commands of a shared expert are in the pass.
#[derive(Clone, Copy)]
pub(super) struct SharedExpert {
    /// Gate and up in one product, or up alone. The activation follows.
    pub(super) gate_up: usize,
    /// Whether there is a gate.
    pub(super) gated: bool,
    /// The activation, and its results.
    pub(super) act: u32,
    pub(super) n: u32,
    /// The product whose only result's sigmoid scales the expert. A gate follows.
    pub(super) score: Option<usize>,
    pub(super) down: usize,
}

/// A norm of groups in place without a weight, and the weights of all groups.
pub(super) const NORM_OF_GROUPS: Run = Run {
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
pub(super) fn slices_are_groups(format: Format, k: u32) -> bool {
    let unit = if format.rounds_activations() { 32 } else { 8 };
    let one_chunk = Chunks::of(format, k).is_none_or(|chunks| chunks.count == 1);
    one_chunk && k.is_multiple_of(unit * WARPS)
}

/// The command after a product and those that fill other parts of the same vector.
pub(super) fn after_parts<'a>(
    pass: &'a Pass,
    index: usize,
    p: &Product,
) -> Option<(usize, &'a Command)> {
    let mut rest = pass.commands.iter().enumerate().skip(index + 1);
    rest.find(|(_, c)| {
        let fills = matches!(c.op, Op::Matmul | Op::NormMatmul) && p.kind == Output::Store;
        !(fills && c.buffers[1].buffer == p.output.buffer)
    })
}

/// How many rows there are on all ranks together, of which this one has `rows` of a matrix.
pub(super) fn rows_of_all(program: &Program, matrix: WeightId, rows: u32) -> u32 {
    let spec = program.weights.get(matrix as usize);
    match spec.map(|spec| (&spec.source, spec.n)) {
        Some((Source::Chosen(chosen), n)) if n > 0 => {
            (u64::from(rows) * u64::from(chosen.rows) / u64::from(n)) as u32
        }
        _ => rows,
    }
}

/// How many parts the columns of a matrix make: rows of floats are too long to be whole in slots of the ring.
fn column_parts(format: Format, k: u32) -> u32 {
    match format {
        Format::BF16 | Format::F16 | Format::F32 => {
            row_bytes(format, k).div_ceil(MOST_ROW_BYTES).max(1)
        }
        _ => 1,
    }
}

/// Rows of a product, which blocks divide among themselves.
pub(in super::super) fn rows_of(command: &Command) -> Option<u32> {
    let n = command.word("n")?;
    match command.op {
        Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul | Op::ExpertsAdd => {
            Some(n)
        }
        Op::ExpertsActMul => Some(n.saturating_mul(command.word("used")?)),
        _ => None,
    }
}

impl<'a> Recorder<'a> {
    /// What a product reads in place of a vector, and the norm that it takes over.
    pub(super) fn before_norm(&self, at: BufferRef) -> (BufferRef, Option<InputNorm>) {
        let pending = self.norm.filter(|norm| norm.output == at);
        (
            pending.map_or(at, |norm| norm.input),
            pending.map(|norm| norm.norm),
        )
    }

    /// The weights that multiply the result of a norm of groups in place, if one product is all that reads it afterwards.
    pub(super) fn weight_of_groups(&mut self, index: usize) -> Option<WeightId> {
        let found = NORM_OF_GROUPS.at(&self.pass.commands, index)?;
        let normed = self.is_normed_once(index + 1, found.bound.word("n")?);
        normed.then(|| {
            self.next = found.end;
            found.bound.weight("weight")
        })
    }

    /// Whether the product that follows a norm of `n` values in place is all that reads its result.
    pub(super) fn is_normed_once(&self, index: usize, n: u32) -> bool {
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
    pub(super) fn vector(&mut self, buffer: BufferId) -> Result<&mut Vector, String> {
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
    pub(super) fn read(&mut self, at: BufferRef) -> Result<(u32, u8), String> {
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
    pub(super) fn write(&mut self, at: BufferRef) -> Result<(u32, u8), String> {
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
    pub(super) fn set_row_width(&mut self, at: BufferRef, width: u32) {
        self.row_widths.insert(at.buffer, width);
    }

    /// Notes that a vector changes.
    pub(super) fn change(&mut self, buffer: BufferId) -> Result<(), String> {
        // Products read the vector before its norm, so from now on they would read another one.
        self.norm = self.norm.filter(|norm| norm.input.buffer != buffer);
        match self.hidden.filter(|hidden| hidden.buffer == buffer) {
            Some(_) => Err("a sum without a norm after sums with norms".to_string()),
            None => Ok(()),
        }
    }

    pub(super) fn push(&mut self, index: usize, instruction: Instruction, shares: Vec<Share>) {
        self.program.push(instruction);
        self.commands.push(index);
        self.shares.push(shares);
    }

    /// The product of a `matmul` command, with the norm before it.
    pub(super) fn plain_product(&self, command: &Command) -> Product {
        let (input, norm) = self.before_norm(self.ungated(command.buffers[0]));
        Product {
            input,
            norm,
            ..Product::of(command)
        }
    }

    /// The product of gate and up, with the norm before it.
    pub(super) fn gate_up(&self, command: &Command) -> Product {
        Product {
            kind: Output::ActMul,
            ..Product::of(command)
        }
    }

    /// Appends an instruction whose work the blocks do not share out by rows of a matrix.
    pub(super) fn push_unshared(&mut self, index: usize, instruction: Instruction) {
        let shares = vec![Share { first: 0, rows: 0 }; self.blocks as usize];
        self.push(index, instruction, shares);
    }

    /// An instruction that a variant's code runs.
    pub(super) fn instruction(&mut self, variant: Variant) -> Instruction {
        Instruction::of(self.variants.add(variant))
    }

    /// An instruction that carries what the one before it has no place for: another input.
    pub(super) fn more(&mut self, input: BufferRef) -> Result<Instruction, String> {
        let read = self.read(input)?;
        Ok(self.instruction(Variant::More).reading(read))
    }

    /// As [`Recorder::read`], of a vector that every block may have a copy of. True if it has.
    pub(super) fn read_or_own(&mut self, at: BufferRef) -> Result<(bool, (u32, u8)), String> {
        let local = self.hidden == Some(at);
        let read = if local { (0, 0) } else { self.read(at)? };
        Ok((local, read))
    }

    /// The commands of a run that begins at `index`. They are part of one instruction, so the ones after them come next.
    pub(super) fn take_run<const N: usize>(
        &mut self,
        run: &Run,
        index: usize,
        missing: &str,
    ) -> Result<[&'a Command; N], String> {
        let found = run.at(&self.pass.commands, index).ok_or(missing)?;
        self.next = found.end;
        let commands: Vec<&Command> = self.pass.commands[index..found.end].iter().collect();
        commands.try_into().map_err(|_| missing.to_string())
    }

    pub(super) fn embed(&mut self, index: usize, command: &Command) -> Result<(), String> {
        if self.layer_inputs(index)? {
            return Ok(());
        }
        let table = command.weights[0];
        let write = self.write(command.buffers[1])?;
        let p = params::Embed::of(&command.params);
        let embedding = variants::Embedding {
            n: p.n,
            k: p.k,
            scale: p.scale,
            features: match self.cx.program.takes_features(command) {
                true => self.cx.program.feature_width() as u32,
                false => 0,
            },
        };
        let format = self.cx.format(table);
        let instruction = self.instruction(Variant::Embed(format, embedding));
        let instruction = Instruction {
            weight: table.into(),
            ..instruction.writing(write)
        };
        self.push_unshared(index, instruction);
        Ok(())
    }

    pub(super) fn product(&mut self, index: usize, p: &Product) -> Result<(), String> {
        let shares = self.divider.divide(p.n);
        let parts = column_parts(self.cx.format(p.matrix), p.k);
        if parts == 1 {
            return self.one_product(index, p, shares);
        }
        let k = p.k / parts;
        if self.budget.is_step
            || p.kind != Output::Add
            || p.norm.is_some()
            || !p.k.is_multiple_of(64 * parts)
        {
            return Err(format!("rows of {} elements", p.k));
        }
        // A block keeps the sums of its rows until the last columns.
        let most = shares.iter().map(|share| share.rows).max();
        self.needs.held = self.needs.held.max(most.unwrap_or(0));
        for first in (0..p.k).step_by(k as usize) {
            let part = Product {
                input: BufferRef {
                    offset: p.input.offset + 4 * first,
                    ..p.input
                },
                k,
                kind: if first + k == p.k {
                    p.kind
                } else {
                    Output::Hold
                },
                columns: Some(Columns { row_k: p.k, first }),
                ..*p
            };
            self.one_product(index, &part, shares.clone())?;
        }
        Ok(())
    }

    /// A product whose rows are multiplied whole, or some of their columns.
    fn one_product(&mut self, index: usize, p: &Product, shares: Vec<Share>) -> Result<(), String> {
        let format = self.cx.format(p.matrix);
        let blocks = format.rounds_activations();
        let chunks = Chunks::of(format, p.k);
        // The bits of a product depend on the lanes, and with F16 and F32 on the rows of a slot. So both kernels have the same.
        let outputs = if blocks { MAX_OUTPUTS } else { STEP_OUTPUTS };
        let shape = self.shape(format, p, p.n, outputs)?;
        let (sets, row) = (shape.sets, shape.sets * row_bytes(format, p.k));
        let slot = slot_limit(format, self.cx.gpu.shared_per_block);
        let (local, read) = self.read_or_own(p.input)?;
        let known = self.staged;
        let flags = self.stage(format, p);
        let follows = p.kind == Output::Add && self.is_unread(p.output.buffer)?;
        let whole = match p.kind {
            Output::Hold => None,
            _ => self.exchange_after(index, p.output)?,
        };
        if whole
            .as_ref()
            .is_some_and(|whole| whole.vectors != 1 || whole.at != p.output)
        {
            return Err("an exchange into another vector than that of a product".to_string());
        }
        if matches!(p.kind, Output::Store | Output::ActMul) {
            self.set_row_width(p.output, p.stride);
        }
        let write = match p.kind {
            Output::Logits | Output::Hold => (0, 0),
            _ => self.write(p.output)?,
        };
        let (lanes, rows) = shape.arrange()?;
        let is_step = self.budget.is_step;
        let (line, lanes, rows, span) = match chunks {
            None if is_step && blocks => {
                let (rows, span) = tiles(row / sets, sets, slot, self.budget.bytes_at_once);
                (row / sets, lanes, rows, span)
            }
            None => (row / sets, lanes, rows, 1),
            Some(chunks) => {
                let (line, tile) = if is_step {
                    (chunks.bytes, TENSOR_LINES)
                } else {
                    (row / sets, TENSOR_LINES / chunks.count)
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
            output: kind,
            act,
            attended,
            local,
            bias: bias.is_some(),
            bias_at: bias.map_or(0, |(_, at)| at),
            scale,
            cap,
            span,
            chunks: chunks.map_or(0, |chunks| chunks.count),
            staged,
            partial,
            gated: p.score.is_some(),
            follows,
            gates_inputs: p.inputs.is_some(),
            exchanged: whole.is_some(),
            first_id: match p.kind {
                Output::Logits => (p.output.offset - self.logits.offset) / 4,
                _ => 0,
            },
            ..p.constants(format, lanes, rows)
        };
        let more = match p.score.or(p.inputs) {
            None => self.conv_of(index, p, &mut constants)?,
            Some(from) => Some(self.more(from)?),
        };
        let variant = self.product_variant(format, constants, slot);
        let norm = p.norm_weight();
        let added = bias.map_or(NO_WEIGHT, |(weight, _)| weight);
        let instruction = Instruction {
            flags,
            weight: p.matrix.into(),
            ..Instruction::of(variant).with([norm, added])
        };
        self.push(index, instruction.reading(read).writing(write), shares);
        if let Some(more) = more {
            self.push_unshared(index, more);
        }
        Ok(())
    }

    /// The shape of a product of `rows` rows, of which a block publishes at most `outputs` at once.
    pub(super) fn shape(
        &self,
        format: Format,
        p: &Product,
        rows: u32,
        outputs: u32,
    ) -> Result<ProductShape, String> {
        let rows = rows_of_all(self.cx.program, p.matrix, rows);
        let share = rows.div_ceil(self.usual_blocks);
        let sets = if p.kind == Output::ActMul { 2 } else { 1 };
        let row = sets * row_bytes(format, p.k);
        let slot = slot_limit(format, self.cx.gpu.shared_per_block);
        let fit = (slot / row.max(1)).clamp(1, outputs / sets);
        ProductShape::new(format, p.k, share, sets, fit)
    }

    /// Whether nothing has read a vector since it was last written. A sum that is added to it is another write.
    pub(super) fn is_unread(&mut self, buffer: BufferId) -> Result<bool, String> {
        let vector = self.vector(buffer)?;
        Ok(!std::mem::replace(&mut vector.read, true))
    }

    /// The number of a product's variant, whose slots have `slot` bytes.
    pub(super) fn product_variant(
        &mut self,
        format: Format,
        constants: variants::Product,
        slot: u32,
    ) -> u32 {
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
    pub(super) fn stage(&mut self, format: Format, p: &Product) -> u32 {
        let blocks = format.rounds_activations();
        let chunks = Chunks::of(format, p.k);
        let arrangement = match chunks {
            Some(chunks) => chunks.count,
            None if self.budget.is_step && blocks => layout::side_bytes(format),
            None => 0,
        };
        let staged = StagedInput {
            input: p.input,
            norm: p.norm_weight(),
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
    pub(super) fn staged_chunks(&self, chunks: Option<Chunks>, p: &Product) -> u32 {
        match chunks {
            None => 0,
            Some(Chunks { count: 4, .. }) if self.budget.is_step && p.norm.is_none() => 1,
            Some(chunks) => chunks.count,
        }
    }

    /// Adds a product's needs of shared memory. A slot has `slot` bytes and `rows` rows of each set.
    pub(super) fn need(
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
            let to = if self.budget.is_step {
                &mut scratchpad.row
            } else {
                &mut scratchpad.any
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
    pub(super) fn logits_scale(&self, index: usize) -> (f32, f32) {
        let next = self.pass.commands.get(index + 1);
        let next = next.filter(|c| c.op == Op::Scale && c.buffers[0].buffer == self.logits.buffer);
        let scale = next.map(|c| params::Scale::of(&c.params));
        scale.map_or((1.0, 0.0), |s| (s.scale, s.cap))
    }

    /// The bias that follows a product, or several that fill one vector together: its weights, and which of them belongs to
    /// this product's first row.
    pub(super) fn bias_of(&mut self, index: usize, p: &Product) -> Option<(WeightId, u32)> {
        let (place, command) = after_parts(self.pass, index, p)?;
        let y = command.buffers[0];
        let kinds = matches!(p.kind, Output::Store | Output::Add);
        if !kinds || command.op != Op::Bias || y.buffer != p.output.buffer {
            return None;
        }
        let at = p.place_in(y, params::Bias::of(&command.params).n)?;
        self.bias = Some(place);
        Some((command.weights[0], at))
    }

    /// The activation that follows a product, or several that fill one vector together, and their bias.
    pub(super) fn activation_of(&mut self, index: usize, p: &Product) -> Option<u32> {
        let (place, command) = after_parts(self.pass, index, p)?;
        let (place, command) = if self.bias == Some(place) {
            (place + 1, self.pass.commands.get(place + 1)?)
        } else {
            (place, command)
        };
        let y = command.buffers[0];
        if p.kind != Output::Store || command.op != Op::Act || y.buffer != p.output.buffer {
            return None;
        }
        let params::Act { act, n, .. } = params::Act::of(&command.params);
        p.place_in(y, n).filter(|_| ACTIVATIONS.contains(&act))?;
        self.activation = Some(place);
        Some(act)
    }
}
