//! Lowering: each command of a table becomes one or a few kernels with resolved addresses.

use crate::gpu::Gpu;
use crate::launch::{DeviceWeight, Node};
use crate::load::Placed;
use crate::{Error, GpuInfo, ops};
use std::sync::Arc;
use welte_table::{
    BufferRef, Class, Command, Format, NO_WEIGHT, Op, Params, Patch, Program, Shape, Table,
    WeightId, params,
};

/// Whether this device runs the command as it is. It has every op in every format, fused ones included, but lacks some of
/// their options.
pub fn supports(command: &Command) -> bool {
    lacking(command).next().is_none()
}

/// The features that a program needs and this device lacks, as text; `None` if it lacks nothing.
pub fn missing(program: &Program) -> Option<String> {
    let commands = program.tables.iter().flat_map(|t| &t.commands);
    let mut needed: Vec<&str> = commands.flat_map(lacking).collect();
    needed.sort_unstable();
    needed.dedup();
    (!needed.is_empty()).then(|| needed.join(", "))
}

/// The features that a command needs and this device lacks.
fn lacking(command: &Command) -> impl Iterator<Item = &'static str> {
    let given = |role: usize| command.weights[role] != NO_WEIGHT;
    let act = match command.op {
        Op::ActMul => params::ActMul::of(&command.params).act,
        Op::NormMatmulActMul => params::NormMatmulActMul::of(&command.params).act,
        Op::ExpertsActMul => params::ExpertsActMul::of(&command.params).act,
        _ => 0,
    };
    let experts = matches!(command.op, Op::ExpertsActMul | Op::ExpertsAdd);
    [
        (command.op == Op::Attention && given(0), "attention sinks"),
        (experts && given(1), "biases of experts"),
        (act > LAST_ACT, "a clamped activation"),
    ]
    .into_iter()
    .filter_map(|(needed, what)| needed.then_some(what))
}

/// The highest-numbered activation that the kernels support.
const LAST_ACT: u32 = 2;

/// Device addresses of a session's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Each buffer of the program.
    pub(crate) buffers: Vec<u64>,
    /// The step state (`Step` of `common.cuh`).
    pub(crate) step: u64,
    /// The page table: KV page of `[sequence][page]`, as u32.
    pub(crate) pages: u64,
    /// Scratch memory, used by one command at a time.
    pub(crate) scratch: u64,
    /// Like scratch, but zero between commands.
    pub(crate) counters: u64,
    /// The sampling state (`ops::sample`).
    pub(crate) sampler: u64,
    /// Ring of `(serial << 32) | token` in host memory.
    pub(crate) mailbox: u64,
    /// A word in host memory. A value other than 0 ends the chain.
    pub(crate) cancel: u64,
}

/// The inputs of lowering.
pub(crate) struct Lowering<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
    /// The open GPU, for libraries that need a handle.
    pub(crate) device: &'a Arc<Gpu>,
    pub(crate) weights: &'a [Placed],
    pub(crate) places: &'a Places,
    pub(crate) step: u64,
    pub(crate) pages: u64,
    pub(crate) pages_per_sequence: u32,
    pub(crate) kv: u64,
    pub(crate) scratch: u64,
    pub(crate) counters: u64,
    pub(crate) sampler: u64,
    pub(crate) conveyor: u64,
    pub(crate) conveyor_slots: u32,
    pub(crate) mailbox: u64,
    pub(crate) mailbox_slots: u32,
    pub(crate) cancel: u64,
}

/// Slots of the mailbox, a power of two. A loop on the device makes at most half as many tokens per launch.
pub(crate) const MAILBOX_SLOTS: u32 = 4096;

/// A table, lowered.
pub(crate) struct LoweredTable {
    pub(crate) shape: Shape,
    /// The nodes of each command.
    pub(crate) commands: Vec<Vec<Node>>,
    /// Address of the logits' first row.
    pub(crate) logits: u64,
    /// The kernels that sample from the first row of the logits.
    pub(crate) sample: Vec<Node>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        program: &'a Program,
        gpu: &'a GpuInfo,
        device: &'a Arc<Gpu>,
        weights: &'a [Placed],
        places: &'a Places,
    ) -> Lowering<'a> {
        let kv = program.buffers.iter().position(|b| b.class == Class::Kv);
        let of = |index: usize| places.buffers.get(index).copied().unwrap_or(0);
        let tokens = program.buffers.get(program.tokens as usize);
        Lowering {
            program,
            gpu,
            device,
            weights,
            places,
            step: places.step,
            pages: places.pages,
            pages_per_sequence: pages_per_sequence(program),
            kv: kv.map_or(0, of),
            scratch: places.scratch,
            counters: places.counters,
            sampler: places.sampler,
            conveyor: of(program.tokens as usize),
            conveyor_slots: tokens.map_or(0, |b| (b.bytes / 4).min(u64::from(u32::MAX)) as u32),
            mailbox: places.mailbox,
            mailbox_slots: MAILBOX_SLOTS,
            cancel: places.cancel,
        }
    }

    /// Looks up a weight. Checking the program has refused commands without one.
    pub(crate) fn weight(&self, id: WeightId) -> DeviceWeight {
        let spec = self.program.weights.get(id as usize);
        DeviceWeight {
            start: self.weights.get(id as usize).map_or(0, |w| w.start),
            format: spec.map_or(Format::F32, |s| s.format),
            n: spec.map_or(0, |s| s.n),
            k: spec.map_or(0, |s| s.k),
        }
    }

    /// The address of a vector's floats; 0 if there is none.
    pub(crate) fn vector(&self, id: WeightId) -> u64 {
        if id == NO_WEIGHT {
            return 0;
        }
        self.weights.get(id as usize).map_or(0, |w| w.start)
    }

    /// The address of a place in a buffer.
    pub(crate) fn buffer(&self, at: BufferRef) -> u64 {
        let start = self.places.buffers.get(at.buffer as usize);
        start.map_or(0, |start| start + u64::from(at.offset))
    }

    /// Lowers a table.
    pub(crate) fn lower(&self, table: &Table) -> Result<LoweredTable, Error> {
        let mut commands = Vec::with_capacity(table.commands.len());
        let single_from = table.single_row_from().unwrap_or(usize::MAX);
        ops::experts::check_order(&table.commands)?;
        for (index, command) in table.commands.iter().enumerate() {
            let positional = matches!(
                command.op,
                Op::Rope | Op::RopeAppend | Op::KvAppend | Op::Attention | Op::Embed
            );
            if index >= single_from && positional {
                let name = command.op.name();
                return Err(Error::Program(format!("{name} after copy_last")));
            }
            commands.push(ops::lower(self, command, table.rows_at(index))?);
        }
        let logits = logits(table)?;
        Ok(LoweredTable {
            shape: table.shape,
            commands,
            logits: self.buffer(logits),
            sample: ops::lower(self, &sample_command(self.program, logits), 1)?,
        })
    }
}

/// The most pages of a sequence.
pub(crate) fn pages_per_sequence(program: &Program) -> u32 {
    program.kv.context.div_ceil(program.kv.page.max(1))
}

/// A table's logits: the input of `sample`, or else the output of the last command.
pub(crate) fn logits(table: &Table) -> Result<BufferRef, Error> {
    let last = table
        .commands
        .last()
        .ok_or_else(|| Error::Program("a table without commands".to_string()))?;
    Ok(match last.op {
        Op::Sample => last.buffers[0],
        op => last.buffers[(op.reads().len() + op.writes().len()).saturating_sub(1)],
    })
}

/// A `sample` command for a table's logits, as at the end of a decode table.
pub(crate) fn sample_command(program: &Program, logits: BufferRef) -> Command {
    let mut params: Params = [0; 16];
    params[..2].copy_from_slice(&[program.vocab, program.vocab]);
    let tokens = BufferRef {
        buffer: program.tokens,
        offset: 0,
    };
    Command {
        op: Op::Sample,
        patch: Patch::OutputSlot,
        format: Format::F32,
        weights: [NO_WEIGHT; 3],
        buffers: [logits, tokens, BufferRef::NONE, BufferRef::NONE],
        params,
        bytes: 0,
        flops: 0,
    }
}
