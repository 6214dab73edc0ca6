//! A command becomes launches: a pipeline, a bind group, a grid, and parameters in a buffer.

mod attention;
mod experts;

use crate::gpu::{COMMAND_BYTES, Gpu, binding};
use crate::kernels::cooperative::{Cooperative, Factors, Tile, round_rows, rounded_words};
use crate::kernels::geometry::Vectors;
use crate::kernels::products::{self, Product};
use crate::kernels::{self, Kernel, StateHead, WORKGROUP, source};
use crate::launch::{Choice, Divided, Launch, Place, Shape, plane};
use crate::load::Weights;
use crate::needs::{attention_cache, routes, sampled_words, scratch_words};
use crate::plan::{ROW_WORDS, STATE_HEAD, Sizes};
use welte_device::Error;
use welte_table::{
    Bank, BufferRef, CacheKind, CacheSpec, Command, Format, NO_WEIGHT, Op, Pass, PassKind, Program,
    WeightId, params,
};
use wgpu::{BindingResource, Buffer, BufferBinding};

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
    /// Rows that products of several rows read, as `prepare.wgsl` leaves them.
    pub(crate) prepared: &'a Buffer,
    /// Of sampling, by slot.
    pub(crate) settings: &'a Buffer,
    /// By buffer: a cache.
    pub(crate) caches: &'a [Option<Buffer>],
}

/// Attention that is `rope_append` too.
struct Joined {
    kernel: Kernel,
    place: Place,
    params: [u32; 16],
    /// Of `rope_append`; the sinks come after them.
    weights: [WeightId; 3],
}

/// One launch of a command, before its parts are joined.
struct Run {
    kernel: Kernel,
    grid: [u32; 2],
    rows: u32,
    /// Kernel, grid and rows for several live rows.
    several: Option<(Kernel, [u32; 2], u32)>,
    /// The fewest live rows for which there is something to do.
    least: u32,
    place: Place,
    params: [u32; 16],
    /// Of the first weight.
    piece: usize,
    divided: Option<Divided>,
    choice: Option<Choice>,
    /// Makes the step state of the next step.
    advances: bool,
    /// On cooperative matrices: of rounded rows and weights.
    rounded: bool,
    /// Where the buffer of prepared rows is bound.
    prepared: Option<u32>,
    partner: Option<u32>,
    joined: Option<Joined>,
}

impl Run {
    /// A launch whose workgroups have one row each.
    fn new(kernel: Kernel, grid: [u32; 2], place: Place, params: [u32; 16]) -> Run {
        Run {
            kernel,
            grid,
            rows: 1,
            several: None,
            least: 1,
            place,
            params,
            piece: 0,
            divided: None,
            choice: None,
            advances: false,
            rounded: false,
            prepared: None,
            partner: None,
            joined: None,
        }
    }

    fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        let several = self.several.iter().map(|(kernel, ..)| kernel);
        let joined = self.joined.iter().map(|joined| &joined.kernel);
        [&self.kernel].into_iter().chain(several).chain(joined)
    }
}

/// The bank that a command reads.
fn bank_of(command: &Command) -> Option<BufferRef> {
    match command.op {
        Op::AdaptExpertsDown | Op::AdaptExpertsUp => Some(command.buffers[2]),
        op => op.is_low_rank().then_some(command.buffers[1]),
    }
}

/// What a product multiplies.
#[derive(Clone, Copy)]
struct Multiply {
    n: u32,
    k: u32,
    x_stride: u32,
    y_stride: u32,
    /// The epsilon of the norm before it.
    norm: Option<f32>,
}

impl Multiply {
    /// The parameters of `matmul_outputs.wgsl`; `matmul_tile.wgsl` has the first of them.
    fn words(&self, act: Option<u32>) -> [u32; 16] {
        let eps = self.norm.unwrap_or(0.0).to_bits();
        let used = [
            self.n,
            self.k,
            self.x_stride,
            self.y_stride,
            eps,
            act.unwrap_or(0),
        ];
        let mut words = [0; 16];
        words[..used.len()].copy_from_slice(&used);
        words
    }

    /// The parameters of what prepares rows: `words` for each.
    fn norm_words(&self, words: u32) -> [u32; 16] {
        let norm = params::Norm {
            dim: self.k,
            groups: 1,
            eps: self.norm.unwrap_or(0.0),
            x_stride: self.x_stride,
            y_stride: words,
        };
        norm.words()
    }
}

/// The kernel of `act_mul` at a place, and its invocations.
fn act_mul(place: Place, p: params::ActMul) -> (Kernel, u32) {
    let [x, y, ..] = place.operands;
    let places = [x, y, p.n, p.x_stride, p.y_stride];
    let aligned = places.iter().all(|word| word.is_multiple_of(4));
    kernels::act_mul(p.n, aligned)
}

/// The launch that prepares `groups` vectors in each row for a product.
fn prepare_run(product: Product, normed: bool, groups: u32, place: Place, words: [u32; 16]) -> Run {
    let (kernel, width) = product.prepare_kernel(normed);
    Run {
        prepared: Some(binding::CACHE),
        ..Run::new(kernel, [width, groups], place, words)
    }
}

/// Workgroups of a product that share its outputs. With a single row, each prepares it once.
const MOST_GROUPS: u32 = 512;

/// The command that is lowered, with what its kernels depend on.
#[derive(Clone, Copy)]
struct Task<'a> {
    command: &'a Command,
    /// Rows that the pass may have at this command.
    rows: u32,
    /// Products have many rows, as those of prompts before their outputs are chosen.
    tiled: bool,
    /// The rows at hand are the chosen ones.
    chosen: bool,
    cache: Option<&'a CacheSpec>,
    /// The pass decodes.
    decodes: bool,
    /// Of `rope_append` and the attention after it, if one launch may be both: the other's number.
    partner: Option<(u32, &'a Command)>,
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
        let mut all = Vec::new();
        for (index, command) in pass.commands.iter().enumerate() {
            let decodes = pass.kind == PassKind::Decode;
            let chosen = pass.outputs_from().is_some_and(|from| index >= from);
            let task = Task {
                command,
                rows: pass.rows_at(index),
                tiled: !decodes && !chosen,
                chosen,
                cache: self.program().cache_of(command),
                decodes,
                partner: self.partner(pass, index),
            };
            let runs = self.runs(task).into_iter();
            all.extend(runs.map(|run| (index as u32, task, run)));
        }
        let kernels: Vec<&Kernel> = all.iter().flat_map(|(_, _, run)| run.kernels()).collect();
        self.gpu().prepare(&kernels)?;
        let mut launches = Vec::with_capacity(all.len());
        let mut parameters = 0;
        for (index, task, run) in all {
            launches.push(self.launch(index, task, run, commands, &mut parameters)?);
        }
        Ok(LoweredPass { launches })
    }

    fn launch(
        &self,
        index: u32,
        task: Task<'_>,
        run: Run,
        commands: &Buffer,
        at: &mut u64,
    ) -> Result<Launch, Error> {
        let (gpu, command) = (self.gpu(), task.command);
        let mut bound: Vec<(u32, BindingResource<'_>)> = vec![
            (binding::MEM, self.arena.as_entire_binding()),
            (binding::PAGES, self.pages.as_entire_binding()),
        ];
        let state = if run.advances {
            binding::CACHE
        } else {
            binding::STATE
        };
        bound.push((state, self.state.as_entire_binding()));
        if run.choice == Some(Choice::Sampler) {
            bound.push((binding::WEIGHTS, self.settings.as_entire_binding()));
        }
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
        if run.rounded {
            let powers = &self.weights.weights[command.weights[0] as usize].powers;
            bound.retain(|(number, _)| *number != binding::POWERS);
            bound.push((binding::POWERS, powers[run.piece].as_entire_binding()));
        }
        if let Some(number) = run.prepared {
            bound.retain(|(other, _)| *other != number);
            bound.push((number, self.prepared.as_entire_binding()));
        }
        if let Some(cache) = task.cache {
            bound.push((binding::CACHE, self.layer(command, cache).1));
        }
        if let Some(bank) = bank_of(command) {
            let buffer = self.caches[bank.buffer as usize].as_ref();
            let buffer = buffer.expect("every bank has a buffer");
            bound.push((binding::CACHE, buffer.as_entire_binding()));
        }
        let mut parameters = |place: &Place, params: &[u32; 16]| {
            let bytes = place.bytes(params);
            let offset = *at;
            gpu.queue.write_buffer(commands, offset, &bytes);
            *at += COMMAND_BYTES;
            BindingResource::Buffer(BufferBinding {
                buffer: commands,
                offset,
                size: std::num::NonZero::new(bytes.len() as u64),
            })
        };
        let joined = match &run.joined {
            None => None,
            Some(joined) => {
                let own = [binding::COMMAND, binding::WEIGHTS, binding::WEIGHT4];
                let mut bound = bound.clone();
                bound.retain(|(number, _)| !own.contains(number));
                let sinks = [(binding::WEIGHT4, command.weights[0])];
                let weights = (binding::WEIGHTS..).zip(joined.weights).chain(sinks);
                for (number, id) in weights.filter(|(_, id)| *id != NO_WEIGHT) {
                    let (_, buffer) = &self.weights.weights[id as usize].pieces[0];
                    bound.push((number, buffer.as_entire_binding()));
                }
                let own = parameters(&joined.place, &joined.params);
                bound.push((binding::COMMAND, own));
                Some((gpu.pipeline(&joined.kernel)?, gpu.bind(&bound)))
            }
        };
        bound.push((binding::COMMAND, parameters(&run.place, &run.params)));
        let shape = |kernel: &Kernel, grid, rows| -> Result<Shape, Error> {
            Ok(Shape {
                pipeline: gpu.pipeline(kernel)?,
                grid,
                rows,
                rows_first: kernel.rows_first,
            })
        };
        let several = run.several.as_ref();
        Ok(Launch {
            command: index,
            bind: gpu.bind(&bound),
            shape: shape(&run.kernel, run.grid, run.rows)?,
            least: run.least,
            choice: run.choice,
            divided: run.divided,
            partner: run.partner,
            joined,
            several: several
                .map(|(kernel, grid, rows)| shape(kernel, *grid, *rows))
                .transpose()?,
        })
    }

    /// What every launch of a command knows, with all rows of the first weight's piece.
    fn place(&self, task: Task<'_>, piece: usize) -> Place {
        let command = task.command;
        let mut place = Place {
            operands: command.buffers.map(|buffer| self.word(buffer)),
            outputs: STATE_HEAD as u32 + ROW_WORDS as u32 * self.program().most_rows(),
            page: self.program().page,
            scratch: (self.sizes.scratch / 4) as u32,
            splits: 1,
            live: u32::from(task.chosen),
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
                let product = Multiply {
                    n: p.n,
                    k: p.k,
                    x_stride: p.x_stride,
                    y_stride: p.y_stride,
                    norm: Some(p.eps),
                };
                self.products(task, product, |place| place, &mut runs);
            }
            Op::NormMatmulActMul => self.gated_product(task, pieces, &mut runs),
            Op::Matmul | Op::MatmulAdd => {
                let p = params::Matmul::of(words);
                let product = Multiply {
                    n: p.n,
                    k: p.k,
                    x_stride: p.x_stride,
                    y_stride: p.y_stride,
                    norm: None,
                };
                self.products(task, product, |place| place, &mut runs);
            }
            Op::Attention => self.attention(task, &mut runs),
            Op::ChoosePositions => runs.extend(self.choose_positions(task)),
            Op::ExpertsActMul | Op::ExpertsAdd => match self.grouped(task) {
                Some(grouped) => runs.extend(grouped),
                None => self.experts(task, pieces, &mut runs),
            },
            Op::Sample => runs.extend(self.sample(task)),
            op if op.is_low_rank() => runs.push(self.low_rank(task)),
            Op::RopeAppend => {
                let mut place = self.place(task, 0);
                let (kernel, grid) = self.simple(command, task.cache, &mut place);
                runs.push(Run {
                    partner: task.partner.map(|(number, _)| number),
                    ..Run::new(kernel, grid, place, *words)
                });
            }
            _ => runs.extend((0..pieces).map(|piece| {
                let mut place = self.place(task, piece);
                let (kernel, grid) = self.simple(command, task.cache, &mut place);
                Run {
                    piece,
                    ..Run::new(kernel, grid, place, *words)
                }
            })),
        }
        runs
    }

    /// The adapter's cooperative matrices, if the command's products are computed on them.
    fn cooperative(&self, task: Task<'_>) -> Option<Cooperative> {
        let taken = task.tiled && Cooperative::takes(task.command.format);
        self.gpu().cooperative.filter(|_| taken)
    }

    /// Makes the norm before a product with many rows a launch of its own, or rounds the rows for cooperative matrices. True if the product
    /// then takes the scratch.
    fn norm_apart(&self, task: Task<'_>, p: &mut Multiply, runs: &mut Vec<Run>) -> bool {
        let (kernel, words) = if self.cooperative(task).is_some() {
            let aligned = [self.word(task.command.buffers[0]), p.x_stride, p.k];
            let aligned = aligned.iter().all(|word| word.is_multiple_of(4));
            let kernel = round_rows(task.command.format, p.k, p.norm.is_some(), aligned);
            (kernel, rounded_words(p.k))
        } else if p.norm.is_some() {
            (kernels::norm_before(p.k), p.k)
        } else {
            return false;
        };
        runs.push(self.to_scratch(task, kernel, *p, words));
        (p.x_stride, p.norm) = (words, None);
        true
    }

    /// What a kernel makes of a product's rows before the product, in the scratch: `words` for each row. The weight of a norm is the
    /// command's second one.
    fn to_scratch(&self, task: Task<'_>, kernel: Kernel, p: Multiply, words: u32) -> Run {
        let mut place = self.place(task, 0);
        place.operands[1] = place.scratch;
        Run::new(kernel, [1, 1], place, p.norm_words(words))
    }

    /// The products of a command's matrix with its rows. `moved` gives the place of a piece other operands.
    fn products(
        &self,
        task: Task<'_>,
        mut p: Multiply,
        moved: impl Fn(Place) -> Place,
        runs: &mut Vec<Run>,
    ) {
        let weight = &self.weights.weights[task.command.weights[0] as usize];
        let tiled = task.tiled && !routes(task.command, self.gpu());
        let normed = tiled && self.norm_apart(task, &mut p, runs);
        if !tiled {
            runs.extend(self.prepare(task, p, None));
        }
        for piece in 0..weight.pieces.len() {
            let mut place = moved(self.place(task, piece));
            if normed {
                place.operands[0] = place.scratch;
            }
            runs.push(if tiled {
                self.tile(task, place, piece, p)
            } else {
                self.product(task, place, piece, p, None)
            });
        }
    }

    fn tile(&self, task: Task<'_>, place: Place, piece: usize, p: Multiply) -> Run {
        let adds = task.command.op == Op::MatmulAdd;
        let [x, y, ..] = place.operands;
        let aligned = [x, p.x_stride, p.k, y, p.y_stride, place.first, place.count];
        let aligned = aligned.iter().all(|word| word.is_multiple_of(4));
        if let Some(on) = self.cooperative(task) {
            let tile = Tile::of(on, task.rows, place.count);
            let factors = Factors {
                format: task.command.format,
                k: p.k,
                aligned,
                adds,
                grouped: false,
            };
            let kernel = tile.kernel(on, factors);
            let outputs = place.count.div_ceil(tile.outputs());
            return Run {
                rows: tile.rows(),
                piece,
                rounded: true,
                ..Run::new(kernel, plane(outputs), place, p.words(None))
            };
        }
        let outputs = place.count.div_ceil(products::TILE_OUTPUTS);
        let geometry = self.gpu().geometry;
        let kernel = products::matmul_tile(geometry, task.command.format, aligned, adds);
        Run {
            rows: geometry.tile_rows,
            piece,
            ..Run::new(kernel, plane(outputs), place, p.words(None))
        }
    }

    /// A product of a piece of the command's matrix with the rows at the first operand; with `act`, one of gate and up.
    fn product(
        &self,
        task: Task<'_>,
        place: Place,
        piece: usize,
        p: Multiply,
        act: Option<u32>,
    ) -> Run {
        let adds = task.command.op == Op::MatmulAdd;
        let outputs = if act.is_some() { p.n } else { place.count };
        let product = self.product_at(task, place, p, act.is_some());
        let normed = p.norm.is_some();
        let shape = |vectors: Vectors| {
            let groups = outputs.div_ceil(product.sized_for(vectors).outputs(vectors));
            (
                product.of_rows(vectors, normed, adds),
                [groups.min(MOST_GROUPS), 1],
                vectors.rows(),
            )
        };
        let (one, several) = product.geometry.vectors(task.rows);
        let (kernel, grid, rows) = shape(one);
        Run {
            rows,
            several: several.map(shape),
            prepared: Some(binding::PAGES),
            piece,
            ..Run::new(kernel, grid, place, p.words(act))
        }
    }

    /// What prepares the rows of a product for kernels that take several at a time.
    fn prepare(&self, task: Task<'_>, p: Multiply, act: Option<u32>) -> Option<Run> {
        let place = self.place(task, 0);
        let product = self.product_at(task, place, p, act.is_some());
        let (one, several) = product.geometry.vectors(task.rows);
        let alone = one == Vectors::One;
        let words = p.norm_words(product.prepared_words());
        let run = Run {
            least: if alone { 2 } else { 1 },
            ..prepare_run(product, p.norm.is_some(), 1, place, words)
        };
        (!alone || several.is_some()).then_some(run)
    }

    /// A product with its rows at a place; `paired`: of gate and up.
    fn product_at(&self, task: Task<'_>, place: Place, p: Multiply, paired: bool) -> Product {
        let [x, y, ..] = place.operands;
        let aligned = [x, p.x_stride, p.k, y, p.y_stride, place.first];
        Product {
            aligned: aligned.iter().all(|word| word.is_multiple_of(4)),
            paired,
            ..self.product_of(task.command, p.k)
        }
    }

    /// A product of rows in the command's format.
    fn product_of(&self, command: &Command, k: u32) -> Product {
        Product {
            geometry: self.gpu().geometry,
            format: command.format,
            k,
            packed: self.gpu().packed,
            aligned: false,
            paired: false,
        }
    }

    /// `act(gate x) * up x` of the normed x.
    fn gated_product(&self, task: Task<'_>, pieces: usize, runs: &mut Vec<Run>) {
        let p = params::NormMatmulActMul::of(&task.command.params);
        let mut place = self.place(task, 0);
        let mut product = Multiply {
            n: p.n,
            k: p.k,
            x_stride: p.x_stride,
            y_stride: p.y_stride,
            norm: Some(p.eps),
        };
        if !task.tiled && pieces == 1 {
            runs.extend(self.prepare(task, product, Some(p.act)));
            runs.push(self.product(task, place, 0, product, Some(p.act)));
            return;
        }
        let both = place.scratch + task.rows * scratch_words(p.k);
        (product.n, product.y_stride) = (2 * p.n, 2 * p.n);
        let moved = |mut place: Place| {
            place.operands[1] = both;
            place
        };
        self.products(task, product, moved, runs);
        let act = params::ActMul {
            n: p.n,
            act: p.act,
            x_stride: 2 * p.n,
            y_stride: p.y_stride,
        };
        place.operands[0] = both;
        let (kernel, width) = act_mul(place, act);
        let grid = [width.div_ceil(WORKGROUP), 1];
        runs.push(Run::new(kernel, grid, place, act.words()));
    }

    /// Half of the low-rank part of a product. That of a plain matrix has the parameters of one expert, without a choice.
    fn low_rank(&self, task: Task<'_>) -> Run {
        let command = task.command;
        let mut place = self.place(task, 0);
        let bank = Bank::of(command).expect("verified: the command has a bank");
        let adapters = self.program().adapters.as_ref();
        let adapters = adapters.expect("verified: the program has adapters");
        place.scratch = self.word(BufferRef {
            buffer: adapters.slots,
            offset: 0,
        });
        let words = |bytes: u64| (bytes / 4) as u32;
        place.pages = words(bank.place_bytes().unwrap_or(0));
        (place.split, place.entries) = (words(bank.head_bytes()), words(bank.b_at(0)));
        let buffers = command.buffers.map(|buffer| self.word(buffer));
        let of_experts = matches!(command.op, Op::AdaptExpertsDown | Op::AdaptExpertsUp);
        let result = if of_experts { buffers[3] } else { buffers[2] };
        place.operands = [buffers[0], buffers[1], result, 0];
        let (n, k, parts, rank) = (bank.n, bank.k, bank.parts, bank.rank);
        let across = |width: u32| [width.div_ceil(WORKGROUP), 1];
        let up = |p: params::AdaptExpertsUp| {
            let width = if p.sum == 1 { n } else { p.used * n };
            let kernel = kernels::adapt("adapt_up", source::ADAPT_UP);
            (kernel, across(width), p.words())
        };
        let down = |p: params::AdaptExpertsDown| {
            let grid = [p.used * parts * rank, 1];
            (kernels::adapt_down(), grid, p.words())
        };
        let (kernel, grid, params) = match command.op {
            Op::AdaptLookup => {
                let kernel = kernels::adapt("adapt_lookup", source::ADAPT_LOOKUP);
                (kernel, across(rank), command.params)
            }
            Op::AdaptDown => {
                let p = params::AdaptDown::of(&command.params);
                down(params::AdaptExpertsDown {
                    n,
                    k,
                    parts,
                    rank,
                    experts: 1,
                    used: 1,
                    own: 0,
                    x_stride: p.x_stride,
                    choice_stride: 0,
                    h_stride: p.h_stride,
                })
            }
            Op::AdaptUp => {
                let p = params::AdaptUp::of(&command.params);
                up(params::AdaptExpertsUp {
                    n,
                    k,
                    parts,
                    rank,
                    experts: 1,
                    used: 1,
                    sum: 0,
                    h_stride: p.h_stride,
                    choice_stride: 0,
                    y_stride: p.y_stride,
                })
            }
            Op::AdaptExpertsDown => down(params::AdaptExpertsDown::of(&command.params)),
            _ => up(params::AdaptExpertsUp::of(&command.params)),
        };
        Run::new(kernel, grid, place, params)
    }

    /// The launches of either choice.
    fn sample(&self, task: Task<'_>) -> [Run; 5] {
        let words = task.command.params;
        let n = params::Sample::of(&words).n;
        let mut place = self.place(task, 0);
        (place.splits, place.split) = kernels::parts(n);
        place.first = place.scratch;
        place.scratch += task.rows;
        place.count = sampled_words(n);
        place.entries = self.program().context;
        place.lists = self.sizes.histories;
        let (parts, geometry) = ([place.splits, 1], self.gpu().geometry);
        [
            (Choice::Argmax, kernels::argmax_part(geometry), parts, false),
            (Choice::Argmax, kernels::argmax(), [1, 1], true),
            (
                Choice::Sampler,
                kernels::sample_adjust(geometry),
                parts,
                false,
            ),
            (
                Choice::Sampler,
                kernels::sample_gather(geometry),
                parts,
                false,
            ),
            (
                Choice::Sampler,
                kernels::sample_choose(geometry),
                [1, 1],
                true,
            ),
        ]
        .map(|(choice, kernel, grid, advances)| Run {
            choice: Some(choice),
            advances,
            ..Run::new(kernel, grid, place, words)
        })
    }

    /// The kernel and grid of a command that is one launch for each piece of its weight.
    fn simple(
        &self,
        command: &Command,
        cache: Option<&CacheSpec>,
        place: &mut Place,
    ) -> (Kernel, [u32; 2]) {
        let words = &command.params;
        let across = |width: u32| [width.div_ceil(WORKGROUP), 1];
        let each = |name: &str, source: &'static str, width: u32| {
            (Kernel::each(name, source), across(width))
        };
        let state_head = |key_dim: u32, by_channel: u32| StateHead {
            geometry: self.gpu().geometry,
            key_dim,
            by_channel: by_channel == 1,
        };
        let (kv_format, _) = attention_cache(cache);
        let name = command.op.name();
        match command.op {
            Op::Embed => {
                if self.program().takes_features(command) {
                    self.place_features(place);
                    place.flags |= 2;
                }
                let units = params::Embed::of(words).k.div_ceil(8);
                (kernels::embed(self.stored(command)), across(units))
            }
            Op::Norm | Op::LayerNorm => {
                let p = params::Norm::of(words);
                (
                    kernels::norm(command.op == Op::LayerNorm, p.dim),
                    [p.groups, 1],
                )
            }
            Op::HeadsMatmul => {
                let p = params::HeadsMatmul::of(words);
                let width = p.heads * (p.n + p.tail);
                (kernels::heads_matmul(self.stored(command)), across(width))
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
                let kernel = kernels::encode_attention(p.head_dim, p.places > 0);
                (kernel, [p.heads, 1])
            }
            Op::CrossAttention => {
                let p = params::CrossAttention::of(words);
                (
                    kernels::cross_attention(kv_format, p.head_dim),
                    [p.heads, 1],
                )
            }
            Op::SparseAttention => {
                let p = params::SparseAttention::of(words);
                let kernel = kernels::sparse_attention(kv_format, p.head_dim);
                (kernel, [p.heads, 1])
            }
            Op::EncodeConv => each(name, source::ENCODE_CONV, params::EncodeConv::of(words).n),
            Op::AddPosition => each(name, source::ADD_POSITION, params::AddPosition::of(words).k),
            Op::AddFeature => {
                self.place_features(place);
                each(name, source::ADD_FEATURE, params::AddFeature::of(words).n)
            }
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
            Op::ActMul => {
                let (kernel, width) = act_mul(*place, params::ActMul::of(words));
                (kernel, across(width))
            }
            Op::Act => each(name, source::ACT, params::Act::of(words).n),
            Op::Add => each(name, source::ADD, params::Add::of(words).n),
            Op::Scale => each(name, source::SCALE, params::Scale::of(words).n),
            Op::SelectRows => each(name, source::SELECT_ROWS, params::SelectRows::of(words).n),
            Op::Spread => each(name, source::SPREAD, params::Spread::of(words).n),
            Op::Gate => each(name, source::GATE, params::Gate::of(words).n),
            Op::Pool => (kernels::pool(), [1, 1]),
            Op::ShortConv => {
                let p = params::ShortConv::of(words);
                (kernels::short_conv(p.taps), across(p.n))
            }
            Op::Mamba2 => {
                let p = params::Mamba2::of(words);
                let (kernel, columns) = kernels::mamba2(state_head(p.key_dim, p.by_channel));
                (kernel, [p.heads, p.value_dim.div_ceil(columns)])
            }
            Op::GatedDelta => {
                let p = params::GatedDelta::of(words);
                let (kernel, columns) = kernels::gated_delta(state_head(p.key_dim, p.by_channel));
                (kernel, [p.heads, p.value_dim.div_ceil(columns)])
            }
            Op::Route => {
                let experts = params::Route::of(words).experts;
                (kernels::route(self.gpu().geometry, experts), [1, 1])
            }
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
            | Op::ChoosePositions
            | Op::ExpertsActMul
            | Op::ExpertsAdd
            | Op::Sample
            | Op::AdaptDown
            | Op::AdaptLookup
            | Op::AdaptUp
            | Op::AdaptExpertsDown
            | Op::AdaptExpertsUp => unreachable!("{name}: `runs` lowers it"),
            Op::Exchange => unreachable!("{name}: a program with ranks was refused"),
        }
    }

    /// Where the features lie, and how long each is.
    fn place_features(&self, place: &mut Place) {
        let buffer = self.program().features;
        place.scratch = self.word(BufferRef { buffer, offset: 0 });
        place.split = self.program().feature_width() as u32;
    }

    /// The format in which a table is stored: a vector's values are f32.
    fn stored(&self, command: &Command) -> Format {
        self.program().weights[command.weights[0] as usize].format
    }
}
