//! A context: buffers and launches, all made once; then replay.

mod chain;
mod clock;
mod contract;
pub(crate) mod samplers;
#[cfg(test)]
mod tests;

use self::clock::Clock;
use self::samplers::Samplers;
use crate::gpu::Gpu;
use crate::launch::{Choice, Launch};
use crate::load::Weights;
use crate::lower::{LoweredPass, Lowering};
use crate::plan::{IN_FLIGHT, ROW_WORDS, STATE_HEAD, Sizes};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use web_time::Instant;
use welte_device::{ChainStart, Checks, Error, HostScratch, HostSlot, MaskBoard, Profile};
use welte_table::{Class, Op, PassKind, Program, Row};
use wgpu::{Buffer, BufferUsages, CommandEncoder, CommandEncoderDescriptor, ComputePassDescriptor};

/// Everything that replay changes.
pub(crate) struct WgpuContext {
    weights: Arc<Weights>,
    sizes: Sizes,
    arena: Buffer,
    state: Buffer,
    pages: Buffer,
    /// By buffer: a cache.
    caches: Vec<Option<Buffer>>,
    /// Results on their way to the host.
    staging: Buffer,
    /// The tokens of steps in flight.
    tokens: Vec<Buffer>,
    passes: Vec<LoweredPass>,
    slots: Vec<HostSlot>,
    samplers: Samplers,
    scratch: HostScratch,
    masks: Arc<MaskBoard>,
    checks: Checks,
    step: Step,
    /// The slots of the chain at hand that have not stopped.
    live: Vec<ChainStart>,
    profile: Option<Vec<Profile>>,
    clock: Option<Clock>,
    allocated: BTreeMap<Class, u64>,
}

/// The step at hand, or the last one.
#[derive(Default)]
struct Step {
    pass: usize,
    rows: Vec<Row>,
    /// Output rows.
    outputs: usize,
    /// The output rows, if they were read back.
    values: Vec<f32>,
    /// Output rows from which tokens may be chosen.
    logits: usize,
    /// The tokens of a step of a chain.
    tokens: Vec<u32>,
    /// The step state on its way to the GPU.
    words: Vec<u8>,
    /// Number, begin and end of each command, if the step was profiled.
    ran: Vec<(u32, u64, u64)>,
}

impl WgpuContext {
    /// Allocates everything that replay needs.
    pub(crate) fn new(weights: Arc<Weights>) -> Result<WgpuContext, Error> {
        let (gpu, program) = (&*weights.gpu, &*weights.program);
        let sizes = Sizes::of(program, gpu);
        let mut allocated = BTreeMap::new();
        let mut count = |class: Class, bytes: u64| *allocated.entry(class).or_insert(0) += bytes;
        count(Class::Weights, weights.bytes);
        for spec in &program.buffers {
            count(spec.class, spec.bytes);
        }
        for (_, class, bytes) in sizes.entries(program) {
            count(class, bytes);
        }
        let both = BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let kept = BufferUsages::STORAGE | both;
        let read = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let mut caches = Vec::new();
        for (spec, bytes) in program.buffers.iter().zip(&sizes.caches) {
            caches.push(match bytes {
                0 => None,
                bytes => Some(gpu.buffer(&spec.name, *bytes, kept)?),
            });
        }
        let arena = gpu.buffer("intermediates", sizes.arena, kept)?;
        let state = gpu.buffer("step state", sizes.state, kept)?;
        let pages = gpu.buffer("page lists", sizes.pages, kept)?;
        let prepared = gpu.buffer("prepared rows", sizes.prepared, BufferUsages::STORAGE)?;
        let staging = gpu.buffer("results on the host", sizes.staging, read)?;
        let tokens: Result<Vec<Buffer>, Error> = (0..IN_FLIGHT)
            .map(|_| gpu.buffer("tokens on the host", sizes.tokens, read))
            .collect();
        let (vocab, context) = (program.vocab as usize, program.context as usize);
        let samplers = Samplers::new(gpu, program.slots as usize, context, sizes.settings)?;
        let lowering = Lowering {
            weights: &weights,
            sizes: &sizes,
            arena: &arena,
            state: &state,
            pages: &pages,
            prepared: &prepared,
            settings: &samplers.settings,
            caches: &caches,
        };
        let mut passes = Vec::new();
        for (pass, bytes) in program.passes.iter().zip(&sizes.commands) {
            let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
            let commands = gpu.buffer("commands", *bytes, usage)?;
            passes.push(lowering.pass(pass, &commands)?);
        }
        let lists = (0..program.caches.len()).flat_map(|cache| Checks::first_pages(program, cache));
        let lists: Vec<u8> = lists.flat_map(u32::to_ne_bytes).collect();
        gpu.queue.write_buffer(&pages, 0, &lists);
        gpu.check()?;
        let slots = (0..program.slots).map(|_| HostSlot::new(vocab, context));
        let most = sizes.staging as usize / 4;
        let rows = program.most_rows() as usize;
        let step = Step {
            rows: Vec::with_capacity(rows),
            values: Vec::with_capacity(most),
            words: Vec::with_capacity(4 * (STATE_HEAD + ROW_WORDS * rows)),
            tokens: Vec::with_capacity(rows),
            ..Step::default()
        };
        Ok(WgpuContext {
            slots: slots.collect(),
            samplers,
            scratch: HostScratch::new(vocab, context),
            masks: Arc::new(MaskBoard::new(program.slots as usize, vocab)),
            checks: Checks::new(program).taking_features(),
            live: Vec::with_capacity(program.slots as usize),
            profile: None,
            clock: None,
            tokens: tokens?,
            arena,
            state,
            pages,
            caches,
            staging,
            passes,
            step,
            allocated,
            sizes,
            weights,
        })
    }

    fn gpu(&self) -> &Gpu {
        &self.weights.gpu
    }

    fn program(&self) -> &Program {
        &self.weights.program
    }

    fn encoder(&self) -> CommandEncoder {
        let descriptor = CommandEncoderDescriptor::default();
        self.gpu().device.create_command_encoder(&descriptor)
    }

    /// Makes checked rows the step at hand: writes their tokens and the step state.
    fn begin(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) {
        let step = &mut self.step;
        step.pass = pass;
        step.rows.clear();
        step.rows.extend_from_slice(rows);
        step.outputs = match self.weights.program.passes[pass].kind {
            PassKind::Decode => rows.len(),
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => outputs.len(),
        };
        step.logits = 0;
        step.values.clear();
        step.words.clear();
        let tokens = rows.iter().flat_map(|row| row.token().to_ne_bytes());
        step.words.extend(tokens);
        let queue = &self.weights.gpu.queue;
        let at = self.sizes.places[self.weights.program.tokens as usize].unwrap_or(0);
        queue.write_buffer(&self.arena, at, &step.words);
        step.words.clear();
        let head = [rows.len() as u32, step.outputs as u32, 0, 0];
        let rows = rows.iter().flat_map(row_words);
        let words = head.into_iter().chain(rows);
        step.words.extend(words.flat_map(u32::to_ne_bytes));
        queue.write_buffer(&self.state, 0, &step.words);
        step.words.clear();
        let chosen = outputs.iter().flat_map(|output| output.to_ne_bytes());
        step.words.extend(chosen);
        if !outputs.is_empty() {
            let most = self.weights.program.most_rows() as usize;
            let at = 4 * (STATE_HEAD + ROW_WORDS * most) as u64;
            queue.write_buffer(&self.state, at, &step.words);
        }
    }

    /// Positions that the longest row of the step at hand sees.
    fn positions(&self) -> u32 {
        let rows = self.step.rows.iter();
        rows.map(|row| row.reach + 1).max().unwrap_or(0)
    }

    /// Records commands of the step at hand, or of one with more positions; `sample` only with a choice.
    fn record(
        &self,
        encoder: &mut CommandEncoder,
        commands: &Range<usize>,
        choice: Option<Choice>,
        positions: u32,
    ) {
        let mut recording = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        let pass = &self.program().passes[self.step.pass];
        let outputs_from = pass.outputs_from();
        for launch in &self.passes[self.step.pass].launches {
            let index = launch.command as usize;
            if !commands.contains(&index) || launch.choice.is_some() && launch.choice != choice {
                continue;
            }
            let rows = rows_of(&self.step, outputs_from, index);
            if rows > 0 {
                let together = is_together(launch, commands);
                launch.record(&mut recording, rows as u32, positions, together);
            }
        }
    }

    /// Runs commands of the step at hand but `sample`. Does not wait for them, unless they are timed.
    fn run(&mut self, commands: Range<usize>) -> Result<(), Error> {
        if self.profile.is_some() {
            return self.replay_timed(commands, false);
        }
        let mut encoder = self.encoder();
        self.record(&mut encoder, &commands, None, self.positions());
        self.gpu().submit(encoder);
        self.gpu().check()
    }

    /// Runs all commands of the step at hand, and reads its output rows. With `sample`, the GPU also takes their largest logits.
    fn replay(&mut self, sample: bool) -> Result<(), Error> {
        let all = 0..usize::MAX;
        let mut encoder = self.encoder();
        if self.profile.is_some() {
            self.replay_timed(all, sample)?
        } else {
            let choice = sample.then_some(Choice::Argmax);
            self.record(&mut encoder, &all, choice, self.positions());
        }
        self.read_outputs(encoder)
    }

    /// Submits what was recorded, waits, and reads the output rows of the step at hand.
    fn read_outputs(&mut self, mut encoder: CommandEncoder) -> Result<(), Error> {
        let pass = &self.program().passes[self.step.pass];
        let bytes = (self.step.outputs * pass.width as usize * 4) as u64;
        if bytes == 0 {
            let index = self.gpu().submit(encoder);
            return self.gpu().wait(index);
        }
        let result = &pass.result;
        let place = self.sizes.places[result.buffer as usize].unwrap_or(0);
        let at = place + u64::from(result.offset);
        encoder.copy_buffer_to_buffer(&self.arena, at, &self.staging, 0, bytes);
        let index = self.weights.gpu.submit(encoder);
        let values = &mut self.step.values;
        self.weights
            .gpu
            .mapped(&self.staging, bytes, index, |bytes| {
                let (words, _) = bytes.as_chunks::<4>();
                values.clear();
                values.extend(words.iter().map(|word| f32::from_ne_bytes(*word)));
            })
    }

    /// Runs the commands one by one and measures them: by the GPU's clock, or if it has none, by ours from a submission to its end.
    fn replay_timed(&mut self, commands: Range<usize>, sample: bool) -> Result<(), Error> {
        let program = self.weights.program.clone();
        let pass = &program.passes[self.step.pass];
        let outputs_from = pass.outputs_from();
        let runs = pass.commands.iter().enumerate().filter(|(index, command)| {
            commands.contains(index) && (sample || command.op != Op::Sample)
        });
        self.step.ran.clear();
        let positions = self.positions();
        let begun = Instant::now();
        let mut encoder = self.encoder();
        for (nth, (index, _)) in runs.clone().enumerate() {
            let rows = rows_of(&self.step, outputs_from, index);
            let mut recording = encoder.begin_compute_pass(&ComputePassDescriptor {
                label: None,
                timestamp_writes: self.clock.as_ref().map(|clock| clock.of(nth)),
            });
            let launches = self.passes[self.step.pass].launches.iter();
            let launches = launches.filter(|l| l.command as usize == index && rows > 0);
            for launch in launches.filter(|l| l.choice != Some(Choice::Sampler)) {
                let together = is_together(launch, &commands);
                launch.record(&mut recording, rows as u32, positions, together);
            }
            drop(recording);
            let mut times = (0, 0);
            if self.clock.is_none() {
                let one = std::mem::replace(&mut encoder, self.encoder());
                times.0 = begun.elapsed().as_nanos() as u64;
                let submitted = self.gpu().submit(one);
                self.gpu().wait(submitted)?;
                times.1 = begun.elapsed().as_nanos() as u64;
            }
            self.step.ran.push((index as u32, times.0, times.1));
        }
        if let Some(clock) = self.clock.as_ref().filter(|_| !self.step.ran.is_empty()) {
            let times = clock.submit(self.gpu(), encoder, self.step.ran.len())?;
            for (ran, (begin, end)) in self.step.ran.iter_mut().zip(times) {
                (ran.1, ran.2) = (begin, end);
            }
        }
        if let Some(profile) = &mut self.profile {
            for ((index, command), (_, begin, end)) in runs.zip(&self.step.ran) {
                let rows = rows_of(&self.step, outputs_from, index);
                let entry = &mut profile[command.op as usize];
                entry.count(&program, command, &self.step.rows, rows);
                entry.ns += end.saturating_sub(*begin);
            }
        }
        Ok(())
    }

    /// The logits of an output row of the last step.
    fn logits(&self, output: usize) -> &[f32] {
        let vocab = self.program().vocab as usize;
        &self.step.values[output * vocab..][..vocab]
    }

    /// Chooses a slot's token for `position` from an output row of the last step. A guess leaves no trace.
    fn choose(&mut self, output: usize, slot: u32, position: u32) -> u32 {
        let vocab = self.weights.program.vocab as usize;
        let logits = &self.step.values[output * vocab..][..vocab];
        let state = &self.slots[slot as usize];
        if self.weights.program.passes[self.step.pass].kind == PassKind::Draft {
            return self.scratch.guess(state, logits, position);
        }
        let token = self
            .scratch
            .choose(state, &self.masks, slot, logits, position);
        if welte_device::is_token(token) {
            self.slots[slot as usize].remember(token);
            self.samplers.forget_history(slot);
        }
        token
    }
}

/// A row as `common.wgsl` reads it.
fn row_words(row: &Row) -> [u32; ROW_WORDS] {
    let [time, height, width] = row.axes;
    let feature = row.input.feature().unwrap_or(u32::MAX);
    let (
        token,
        Row {
            position,
            slot,
            reach,
            ..
        },
    ) = (row.token(), *row);
    [token, position, slot, reach, time, height, width, feature]
}

/// Whether the launch's partner runs too.
fn is_together(launch: &Launch, commands: &Range<usize>) -> bool {
    let partner = launch.partner;
    partner.is_some_and(|partner| commands.contains(&(partner as usize)))
}

/// Rows that a command of a step runs over.
fn rows_of(step: &Step, outputs_from: Option<usize>, index: usize) -> usize {
    // `select_rows` and `pool` take all rows and make the outputs.
    match outputs_from {
        Some(from) if index + 1 >= from => step.outputs,
        _ => step.rows.len(),
    }
}
