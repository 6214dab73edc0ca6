//! The decode table for the persistent kernel (`kernels/persistent.cu`): the same commands, lowered to instructions that
//! the kernel reads from device memory, and to the constants that it is compiled with.

mod examples;
mod rows;
mod share;
mod source;

pub(crate) use rows::{record_rows, takes};
pub(crate) use share::Share;
pub(crate) use source::{KINDS, Work};

use crate::launch::Unit;
use crate::load::Placed;
use crate::ops::sample::{shared_bytes, slice};
use crate::{GpuInfo, layout};
pub(crate) use examples::catalogue;
use share::Dealer;
use source::{Case, Variants};
use std::collections::BTreeMap;
use welte_table::{
    BufferId, BufferRef, Command, Format, NO_WEIGHT, Op, Program, Table, WeightId, params,
};

/// Warps that multiply (`WARPS`).
const WARPS: u32 = 8;
/// Blocks of 32, or runs of 8 floats, of a row that a lane multiplies: what it multiplies with stays in registers.
const MOST_BLOCKS: u32 = 10;
const MOST_EIGHTS: u32 = 14;
/// The oldest architecture with bulk copies.
const OLDEST: u32 = 90;
/// Rows whose results may wait to be handed on, twice (`OUTPUTS`): no more than this, and as many as a block has of one
/// product where that is less.
const OUTPUTS: u32 = 256;
/// The most slots in the ring. Half of them may usually be on their way and tuning may add a few, but never so many as there are: a
/// slot's barrier must not be used again before its copies are there.
pub(crate) const SLOTS: u32 = 32;
/// Bytes of a slot, where a row is not larger.
const SLOT: u32 = 24 << 10;
/// No slot takes more than such a part of a block's shared memory, where a row is not larger: the ring wants several.
const SLOTS_AND_REST: u32 = 9;
/// The same of floats: two of them on their way are about what the memory wants.
const SLOT_OF_FLOATS: u32 = 20 << 10;
/// Bytes that may be on their way to a block, or two slots; tuning may choose others.
const IN_FLIGHT: u32 = 48 << 10;
/// Lines of a tile (`persistent/tile.cuh`).
const TILE: u32 = 8;
/// Pages of a sequence that there is room for at least.
const FEWEST_PAGES: u32 = 512;
/// The longest context that is not split: as much as all warps together have on their way before the queries are there.
const SOLO: u32 = 128;
/// Elements of a split's keys, as long as there are blocks for so many splits. The fewer they are, the less stands in the way of the
/// queries when these are asked for.
const RUN: u32 = 4096;
/// The most splits of a context; two for each lane are added up.
const SPLITS: u32 = 64;
/// Elements that a job of attention finds at most: its queries times their elements.
const MOST_FOUND: u32 = 1024;
/// Bytes of `Sync` and `Fault`, and where they begin in the block of memory that is cleared before a launch.
pub(crate) const SYNC_BYTES: u64 = 64;
pub(crate) const FAULT_BYTES: u64 = 32;

/// Words of `Instruction` of `persistent/block.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) variant: u32,
    pub(crate) layer: u32,
    /// Floats of the exchange where input and output begin.
    pub(crate) input: u32,
    pub(crate) output: u32,
    /// How often the input's vector was written in this turn, and is written in a whole one; then the output's.
    pub(crate) counts: [u8; 4],
    pub(crate) flags: u32,
    /// Addresses; until [`Roll::place`] the weights' numbers. A product's vectors are its norm and its bias.
    pub(crate) weight: u64,
    pub(crate) vectors: [u64; 2],
}

/// `REUSES_INPUT`.
const REUSES_INPUT: u32 = 1;

/// A decode table for the persistent kernel, for one row and whole chains, or for a step of several.
#[derive(Clone, Debug)]
pub(crate) struct Roll {
    pub(crate) unit: Unit,
    /// The kernel's name.
    pub(crate) function: &'static str,
    /// Rows of a step at most.
    pub(crate) rows: u32,
    /// Blocks of the launch: one per multiprocessor, or as many as every product has rows.
    pub(crate) blocks: u32,
    /// Threads of a block: the consumers, the streaming warp and the clerk (`LAUNCHED`).
    pub(crate) threads: u32,
    /// Bytes of shared memory.
    pub(crate) shared: u32,
    pub(crate) program: Vec<Instruction>,
    /// Which command of the table each instruction is.
    pub(crate) commands: Vec<usize>,
    /// `[block][instruction]`.
    pub(crate) shares: Vec<Share>,
    pub(crate) work: Work,
    /// Slots that may usually be on their way, by kind of instruction; 0 for what streams nothing.
    pub(crate) ahead: [u8; KINDS],
    /// Floats that blocks exchange, for each row.
    pub(crate) exchange: u32,
    /// Where the logits are.
    pub(crate) logits: BufferRef,
    /// Addresses of the ropes' frequencies; until [`Roll::place`] the weights' numbers.
    pub(crate) freqs: [u64; 4],
}

/// Where a vector of activations lies in the exchange, and which write of it was the last.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    start: u32,
    writes: u32,
    /// Read since it was written.
    read: bool,
}

/// What recording reads.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
}

impl Inputs<'_> {
    fn format(&self, id: WeightId) -> Format {
        let spec = self.program.weights.get(id as usize);
        spec.map_or(Format::F32, |w| w.format)
    }
}

struct Recorder<'a> {
    cx: &'a Inputs<'a>,
    table: &'a Table,
    room: Room,
    blocks: u32,
    vectors: BTreeMap<BufferId, Vector>,
    exchange: u32,
    /// A norm that the next products take along: where its output would be, its input, weights and epsilon.
    norm: Option<(BufferRef, BufferRef, WeightId, f32)>,
    /// What was staged last: input, norm weights, whether for blocks or floats, elements per row, and what else tells
    /// ways of staging apart.
    staged: Option<(BufferRef, WeightId, bool, u32, u32)>,
    logits: BufferRef,
    variants: Variants,
    dealer: Dealer,
    program: Vec<Instruction>,
    commands: Vec<usize>,
    dealt: Vec<Vec<Share>>,
    ahead: [u8; KINDS],
    freqs: Vec<WeightId>,
    angles: u32,
    rope: Option<usize>,
    /// The bias that the products before it have taken along.
    bias: Option<usize>,
}

/// What rows of a step and rows of a matrix there is room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Of a step.
    rows: u32,
    /// Rows of the matrix whose results may wait to be handed on, for each row of the step.
    outputs: u32,
    /// Bytes of the ring that are gone through together at most, where a step has several rows.
    together: u32,
}

/// For chains.
pub(crate) const ONE_ROW: Room = Room {
    rows: 1,
    outputs: OUTPUTS,
    together: 0,
};

/// A product as the kernel sees it.
struct Product {
    matrix: WeightId,
    input: BufferRef,
    output: BufferRef,
    norm: Option<(WeightId, f32)>,
    kind: &'static str,
    act: u32,
    n: u32,
    k: u32,
}

/// Whether a GPU has what the kernel is made of; the error says what it lacks.
pub(crate) fn possible(gpu: &GpuInfo) -> Result<(), String> {
    if gpu.arch >= OLDEST {
        return Ok(());
    }
    Err(format!(
        "it needs compute capability {}.{}, this GPU has {}.{}",
        OLDEST / 10,
        OLDEST % 10,
        gpu.arch / 10,
        gpu.arch % 10
    ))
}

/// Records a decode table for steps of so many rows. The error says, in a few words, why the persistent kernel cannot take it.
pub(crate) fn record(cx: &Inputs<'_>, table: &Table, room: Room) -> Result<Roll, String> {
    let gpu = cx.gpu;
    possible(gpu)?;
    if cx.program.kv.format != Format::F16 {
        return Err(format!("a KV cache in {}", cx.program.kv.format.name()));
    }
    let last = table.commands.last().filter(|c| c.op == Op::Sample);
    let sample = last.ok_or("its table does not end in a sample")?;
    let rows = table.commands.iter().filter_map(rows_of).min();
    let mut recorder = Recorder {
        cx,
        table,
        room,
        blocks: rows.unwrap_or(1).min(gpu.sms).max(1),
        vectors: BTreeMap::new(),
        exchange: 0,
        norm: None,
        staged: None,
        logits: sample.buffers[0],
        variants: Variants::default(),
        dealer: Dealer::default(),
        program: Vec::new(),
        commands: Vec::new(),
        dealt: Vec::new(),
        ahead: [0; KINDS],
        freqs: Vec::new(),
        angles: 0,
        rope: None,
        bias: None,
    };
    recorder.dealer = Dealer::new(recorder.blocks);
    for (index, command) in table.commands.iter().enumerate() {
        recorder
            .command(index, command)
            .map_err(|why| format!("{}: {why}", table.labels[index]))?;
    }
    recorder.finish(gpu)
}

/// Rows that blocks share out.
fn rows_of(command: &Command) -> Option<u32> {
    let words = &command.params;
    match command.op {
        Op::Matmul => Some(params::Matmul::of(words).n),
        Op::MatmulAdd => Some(params::MatmulAdd::of(words).n),
        Op::NormMatmul => Some(params::NormMatmul::of(words).n),
        Op::NormMatmulActMul => Some(params::NormMatmulActMul::of(words).n),
        _ => None,
    }
}

impl Recorder<'_> {
    fn command(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let words = &command.params;
        let [first, second, ..] = command.buffers;
        let [matrix, vector, ..] = command.weights;
        if self.rope.is_some() && command.op != Op::Attention {
            return Err("no attention follows the append".to_string());
        }
        let norm = |eps: f32| (vector != NO_WEIGHT).then_some((vector, eps));
        let product = match command.op {
            Op::Embed => return self.embed(index, command),
            Op::Norm => {
                let p = params::Norm::of(words);
                if p.groups != 1 || first == second {
                    return Err("a norm that no product follows".to_string());
                }
                self.norm = Some((second, first, matrix, p.eps));
                return Ok(());
            }
            Op::Matmul => {
                let p = params::Matmul::of(words);
                let (input, norm) = match self.norm {
                    Some((place, from, weight, eps)) if place == first => {
                        (from, Some((weight, eps)))
                    }
                    _ => (first, None),
                };
                Product {
                    matrix,
                    input,
                    output: second,
                    norm,
                    kind: "STORE",
                    act: 0,
                    n: p.n,
                    k: p.k,
                }
            }
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(words);
                Product {
                    matrix,
                    input: first,
                    output: second,
                    norm: None,
                    kind: "ADD",
                    act: 0,
                    n: p.n,
                    k: p.k,
                }
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(words);
                let logits = second.buffer == self.logits.buffer;
                Product {
                    matrix,
                    input: first,
                    output: second,
                    norm: norm(p.eps),
                    kind: if logits { "LOGITS" } else { "STORE" },
                    act: 0,
                    n: p.n,
                    k: p.k,
                }
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(words);
                Product {
                    matrix,
                    input: first,
                    output: second,
                    norm: norm(p.eps),
                    kind: "ACT_MUL",
                    act: p.act,
                    n: p.n,
                    k: p.k,
                }
            }
            // The products before it have taken it along.
            Op::Bias if self.bias == Some(index) => return Ok(()),
            Op::RopeAppend => {
                self.rope = Some(index);
                return Ok(());
            }
            Op::Attention => return self.attention(index, command),
            // The head takes it along.
            Op::Scale if command.buffers[0] == self.logits => return Ok(()),
            Op::Sample => return Ok(()),
            op => return Err(format!("{} is not among its instructions", op.name())),
        };
        self.product(index, command, &product)
    }

    /// The vector of a buffer, made room for when it is first seen.
    fn vector(&mut self, buffer: BufferId) -> Result<&mut Vector, String> {
        if !self.vectors.contains_key(&buffer) {
            let spec = self.cx.program.buffers.get(buffer as usize);
            let floats = spec.map_or(0, |b| b.bytes / 4);
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
            self.vectors.insert(buffer, vector);
        }
        self.vectors
            .get_mut(&buffer)
            .ok_or_else(|| "no such vector".to_string())
    }

    /// Where a vector is read from, and which write is waited for.
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

    /// Where a vector is written, and which write it is: parts that are written without a reading between belong to one.
    fn write(&mut self, at: BufferRef) -> Result<(u32, u8), String> {
        let vector = self.vector(at.buffer)?;
        if vector.read {
            vector.writes += 1;
            vector.read = false;
        }
        let writes = u8::try_from(vector.writes).map_err(|_| "too many layers")?;
        Ok((vector.start + at.offset / 4, writes))
    }

    fn push(&mut self, index: usize, instruction: Instruction, shares: Vec<Share>) {
        self.program.push(instruction);
        self.commands.push(index);
        self.dealt.push(shares);
    }

    fn no_share(&self) -> Vec<Share> {
        vec![Share { first: 0, rows: 0 }; self.blocks as usize]
    }

    fn embed(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let table = command.weights[0];
        let (output, writes) = self.write(command.buffers[1])?;
        let mut fields = source::constants(command, &[]);
        fields += "static constexpr u32 output = STORE, rows = 0;";
        let variant = self
            .variants
            .add(Case::Embed, self.cx.format(table), &fields);
        let shares = self.no_share();
        let instruction = Instruction {
            variant,
            layer: 0,
            input: 0,
            output,
            counts: [0, 0, writes, 0],
            flags: 0,
            weight: table.into(),
            vectors: [NO_WEIGHT.into(); 2],
        };
        self.push(index, instruction, shares);
        Ok(())
    }

    fn product(&mut self, index: usize, command: &Command, p: &Product) -> Result<(), String> {
        let format = self.cx.format(p.matrix);
        let blocks = format.rounds_activations();
        let unit = if blocks { 32 } else { 8 };
        if !p.k.is_multiple_of(unit) {
            return Err(format!("rows of {} elements", p.k));
        }
        let norm = p.norm.map_or(NO_WEIGHT, |(weight, _)| weight);
        let (input, reads) = self.read(p.input)?;
        // Steps of several rows keep more of blocks whose halves have scales of their own, and floats that are multiplied in
        // tiles otherwise than others.
        let halves = matches!(format, Format::Q2_K | Format::Q3_K | Format::Q6_K);
        let side = if halves { 16 } else { 8 };
        let alike = match (self.room.rows, blocks) {
            (1, _) => 0,
            (_, true) => side,
            (_, false) => u32::from(has_tiles(format)),
        };
        let staged = (p.input, norm, blocks, p.k, alike);
        let flags = if self.staged == Some(staged) {
            REUSES_INPUT
        } else {
            0
        };
        self.staged = Some(staged);
        let (output, writes) = match p.kind {
            "LOGITS" => (0, 0),
            _ => self.write(p.output)?,
        };
        let sets = if p.kind == "ACT_MUL" { 2 } else { 1 };
        let row = sets * row_bytes(format, p.k);
        let slot = if blocks { SLOT } else { SLOT_OF_FLOATS };
        let slot = slot.min(self.cx.gpu.shared_per_block / SLOTS_AND_REST);
        let shape = Shape {
            units: p.k / unit,
            share: p.n.div_ceil(self.blocks),
            sets,
            fit: (slot / row.max(1)).clamp(1, self.room.outputs / sets),
            most_rounds: if blocks { MOST_BLOCKS } else { MOST_EIGHTS },
        };
        let (lanes, rows, span) = if self.room.rows > 1 && has_tiles(format) {
            let (rows, span) = tiles(row / sets, sets, slot, self.room.together);
            // Four lanes have a line.
            (4, rows, span)
        } else {
            let (lanes, rows) = shape
                .arrange()
                .ok_or_else(|| format!("rows of {} elements", p.k))?;
            (lanes, rows, 1)
        };
        self.variants.slot = self.variants.slot.max(rows * row);
        self.variants.span = self.variants.span.max(span);
        let at_once = match p.kind {
            "LOGITS" => rows * span,
            _ => shape.share.next_multiple_of(rows * span),
        };
        let outputs = (sets * at_once).min(self.room.outputs);
        self.variants.outputs = self.variants.outputs.max(outputs);
        let units = shape.units.div_ceil(WARPS);
        let work = &mut self.variants.work;
        match (self.room.rows, blocks) {
            (1, true) => work.any = work.any.max(WARPS * units * 48),
            (1, false) => work.any = work.any.max(WARPS * units * 32),
            (_, true) => work.pair = work.pair.max(WARPS * staged_bytes(units, 64 + 2 * side)),
            (_, false) => work.row = work.row.max(WARPS * staged_bytes(units, 32)),
        }
        let mut fields = source::constants(command, &["eps", "act"]);
        let eps = p.norm.map_or(0.0, |(_, eps)| eps);
        fields += &format!(
            "static constexpr u32 output = {}, act = {}, lanes = {lanes}, rows = {rows}; static constexpr bool norm = {}; static constexpr float eps = {eps:?}f;",
            p.kind,
            p.act,
            p.norm.is_some()
        );
        if self.room.rows > 1 {
            fields += &format!("static constexpr u32 span = {span}, side = {side};");
        }
        let bias = self.bias_of(index, p);
        let (added, bias_at) = bias.unwrap_or((NO_WEIGHT, 0));
        let last = self.commands.last().map(|last| &self.table.commands[*last]);
        let attended = last.is_some_and(|c| c.op == Op::Attention && c.buffers[2] == p.input);
        fields += &format!(
            "static constexpr bool attended = {attended}, bias = {}; static constexpr u32 bias_at = {bias_at};",
            bias.is_some()
        );
        if p.kind == "LOGITS" {
            let next = self.table.commands.get(index + 1);
            let next = next.filter(|c| c.op == Op::Scale && c.buffers[0] == self.logits);
            let s = next.map(|c| params::Scale::of(&c.params));
            let (scale, cap) = s.map_or((1.0, 0.0), |s| (s.scale, s.cap));
            fields += &format!("static constexpr float scale = {scale:?}f, cap = {cap:?}f;");
        }
        let case = if p.kind == "LOGITS" {
            Case::Logits
        } else {
            Case::Product
        };
        let variant = self.variants.add(case, format, &fields);
        let ahead = (IN_FLIGHT / (rows * row)).clamp(2, SLOTS / 2) as u8;
        let usual = &mut self.ahead[source::kind(variant)];
        // Several variants may count as one kind.
        *usual = if *usual == 0 {
            ahead
        } else {
            ahead.min(*usual)
        };
        let shares = self.dealer.deal(p.n);
        let instruction = Instruction {
            variant,
            layer: 0,
            input,
            output,
            counts: [reads, 0, writes, 0],
            flags,
            weight: p.matrix.into(),
            vectors: [norm.into(), added.into()],
        };
        self.push(index, instruction, shares);
        Ok(())
    }

    /// The bias that follows a product, or several that fill one vector together: its weights, and which of them belongs to
    /// this product's first row.
    fn bias_of(&mut self, index: usize, p: &Product) -> Option<(WeightId, u32)> {
        let mut rest = self.table.commands.iter().enumerate().skip(index + 1);
        let (place, command) = rest.find(|(_, c)| {
            let fills = matches!(c.op, Op::Matmul | Op::NormMatmul);
            !(fills && c.buffers[1].buffer == p.output.buffer)
        })?;
        let y = command.buffers[0];
        if p.kind != "STORE" || command.op != Op::Bias || y.buffer != p.output.buffer {
            return None;
        }
        let at = p.output.offset.checked_sub(y.offset)? / 4;
        let all = at.checked_add(p.n)? <= params::Bias::of(&command.params).n;
        all.then(|| {
            self.bias = Some(place);
            (command.weights[0], at)
        })
    }

    fn attention(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let rope = self.rope.take().ok_or("attention without rope")?;
        let turned = &self.table.commands[rope];
        let r = params::RopeAppend::of(&turned.params);
        let a = params::Attention::of(&command.params);
        let [qkv, _, out, _] = command.buffers;
        if turned.buffers[0] != qkv || r.layer != a.layer || r.heads != a.heads {
            return Err("attention over something else than what was appended".to_string());
        }
        let parts = Parts::of(&a, r.rot, self.blocks)?;
        let freqs = turned.weights[0];
        let which = match self.freqs.iter().position(|known| *known == freqs) {
            Some(which) => which,
            None => {
                self.freqs.push(freqs);
                self.angles += r.rot / 2;
                self.freqs.len() - 1
            }
        };
        if which >= 4 {
            return Err("more than four ropes".to_string());
        }
        // Ropes of one model have the same width.
        let angles = which as u32 * (r.rot / 2);
        let (input, reads) = self.read(qkv)?;
        let (output, writes) = self.write(out)?;
        let mut fields = source::constants(turned, &["layer"]);
        fields += &source::constants(command, &["layer", "heads", "kv_heads", "head_dim"]);
        let (nth, of, before) = self.kind(index);
        // The room for what splits found is the end of the exchange, which is known last. Each kind of attention has its own:
        // a context cut off by a window may need fewer splits than another, and what it leaves out would look fresh.
        let found = a.heads * parts.splits * (a.head_dim + 4);
        fields += &format!(
            "static constexpr u32 angles = {angles}, partial = PARTIAL + {}, solo = {SOLO}, run = {}, splits = {}, queries = {}, units = {};",
            before * found,
            RUN / a.head_dim,
            parts.splits,
            parts.queries,
            parts.units
        );
        self.variants.partial = self.variants.partial.max((before + 1) * found);
        let work = &mut self.variants.work;
        work.any = work.any.max(parts.work);
        let variant = self.variants.add(Case::Attention, Format::F32, &fields);
        self.variants.fill(which, variant);
        let instruction = Instruction {
            variant,
            layer: a.layer,
            input,
            output,
            counts: [reads, 0, writes, 0],
            flags: of << 16 | nth,
            weight: NO_WEIGHT.into(),
            vectors: [turned.weights[1].into(), turned.weights[2].into()],
        };
        let shares = self.no_share();
        self.staged = None;
        self.push(index, instruction, shares);
        Ok(())
    }

    /// Of attention with the same parameters: which one this is, counted from 1, and how many there are; and how many other
    /// kinds came before.
    fn kind(&self, index: usize) -> (u32, u32, u32) {
        let commands = self.table.commands.windows(2).enumerate();
        let kinds = commands.filter(|(_, pair)| pair[1].op == Op::Attention);
        let kinds = kinds.map(|(i, pair)| {
            let mut a = params::Attention::of(&pair[1].params);
            let mut r = params::RopeAppend::of(&pair[0].params);
            (a.layer, r.layer) = (0, 0);
            (i + 1, (a.words(), r.words(), pair[0].weights[0]))
        });
        let kinds: Vec<_> = kinds.collect();
        let mut before = Vec::new();
        let Some((_, mine)) = kinds.iter().find(|(i, _)| *i == index) else {
            return (1, 1, 0);
        };
        for (_, kind) in kinds.iter().take_while(|(_, kind)| kind != mine) {
            if !before.contains(&kind) {
                before.push(kind);
            }
        }
        let same = || kinds.iter().filter(|(_, kind)| kind == mine);
        let nth = same().filter(|(i, _)| *i <= index).count();
        (nth as u32, same().count() as u32, before.len() as u32)
    }

    fn finish(mut self, gpu: &GpuInfo) -> Result<Roll, String> {
        // Now it is known how often a vector is written in a turn.
        let per_turn: BTreeMap<u32, u8> = self
            .vectors
            .values()
            .map(|v| (v.start, v.writes as u8))
            .collect();
        let of = |at: u32| per_turn.range(..=at).next_back().map_or(0, |(_, n)| *n);
        for instruction in &mut self.program {
            instruction.counts[1] = of(instruction.input);
            instruction.counts[3] = of(instruction.output);
        }
        if self.variants.affine.len() > source::AFFINE.len() {
            return Err("more than four kinds of MLX's formats".to_string());
        }
        let program = self.cx.program;
        let partial = self.exchange;
        let exchange = (partial + self.variants.partial).next_multiple_of(4);
        let rows = self.room.rows;
        let mut work = self.variants.work;
        if rows == 1 {
            // Those of several rows choose no token.
            let slice = slice(program.vocab, self.blocks);
            let sampling = u32::try_from(shared_bytes(slice)).map_err(|_| "its vocabulary")?;
            work.any = work.any.max(sampling);
        }
        let slot = self.variants.slot.next_multiple_of(128);
        let outputs = self.variants.outputs.next_multiple_of(32);
        let count = self.program.len() as u32;
        // A kernel is for contexts of up to so many pages: few sizes, so that few are compiled.
        let pages = crate::lower::pages_per_sequence(program);
        let pages = pages.max(FEWEST_PAGES).next_power_of_two();
        // Everything of `Shared` but workplace and ring; two barriers per slot, and what alignment takes.
        let fixed = SLOTS * 16
            + count * (size_of::<Instruction>() + size_of::<Share>()) as u32
            + (256 + 64) * 4
            + pages * 4
            + rows * (self.angles.max(1) * 8 + (outputs + 1) * 2 * WARPS * 4 + 12)
            + 512;
        let room = gpu.shared_per_block.saturating_sub(fixed) / 128 * 128;
        // The fewer rows, the longer the ring. A slot that does not fit its end leaves that empty.
        let ring = room.saturating_sub(work.of(rows));
        if ring < slot * 3.max(self.variants.span + 1) {
            return Err(format!(
                "its rows need {slot} bytes of shared memory each and {} more, of {}",
                fixed + work.of(rows),
                gpu.shared_per_block
            ));
        }
        let workplace = if rows == 1 { work.of(1) } else { room };
        let mut defines = vec![
            ("WARPS", WARPS.to_string()),
            ("SLOTS", SLOTS.to_string()),
            ("RING_BYTES", ring.to_string()),
            ("KINDS", KINDS.to_string()),
            ("WORK_BYTES", workplace.to_string()),
            ("OUTPUTS", outputs.to_string()),
            ("INSTRUCTIONS", count.to_string()),
            ("MOST_PAGES", pages.to_string()),
            ("ANGLES", self.angles.max(1).to_string()),
            ("SHARED_BYTES", gpu.shared_per_block.to_string()),
            ("HEAD_DIM", program.kv.head_dim.to_string()),
            ("PAGE", program.kv.page.to_string()),
            ("KV_Q8", "0".to_string()),
            ("PARTIAL", partial.to_string()),
        ];
        if rows > 1 {
            defines.push(("STEP_ROWS", rows.to_string()));
            defines.push(("EXCHANGED", exchange.to_string()));
        }
        let (file, function) = match rows {
            1 => ("persistent.cu", "persistent"),
            _ => ("persistent_rows.cu", "persistent_rows"),
        };
        defines.extend(self.variants.defines());
        let blocks = self.blocks as usize;
        let shares = (0..blocks).flat_map(|block| self.dealt.iter().map(move |s| s[block]));
        let mut freqs = [NO_WEIGHT.into(); 4];
        for (place, id) in freqs.iter_mut().zip(&self.freqs) {
            *place = (*id).into();
        }
        Ok(Roll {
            unit: Unit { file, defines },
            function,
            rows,
            blocks: self.blocks,
            threads: (WARPS + 2) * 32,
            shared: gpu.shared_per_block,
            shares: shares.collect(),
            program: self.program,
            commands: self.commands,
            work,
            ahead: self.ahead,
            exchange,
            logits: self.logits,
            freqs,
        })
    }
}

/// How attention is shared out.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Queries of a job, and jobs that share a head of keys.
    queries: u32,
    units: u32,
    /// The most splits.
    splits: u32,
    /// Bytes that a job works in: `Desk` of `persistent/attend.cuh`.
    work: u32,
}

impl Parts {
    fn of(a: &params::Attention, rot: u32, blocks: u32) -> Result<Parts, String> {
        if !a.heads.is_multiple_of(a.kv_heads.max(1))
            || !a.head_dim.is_multiple_of(16)
            || !(16..=256).contains(&a.head_dim)
        {
            return Err(format!("heads of {} elements", a.head_dim));
        }
        if !rot.is_multiple_of(4) || rot > a.head_dim {
            return Err(format!("a rope of {rot} elements"));
        }
        let group = a.heads / a.kv_heads.max(1);
        let most = (MOST_FOUND / a.head_dim).clamp(1, 8);
        let units = group.div_ceil(most);
        let queries = group.div_ceil(units);
        // A product has room for eight queries: as many jobs as that leaves, not one more.
        let units = group.div_ceil(queries);
        let splits = (blocks / (a.kv_heads * units)).clamp(1, SPLITS);
        let work = queries * (a.head_dim * 4 + 16)
            + 4 * a.head_dim
            + WARPS * queries * (a.head_dim + 4) * 4
            + queries * 2 * WARPS * 4;
        Ok(Parts {
            queries,
            units,
            splits,
            work,
        })
    }
}

/// Bytes of a row over all planes.
fn row_bytes(format: Format, k: u32) -> u32 {
    let planes = layout::planes(format).iter();
    planes.map(|plane| plane.stride(k) as u32).sum()
}

/// Bytes of a warp's slice of one row or of two (`SLICE` of `persistent/tile.cuh`).
fn staged_bytes(units: u32, unit: u32) -> u32 {
    (units.next_multiple_of(4) * unit + 63) / 128 * 128 + 64
}

/// Whether weights of a format are multiplied with several rows in tiles (`persistent/tile.cuh`).
fn has_tiles(format: Format) -> bool {
    format.rounds_activations() || format == Format::BF16
}

/// Rows (of each set) of a slot, and slots that are gone through together: a tile's lines, of so many bytes each, unless those
/// are more than `together`.
fn tiles(line: u32, sets: u32, slot: u32, together: u32) -> (u32, u32) {
    let fitting = |bytes: u32| {
        let lines = [2 * TILE, TILE, 4, 2].into_iter();
        lines.filter(move |lines| lines * line <= bytes).max()
    };
    let lines = fitting(slot).unwrap_or(1).max(sets);
    let all = fitting(together).unwrap_or(1).min(TILE);
    (lines / sets, (all / lines).max(1))
}

/// What a product's arrangement within a block depends on (`persistent/part.cuh`).
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Of a row: runs of neighbouring elements that one lane takes.
    units: u32,
    /// Rows of a block.
    share: u32,
    /// Matrices whose rows come in pairs.
    sets: u32,
    /// Rows (of each set) that fit a slot and can be handed on together.
    fit: u32,
    /// What a lane multiplies with has to stay in registers.
    most_rounds: u32,
}

impl Shape {
    /// Lanes that share a row's slice and rows of a slot: those with the least work for a warp. Nothing: rows are too long.
    fn arrange(&self) -> Option<(u32, u32)> {
        let slots = (1..=self.fit.min(self.share.max(1))).rev();
        let all = slots.flat_map(|rows| [2, 4, 8, 16, 32].map(|lanes| (lanes, rows)));
        // Two only where four would have one unit each: of longer rows they read more from the same banks.
        let fitting = all.filter(|(lanes, _)| {
            self.rounds(*lanes) <= self.most_rounds && (*lanes > 2 || self.rounds(4) == 1)
        });
        fitting.min_by_key(|(lanes, rows)| self.work(*lanes, *rows))
    }

    fn rounds(&self, lanes: u32) -> u32 {
        self.units.div_ceil(WARPS).div_ceil(lanes)
    }

    /// A warp's work on a block's rows, in tenths of a round: a pass over rows ends with a sum over lanes, a slot has to be
    /// waited for and given back.
    fn work(&self, lanes: u32, rows: u32) -> u32 {
        let at_once = 32 / lanes;
        let pass = 10 * self.rounds(lanes) + 4;
        let slot = |rows: u32, lines: u32| {
            if rows == 0 {
                0
            } else {
                lines.div_ceil(at_once) * pass + 10
            }
        };
        let (full, rest) = (self.share / rows, self.share % rows);
        // Of pairs, a slot that is not full is gone through as if it were.
        let last = if self.sets == 1 {
            rest
        } else {
            self.sets * rows
        };
        full * slot(rows, self.sets * rows) + slot(rest, last)
    }
}

/// Where things lie in the memory that the kernel takes besides the plan's buffers: what is cleared before a launch, then
/// program and shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) fault: u64,
    pub(crate) exchange: u64,
    pub(crate) program: u64,
    pub(crate) shares: u64,
    pub(crate) bytes: u64,
}

impl Roll {
    /// Puts the addresses of the weights, which are known at load, where their numbers are; 0 for none.
    pub(crate) fn place(&mut self, weights: &[Placed]) {
        let put = |id: &mut u64| {
            let known = usize::try_from(*id).ok().and_then(|id| weights.get(id));
            *id = known.map_or(0, |weight| weight.start);
        };
        for instruction in &mut self.program {
            put(&mut instruction.weight);
            instruction.vectors.iter_mut().for_each(put);
        }
        self.freqs.iter_mut().for_each(put);
    }

    /// The same kernel with clocks.
    pub(crate) fn timed_unit(&self) -> Unit {
        let mut unit = self.unit.clone();
        unit.defines.push(("TIMELINE", "1".to_string()));
        unit
    }

    pub(crate) fn memory(&self) -> Memory {
        let fault = SYNC_BYTES;
        let exchange = (fault + FAULT_BYTES).next_multiple_of(256);
        let program = exchange + u64::from(self.exchange) * 4 * u64::from(self.rows);
        let shares = program + size_of_val(&self.program[..]) as u64;
        Memory {
            fault,
            exchange,
            program,
            shares,
            bytes: shares + size_of_val(&self.shares[..]) as u64,
        }
    }
}
