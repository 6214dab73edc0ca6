//! Lowering: each command of a table becomes one or a few phases, with pointers resolved and checked.
#![allow(unsafe_code)]

use crate::Error;
use crate::kernels::Kernel;
use crate::load::Inner;
use crate::memory::Block;
use crate::ops::attention::{self, Attention};
use crate::ops::attention_prompt;
use crate::ops::basic::{self, ActMul, Add, Bias, CopyLast, Embed, Norm, Scale};
use crate::ops::experts::{self, Combine, ExpertsMatmul, Groups, PrepareEntries, Route};
use crate::ops::matmul::{FUSED_COLUMNS, Matmul, Prepare, Then};
use crate::ops::matmul_prompt;
use crate::ops::rope::{KvAppend, Rope, RopeAppend, RopeTable};
use crate::ops::sample::{self, Sample};
use crate::ops::{Bytes, Floats, MANY_ROWS, Place, State};
use crate::sizes::{Extra, PHASES, angles_of, experts_of, matrix_of, refuse};
use welte_table::{
    BufferRef, Command, NO_WEIGHT, Op, Program, Shape, Table, Usage, WeightId, params,
};

/// True if this device runs the command as it stands: it has every op, fused ones included, in every format.
pub fn supports(command: &Command) -> bool {
    let _ = command;
    true
}

/// A phase: what its chunks do.
pub(crate) enum Phase {
    Angles(RopeTable),
    Embed(Embed),
    Norm(Norm),
    Prepare(Prepare),
    Matmul(Matmul),
    Bias(Bias),
    Rope(Rope),
    KvAppend(KvAppend),
    RopeAppend(RopeAppend),
    Attention(Attention),
    /// Merges what the attention phase before left in the partials, if it was split.
    Merge(Attention),
    ActMul(ActMul),
    Add(Add),
    Scale(Scale),
    CopyLast(CopyLast),
    Route(Route),
    /// Entries are grouped by what this place says.
    Group(Groups, Place),
    PrepareEntries(PrepareEntries),
    ExpertsMatmul(ExpertsMatmul),
    Combine(Combine),
    Scan(Sample),
    Choose(Sample),
}

/// A phase with the command it came from.
pub(crate) struct Lowered {
    pub(crate) command: u32,
    /// Only one row is live here.
    pub(crate) single: bool,
    pub(crate) phase: Phase,
}

/// A table, lowered.
pub(crate) struct LoweredTable {
    pub(crate) shape: Shape,
    pub(crate) phases: Vec<Lowered>,
    pub(crate) logits: Place,
}

/// Everything that lowering reads.
pub(crate) struct Lowering<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) buffers: &'a [Block],
    pub(crate) extra: &'a Extra,
}

impl Lowering<'_> {
    fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Rows of `width` floats in a buffer, checked for `rows` rows.
    fn place(&self, at: BufferRef, stride: u32, width: usize, rows: usize) -> Result<Place, Error> {
        let block = self
            .buffers
            .get(at.buffer as usize)
            .ok_or_else(|| refuse("a command lacks a buffer"))?;
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
            return Err(refuse(format!(
                "buffer {} is too small for {rows} rows of {width}",
                spec.name
            )));
        }
        // SAFETY: the offset is inside the block.
        let start = unsafe { block.ptr().add(at.offset as usize).cast() };
        Ok(Place { start, stride })
    }

    fn scratch(
        &self,
        block: &Block,
        offset: usize,
        stride: usize,
        rows: usize,
    ) -> Result<Place, Error> {
        if (offset + rows * stride) * 4 > block.len() {
            return Err(refuse("the device's scratch is too small"));
        }
        // SAFETY: the offset is inside the block.
        let start = unsafe { block.ptr().cast::<f32>().add(offset) };
        Ok(Place { start, stride })
    }

    fn floats(&self, id: WeightId, len: usize) -> Result<Floats, Error> {
        if id == NO_WEIGHT {
            return Ok(Floats::NONE);
        }
        let spec = self
            .program()
            .weights
            .get(id as usize)
            .ok_or_else(|| refuse("a command lacks a weight"))?;
        match self.inner.layouts[id as usize].floats {
            Some(at) if spec.n as usize * spec.k as usize >= len => {
                // SAFETY: the layout lies in the arena.
                Ok(Floats(unsafe { self.inner.arena.ptr().add(at).cast() }))
            }
            _ => Err(refuse(format!("{} is no vector of {len}", spec.name))),
        }
    }

    fn matrix(&self, command: &Command, n: usize, k: usize) -> Result<(Kernel, Bytes), Error> {
        let id = command.weights[0];
        let spec = self
            .program()
            .weights
            .get(id as usize)
            .ok_or_else(|| refuse("a command lacks its matrix"))?;
        let at = self.inner.layouts[id as usize].matrix;
        match at {
            Some(at)
                if spec.n as usize == n
                    && spec.k as usize == k
                    && spec.format == command.format =>
            {
                let kernel = Kernel::for_format(spec.format, self.inner.isa);
                // SAFETY: the layout lies in the arena.
                Ok((kernel, Bytes(unsafe { self.inner.arena.ptr().add(at) })))
            }
            _ => Err(refuse(format!(
                "{} is no {} matrix of {n} x {k}",
                spec.name,
                command.format.name()
            ))),
        }
    }

    /// Where the conveyor starts, checked for `slots` tokens.
    fn conveyor(&self, slots: usize) -> Result<*mut u32, Error> {
        let id = self.program().tokens as usize;
        match self.buffers.get(id) {
            Some(block) if self.program().buffers[id].bytes as usize >= slots * 4 => {
                Ok(block.ptr().cast())
            }
            _ => Err(refuse(format!("the conveyor must hold {slots} tokens"))),
        }
    }

    pub(crate) fn lower(&self, table: &Table) -> Result<LoweredTable, Error> {
        let mut phases = Vec::with_capacity(table.commands.len() * PHASES);
        let angles = self.lower_angles(table, &mut phases)?;
        let single_from = table.single_row_from().unwrap_or(usize::MAX);
        for (index, command) in table.commands.iter().enumerate() {
            let single = index >= single_from;
            let positional = matches!(
                command.op,
                Op::Rope | Op::RopeAppend | Op::KvAppend | Op::Attention | Op::Embed
            );
            if single && positional {
                return Err(refuse(format!("{} after copy_last", command.op.name())));
            }
            let rows = table.rows_at(index) as usize;
            let mut push = |phase: Phase| {
                phases.push(Lowered {
                    command: index as u32,
                    single,
                    phase,
                })
            };
            let prompt = matches!(table.shape, Shape::Prefill(_));
            self.lower_command(command, rows, prompt, &angles, &mut push)?;
        }
        Ok(LoweredTable {
            shape: table.shape,
            phases,
            logits: self.logits(table)?,
        })
    }

    /// A table without phases, for the reference.
    pub(crate) fn logits_only(&self, table: &Table) -> Result<LoweredTable, Error> {
        Ok(LoweredTable {
            shape: table.shape,
            phases: Vec::new(),
            logits: self.logits(table)?,
        })
    }

    /// Where the logits are: what `sample` reads, or else what the last command writes.
    fn logits(&self, table: &Table) -> Result<Place, Error> {
        let last = table
            .commands
            .last()
            .ok_or_else(|| refuse("a table without commands"))?;
        let at = match last.op {
            Op::Sample => last.buffers[0],
            op => last.buffers[(op.reads().len() + op.writes().len()).saturating_sub(1)],
        };
        let vocab = self.program().vocab;
        let rows = if let Shape::Batch(rows) = table.shape {
            rows as usize
        } else {
            1
        };
        self.place(at, vocab, vocab as usize, rows)
    }

    /// One phase per kind of angles, and where each lies.
    #[allow(clippy::type_complexity)]
    fn lower_angles(
        &self,
        table: &Table,
        phases: &mut Vec<Lowered>,
    ) -> Result<Vec<((WeightId, u32, u32), Place)>, Error> {
        let mut known: Vec<((WeightId, u32, u32), Place)> = Vec::new();
        let mut offset = 0;
        let rows = table.shape.rows() as usize;
        for (index, command) in table.commands.iter().enumerate() {
            let Some(key) = angles_of(command) else {
                continue;
            };
            if known.iter().any(|(k, _)| *k == key) {
                continue;
            }
            let rot = key.1 as usize;
            let freqs = self.floats(key.0, rot / 2)?;
            if freqs.0.is_null() || !rot.is_multiple_of(2) {
                return Err(refuse(
                    "rope without frequencies, or of an odd number of elements",
                ));
            }
            let y = self.scratch(&self.extra.angles, offset, rot, rows)?;
            offset += rows * rot;
            let phase = Phase::Angles(RopeTable {
                freqs,
                half: rot / 2,
                magnitude: f32::from_bits(key.2),
                y,
            });
            phases.push(Lowered {
                command: index as u32,
                single: false,
                phase,
            });
            known.push((key, y));
        }
        Ok(known)
    }

    fn lower_command(
        &self,
        command: &Command,
        rows: usize,
        prompt: bool,
        angles: &[((WeightId, u32, u32), Place)],
        push: &mut dyn FnMut(Phase),
    ) -> Result<(), Error> {
        let [a, b, ..] = command.buffers;
        let kv = &self.program().kv;
        let same_kv = |layer: u32, kv_heads: u32, head_dim: u32| {
            if layer < kv.layers && kv_heads == kv.kv_heads && head_dim == kv.head_dim {
                Ok(layer as usize)
            } else {
                Err(refuse(format!(
                    "{} does not fit the KV layout",
                    command.op.name()
                )))
            }
        };
        let angle = || {
            let key = angles_of(command);
            angles
                .iter()
                .find(|(k, _)| Some(*k) == key)
                .map(|(_, p)| *p)
                .ok_or_else(|| refuse("rope without angles"))
        };
        match command.op {
            Op::Embed => {
                let p = params::Embed::of(&command.params);
                let (n, k) = (p.n as usize, p.k as usize);
                let id = command.weights[0] as usize;
                let spec = self
                    .program()
                    .weights
                    .get(id)
                    .ok_or_else(|| refuse("embed without a table"))?;
                let layout = self.inner.layouts[id];
                let at = layout
                    .lookup
                    .or(layout.matrix)
                    .filter(|_| (spec.n as usize, spec.k as usize) == (n, k));
                let at =
                    at.ok_or_else(|| refuse(format!("{} is no table of {n} x {k}", spec.name)))?;
                let tiles = layout
                    .matrix
                    .map(|_| Kernel::for_format(spec.format, self.inner.isa));
                let row_bytes = spec.format.bytes(k).unwrap_or(0);
                let bytes = tiles.map_or(n * row_bytes, |kernel| {
                    n.div_ceil(kernel.tile_rows) * kernel.tile_bytes(k)
                });
                if p.n < self.program().vocab || spec.usage == Usage::Matrix {
                    return Err(refuse("the embedding has fewer rows than the vocabulary"));
                }
                // SAFETY: the layout lies in the arena.
                let table = Bytes(unsafe { self.inner.arena.ptr().add(at) });
                push(Phase::Embed(Embed {
                    table,
                    bytes,
                    tiles,
                    format: spec.format,
                    row_bytes,
                    k,
                    scale: p.scale,
                    tokens: self.conveyor(rows)?,
                    y: self.place(b, p.x_stride, k, rows)?,
                }));
            }
            Op::Norm => {
                let p = params::Norm::of(&command.params);
                let (dim, groups) = (p.dim as usize, p.groups as usize);
                push(Phase::Norm(Norm {
                    x: self.place(a, p.x_stride, dim * groups, rows)?,
                    y: self.place(b, p.y_stride, dim * groups, rows)?,
                    dim,
                    groups,
                    eps: p.eps,
                    weight: self.floats(command.weights[0], dim)?,
                }));
            }
            Op::Matmul => {
                let p = params::Matmul::of(&command.params);
                self.lower_matmul(
                    command,
                    (rows, prompt),
                    (p.x_stride, p.y_stride),
                    None,
                    Then::Store,
                    push,
                )?;
            }
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(&command.params);
                self.lower_matmul(
                    command,
                    (rows, prompt),
                    (p.x_stride, p.y_stride),
                    None,
                    Then::Accumulate,
                    push,
                )?;
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(&command.params);
                let norm = Some((self.floats(command.weights[1], p.k as usize)?, p.eps));
                self.lower_matmul(
                    command,
                    (rows, prompt),
                    (p.x_stride, p.y_stride),
                    norm,
                    Then::Store,
                    push,
                )?;
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(&command.params);
                let norm = Some((self.floats(command.weights[1], p.k as usize)?, p.eps));
                self.lower_matmul(
                    command,
                    (rows, prompt),
                    (p.x_stride, p.y_stride),
                    norm,
                    Then::ActMul(p.act),
                    push,
                )?;
            }
            Op::Bias => {
                let p = params::Bias::of(&command.params);
                let n = p.n as usize;
                let y = self.place(a, p.y_stride, n, rows)?;
                push(Phase::Bias(Bias {
                    y,
                    n,
                    bias: self.floats(command.weights[0], n)?,
                }));
            }
            Op::Rope => {
                let p = params::Rope::of(&command.params);
                if p.rot > p.head_dim {
                    return Err(refuse("rope of more elements than a head has"));
                }
                push(Phase::Rope(Rope {
                    y: self.place(a, p.y_stride, p.heads as usize * p.head_dim as usize, rows)?,
                    heads: p.heads as usize,
                    head_dim: p.head_dim as usize,
                    half: p.rot as usize / 2,
                    interleaved: p.interleaved != 0,
                    angles: angle()?,
                }));
            }
            Op::KvAppend => {
                let p = params::KvAppend::of(&command.params);
                let width = p.kv_heads as usize * p.head_dim as usize;
                push(Phase::KvAppend(KvAppend {
                    k: self.place(a, p.k_stride, width, rows)?,
                    v: self.place(b, p.v_stride, width, rows)?,
                    layer: same_kv(p.layer, p.kv_heads, p.head_dim)?,
                }));
            }
            Op::RopeAppend => {
                let p = params::RopeAppend::of(&command.params);
                let (heads, kv_heads, head_dim) =
                    (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
                if p.rot > p.head_dim || kv_heads == 0 || heads % kv_heads != 0 {
                    return Err(refuse("rope_append with heads that do not fit each other"));
                }
                push(Phase::RopeAppend(RopeAppend {
                    qkv: self.place(a, p.qkv_stride, (heads + 2 * kv_heads) * head_dim, rows)?,
                    heads,
                    kv_heads,
                    head_dim,
                    half: p.rot as usize / 2,
                    interleaved: p.interleaved != 0,
                    eps: p.eps,
                    angles: angle()?,
                    q_norm: self.floats(command.weights[1], head_dim)?,
                    k_norm: self.floats(command.weights[2], head_dim)?,
                    layer: same_kv(p.layer, p.kv_heads, p.head_dim)?,
                }));
            }
            Op::Attention => {
                let make = || self.lower_attention(command, (rows, prompt), same_kv);
                push(Phase::Attention(make()?));
                push(Phase::Merge(make()?));
            }
            Op::ActMul => {
                let p = params::ActMul::of(&command.params);
                let n = p.n as usize;
                let x = self.place(a, p.x_stride, 2 * n, rows)?;
                push(Phase::ActMul(ActMul {
                    x,
                    y: self.place(b, p.y_stride, n, rows)?,
                    n,
                    act: p.act,
                }));
            }
            Op::Add => {
                let p = params::Add::of(&command.params);
                let n = p.n as usize;
                let x = self.place(a, p.x_stride, n, rows)?;
                push(Phase::Add(Add {
                    x,
                    y: self.place(b, p.y_stride, n, rows)?,
                    n,
                }));
            }
            Op::Scale => {
                let p = params::Scale::of(&command.params);
                let n = p.n as usize;
                push(Phase::Scale(Scale {
                    y: self.place(a, p.y_stride, n, rows)?,
                    n,
                    scale: p.scale,
                    cap: p.cap,
                }));
            }
            Op::CopyLast => {
                let p = params::CopyLast::of(&command.params);
                let n = p.n as usize;
                let x = self.place(a, p.x_stride, n, rows)?;
                push(Phase::CopyLast(CopyLast {
                    x,
                    y: self.place(b, p.y_stride, n, 1)?,
                    n,
                }));
            }
            Op::Route => {
                let p = params::Route::of(&command.params);
                let (experts, used) = (p.experts as usize, p.used as usize);
                if used == 0 || used > experts {
                    return Err(refuse("route to more experts than there are"));
                }
                push(Phase::Route(Route {
                    x: self.place(a, p.x_stride, experts, rows)?,
                    y: self.place(b, p.y_stride, 2 * used, rows)?,
                    experts,
                    used,
                    renormalise: p.renormalise != 0,
                    scale: p.scale,
                }));
            }
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(&command.params);
                let strides = [p.x_stride, p.choice_stride, p.y_stride];
                self.lower_experts(command, rows, strides, Some(p.act), push)?;
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(&command.params);
                let strides = [p.x_stride, p.choice_stride, p.y_stride];
                self.lower_experts(command, rows, strides, None, push)?;
            }
            Op::Sample => {
                let p = params::Sample::of(&command.params);
                if p.n != self.program().vocab {
                    return Err(refuse("sample over something else than the vocabulary"));
                }
                let make = || -> Result<Sample, Error> {
                    let n = p.n as usize;
                    let chunks = n.div_ceil(sample::CHUNK);
                    Ok(Sample {
                        logits: self.place(a, p.logits_stride, n, 1)?,
                        n,
                        partials: self.scratch(&self.extra.best, 0, 2, chunks)?,
                        tokens: self.conveyor(2)?,
                    })
                };
                push(Phase::Scan(make()?));
                push(Phase::Choose(make()?));
            }
        }
        Ok(())
    }

    fn lower_matmul(
        &self,
        command: &Command,
        (rows, prompt): (usize, bool),
        (x_stride, y_stride): (u32, u32),
        norm: Option<(Floats, f32)>,
        then: Then,
        push: &mut dyn FnMut(Phase),
    ) -> Result<(), Error> {
        let (n, k) = matrix_of(command).ok_or_else(|| refuse("no matrix"))?;
        let (kernel, tiles) = self.matrix(command, n, k)?;
        let many = prompt.then(|| Kernel::for_prompt(kernel.format, self.inner.isa));
        let many_bytes =
            |many: &Kernel| (many.acts_bytes(k), matmul_prompt::scratch_bytes(many, k));
        let (acts_bytes, scratch) = many.as_ref().map_or((0, 0), many_bytes);
        let acts_bytes = kernel.acts_bytes(k).max(acts_bytes);
        if rows * acts_bytes > self.extra.acts.len()
            || (norm.is_some() && k * 4 > self.extra.per_thread)
            || (rows >= MANY_ROWS && scratch > self.extra.per_thread)
        {
            return Err(refuse("the device's scratch is too small"));
        }
        let acts = Bytes(self.extra.acts.ptr());
        let x = self.place(command.buffers[0], x_stride, k, rows)?;
        push(Phase::Prepare(Prepare {
            kernel,
            many,
            x,
            k,
            norm,
            acts,
        }));
        let threads = self.inner.team.threads();
        let Then::ActMul(act) = then else {
            let y = self.place(command.buffers[1], y_stride, n, rows)?;
            push(Phase::Matmul(Matmul::new(
                kernel,
                many,
                tiles,
                (n, k),
                acts,
                y,
                then,
                threads,
            )));
            return Ok(());
        };
        let half = n / 2;
        let y = self.place(command.buffers[1], y_stride, half, rows)?;
        if half % kernel.tile_rows == 0 && kernel.tile_rows <= FUSED_COLUMNS {
            push(Phase::Matmul(Matmul::new(
                kernel,
                many,
                tiles,
                (half, k),
                acts,
                y,
                then,
                threads,
            )));
        } else {
            let wide = self.scratch(&self.extra.wide, 0, n, rows)?;
            push(Phase::Matmul(Matmul::new(
                kernel,
                many,
                tiles,
                (n, k),
                acts,
                wide,
                Then::Store,
                threads,
            )));
            push(Phase::ActMul(ActMul {
                x: wide,
                y,
                n: half,
                act,
            }));
        }
        Ok(())
    }

    /// Experts with gate and up if there is an activation, else those whose outputs are added up.
    fn lower_experts(
        &self,
        command: &Command,
        rows: usize,
        [x_stride, choice_stride, y_stride]: [u32; 3],
        act: Option<u32>,
        push: &mut dyn FnMut(Phase),
    ) -> Result<(), Error> {
        let e = experts_of(command).ok_or_else(|| refuse("no experts"))?;
        let (kernel, tiles) = self.matrix(command, e.n * e.experts, e.k)?;
        let n = if act.is_some() { e.n / 2 } else { e.n };
        if e.used == 0 || e.used > e.experts || !n.is_multiple_of(kernel.tile_rows) {
            return Err(refuse(format!(
                "experts of {n} outputs; must be a multiple of {}",
                kernel.tile_rows
            )));
        }
        let (entries, acts_bytes) = (rows * e.used, kernel.acts_bytes(e.k));
        if entries * acts_bytes > self.extra.acts.len()
            || Groups::bytes(e.experts, e.used, rows) > self.extra.groups.len()
        {
            return Err(refuse("the device's scratch is too small"));
        }
        let groups = Groups {
            start: Bytes(self.extra.groups.ptr()),
            experts: e.experts,
            used: e.used,
            entries,
        };
        let [x, choice, y, _] = command.buffers;
        let choice = self.place(choice, choice_stride, 2 * e.used, rows)?;
        let own = act.is_none();
        let width = if own { e.used * e.k } else { e.k };
        let acts = Bytes(self.extra.acts.ptr());
        let bias = self.floats(command.weights[1], e.n * e.experts)?;
        push(Phase::Group(groups, choice));
        push(Phase::PrepareEntries(PrepareEntries {
            kernel,
            groups,
            x: self.place(x, x_stride, width, rows)?,
            k: e.k,
            own,
            acts,
            acts_bytes,
        }));
        let (out, then) = match act {
            Some(act) => (
                self.place(y, y_stride, e.used * n, rows)?,
                experts::Then::ActMul(act),
            ),
            None => (
                self.scratch(&self.extra.wide, 0, n, entries)?,
                experts::Then::Keep,
            ),
        };
        push(Phase::ExpertsMatmul(ExpertsMatmul {
            kernel,
            groups,
            tiles,
            n,
            k: e.k,
            acts,
            acts_bytes,
            y: out,
            then,
            bias: if own { Floats::NONE } else { bias },
        }));
        if own {
            push(Phase::Combine(Combine {
                groups,
                choice,
                parts: out,
                y: self.place(y, y_stride, n, rows)?,
                n,
                bias,
            }));
        }
        Ok(())
    }

    /// Whether every matrix rounds what many rows of a prompt are multiplied with: then attention may, too.
    fn rounds(&self) -> bool {
        let commands = self.program().tables.iter().flat_map(|t| &t.commands);
        commands
            .filter(|c| matrix_of(c).is_some() || experts_of(c).is_some())
            .all(|c| Kernel::for_prompt(c.format, self.inner.isa).rounds())
    }

    fn lower_attention(
        &self,
        command: &Command,
        (rows, prompt): (usize, bool),
        same_kv: impl Fn(u32, u32, u32) -> Result<usize, Error>,
    ) -> Result<Attention, Error> {
        let p = params::Attention::of(&command.params);
        let (heads, kv_heads, head_dim) =
            (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
        let layer = same_kv(p.layer, p.kv_heads, p.head_dim)?;
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(refuse("attention with heads that do not fit each other"));
        }
        let kv = &self.program().kv;
        let splits = attention::splits_of(kv.context as usize);
        let floats = attention::partial_floats(head_dim);
        let mut needed = attention::scratch_floats(heads / kv_heads, head_dim, splits);
        if rows >= MANY_ROWS {
            needed = needed.max(attention_prompt::scratch_floats(head_dim));
        }
        if needed * 4 > self.extra.per_thread {
            return Err(refuse("the device's scratch is too small"));
        }
        Ok(Attention {
            q: self.place(command.buffers[0], p.q_stride, heads * head_dim, rows)?,
            y: self.place(command.buffers[2], p.y_stride, heads * head_dim, rows)?,
            layer,
            heads,
            kv_heads,
            head_dim,
            scale: p.scale,
            window: p.window as usize,
            softcap: p.softcap,
            sinks: self.floats(command.weights[0], heads)?,
            partials: self.scratch(&self.extra.partials, 0, floats, heads * splits)?,
            run: attention::run_for(kv.format, head_dim, self.inner.isa),
            threads: self.inner.team.threads(),
            prompt: attention_prompt::prompt_for(
                kv.format,
                self.inner.isa,
                heads / kv_heads,
                self.rounds(),
            )
            .filter(|_| prompt),
        })
    }
}

impl Phase {
    /// Into how many chunks it is cut.
    pub(crate) fn chunks(&self, state: &State, rows: usize, plain_argmax: bool) -> usize {
        match self {
            Phase::Matmul(p) => p.chunks(rows),
            Phase::RopeAppend(p) => rows * p.chunks_per_row(rows),
            Phase::Attention(p) if rows == 1 => {
                p.kv_heads * p.splits(state.rows[0].position as usize)
            }
            Phase::Attention(p) => p.items(rows).unwrap_or(rows * p.kv_heads),
            Phase::Merge(p) if rows == 1 && p.splits(state.rows[0].position as usize) > 1 => {
                p.kv_heads.min(MERGE_CHUNKS)
            }
            Phase::Merge(_) => 0,
            Phase::ExpertsMatmul(p) => p.chunks(rows),
            Phase::CopyLast(_) | Phase::Choose(_) | Phase::Group(..) => 1,
            Phase::Scan(p) => {
                if plain_argmax {
                    p.chunks()
                } else {
                    0
                }
            }
            _ => rows.div_ceil(basic::rows_of_chunk(rows)),
        }
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// See `ops`; `scratch` is this thread's own.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, chunk: usize, scratch: *mut f32) {
        let each = basic::rows_of_chunk(rows);
        let some = chunk * each..rows.min((chunk + 1) * each);
        // SAFETY: the promise of `ops` holds for each of them alike.
        unsafe {
            match self {
                Phase::Angles(p) => some.for_each(|row| p.run(state, row)),
                Phase::Embed(p) => some.for_each(|row| p.run(state, row)),
                Phase::Norm(p) => some.for_each(|row| p.run(row)),
                Phase::Prepare(p) => some.for_each(|row| p.run(rows, row, scratch)),
                Phase::Bias(p) => some.for_each(|row| p.run(row)),
                Phase::Rope(p) => some.for_each(|row| p.run(row)),
                Phase::KvAppend(p) => some.for_each(|row| p.run(state, row)),
                Phase::ActMul(p) => some.for_each(|row| p.run(row)),
                Phase::Add(p) => some.for_each(|row| p.run(row)),
                Phase::Scale(p) => some.for_each(|row| p.run(row)),
                Phase::Route(p) => some.for_each(|row| p.run(row)),
                Phase::Group(p, choice) => p.fill(*choice, rows),
                Phase::PrepareEntries(p) => some.for_each(|row| p.run(row)),
                Phase::ExpertsMatmul(p) => p.run(rows, chunk, scratch),
                Phase::Combine(p) => some.for_each(|row| p.run(row)),
                Phase::Matmul(p) => p.run(rows, chunk, scratch),
                Phase::RopeAppend(p) => p.run(state, rows, chunk),
                Phase::Attention(p)
                    if rows == 1 && p.splits(state.rows[0].position as usize) > 1 =>
                {
                    p.split(state, chunk % p.kv_heads, chunk / p.kv_heads, scratch);
                }
                Phase::Attention(p) if p.items(rows).is_some() => {
                    p.item(state, rows, chunk, scratch)
                }
                Phase::Attention(p) => {
                    p.whole(state, chunk / p.kv_heads, chunk % p.kv_heads, scratch)
                }
                Phase::Merge(p) => {
                    let chunks = p.kv_heads.min(MERGE_CHUNKS);
                    (chunk..p.kv_heads)
                        .step_by(chunks)
                        .for_each(|head| p.merge(state, head));
                }
                Phase::CopyLast(p) => p.run(state.live),
                Phase::Scan(p) => p.scan(chunk),
                Phase::Choose(p) => {
                    let mut sampler = state
                        .sampler
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    p.choose(&mut sampler, state.rows[0].position + 1, state.slot);
                }
            }
        }
    }
}

/// Into how many chunks merging is cut: it is little work.
const MERGE_CHUNKS: usize = 4;
