//! A command becomes launches: a pipeline, a bind group, a grid, and parameters in a buffer.

use crate::gpu::{Gpu, binding};
use crate::kernels::{self, Kernel, WORKGROUP, source};
use crate::load::Weights;
use crate::plan::{COMMAND_BYTES, STATE_HEAD, Sizes};
use welte_device::Error;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Command, Format, NO_WEIGHT, Op, Pass, Program, params,
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
        ];
        let words = place.iter().chain(params);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// What runs a command, over which grid.
struct Run {
    kernel: Kernel,
    grid: [u32; 2],
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
        for (index, command) in (0..).zip(&pass.commands) {
            for piece in 0..self.pieces(command) {
                let at = launches.len() as u64 * COMMAND_BYTES;
                launches.push(self.launch(index, command, piece, commands, at)?);
            }
        }
        Ok(LoweredPass { launches })
    }

    fn pieces(&self, command: &Command) -> usize {
        match command.weights[0] {
            NO_WEIGHT => 1,
            id => self.weights.weights[id as usize].pieces.len(),
        }
    }

    fn launch(
        &self,
        index: u32,
        command: &Command,
        piece: usize,
        commands: &Buffer,
        at: u64,
    ) -> Result<Launch, Error> {
        let gpu = self.gpu();
        let mut place = Place {
            operands: command.buffers.map(|buffer| self.word(buffer)),
            outputs: STATE_HEAD as u32 + 3 * self.program().most_rows(),
            page: self.program().page,
            ..Place::default()
        };
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
            place.flags |= 1 << role;
            let pieces = &self.weights.weights[id as usize].pieces;
            let (rows, buffer) = &pieces[if role == 0 { piece } else { 0 }];
            if role == 0 {
                (place.first, place.count) = (rows.first, rows.rows);
            }
            let number = binding::WEIGHTS + role as u32;
            bound.push((number, buffer.as_entire_binding()));
        }
        let rows = place.count;
        let cache = self.program().cache_of(command);
        if let Some(cache) = cache {
            bound.push((binding::CACHE, self.layer(command, cache, &mut place)));
        }
        let run = self.run(command, cache, &mut place, rows);
        let bytes = place.bytes(&command.params);
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
        })
    }

    /// The first word of an operand in the arena; 0 for a cache.
    fn word(&self, at: BufferRef) -> u32 {
        let place = self.sizes.places.get(at.buffer as usize);
        match place.copied().flatten() {
            Some(place) => ((place + u64::from(at.offset)) / 4) as u32,
            None => 0,
        }
    }

    /// The part of a cache that holds the command's layer.
    fn layer<'b>(
        &'b self,
        command: &Command,
        cache: &CacheSpec,
        place: &mut Place,
    ) -> BindingResource<'b> {
        let program = self.program();
        let number = program.caches.iter().position(|c| c.buffer == cache.buffer);
        let number = number.unwrap_or(0);
        place.pages = cache.pages;
        place.entries = cache.entries(program);
        place.lists = self.sizes.lists[number];
        let bytes = cache.bytes(program.page).unwrap_or(0) / u64::from(cache.layers().max(1));
        // The first parameter of every op with a cache.
        let begin = bytes * u64::from(command.params[0]);
        let offset = begin / COMMAND_BYTES * COMMAND_BYTES;
        let unit = match cache.kind {
            CacheKind::Attention { .. } => 2,
            CacheKind::Recurrent { .. } => 4,
        };
        place.first = ((begin - offset) / unit) as u32;
        let buffer = self.caches[cache.buffer as usize]
            .as_ref()
            .expect("every cache has a buffer");
        let size = (begin + bytes - offset).next_multiple_of(4);
        BindingResource::Buffer(BufferBinding {
            buffer,
            offset,
            size: std::num::NonZero::new(size),
        })
    }

    /// The kernel and grid of a command, with `rows` rows of its first weight.
    fn run(
        &self,
        command: &Command,
        cache: Option<&CacheSpec>,
        place: &mut Place,
        rows: u32,
    ) -> Run {
        let (words, format) = (&command.params, command.format);
        let each = |name: &str, source: &'static str, width: u32| Run {
            kernel: Kernel::each(name, source),
            grid: [width.div_ceil(WORKGROUP), 1],
        };
        let stateful = |name: &str, source: &'static str, width: u32| Run {
            kernel: kernels::recurrent(name, source),
            grid: [width.div_ceil(WORKGROUP), 1],
        };
        let (kv_format, head_dim) = match cache.map(|cache| cache.kind) {
            Some(CacheKind::Attention {
                format, head_dim, ..
            }) => (format, head_dim),
            _ => (Format::F16, 1),
        };
        let name = command.op.name();
        match command.op {
            Op::Embed => Run {
                kernel: kernels::embed(self.stored(command)),
                grid: [params::Embed::of(words).k.div_ceil(8 * WORKGROUP), 1],
            },
            Op::Norm | Op::LayerNorm => Run {
                kernel: kernels::norm(command.op == Op::LayerNorm),
                grid: [params::Norm::of(words).groups, 1],
            },
            Op::Matmul | Op::MatmulAdd => Run {
                kernel: kernels::matmul(format, command.op == Op::MatmulAdd),
                grid: plane(rows.div_ceil(4)),
            },
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                (place.first, place.count) = (place.first / (2 * p.n), rows / (2 * p.n));
                Run {
                    kernel: kernels::experts_act_mul(format),
                    grid: [p.n.div_ceil(2), p.used],
                }
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(words);
                (place.first, place.count) = (place.first / p.n, rows / p.n);
                Run {
                    kernel: kernels::experts_add(format),
                    grid: [p.n.div_ceil(4), 1],
                }
            }
            Op::HeadsMatmul => {
                let p = params::HeadsMatmul::of(words);
                each(name, source::HEADS_MATMUL, p.heads * (p.n + p.tail))
            }
            Op::Bias => each(name, source::BIAS, params::Bias::of(words).n),
            Op::Rope => {
                let p = params::Rope::of(words);
                each(name, source::ROPE, p.heads * (p.rot / 2))
            }
            Op::PositionScale => {
                let n = params::PositionScale::of(words).n;
                each(name, source::POSITION_SCALE, n)
            }
            Op::KvAppend => {
                let p = params::KvAppend::of(words);
                let width = 2 * p.kv_heads * p.head_dim / kv_format.block() as u32;
                Run {
                    kernel: kernels::kv_append(kv_format),
                    grid: [width.div_ceil(WORKGROUP), 1],
                }
            }
            Op::Attention => Run {
                kernel: kernels::attention(kv_format, head_dim),
                grid: [params::Attention::of(words).heads, 1],
            },
            Op::EncodeAttention => {
                let p = params::EncodeAttention::of(words);
                Run {
                    kernel: kernels::encode_attention(p.head_dim),
                    grid: [p.heads, 1],
                }
            }
            Op::AddPosition => each(name, source::ADD_POSITION, params::AddPosition::of(words).k),
            Op::ActMul => each(name, source::ACT_MUL, params::ActMul::of(words).n),
            Op::Act => each(name, source::ACT, params::Act::of(words).n),
            Op::Add => each(name, source::ADD, params::Add::of(words).n),
            Op::Scale => each(name, source::SCALE, params::Scale::of(words).n),
            Op::SelectRows => each(name, source::SELECT_ROWS, params::SelectRows::of(words).n),
            Op::Gate => each(name, source::GATE, params::Gate::of(words).n),
            Op::Pool => Run {
                kernel: kernels::pool(),
                grid: [1, 1],
            },
            Op::ShortConv => stateful(name, source::SHORT_CONV, params::ShortConv::of(words).n),
            Op::Mamba2 => {
                let p = params::Mamba2::of(words);
                stateful(name, source::MAMBA2, p.heads * p.value_dim)
            }
            Op::GatedDelta => {
                let p = params::GatedDelta::of(words);
                Run {
                    kernel: kernels::gated_delta(p.key_dim),
                    grid: [p.heads, 1],
                }
            }
            Op::Route => Run {
                kernel: kernels::route(),
                grid: [1, 1],
            },
            Op::Sample => Run {
                kernel: kernels::argmax(),
                grid: [1, 1],
            },
            other => unreachable!("{}: `load` refuses what has no kernel", other.name()),
        }
    }

    /// The format in which a table is stored: a vector's values are f32.
    fn stored(&self, command: &Command) -> Format {
        self.program().weights[command.weights[0] as usize].format
    }
}

/// True if there is a kernel for the op.
pub(crate) fn has_kernel(op: Op) -> bool {
    matches!(
        op,
        Op::Embed
            | Op::Norm
            | Op::LayerNorm
            | Op::Matmul
            | Op::MatmulAdd
            | Op::HeadsMatmul
            | Op::Bias
            | Op::Rope
            | Op::PositionScale
            | Op::KvAppend
            | Op::Attention
            | Op::EncodeAttention
            | Op::AddPosition
            | Op::ActMul
            | Op::Act
            | Op::Add
            | Op::Scale
            | Op::SelectRows
            | Op::Pool
            | Op::ShortConv
            | Op::Gate
            | Op::GatedDelta
            | Op::Mamba2
            | Op::Sample
            | Op::Route
            | Op::ExpertsActMul
            | Op::ExpertsAdd
    )
}

/// True if `legalize` makes ops of it that have kernels.
pub(crate) fn is_split(op: Op) -> bool {
    matches!(op, Op::NormMatmul | Op::NormMatmulActMul | Op::RopeAppend)
}

/// So many workgroups in two dimensions, each below the limit of 65,535.
fn plane(count: u32) -> [u32; 2] {
    const WIDE: u32 = 32768;
    match count > WIDE {
        true => [WIDE, count.div_ceil(WIDE)],
        false => [count, 1],
    }
}
