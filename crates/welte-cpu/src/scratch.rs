//! Memory that the device needs besides the program's own buffers, known before anything is allocated.

use crate::dispatch::LoweredPhase;
use crate::kernels::{Isa, Kernel};
use crate::memory::{Block, round_up};
use crate::ops::experts::Groups;
use crate::ops::matmul::{FUSED_COLUMNS, ROW_BLOCK};
use crate::ops::sample;
use crate::ops::{
    ROW_AFTER, ThreadMemory, attention, attention_prompt, encode_attention, gated_delta, heads,
    matmul,
};
use welte_device::{ChainStart, Checks, Error, HostScratch, HostSlot, MaskBoard, SlotAdapter};
use welte_table::{BufferId, Class, Command, Op, PassKind, Program, Row, WeightId, params};

/// The most phases that a command may have.
pub(crate) const PHASES: usize = 4;

/// The most phases that a pass of the program may have.
pub(crate) fn most_phases(program: &Program) -> usize {
    let phases = program.passes.iter().map(|p| p.commands.len() * PHASES);
    phases.max().unwrap_or(0)
}

/// The index of a cache's first page list in the list of all: `[cache][slot][entry]`. Of no cache's buffer: their end.
pub(crate) fn first_list(program: &Program, buffer: BufferId) -> usize {
    let before = program.caches.iter().take_while(|c| c.buffer != buffer);
    let entries = before.map(|c| c.entries(program) as usize).sum::<usize>();
    entries * program.slots as usize
}

/// The most slots of a chain: verified programs begin with the decode pass, if they have one.
pub(crate) fn chain_slots(program: &Program) -> usize {
    let rows = program.passes.first().map_or(1, |decode| decode.rows);
    program.slots.min(rows) as usize
}

/// Sizes of the device's own memory.
pub(crate) struct Sizes {
    pub(crate) acts: usize,
    pub(crate) wide: usize,
    pub(crate) groups: usize,
    pub(crate) angles: usize,
    pub(crate) partials: usize,
    pub(crate) argmax: usize,
    /// Scratch of each thread, without its row.
    pub(crate) per_thread: usize,
    /// The prepared row of each thread.
    pub(crate) own_row: usize,
    pub(crate) threads: usize,
    pub(crate) tables: usize,
    /// The most rows of a step.
    pub(crate) rows: usize,
    /// Tokens that are chosen at the same time.
    pub(crate) lanes: usize,
    /// Whether there is any pass but decode.
    prompt: bool,
}

/// The matrix of a command: (outputs, elements).
pub(crate) fn matrix_of(command: &Command) -> Option<(usize, usize)> {
    let (n, k) = match command.op {
        Op::Matmul => {
            let p = params::Matmul::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::MatmulAdd => {
            let p = params::MatmulAdd::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::NormMatmul => {
            let p = params::NormMatmul::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::NormMatmulActMul => {
            let p = params::NormMatmulActMul::of(&command.params);
            (2 * p.n as usize, p.k)
        }
        _ => return None,
    };
    Some((n, k as usize))
}

/// What experts a command has: `n` outputs (of gate and up together) of `k` elements each.
pub(crate) struct ExpertShape {
    /// Rows of an expert's matrix.
    pub(crate) n: usize,
    /// Its outputs: half as many where gate and up are multiplied.
    pub(crate) outputs: usize,
    pub(crate) k: usize,
    pub(crate) experts: usize,
    pub(crate) used: usize,
}

/// The experts of a command.
pub(crate) fn experts_of(command: &Command) -> Option<ExpertShape> {
    let (outputs, matrices, k, experts, used) = match command.op {
        Op::ExpertsActMul => {
            let p = params::ExpertsActMul::of(&command.params);
            let matrices = p.matrices() * p.n / p.width().max(1);
            (
                p.width() as usize,
                matrices as usize,
                p.k,
                p.experts,
                p.used,
            )
        }
        Op::ExpertsAdd => {
            let p = params::ExpertsAdd::of(&command.params);
            (p.n as usize, 1, p.k, p.experts, p.used)
        }
        _ => return None,
    };
    Some(ExpertShape {
        n: outputs * matrices,
        outputs,
        k: k as usize,
        experts: experts as usize,
        used: used as usize,
    })
}

/// Ropes of one kind have the same angles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RopeKind {
    pub(crate) freqs: WeightId,
    /// Elements rotated.
    pub(crate) rot: u32,
    /// The bits of the magnitude.
    pub(crate) magnitude: u32,
    /// Which axes the pairs follow.
    pub(crate) sections: u32,
}

/// The kind of rope that a command applies.
pub(crate) fn rope_of(command: &Command) -> Option<RopeKind> {
    let (rot, magnitude, sections) = match command.op {
        Op::Rope => {
            let p = params::Rope::of(&command.params);
            (p.rot, p.magnitude, p.sections)
        }
        Op::RopeAppend => {
            let p = params::RopeAppend::of(&command.params);
            (p.rot, p.magnitude, p.sections)
        }
        _ => return None,
    };
    Some(RopeKind {
        freqs: command.weights[0],
        rot,
        sections,
        magnitude: magnitude.to_bits(),
    })
}

impl Sizes {
    pub(crate) fn of(program: &Program, threads: usize, isa: Isa) -> Sizes {
        let context = program.context as usize;
        let mut sizes = Sizes {
            acts: 0,
            wide: 0,
            groups: 0,
            angles: 0,
            partials: 0,
            argmax: 0,
            per_thread: 2 * ROW_BLOCK * FUSED_COLUMNS * 4,
            own_row: ROW_AFTER,
            threads,
            tables: 0,
            rows: program.most_rows() as usize,
            lanes: threads.min(chain_slots(program)),
            prompt: program.passes.iter().any(|p| p.kind != PassKind::Decode),
        };
        for pass in &program.passes {
            let mut ropes: Vec<RopeKind> = Vec::new();
            for (index, command) in pass.commands.iter().enumerate() {
                let rows = pass.rows_at(index) as usize;
                if command.op == Op::Sample {
                    let chunks = (program.vocab as usize).div_ceil(sample::CHUNK);
                    sizes.argmax = sizes.argmax.max(rows * chunks * 8);
                }
                if let Some((n, k)) = matrix_of(command) {
                    let kernel = Kernel::for_format(command.format, isa);
                    let many = Kernel::for_prompt(command.format, isa);
                    let acts = kernel.acts_bytes(k).max(many.acts_bytes(k));
                    sizes.acts = sizes.acts.max(rows * acts);
                    sizes.own_row = sizes.own_row.max(ROW_AFTER + acts);
                    for kernel in [&kernel, &many] {
                        if rows >= kernel.many_rows {
                            let scratch = matmul::scratch_bytes(kernel, k);
                            sizes.per_thread = sizes.per_thread.max(scratch);
                        }
                    }
                    sizes.per_thread = sizes.per_thread.max(k * 4);
                    if command.op == Op::NormMatmulActMul && (n / 2) % kernel.tile_rows != 0 {
                        sizes.wide = sizes.wide.max(rows * n * 4);
                    }
                }
                if command.op == Op::GatedDelta {
                    let p = params::GatedDelta::of(&command.params);
                    let floats = gated_delta::scratch_floats(p.key_dim as usize, p.by_channel == 1);
                    let scratch = floats * 4;
                    sizes.per_thread = sizes.per_thread.max(scratch);
                }
                if command.op == Op::HeadsMatmul {
                    let k = params::HeadsMatmul::of(&command.params).k as usize;
                    for kernel in [Kernel::for_format, Kernel::for_prompt] {
                        let scratch = heads::scratch_bytes(&kernel(command.format, isa), k);
                        sizes.per_thread = sizes.per_thread.max(scratch);
                    }
                }
                if let Some(e) = experts_of(command) {
                    let kernel = Kernel::for_format(command.format, isa);
                    let entries = rows * e.used;
                    sizes.acts = sizes.acts.max(entries * kernel.acts_bytes(e.k));
                    sizes.groups = sizes.groups.max(Groups::bytes(e.experts, e.used, rows));
                    if command.op == Op::ExpertsAdd {
                        sizes.wide = sizes.wide.max(entries * e.n * 4);
                    }
                }
                let rope = rope_of(command).filter(|kind| !ropes.contains(kind));
                ropes.extend(rope);
                if command.op == Op::EncodeAttention {
                    let p = params::EncodeAttention::of(&command.params);
                    let (dim, places) = (p.head_dim as usize, p.places as usize);
                    let scratch = encode_attention::scratch_floats(dim, places) * 4;
                    sizes.per_thread = sizes.per_thread.max(scratch);
                }
                if command.op == Op::ChoosePositions {
                    // Scores of all positions: of one row for all threads, and of a row for each.
                    sizes.partials = sizes.partials.max(context * 4);
                    sizes.per_thread = sizes.per_thread.max(context * 4);
                }
                if matches!(
                    command.op,
                    Op::Attention | Op::CrossAttention | Op::SparseAttention
                ) {
                    let (p, _) = attention::params_of(command);
                    let (heads, dim) = (p.heads as usize, p.head_dim as usize);
                    let group = heads / (p.kv_heads as usize).max(1);
                    let splits = attention::splits_of(context);
                    sizes.partials = sizes
                        .partials
                        .max(heads * splits * attention::partial_floats(dim) * 4);
                    sizes.per_thread = sizes
                        .per_thread
                        .max(attention::scratch_floats(group, dim, splits) * 4);
                    if pass.kind != PassKind::Decode {
                        let scratch = attention_prompt::scratch_floats(dim) * 4;
                        sizes.per_thread = sizes.per_thread.max(scratch);
                    }
                }
            }
            let rows = pass.rows as usize;
            sizes.angles = sizes
                .angles
                .max(ropes.iter().map(|kind| rows * kind.rot as usize * 4).sum());
        }
        sizes.per_thread = round_up(sizes.per_thread);
        sizes.own_row = round_up(sizes.own_row);
        let (slots, vocab) = (program.slots as usize, program.vocab as usize);
        let commands: usize = program.passes.iter().map(|p| p.commands.len()).sum();
        sizes.tables = commands * PHASES * size_of::<LoweredPhase>()
            + most_phases(program) * 8
            + first_list(program, BufferId::MAX) * 4
            + sizes.rows * (size_of::<Row>() + size_of::<u32>() + size_of::<bool>())
            + slots * (size_of::<ChainStart>() + size_of::<Option<SlotAdapter>>())
            + Checks::bytes(program)
            + slots * HostSlot::bytes(vocab, context)
            + sizes.lanes * HostScratch::bytes(vocab, context)
            + MaskBoard::words(slots, vocab) * 4;
        sizes
    }

    /// Name, class and bytes of each block.
    pub(crate) fn entries(&self) -> [(&'static str, Class, u64); 8] {
        let prompt = if self.prompt {
            Class::ScratchPrompt
        } else {
            Class::ScratchDecode
        };
        [
            ("prepared activations", prompt, self.acts as u64),
            ("gate and up, or experts' outputs", prompt, self.wide as u64),
            ("entries by expert", prompt, self.groups as u64),
            ("rope angles", prompt, self.angles as u64),
            (
                "attention partials",
                Class::ScratchDecode,
                self.partials as u64,
            ),
            ("argmax partials", Class::ScratchDecode, self.argmax as u64),
            (
                "scratch of each thread",
                prompt,
                ((self.per_thread + self.own_row) * self.threads) as u64,
            ),
            (
                "phases, page lists, step and sampling state",
                Class::Tables,
                self.tables as u64,
            ),
        ]
        .map(|(name, class, bytes)| (name, class, round_up(bytes as usize) as u64))
    }
}

/// The device's own memory.
pub(crate) struct Scratch {
    /// Prepared activations.
    pub(crate) acts: Block,
    /// Gate and up side by side, or the outputs of experts.
    pub(crate) wide: Block,
    /// Entries by expert.
    pub(crate) groups: Block,
    pub(crate) angles: Block,
    /// Partial results of attention.
    pub(crate) partials: Block,
    /// The largest logit of each chunk.
    pub(crate) argmax: Block,
    pub(crate) threads: Block,
    /// Scratch of each thread in `threads`, which its row follows.
    pub(crate) per_thread: usize,
    own_row: usize,
}

impl Scratch {
    pub(crate) fn new(sizes: &Sizes) -> Result<Scratch, Error> {
        let [acts, wide, groups, angles, partials, argmax, threads, _] = sizes.entries();
        let block = |(name, _, bytes): (&str, Class, u64)| Block::new(bytes, name);
        Ok(Scratch {
            acts: block(acts)?,
            wide: block(wide)?,
            groups: block(groups)?,
            angles: block(angles)?,
            partials: block(partials)?,
            argmax: block(argmax)?,
            threads: block(threads)?,
            per_thread: sizes.per_thread,
            own_row: sizes.own_row,
        })
    }

    /// The memory of a thread.
    pub(crate) fn of_thread(&self, thread: usize) -> ThreadMemory {
        let bytes = self.per_thread + self.own_row;
        assert!((thread + 1) * bytes <= self.threads.len());
        let start = self.threads.ptr().wrapping_add(thread * bytes);
        ThreadMemory {
            scratch: start.cast(),
            row: start.wrapping_add(self.per_thread),
        }
    }
}
