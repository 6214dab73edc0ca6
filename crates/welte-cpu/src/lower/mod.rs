//! Lowering: every command of a pass becomes one or a few phases, whose pointers are resolved and checked.
#![allow(unsafe_code)]

mod adapt;
mod altup;
mod attention;
mod elementwise;
mod matmul;

use crate::dispatch::{LoweredPass, LoweredPhase, Phase};
use crate::kernels::Kernel;
use crate::load::Inner;
use crate::memory::Block;
use crate::ops::cache::{KvCache, StateCache};
use crate::ops::{Bytes, FloatRows, Floats};
use crate::scratch::{PHASES, RopeKind, Scratch, first_list, matrix_of};
use crate::unsupported;
use welte_device::{Error, Seat, same_commands};
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Command, NO_WEIGHT, Op, Pass, PassKind, Program, WeightId,
};

/// Everything that lowering reads.
pub(crate) struct Lowering<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) buffers: &'a [Block],
    pub(crate) scratch: &'a Scratch,
    /// Among the ranks of the program.
    pub(crate) seat: Option<&'a Seat>,
}

/// A command on its way to phases.
struct Lowered<'a> {
    command: &'a Command,
    /// The most rows that it runs over.
    rows: usize,
    /// It runs over the input rows of a prompt, whose kernels may round activations. Output rows have the kernels of decode
    /// passes, which keep the logits exact.
    prompt: bool,
    /// It runs over output rows that were chosen.
    after_choice: bool,
    angles: &'a mut Angles,
    phases: Vec<Phase>,
}

/// The rope angles of a pass so far. Commands with the same kind of rope share them.
#[derive(Default)]
struct Angles {
    /// By kind of rope: where the cosines and sines lie.
    known: Vec<(RopeKind, FloatRows)>,
    /// Floats in use.
    floats: usize,
}

impl Lowering<'_> {
    /// Lowers a pass.
    pub(crate) fn pass(&self, pass: &Pass) -> Result<LoweredPass, Error> {
        let mut phases = Vec::with_capacity(pass.commands.len() * PHASES);
        let mut angles = Angles::default();
        let outputs_from = pass.outputs_from().unwrap_or(usize::MAX);
        for (index, command) in pass.commands.iter().enumerate() {
            let after_choice = index >= outputs_from;
            let mut lowered = Lowered {
                command,
                rows: pass.rows_at(index) as usize,
                prompt: pass.kind != PassKind::Decode && !after_choice,
                after_choice,
                angles: &mut angles,
                phases: Vec::with_capacity(PHASES),
            };
            self.command(&mut lowered, pass)?;
            let chooses = matches!(command.op, Op::SelectRows | Op::Pool);
            phases.extend(lowered.phases.into_iter().map(|phase| LoweredPhase {
                command: index as u32,
                on_outputs: after_choice || chooses,
                phase,
            }));
        }
        let width = pass.width as usize;
        Ok(LoweredPass {
            phases,
            result: match pass.outputs as usize {
                0 => FloatRows::NONE,
                outputs => self.float_rows(pass.result, pass.width, width, outputs)?,
            },
            width,
        })
    }

    /// Whether generated rows and prompt rows can share a step: the products of layers have the same arithmetic. Attention,
    /// which has not, is computed by role; output rows have the arithmetic of decode passes anyway.
    pub(crate) fn mixes(&self) -> bool {
        let isa = self.inner.isa;
        let same = |c: &Command| {
            let prompt = Kernel::for_prompt(c.format, isa);
            let product = matrix_of(c).is_some() || c.op == Op::HeadsMatmul;
            !product || prompt.isa == Kernel::for_format(c.format, isa).isa
        };
        let mut prompts = self.program().passes.iter();
        let layers = |pass: &Pass| {
            let count = pass.outputs_from().unwrap_or(pass.commands.len());
            pass.commands[..count].iter().all(same)
        };
        same_commands(self.program())
            && prompts.all(|pass| pass.kind != PassKind::Prompt || layers(pass))
    }

    fn command(&self, l: &mut Lowered<'_>, pass: &Pass) -> Result<(), Error> {
        match l.command.op {
            Op::Embed => self.embed(l),
            Op::Norm => self.norm(l),
            Op::LayerNorm => self.layer_norm(l),
            Op::HeadsMatmul => self.heads_matmul(l),
            Op::PositionScale => self.position_scale(l),
            Op::Act => self.act(l),
            Op::Bias => self.bias(l),
            Op::ActMul => self.act_mul(l),
            Op::Gate => self.gate(l),
            Op::Multiply => self.multiply(l),
            Op::Spread => self.spread(l),
            Op::Cutoff => self.cutoff(l),
            Op::MatchSquares => self.match_squares(l),
            Op::AltUpPredict => self.altup_predict(l),
            Op::AltUpCorrect => self.altup_correct(l),
            Op::Add => self.add(l),
            Op::Scale => self.scale(l),
            Op::SelectRows => self.select_rows(l, pass.outputs as usize),
            Op::Pool => self.pool(l, pass.outputs as usize),
            Op::Sample => self.sample(l),
            Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul => self.matmul(l),
            Op::Route => self.route(l),
            Op::ExpertsActMul | Op::ExpertsAdd => self.experts(l),
            Op::Rope => self.rope(l),
            Op::KvAppend => self.kv_append(l),
            Op::RopeAppend => self.rope_append(l),
            Op::Attention | Op::CrossAttention | Op::SparseAttention => self.attention(l),
            Op::ChoosePositions => self.choose_positions(l),
            Op::EncodeAttention => self.encode_attention(l),
            Op::EncodeConv => self.encode_conv(l),
            Op::AddPosition => self.add_position(l),
            Op::AddFeature => self.add_feature(l),
            Op::ShortConv => self.short_conv(l),
            Op::GatedDelta => self.gated_delta(l),
            Op::Mamba2 => self.mamba2(l),
            Op::AdaptDown => self.adapt_down(l),
            Op::AdaptLookup => self.adapt_lookup(l),
            Op::AdaptUp => self.adapt_up(l),
            Op::AdaptExpertsDown => self.adapt_experts_down(l),
            Op::AdaptExpertsUp => self.adapt_experts_up(l),
            Op::Exchange => self.exchange(l),
        }
    }

    fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Rows of `width` floats in a buffer, checked for `rows` rows.
    fn float_rows(
        &self,
        at: BufferRef,
        stride: u32,
        width: usize,
        rows: usize,
    ) -> Result<FloatRows, Error> {
        let block = self
            .buffers
            .get(at.buffer as usize)
            .ok_or_else(|| unsupported("a command lacks a buffer"))?;
        let spec = &self.program().buffers[at.buffer as usize];
        let stride = stride as usize;
        let end = (rows - 1).checked_mul(stride).and_then(|e| {
            e.checked_add(width)?
                .checked_mul(4)?
                .checked_add(at.offset as usize)
        });
        if !at.offset.is_multiple_of(4)
            || end.is_none_or(|end| end > spec.bytes as usize)
            || (rows > 1 && width > stride)
        {
            return Err(unsupported(format!(
                "buffer '{}' is too small for {rows} rows of {width}",
                spec.name
            )));
        }
        // SAFETY: the offset is inside the block.
        let start = unsafe { block.ptr().add(at.offset as usize).cast() };
        Ok(FloatRows { start, stride })
    }

    /// Rows of `stride` floats in the device's own memory.
    fn scratch_rows(
        &self,
        block: &Block,
        offset: usize,
        stride: usize,
        rows: usize,
    ) -> Result<FloatRows, Error> {
        if (offset + rows * stride) * 4 > block.len() {
            return Err(scratch_too_small());
        }
        // SAFETY: the offset is inside the block.
        let start = unsafe { block.ptr().cast::<f32>().add(offset) };
        Ok(FloatRows { start, stride })
    }

    /// A vector of weights, or none.
    fn floats(&self, id: WeightId, len: usize) -> Result<Floats, Error> {
        if id == NO_WEIGHT {
            return Ok(Floats::NONE);
        }
        let spec = self
            .program()
            .weights
            .get(id as usize)
            .ok_or_else(|| unsupported("a command lacks a weight"))?;
        match self.inner.layouts[id as usize].floats {
            Some(at) if spec.n as usize * spec.k as usize >= len => {
                // SAFETY: the layout lies in the arena.
                Ok(Floats(unsafe { self.inner.arena.ptr().add(at).cast() }))
            }
            _ => Err(unsupported(format!(
                "weight '{}' is not a vector of {len}",
                spec.name
            ))),
        }
    }

    /// The packed tiles of the command's first weight.
    fn tiles(&self, command: &Command, n: usize, k: usize) -> Result<(Kernel, Bytes), Error> {
        let id = command.weights[0];
        let spec = self
            .program()
            .weights
            .get(id as usize)
            .ok_or_else(|| unsupported("a command lacks its matrix"))?;
        match self.inner.layouts[id as usize].matrix {
            Some(at)
                if spec.n as usize == n
                    && spec.k as usize == k
                    && spec.format == command.format =>
            {
                let kernel = Kernel::for_format(spec.format, self.inner.isa);
                // SAFETY: the layout lies in the arena.
                Ok((kernel, Bytes(unsafe { self.inner.arena.ptr().add(at) })))
            }
            _ => Err(unsupported(format!(
                "weight '{}' is no {} matrix of {n} x {k}",
                spec.name,
                command.format.name()
            ))),
        }
    }

    /// Where the tokens start, checked for `rows` rows.
    fn tokens(&self, rows: usize) -> Result<*mut u32, Error> {
        let id = self.program().tokens as usize;
        match self.buffers.get(id) {
            Some(block) if self.program().buffers[id].bytes as usize >= rows * 4 => {
                Ok(block.ptr().cast())
            }
            _ => Err(unsupported(format!(
                "the tokens buffer is too small for {rows} tokens"
            ))),
        }
    }

    /// The command's cache: its start, and the index of its page lists.
    fn cache(&self, command: &Command) -> Result<(&CacheSpec, Bytes, usize), Error> {
        let program = self.program();
        let spec = program.cache_of(command);
        let spec = spec.ok_or_else(|| unsupported("a command lacks its cache"))?;
        let needed = spec.bytes(program.page);
        let block = self.buffers.get(spec.buffer as usize);
        let block = block.filter(|b| needed.is_some_and(|needed| needed <= b.len() as u64));
        let block = block.ok_or_else(|| {
            unsupported(format!("the buffer of cache '{}' is too small", spec.name))
        })?;
        Ok((spec, Bytes(block.ptr()), first_list(program, spec.buffer)))
    }

    /// The command's attention cache, if it has this shape.
    fn kv_cache(
        &self,
        command: &Command,
        layer: u32,
        heads: u32,
        dim: u32,
    ) -> Result<KvCache, Error> {
        let (spec, start, lists) = self.cache(command)?;
        match spec.kind {
            CacheKind::Attention {
                format,
                layers,
                kv_heads,
                head_dim,
                ..
            } if layer < layers && (heads, dim) == (kv_heads, head_dim) => Ok(KvCache {
                start,
                lists,
                entries: spec.entries(self.program()) as usize,
                pages: spec.pages as usize,
                page_len: self.program().page as usize,
                format,
                kv_heads: kv_heads as usize,
                head_dim: head_dim as usize,
                row_bytes: spec.head_bytes().unwrap_or(0) as usize,
            }),
            _ => Err(misfit(command, spec)),
        }
    }

    /// The command's recurrent cache, if it has this shape.
    fn state_cache(
        &self,
        command: &Command,
        layer: u32,
        needed: usize,
    ) -> Result<StateCache, Error> {
        let (spec, start, lists) = self.cache(command)?;
        match spec.kind {
            CacheKind::Recurrent { layers, floats }
                if layer < layers && floats as usize == needed =>
            {
                Ok(StateCache {
                    start,
                    lists,
                    pages: spec.pages as usize,
                    floats: needed,
                })
            }
            _ => Err(misfit(command, spec)),
        }
    }
}

fn misfit(command: &Command, cache: &CacheSpec) -> Error {
    let (op, name) = (command.op.name(), &cache.name);
    unsupported(format!("{op} does not fit cache '{name}'"))
}

fn scratch_too_small() -> Error {
    unsupported("the device's scratch is too small")
}
