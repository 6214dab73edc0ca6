//! A command becomes launches: a pipeline, a bind group, a grid, and parameters in a buffer.

use crate::gpu::{Gpu, binding};
use crate::kernels::{self, Kernel, WORKGROUP, source};
use crate::load::Weights;
use crate::plan::{COMMAND_BYTES, STATE_HEAD, Sizes};
use welte_device::Error;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Command, Format, NO_WEIGHT, Op, Pass, PassKind, Program,
    params,
};
use wgpu::{BindGroup, BindingResource, Buffer, BufferBinding, ComputePipeline};

/// One dispatch.
pub(crate) struct Launch {
    /// The command's number in its pass.
    pub(crate) command: u32,
    pub(crate) pipeline: ComputePipeline,
    pub(crate) bind: BindGroup,
    /// Workgroups in two dimensions; the third has the live rows.
    pub(crate) grid: [u32; 2],
    /// Rows of a workgroup.
    pub(crate) rows: u32,
}

/// A pass whose commands are lowered.
pub(crate) struct LoweredPass {
    pub(crate) launches: Vec<Launch>,
}

/// What launches refer to.
pub(crate) struct Lowering<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) sizes: &'a Sizes,
    pub(crate) arena: &'a Buffer,
    pub(crate) state: &'a Buffer,
    pub(crate) pages: &'a Buffer,
    /// By buffer: a cache.
    pub(crate) caches: &'a [Option<Buffer>],
}

/// Places in front of a command's parameters, as `Place` in `common.wgsl`.
#[derive(Clone, Copy, Default)]
struct Place {
    operands: [u32; 4],
    first: u32,
    count: u32,
    flags: u32,
    outputs: u32,
    pages: u32,
    page: u32,
    entries: u32,
    lists: u32,
    scratch: u32,
    splits: u32,
    split: u32,
    spare: u32,
}

impl Place {
    /// With the command's own parameters, as they lie in the buffer.
    fn bytes(&self, params: &[u32; 16]) -> Vec<u8> {
        let [a, b, c, d] = self.operands;
        let place = [
            a,
            b,
            c,
            d,
            self.first,
            self.count,
            self.flags,
            self.outputs,
            self.pages,
            self.page,
            self.entries,
            self.lists,
            self.scratch,
            self.splits,
            self.split,
            self.spare,
        ];
        let words = place.iter().chain(params);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// One launch of a command, before its parts are joined.
struct Run {
    kernel: Kernel,
    grid: [u32; 2],
    rows: u32,
    place: Place,
    params: [u32; 16],
    /// Of the first weight.
    piece: usize,
}

/// The command that is lowered, with what its kernels depend on.
#[derive(Clone, Copy)]
struct Task<'a> {
    command: &'a Command,
    /// Rows that the pass may have at this command.
    rows: u32,
    /// Products have many rows, as those of prompts before their outputs are chosen.
    tiled: bool,
    cache: Option<&'a CacheSpec>,
    splits: bool,
}

impl Lowering<'_> {
    fn gpu(&self) -> &Gpu {
        &self.weights.gpu
    }

    fn program(&self) -> &Program {
        &self.weights.program
    }

    /// Lowers a pass. `commands` is the buffer of its parameters.
    pub(crate) fn pass(&self, pass: &Pass, commands: &Buffer) -> Result<LoweredPass, Error> {
        let mut launches = Vec::new();
        for (index, command) in pass.commands.iter().enumerate() {
            let decodes = pass.kind == PassKind::Decode;
            let chosen = pass.outputs_from().is_some_and(|from| index >= from);
            let task = Task {
                command,
                rows: pass.rows_at(index),
                tiled: !decodes && !chosen,
                cache: self.program().cache_of(command),
                splits: decodes,
            };
            for run in self.runs(task) {
                let at = launches.len() as u64 * COMMAND_BYTES;
                launches.push(self.launch(index as u32, task, run, commands, at)?);
            }
        }
        Ok(LoweredPass { launches })
    }

    fn launch(
        &self,
        index: u32,
        task: Task<'_>,
        run: Run,
        commands: &Buffer,
        at: u64,
    ) -> Result<Launch, Error> {
        let (gpu, command) = (self.gpu(), task.command);
        let mut bound: Vec<(u32, BindingResource<'_>)> = vec![
            (binding::MEM, self.arena.as_entire_binding()),
            (binding::PAGES, self.pages.as_entire_binding()),
        ];
        // The last command of a decode step makes the state of the next one.
        let state = match command.op {
            Op::Sample => binding::CACHE,
            _ => binding::STATE,
        };
        bound.push((state, self.state.as_entire_binding()));
        for (role, id) in command.weights.into_iter().enumerate() {
            if id == NO_WEIGHT {
                continue;
            }
            let pieces = &self.weights.weights[id as usize].pieces;
            let (_, buffer) = &pieces[if role == 0 { run.piece } else { 0 }];
            let number = binding::WEIGHTS + role as u32;
            bound.push((number, buffer.as_entire_binding()));
            if role == 0 {
                bound.push((binding::WEIGHT4, buffer.as_entire_binding()));
            }
        }
        if let Some(cache) = task.cache {
            bound.push((binding::CACHE, self.layer(command, cache).1));
        }
        let bytes = run.place.bytes(&run.params);
        gpu.queue.write_buffer(commands, at, &bytes);
        let parameters = BufferBinding {
            buffer: commands,
            offset: at,
            size: std::num::NonZero::new(bytes.len() as u64),
        };
        bound.push((binding::COMMAND, BindingResource::Buffer(parameters)));
        Ok(Launch {
            command: index,
            pipeline: gpu.pipeline(&run.kernel)?,
            bind: gpu.bind(&bound),
            grid: run.grid,
            rows: run.rows,
        })
    }

    /// What every launch of a command knows, with all rows of the first weight's piece.
    fn place(&self, task: Task<'_>, piece: usize) -> Place {
        let command = task.command;
        let mut place = Place {
            operands: command.buffers.map(|buffer| self.word(buffer)),
            outputs: STATE_HEAD as u32 + 3 * self.program().most_rows(),
            page: self.program().page,
            scratch: (self.sizes.scratch / 4) as u32,
            splits: 1,
            ..Place::default()
        };
        for (role, id) in command.weights.into_iter().enumerate() {
            if id != NO_WEIGHT {
                place.flags |= 1 << role;
            }
        }
        if let Some(weight) = self.weights.weights.get(command.weights[0] as usize) {
            let (rows, _) = &weight.pieces[piece];
            (place.first, place.count) = (rows.first, rows.rows);
        }
        if let Some(cache) = task.cache {
            let number = self.program().caches.iter();
            let number = number.take_while(|c| c.buffer != cache.buffer).count();
            place.pages = cache.pages;
            place.entries = cache.entries(self.program());
            place.lists = self.sizes.lists[number];
            place.first = self.layer(command, cache).0;
        }
        place
    }

    /// The first word of an operand in the arena; 0 for a cache.
    fn word(&self, at: BufferRef) -> u32 {
        let place = self.sizes.places.get(at.buffer as usize);
        match place.copied().flatten() {
            Some(place) => ((place + u64::from(at.offset)) / 4) as u32,
            None => 0,
        }
    }

    /// The part of a cache that holds the command's layer, and where the layer begins in it.
    fn layer<'b>(&'b self, command: &Command, cache: &CacheSpec) -> (u32, BindingResource<'b>) {
        let program = self.program();
        let bytes = cache.bytes(program.page).unwrap_or(0) / u64::from(cache.layers().max(1));
        // The first parameter of every op with a cache.
        let begin = bytes * u64::from(command.params[0]);
        let offset = begin / COMMAND_BYTES * COMMAND_BYTES;
        let unit = match cache.kind {
            CacheKind::Attention { .. } => 2,
            CacheKind::Recurrent { .. } => 4,
        };
        let buffer = self.caches[cache.buffer as usize]
            .as_ref()
            .expect("every cache has a buffer");
        // Kernels may see it as words of 16 bytes.
        let size = (begin + bytes - offset).next_multiple_of(16);
        let binding = BufferBinding {
            buffer,
            offset,
            size: std::num::NonZero::new(size.min(buffer.size() - offset)),
        };
        let first = ((begin - offset) / unit) as u32;
        (first, BindingResource::Buffer(binding))
    }

    /// The launches of a command.
    fn runs(&self, task: Task<'_>) -> Vec<Run> {
        let command = task.command;
        let pieces = match self.weights.weights.get(command.weights[0] as usize) {
            Some(weight) => weight.pieces.len(),
            None => 1,
        };
        let words = &command.params;
        let mut runs = Vec::new();
        match command.op {
            Op::NormMatmul => {
                let p = params::NormMatmul::of(words);
                runs.push(self.norm_to_scratch(task, p.k, p.eps, p.x_stride));
                let product = params::Matmul {
                    n: p.n,
                    k: p.k,
                    x_stride: p.k,
                    y_stride: p.y_stride,
                };
                runs.extend((0..pieces).map(|piece| {
                    let mut place = self.place(task, piece);
                    place.operands[0] = place.scratch;
                    self.product(task, place, piece, product)
                }));
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(words);
                runs.push(self.norm_to_scratch(task, p.k, p.eps, p.x_stride));
                let mut place = self.place(task, 0);
                if !task.tiled && pieces == 1 {
                    let aligned = [place.scratch, place.operands[1], p.y_stride];
                    let aligned = aligned.iter().all(|word| word.is_multiple_of(4));
                    let wide = aligned && kernels::is_wide(command.format, p.k);
                    runs.push(Run {
                        kernel: kernels::matmul_act_mul(command.format, wide, p.k),
                        grid: plane(p.n.div_ceil(4)),
                        rows: 1,
                        place,
                        params: *words,
                        piece: 0,
                    });
                    return runs;
                }
                let both = place.scratch + task.rows * p.k;
                let product = params::Matmul {
                    n: 2 * p.n,
                    k: p.k,
                    x_stride: p.k,
                    y_stride: 2 * p.n,
                };
                runs.extend((0..pieces).map(|piece| {
                    let mut place = self.place(task, piece);
                    (place.operands[0], place.operands[1]) = (place.scratch, both);
                    self.product(task, place, piece, product)
                }));
                let act = params::ActMul {
                    n: p.n,
                    act: p.act,
                    x_stride: 2 * p.n,
                    y_stride: p.y_stride,
                };
                place.operands[0] = both;
                let kernel = Kernel::each(Op::ActMul.name(), source::ACT_MUL);
                runs.push(Run {
                    kernel,
                    grid: [p.n.div_ceil(WORKGROUP), 1],
                    rows: 1,
                    place,
                    params: act.words(),
                    piece: 0,
                });
            }
            Op::Matmul | Op::MatmulAdd => {
                let p = params::Matmul::of(words);
                runs.extend(
                    (0..pieces).map(|piece| self.product(task, self.place(task, piece), piece, p)),
                );
            }
            Op::Attention => self.attention(task, &mut runs),
            Op::Sample => {
                let parts = (kernels::argmax_part(), [kernels::ARGMAX_PARTS, 1]);
                runs.extend(
                    [parts, (kernels::argmax(), [1, 1])].map(|(kernel, grid)| Run {
                        kernel,
                        grid,
                        rows: 1,
                        place: self.place(task, 0),
                        params: *words,
                        piece: 0,
                    }),
                );
            }
            _ => runs.extend((0..pieces).map(|piece| {
                let mut place = self.place(task, piece);
                let (kernel, grid) = self.simple(command, task.cache, &mut place);
                Run {
                    kernel,
                    grid,
                    rows: 1,
                    place,
                    params: *words,
                    piece,
                }
            })),
        }
        runs
    }

    /// The RMS norm of a row of `k` values, to the scratch; its weight is the command's second one.
    fn norm_to_scratch(&self, task: Task<'_>, k: u32, eps: f32, x_stride: u32) -> Run {
        let norm = params::Norm {
            dim: k,
            groups: 1,
            eps,
            x_stride,
            y_stride: k,
        };
        let mut place = self.place(task, 0);
        place.operands[1] = place.scratch;
        Run {
            kernel: kernels::norm_before(k),
            grid: [1, 1],
            rows: 1,
            place,
            params: norm.words(),
            piece: 0,
        }
    }

    /// A product of a piece of the command's matrix with the rows at the first operand.
    fn product(&self, task: Task<'_>, place: Place, piece: usize, p: params::Matmul) -> Run {
        let adds = task.command.op == Op::MatmulAdd;
        let format = task.command.format;
        let [x, y, ..] = place.operands;
        let aligned = [x, p.x_stride, y, p.y_stride, place.first];
        let aligned = aligned.iter().all(|word| word.is_multiple_of(4));
        let (kernel, grid, rows) = match task.tiled {
            true => {
                let outputs = place.count.div_ceil(kernels::TILE_OUTPUTS);
                let kernel = kernels::matmul_tile(format, adds);
                (kernel, plane(outputs), kernels::TILE_ROWS)
            }
            false => {
                let wide = aligned && kernels::is_wide(format, p.k);
                let kernel = kernels::matmul(format, adds, wide, p.k);
                (kernel, plane(place.count.div_ceil(4)), 1)
            }
        };
        Run {
            kernel,
            grid,
            rows,
            place,
            params: p.words(),
            piece,
        }
    }

    fn attention(&self, task: Task<'_>, runs: &mut Vec<Run>) {
        let p = params::Attention::of(&task.command.params);
        let mut place = self.place(task, 0);
        let (format, head_dim) = attention_cache(task.cache);
        let wide = format == Format::F16 && head_dim.is_multiple_of(8) && head_dim <= 8 * WORKGROUP;
        let run = |kernel, grid, place| Run {
            kernel,
            grid,
            rows: 1,
            place,
            params: task.command.params,
            piece: 0,
        };
        if !wide {
            let kernel = kernels::attention(format, head_dim);
            runs.push(run(kernel, [p.heads, 1], place));
            return;
        }
        if task.splits {
            (place.splits, place.split) = splits(self.program());
        }
        let kernel = kernels::attention_wide(head_dim);
        runs.push(run(kernel, [p.heads, place.splits], place));
        if place.splits > 1 {
            runs.push(run(kernels::attention_merge(), [p.heads, 1], place));
        }
    }

    /// The kernel and grid of a command that is one launch for each piece of its weight.
    fn simple(
        &self,
        command: &Command,
        cache: Option<&CacheSpec>,
        place: &mut Place,
    ) -> (Kernel, [u32; 2]) {
        let (words, format) = (&command.params, command.format);
        let across = |width: u32| [width.div_ceil(WORKGROUP), 1];
        let each = |name: &str, source: &'static str, width: u32| {
            (Kernel::each(name, source), across(width))
        };
        let stateful = |name: &str, source: &'static str, width: u32| {
            (kernels::recurrent(name, source), across(width))
        };
        let rows = place.count;
        let (kv_format, _) = attention_cache(cache);
        let name = command.op.name();
        match command.op {
            Op::Embed => (
                kernels::embed(self.stored(command)),
                [params::Embed::of(words).k.div_ceil(8 * WORKGROUP), 1],
            ),
            Op::Norm | Op::LayerNorm => {
                let p = params::Norm::of(words);
                (
                    kernels::norm(command.op == Op::LayerNorm, p.dim),
                    [p.groups, 1],
                )
            }
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                let each = p.matrices() * p.n;
                (place.first, place.count) = (place.first / each, rows / each);
                (
                    kernels::experts_act_mul(format, p.k),
                    [p.n.div_ceil(2), p.used],
                )
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(words);
                (place.first, place.count) = (place.first / p.n, rows / p.n);
                (kernels::experts_add(format, p.k), [p.n.div_ceil(4), 1])
            }
            Op::HeadsMatmul => {
                let p = params::HeadsMatmul::of(words);
                let width = p.heads * (p.n + p.tail);
                (kernels::heads_matmul(format), across(width))
            }
            Op::Bias => each(name, source::BIAS, params::Bias::of(words).n),
            Op::Rope => {
                let p = params::Rope::of(words);
                (kernels::rope(), across(p.heads * (p.rot / 2)))
            }
            Op::PositionScale => {
                let n = params::PositionScale::of(words).n;
                each(name, source::POSITION_SCALE, n)
            }
            Op::KvAppend => {
                let p = params::KvAppend::of(words);
                let width = 2 * p.kv_heads * p.head_dim / kv_format.block() as u32;
                (
                    kernels::kv_append(kv_format),
                    [width.div_ceil(WORKGROUP), 1],
                )
            }
            Op::EncodeAttention => {
                let p = params::EncodeAttention::of(words);
                (kernels::encode_attention(p.head_dim), [p.heads, 1])
            }
            Op::AddPosition => each(name, source::ADD_POSITION, params::AddPosition::of(words).k),
            Op::Multiply => each(name, source::MULTIPLY, params::Multiply::of(words).n),
            Op::Cutoff => (kernels::cutoff(), [1, 1]),
            Op::MatchSquares => {
                let groups = params::MatchSquares::of(words).groups;
                (kernels::match_squares(), [groups, 1])
            }
            Op::AltUpPredict => {
                let kernel = kernels::altup(name, source::ALTUP_PREDICT);
                (kernel, across(params::AltUpPredict::of(words).dim))
            }
            Op::AltUpCorrect => {
                let kernel = kernels::altup(name, source::ALTUP_CORRECT);
                (kernel, across(params::AltUpCorrect::of(words).dim))
            }
            Op::ActMul => each(name, source::ACT_MUL, params::ActMul::of(words).n),
            Op::Act => each(name, source::ACT, params::Act::of(words).n),
            Op::Add => each(name, source::ADD, params::Add::of(words).n),
            Op::Scale => each(name, source::SCALE, params::Scale::of(words).n),
            Op::SelectRows => each(name, source::SELECT_ROWS, params::SelectRows::of(words).n),
            Op::Gate => each(name, source::GATE, params::Gate::of(words).n),
            Op::Pool => (kernels::pool(), [1, 1]),
            Op::ShortConv => stateful(name, source::SHORT_CONV, params::ShortConv::of(words).n),
            Op::Mamba2 => {
                let p = params::Mamba2::of(words);
                stateful(name, source::MAMBA2, p.heads * p.value_dim)
            }
            Op::GatedDelta => {
                let p = params::GatedDelta::of(words);
                (kernels::gated_delta(p.key_dim), [p.heads, 1])
            }
            Op::Route => (kernels::route(), [1, 1]),
            Op::RopeAppend => {
                let p = params::RopeAppend::of(words);
                (
                    kernels::rope_append(kv_format),
                    [p.heads + 2 * p.kv_heads, 1],
                )
            }
            Op::Matmul
            | Op::MatmulAdd
            | Op::NormMatmul
            | Op::NormMatmulActMul
            | Op::Attention
            | Op::Sample => unreachable!("{name}: `runs` lowers it"),
        }
    }

    /// The format in which a table is stored: a vector's values are f32.
    fn stored(&self, command: &Command) -> Format {
        self.program().weights[command.weights[0] as usize].format
    }
}

/// So many workgroups in two dimensions, each below the limit of 65,535.
fn plane(count: u32) -> [u32; 2] {
    const WIDE: u32 = 32768;
    match count > WIDE {
        true => [WIDE, count.div_ceil(WIDE)],
        false => [count, 1],
    }
}

/// Format and head size of an attention cache.
fn attention_cache(cache: Option<&CacheSpec>) -> (Format, u32) {
    match cache.map(|cache| cache.kind) {
        Some(CacheKind::Attention {
            format, head_dim, ..
        }) => (format, head_dim),
        _ => (Format::F16, 1),
    }
}

/// How many splits a context has when it is decoded, and their positions.
pub(crate) fn splits(program: &Program) -> (u32, u32) {
    const LEAST: u32 = 256;
    const MOST: u32 = 64;
    let split = program.context.div_ceil(MOST).next_multiple_of(LEAST);
    (program.context.div_ceil(split).max(1), split)
}

/// The most launches of a command whose weight has so many pieces.
pub(crate) fn most_launches(op: Op, pieces: usize) -> usize {
    match op {
        Op::NormMatmul => pieces + 1,
        Op::NormMatmulActMul => pieces + 2,
        Op::Attention | Op::Sample => 2,
        _ => pieces,
    }
}

/// Bytes of scratch that a command takes for `rows` rows.
pub(crate) fn scratch(program: &Program, command: &Command, decodes: bool, rows: u32) -> u64 {
    let floats = |row: u64| 4 * u64::from(rows) * row;
    match command.op {
        Op::NormMatmul => floats(params::NormMatmul::of(&command.params).k.into()),
        Op::NormMatmulActMul => {
            let p = params::NormMatmulActMul::of(&command.params);
            floats(u64::from(p.k) + 2 * u64::from(p.n))
        }
        Op::Sample => floats(2 * u64::from(kernels::ARGMAX_PARTS)),
        Op::Attention if decodes => {
            let p = params::Attention::of(&command.params);
            let partial = u64::from(p.heads) * (u64::from(p.head_dim) + 2);
            floats(partial * u64::from(splits(program).0))
        }
        _ => 0,
    }
}
