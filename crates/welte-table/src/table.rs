//! The table: commands as plain data, and the program that holds the tables of one model.

use crate::{Access, Adapters, Extent, Format, Op, Params, accesses};
use std::ops::Range;

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

/// One operation. Fixed size, plain data, comparable; its label for people is in [`Pass::labels`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command {
    /// What to do.
    pub op: Op,
    /// Its part of the model.
    pub part: ModelPart,
    /// Its layer, counted from 0; `None` before and after the layers.
    pub layer: Option<u32>,
    /// Format of the first weight (F32 where there is none).
    pub format: Format,
    /// Weights by the op's roles, then `NO_WEIGHT`.
    pub weights: [WeightId; 3],
    /// Buffers: those read, then those written, then `NONE`.
    pub buffers: [BufferRef; 4],
    /// The op's parameter struct as words.
    pub params: Params,
    /// Bytes of memory that one row must move at least: weights once, activations once, caches left out.
    pub bytes: u64,
    /// Floating-point operations per row, without those that grow with the context.
    pub flops: u64,
}

impl Command {
    /// A command outside the layers whose costs are not known yet (`cost::fill`). Operands that are not given stay unused.
    pub fn new(
        op: Op,
        format: Format,
        weights: &[WeightId],
        buffers: &[BufferRef],
        params: Params,
    ) -> Command {
        let mut command = Command {
            op,
            part: ModelPart::Other,
            layer: None,
            format,
            weights: [NO_WEIGHT; 3],
            buffers: [BufferRef::NONE; 4],
            params,
            bytes: 0,
            flops: 0,
        };
        command.weights[..weights.len()].copy_from_slice(weights);
        command.buffers[..buffers.len()].copy_from_slice(buffers);
        command
    }

    /// The parameter of that name, if the op has one.
    pub fn word(&self, name: &str) -> Option<u32> {
        let at = self.op.params().iter().position(|param| *param == name)?;
        Some(self.params[at])
    }
}

/// The part of a model that a command belongs to.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelPart {
    /// From tokens to the first hidden vector.
    Embedding,
    /// Attention, with its projections.
    Attention,
    /// A convolution, a delta rule or a state space model, with its projections.
    Recurrent,
    /// A dense feed-forward part.
    FeedForward,
    /// The choice of experts.
    Router,
    /// The chosen experts.
    Experts,
    /// The expert that every row uses.
    SharedExpert,
    /// Embeddings per layer.
    LayerInputs,
    /// Several streams of hidden vectors.
    Streams,
    /// From the last hidden vector to the result.
    Head,
    /// What a decode or prompt pass leaves for the draft pass. Its own result does not depend on it.
    Draft,
    /// None of them.
    Other,
}

impl ModelPart {
    /// Every part, in order.
    pub const ALL: [ModelPart; 12] = [
        ModelPart::Embedding,
        ModelPart::Attention,
        ModelPart::Recurrent,
        ModelPart::FeedForward,
        ModelPart::Router,
        ModelPart::Experts,
        ModelPart::SharedExpert,
        ModelPart::LayerInputs,
        ModelPart::Streams,
        ModelPart::Head,
        ModelPart::Draft,
        ModelPart::Other,
    ];

    /// As dumps and people read it: one word.
    pub fn name(self) -> &'static str {
        match self {
            ModelPart::Embedding => "embedding",
            ModelPart::Attention => "attention",
            ModelPart::Recurrent => "recurrent",
            ModelPart::FeedForward => "feed-forward",
            ModelPart::Router => "router",
            ModelPart::Experts => "experts",
            ModelPart::SharedExpert => "shared-expert",
            ModelPart::LayerInputs => "layer-inputs",
            ModelPart::Streams => "streams",
            ModelPart::Head => "head",
            ModelPart::Draft => "draft",
            ModelPart::Other => "other",
        }
    }
}

/// What a buffer is for. The memory plan adds up by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Model weights in the device's layout.
    Weights,
    /// Banks of adapters.
    Adapters,
    /// Caches: keys and values, recurrent state.
    Cache,
    /// Intermediates of decoding.
    ScratchDecode,
    /// Intermediates of prompts.
    ScratchPrompt,
    /// Lowered commands, page tables, step state, slots, tokens.
    Tables,
}

/// A buffer of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// `decode.x`, `prompt.qkv`, `kv`, `tokens`, …
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
    /// Matrices that the checkpoint stores transposed, one below the other. Each part has `k` rows, whose columns are the
    /// weight's rows; the weight's format is one of whole floats.
    Transposed(Vec<Part>),
    /// Values known at compile time (rope frequencies), as F32.
    Constant(Vec<f32>),
    /// What a rank has of a weight.
    Chosen(Box<Chosen>),
}

/// Some rows of a weight that has `rows` rows; of a vector, some of its `rows` values.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The whole weight.
    pub of: Source,
    /// How many rows that has.
    pub rows: u32,
    /// The rows that are taken, in order.
    pub ranges: Vec<Range<u32>>,
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

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassKind {
    /// Yields the logits of every row and, where the step asks for it, the next token of every row.
    Decode,
    /// Yields the logits of chosen rows.
    Prompt,
    /// Yields one pooled hidden state for each chosen row's slot.
    Embed,
    /// Yields the logits of chosen rows, as the model's own draft layer guesses them. Row `i` reads the token that follows
    /// its position, and hidden state `i` that the last step has left behind: of a decode or prompt step those of its rows, of
    /// a draft step those of its output rows. With a [`Block`] its rows are blocks instead, and a decode or prompt step has stored what
    /// they attend to.
    Draft,
}

/// A compiled forward pass: one table of commands, with what it takes and what it yields.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// What it is for.
    pub kind: PassKind,
    /// It is for steps in which a slot has an adapter ([`Program::adapters`]). Another pass of its kind is for all others.
    pub adapted: bool,
    /// The most rows of a step.
    pub rows: u32,
    /// The most output rows of a step. A decode pass yields one output per row. 0: the pass is the middle of another one
    /// and yields nothing ([`Split`](crate::Split)); its width is 0 then, and it has no result.
    pub outputs: u32,
    /// Floats of one output row; output rows are adjacent.
    pub width: u32,
    /// Where the first output row lies.
    pub result: BufferRef,
    /// The commands (hot).
    pub commands: Vec<Command>,
    /// A label per command for people (cold), such as `attention output`.
    pub labels: Vec<String>,
}

impl Pass {
    /// True if it is the middle of another pass: it neither samples nor yields anything.
    pub fn is_middle(&self) -> bool {
        self.outputs == 0
    }

    /// The first command that runs on output rows instead of input rows: the one after `select_rows` or `pool`.
    /// `None` if all commands run on input rows.
    pub fn outputs_from(&self) -> Option<usize> {
        let reduces = |c: &Command| matches!(c.op, Op::SelectRows | Op::Pool);
        self.commands.iter().position(reduces).map(|i| i + 1)
    }

    /// The most rows that command `index` can have.
    pub fn rows_at(&self, index: usize) -> u32 {
        match self.outputs_from() {
            Some(from) if index >= from => self.outputs,
            _ => self.rows,
        }
    }
}

impl Pass {
    /// The layer of a command.
    pub fn layer_of(&self, index: usize) -> Option<u32> {
        self.commands.get(index)?.layer
    }

    /// The label of a command.
    pub fn label(&self, index: usize) -> &str {
        self.labels.get(index).map_or("", String::as_str)
    }

    /// The label of a command with its layer, as errors name it: `layer 3 attention`.
    pub fn full_label(&self, index: usize) -> String {
        let label = self.label(index);
        match self.layer_of(index) {
            Some(layer) => format!("layer {layer} {label}"),
            None => label.to_string(),
        }
    }

    /// Bytes that one row moves at least in all commands, caches left out.
    pub fn row_bytes(&self) -> u64 {
        let bytes = self.commands.iter().map(|c| c.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Floating-point operations of one row in all commands, those over the context left out.
    pub fn row_flops(&self) -> u64 {
        let flops = self.commands.iter().map(|c| c.flops);
        flops.fold(0, u64::saturating_add)
    }
}

impl PassKind {
    /// Every kind, in order.
    pub const ALL: [PassKind; 4] = [
        PassKind::Decode,
        PassKind::Prompt,
        PassKind::Embed,
        PassKind::Draft,
    ];

    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            PassKind::Decode => "decode",
            PassKind::Prompt => "prompt",
            PassKind::Embed => "embed",
            PassKind::Draft => "draft",
        }
    }

    /// Which intermediates the pass uses: `decode`, or the set that all other passes share.
    pub fn scratch(self) -> (&'static str, Class) {
        match self {
            PassKind::Decode => ("decode", Class::ScratchDecode),
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => {
                ("prompt", Class::ScratchPrompt)
            }
        }
    }
}

impl Class {
    /// Every class, in order.
    pub const ALL: [Class; 6] = [
        Class::Weights,
        Class::Adapters,
        Class::Cache,
        Class::ScratchDecode,
        Class::ScratchPrompt,
        Class::Tables,
    ];

    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Weights => "weights",
            Class::Adapters => "adapters",
            Class::Cache => "cache",
            Class::ScratchDecode => "scratch decode",
            Class::ScratchPrompt => "scratch prompt",
            Class::Tables => "tables",
        }
    }
}

/// Memory of sequences that outlives a step. It consists of pages; each slot has a list of the pages it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// `kv`, `kv window 1024`, `conv`, …
    pub name: String,
    /// The buffer that holds it. Commands name the cache by this buffer.
    pub buffer: BufferId,
    /// Pages in the buffer, shared by all slots.
    pub pages: u32,
    /// What a page holds.
    pub kind: CacheKind,
}

/// What a page of a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Keys and values of [`Program::page`] positions, laid out as
    /// `[layer][k or v][page][kv head][position in page][head_dim]`.
    Attention {
        /// `F16` or `Q8_0`.
        format: Format,
        /// Layers that share this cache's page lists.
        layers: u32,
        /// Heads of keys and values.
        kv_heads: u32,
        /// Elements per head.
        head_dim: u32,
        /// No command reads further back than this many positions; 0: no bound. Pages outside the window may be
        /// returned to the pool.
        window: u32,
    },
    /// The state of one sequence after its last position, laid out as `[layer][page][floats]`. A slot uses one page;
    /// further pages hold checkpoints.
    Recurrent {
        /// Layers.
        layers: u32,
        /// Floats of one layer's state.
        floats: u32,
    },
}

impl CacheSpec {
    /// Entries of a slot's page list.
    pub fn entries(&self, program: &Program) -> u32 {
        match self.kind {
            CacheKind::Attention { .. } => program.context.div_ceil(program.page.max(1)),
            CacheKind::Recurrent { .. } => 1,
        }
    }

    /// Bytes of one head's keys (or values) at one position; `None` if the format's block does not divide the head,
    /// or if the cache is recurrent.
    pub fn head_bytes(&self) -> Option<u64> {
        match self.kind {
            CacheKind::Attention {
                format, head_dim, ..
            } => format.bytes(head_dim as usize).map(|b| b as u64),
            CacheKind::Recurrent { .. } => None,
        }
    }

    /// Bytes that one position of one layer takes, keys and values. A recurrent cache has none.
    pub fn position_bytes(&self) -> Option<u64> {
        match self.kind {
            CacheKind::Attention { kv_heads, .. } => {
                self.head_bytes()?.checked_mul(2 * u64::from(kv_heads))
            }
            CacheKind::Recurrent { .. } => Some(0),
        }
    }

    /// Layers.
    pub fn layers(&self) -> u32 {
        match self.kind {
            CacheKind::Attention { layers, .. } | CacheKind::Recurrent { layers, .. } => layers,
        }
    }

    /// Bytes of one page over all layers; `None` if it is too large or does not fit its format.
    pub fn page_bytes(&self, page: u32) -> Option<u64> {
        let layer = match self.kind {
            CacheKind::Attention { .. } => self.position_bytes()?.checked_mul(page.into())?,
            CacheKind::Recurrent { floats, .. } => 4 * u64::from(floats),
        };
        layer.checked_mul(self.layers().into())
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self, page: u32) -> Option<u64> {
        self.page_bytes(page)?.checked_mul(self.pages.into())
    }

    /// The runs of bytes that page `number` occupies in the buffer: offset of the first, distance of two, bytes of
    /// each, and how many there are.
    pub fn page_runs(&self, page: u32, number: u32) -> Option<PageRuns> {
        let count = match self.kind {
            CacheKind::Attention { layers, .. } => 2 * u64::from(layers),
            CacheKind::Recurrent { layers, .. } => layers.into(),
        };
        let bytes = self.page_bytes(page)?.checked_div(count)?;
        Some(PageRuns {
            first: bytes.checked_mul(number.into())?,
            stride: bytes.checked_mul(self.pages.into())?,
            bytes,
            count,
        })
    }
}

impl CacheSpec {
    /// The bytes of page `number` in the buffer, run by run.
    pub fn page_ranges(
        &self,
        page: u32,
        number: u32,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        // Verified caches have runs.
        let runs = self.page_runs(page, number).into_iter();
        runs.flat_map(|runs| {
            (0..runs.count).map(move |run| {
                let start = (runs.first + run * runs.stride) as usize;
                start..start + runs.bytes as usize
            })
        })
    }

    /// The copies that make page `to` equal to page `from`: ranges of bytes in the buffer, and where each goes.
    pub fn page_copies(
        &self,
        page: u32,
        from: u32,
        to: u32,
    ) -> impl Iterator<Item = (Range<usize>, usize)> + use<> {
        let targets = self.page_ranges(page, to).map(|range| range.start);
        self.page_ranges(page, from).zip(targets)
    }
}

/// Where a page lies in its cache's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRuns {
    /// Offset of the first run in bytes.
    pub first: u64,
    /// Bytes from one run to the next.
    pub stride: u64,
    /// Bytes of a run.
    pub bytes: u64,
    /// Runs.
    pub count: u64,
}

/// How a draft pass guesses several tokens at once: its rows are the last token and `size - 1` mask tokens at the positions after it,
/// which attend to each other. A mask's output row guesses the token at its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of a block, at least 2.
    pub size: u32,
    /// The mask token.
    pub mask: u32,
}

/// Everything a device needs: weights, buffers, caches, and the passes over them.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Weights.
    pub weights: Vec<WeightSpec>,
    /// Buffers.
    pub buffers: Vec<BufferSpec>,
    /// Caches.
    pub caches: Vec<CacheSpec>,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// The most positions one sequence may have.
    pub context: u32,
    /// Positions of a page of keys and values.
    pub page: u32,
    /// Sequences that may be in flight at a time.
    pub slots: u32,
    /// The buffer of token ids, one per row: `embed` reads them, `sample` replaces them.
    pub tokens: BufferId,
    /// The buffer of features that rows may read in place of tokens ([`Program::feature_width`]); `NO_BUFFER`: none.
    pub features: BufferId,
    /// The adapters that slots may have.
    pub adapters: Option<Adapters>,
    /// How the draft pass guesses, if it guesses blocks.
    pub block: Option<Block>,
    /// The passes, decode first.
    pub passes: Vec<Pass>,
}

impl Program {
    /// Index of the pass of a kind, without adapters.
    pub fn pass(&self, kind: PassKind) -> Option<usize> {
        self.pass_with(kind, false)
    }

    /// Whether the draft pass stores no keys and values: it attends to those of the model, so all guesses of a round stay at one position.
    pub fn guesses_stay(&self) -> bool {
        let Some(pass) = self.pass(PassKind::Draft) else {
            return false;
        };
        let stores = |access: &Access| access.writes && access.extent == Extent::Cache;
        let commands = self.passes[pass].commands.iter();
        !commands.flat_map(accesses).any(|access| stores(&access))
    }

    /// Index of the pass of a kind, with adapters or without.
    pub fn pass_with(&self, kind: PassKind, adapted: bool) -> Option<usize> {
        let mut passes = self.passes.iter();
        passes.position(|pass| (pass.kind, pass.adapted) == (kind, adapted))
    }

    /// The cache that a command reads or writes.
    pub fn cache_of(&self, c: &Command) -> Option<&CacheSpec> {
        let at = c.op.cache_operand()?;
        let buffer = c.buffers.get(at)?.buffer;
        self.caches.iter().find(|cache| cache.buffer == buffer)
    }

    /// Bytes that one position takes in all attention caches.
    pub fn position_bytes(&self) -> Option<u64> {
        let mut sum = 0u64;
        for cache in &self.caches {
            let all = cache.position_bytes()?.checked_mul(cache.layers().into())?;
            sum = sum.checked_add(all)?;
        }
        Some(sum)
    }

    /// Floats of an embedding.
    pub fn embedding(&self) -> u32 {
        let commands = self.passes.iter().flat_map(|pass| &pass.commands);
        let embed = commands.into_iter().find(|c| c.op == Op::Embed);
        embed.map_or(0, |c| crate::params::Embed::of(&c.params).k)
    }

    /// What the program needs of a device that takes features, in words for a person; `None`: nothing.
    pub fn needs_features(&self) -> Option<String> {
        let mut commands = self.passes.iter().flat_map(|pass| &pass.commands);
        let grouped = |c: &Command| c.word("group").is_some_and(|n| n > 0) && c.op == Op::Pool;
        let by_axis = |c: &Command| c.word("by_axis").is_some_and(|n| n > 0);
        if self.features != NO_BUFFER {
            Some("rows that read vectors in place of tokens".to_string())
        } else if commands.any(|c| grouped(c) || by_axis(c)) {
            Some("groups and windows of rows".to_string())
        } else {
            None
        }
    }

    /// Parts of a feature, as long as an embedding each: one, and those that [`Op::AddFeature`] adds later.
    pub fn feature_parts(&self) -> u32 {
        let commands = self.passes.iter().flat_map(|pass| &pass.commands);
        let added = commands.filter(|c| c.op == Op::AddFeature);
        let parts = added.map(|c| crate::params::AddFeature::of(&c.params).part);
        parts.max().unwrap_or(0).saturating_add(1)
    }

    /// Floats of a feature.
    pub fn feature_width(&self) -> u64 {
        u64::from(self.embedding()) * u64::from(self.feature_parts())
    }

    /// How many features the program has room for.
    pub fn feature_count(&self) -> u32 {
        let spec = self.buffers.get(self.features as usize);
        let each = 4 * self.feature_width().max(1);
        spec.map_or(0, |spec| (spec.bytes / each) as u32)
    }

    /// Whether a command is the one that gives rows their features: the first `embed` of its pass.
    pub fn takes_features(&self, command: &Command) -> bool {
        let first = |pass: &Pass| {
            let embed = pass.commands.iter().find(|c| c.op == Op::Embed);
            embed.is_some_and(|first| first.buffers == command.buffers)
        };
        self.feature_count() > 0 && command.op == Op::Embed && self.passes.iter().any(first)
    }

    /// The most rows of any pass.
    pub fn most_rows(&self) -> u32 {
        self.passes.iter().map(|pass| pass.rows).max().unwrap_or(0)
    }
}
