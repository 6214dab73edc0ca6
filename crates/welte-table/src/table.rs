//! The table: commands as plain data, and the program that holds the tables of one model.

use crate::{Format, Op, Params};

/// An index into [`Program::weights`].
pub type WeightId = u32;
/// No weight in this place.
pub const NO_WEIGHT: WeightId = u32::MAX;
/// An index into [`Program::buffers`].
pub type BufferId = u32;
/// No buffer in this place.
pub const NO_BUFFER: BufferId = u32::MAX;

/// A place inside a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRef {
    /// Which buffer.
    pub buffer: BufferId,
    /// Bytes from its start.
    pub offset: u32,
}

impl BufferRef {
    /// The unused operand.
    pub const NONE: BufferRef = BufferRef {
        buffer: NO_BUFFER,
        offset: 0,
    };
}

/// What a backend that carries parameters inline must write anew for every step.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patch {
    /// Nothing changes.
    None,
    /// Which token is read from the conveyor.
    TokenOffset,
    /// The position.
    Position,
    /// The length of the context.
    KvLength,
    /// Both position and length.
    PositionAndKvLength,
    /// The conveyor's slot that is written.
    OutputSlot,
    /// Only the number of rows.
    Rows,
}

/// One operation. Fixed size, plain data, comparable; what a person reads about it is in [`Table::labels`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command {
    /// What to do.
    pub op: Op,
    /// What changes from step to step.
    pub patch: Patch,
    /// Format of the first weight (F32 where there is none).
    pub format: Format,
    /// Weights by the op's roles, then `NO_WEIGHT`.
    pub weights: [WeightId; 3],
    /// Buffers: those read, then those written, then `NONE`.
    pub buffers: [BufferRef; 4],
    /// The op's parameter struct as words.
    pub params: Params,
    /// Bytes of memory that one row's execution must move at least, without KV (weights once, activations once).
    pub bytes: u64,
    /// Floating-point operations per row, without those that grow with the context.
    pub flops: u64,
}

/// What a buffer is for; the memory plan adds up by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Model weights in the device's layout.
    Weights,
    /// Keys and values.
    Kv,
    /// Intermediates of decoding.
    ScratchDecode,
    /// Intermediates of prompts.
    ScratchPrefill,
    /// Lowered commands, page tables, step and sampling state, conveyor.
    Tables,
}

/// A buffer of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// `decode.x`, `prefill.qkv`, `kv`, `tokens`, …
    pub name: String,
    /// What it is for.
    pub class: Class,
    /// Its size.
    pub bytes: u64,
}

/// A stretch of rows of one checkpoint tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's name in the checkpoint at hand.
    pub tensor: String,
    /// First row taken.
    pub first_row: u32,
    /// Rows taken.
    pub rows: u32,
}

/// Where a weight's values come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Rows of checkpoint tensors, one part after the other. A matrix's parts all have its format; a vector's parts
    /// have whatever format the checkpoint gives them, are widened to F32, and join end to end to make `k` values.
    Parts(Vec<Part>),
    /// Values known at compile time (rope frequencies), as F32.
    Constant(Vec<f32>),
}

/// How a weight is used, so that a device can choose its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Multiplied with activations.
    Matrix,
    /// Looked up by row (a tied head is a second weight of usage `Matrix`, or the same one: `Both`).
    Lookup,
    /// Looked up and multiplied: tied embeddings.
    Both,
    /// Norm weights, biases, constants: one row of F32.
    Vector,
}

/// A weight as the commands know it.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// `layer 3 qkv`, …
    pub name: String,
    /// Format of the values; vectors are F32 here, as they are after load.
    pub format: Format,
    /// Rows (outputs).
    pub n: u32,
    /// Elements per row.
    pub k: u32,
    /// How it is used.
    pub usage: Usage,
    /// Added to every value at load (Gemma's `1 + w`).
    pub add: f32,
    /// Where it comes from.
    pub source: Source,
}

/// What a table is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One row, ends in `sample`.
    Decode,
    /// Up to so many rows, each with a sequence and position of its own; logits of all rows; no `sample`.
    Batch(u32),
    /// Up to so many rows; logits of the last live row only; no `sample`.
    Prefill(u32),
}

impl Shape {
    /// The most rows a step may have.
    pub fn rows(self) -> u32 {
        match self {
            Shape::Decode => 1,
            Shape::Batch(n) | Shape::Prefill(n) => n,
        }
    }
}

/// A compiled forward pass for one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it was compiled for.
    pub shape: Shape,
    /// The commands (hot).
    pub commands: Vec<Command>,
    /// A label per command (cold), such as `layer 3 attention`.
    pub labels: Vec<String>,
}

impl Table {
    /// From which command on only one row is live: the one after `copy_last`, which leaves the last row alone
    /// (prefill ends so: norm, head and logits of one row). `None`: all rows to the end.
    pub fn single_row_from(&self) -> Option<usize> {
        self.commands
            .iter()
            .position(|c| c.op == Op::CopyLast)
            .map(|i| i + 1)
    }

    /// The most rows that command `index` can have.
    pub fn rows_at(&self, index: usize) -> u32 {
        match self.single_row_from() {
            Some(from) if index >= from => 1,
            _ => self.shape.rows(),
        }
    }
}

impl KvLayout {
    /// Bytes of one head's keys (or values) at one position; `None` if the format's block does not divide the head.
    pub fn head_bytes(&self) -> Option<u64> {
        self.format.bytes(self.head_dim as usize).map(|b| b as u64)
    }

    /// Bytes that one position takes over all layers, keys and values.
    pub fn position_bytes(&self) -> Option<u64> {
        let heads = u64::from(self.layers)
            .checked_mul(self.kv_heads.into())?
            .checked_mul(2)?;
        heads.checked_mul(self.head_bytes()?)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> Option<u64> {
        self.position_bytes()?
            .checked_mul(self.page.into())?
            .checked_mul(self.pages.into())
    }
}

impl Class {
    /// Every class, in order.
    pub const ALL: [Class; 5] = [
        Class::Weights,
        Class::Kv,
        Class::ScratchDecode,
        Class::ScratchPrefill,
        Class::Tables,
    ];

    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Weights => "weights",
            Class::Kv => "kv",
            Class::ScratchDecode => "scratch decode",
            Class::ScratchPrefill => "scratch prefill",
            Class::Tables => "tables",
        }
    }
}

impl Patch {
    /// Every kind, in order.
    pub const ALL: [Patch; 7] = [
        Patch::None,
        Patch::TokenOffset,
        Patch::Position,
        Patch::KvLength,
        Patch::PositionAndKvLength,
        Patch::OutputSlot,
        Patch::Rows,
    ];

    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            Patch::None => "none",
            Patch::TokenOffset => "token_offset",
            Patch::Position => "position",
            Patch::KvLength => "kv_length",
            Patch::PositionAndKvLength => "position_and_kv_length",
            Patch::OutputSlot => "output_slot",
            Patch::Rows => "rows",
        }
    }
}

impl Shape {
    /// `decode`, `batch` or `prefill`.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Decode => "decode",
            Shape::Batch(_) => "batch",
            Shape::Prefill(_) => "prefill",
        }
    }
}

/// How the KV cache is laid out: `[layer][k or v][page][kv head][position in page][head dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// `F16` or `Q8_0`.
    pub format: Format,
    /// Layers.
    pub layers: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Positions in a page.
    pub page: u32,
    /// Pages per layer, over all sequences.
    pub pages: u32,
    /// Sequences that may exist.
    pub sequences: u32,
    /// The most positions one sequence may have.
    pub context: u32,
}

/// Everything a device needs: weights, buffers, and one table per shape, over the same buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Weights.
    pub weights: Vec<WeightSpec>,
    /// Buffers.
    pub buffers: Vec<BufferSpec>,
    /// KV cache.
    pub kv: KvLayout,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// The buffer of token ids: the conveyor.
    pub tokens: BufferId,
    /// The tables, decode first.
    pub tables: Vec<Table>,
}

/// One row in flight.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Row {
    /// The token to read.
    pub token: u32,
    /// Its position.
    pub position: u32,
    /// The sequence it belongs to.
    pub sequence: u32,
}

/// How the next token is chosen; part of the step state, plain data. The order is: bias, penalties, temperature,
/// top-k, top-p, min-p, then Gumbel-max with noise keyed by (seed, position of the new token, vocabulary index).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 is none.
    pub repeat_penalty: f32,
    /// 0 is none.
    pub frequency_penalty: f32,
    /// 0 is none.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 none.
    pub penalty_last_n: u32,
    /// Key of the noise.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}
