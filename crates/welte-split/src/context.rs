//! A context of each device, and replay: their commands in turn, with the copies between.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use web_time::Instant;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Checks, Choice, Context, Control, Emitted, Error, HostSlot, LogprobQuery, Logprobs,
    MaskBoard, Profile, Role, SlotState, Stage, Step, StepOptions, chain_by_steps,
};

use welte_table::{
    BufferId, Class, NO_BUFFER, Op, PassKind, Program, Region, Segment, Side, Split,
};

/// The decode pass: verified programs begin with it, unless they only embed.
const DECODE: usize = 0;

/// Everything that replay changes. The near context has the slots, the caches and the output rows of the last step.
pub(crate) struct SplitContext {
    program: Arc<Program>,
    split: Arc<Split>,
    pub(crate) near: Box<dyn Context>,
    far: Option<Box<dyn Context>>,
    checks: Checks,
    /// Rows on their way.
    passage: Vec<u8>,
    /// The step at hand.
    pass: usize,
    /// The step at hand without its picks, as the far side runs it.
    pub(crate) step: Step,
    /// Output rows of the last step from which tokens may be chosen.
    pub(crate) logits: usize,
    /// Where chains of a slot end, and what they report.
    pub(crate) slots: Vec<HostSlot>,
    /// The slots of the chain at hand that have not stopped.
    pub(crate) live: Vec<ChainStart>,
    /// Its step.
    chained: Step,
    pub(crate) choices: Vec<Choice>,
    pub(crate) tokens: Vec<u32>,
    /// Side, number, begin and end of each command of the last step, if it was profiled.
    ran: Option<Vec<(Side, u32, u64, u64)>>,
    /// The choices of chains since profiling was switched on. A side does not see them as commands.
    sampled: Sampled,
}

/// Choices of tokens.
#[derive(Clone, Copy, Default)]
struct Sampled {
    calls: u64,
    ns: u64,
    bytes: u64,
    flops: u64,
}

/// What is copied back from the far side.
#[derive(Clone, Copy, PartialEq)]
enum Outputs {
    /// What later commands need.
    Needed,
    /// Everything, so that the near side's buffers are as if all commands had run there.
    All,
}

impl SplitContext {
    pub(crate) fn new(
        program: Arc<Program>,
        split: Arc<Split>,
        near: Box<dyn Context>,
        far: Option<Box<dyn Context>>,
    ) -> SplitContext {
        let (vocab, slots) = (program.vocab as usize, program.slots as usize);
        SplitContext {
            checks: Checks::new(&program),
            passage: if far.is_some() {
                vec![0; split.most_bytes() as usize]
            } else {
                Vec::new()
            },
            pass: DECODE,
            logits: 0,
            step: Step::with_room(program.most_rows() as usize),
            // The near side has the histories.
            slots: (0..slots).map(|_| HostSlot::new(vocab, 1)).collect(),
            live: Vec::with_capacity(slots),
            chained: Step::with_room(slots),
            choices: Vec::with_capacity(program.most_rows() as usize),
            tokens: Vec::with_capacity(slots),
            ran: None,
            sampled: Sampled::default(),
            near,
            far,
            split,
            program,
        }
    }

    /// Runs a part of a step that was checked. `outputs` says what is copied back from the far side.
    fn take_part(&mut self, step: &Step, part: &Stage, outputs: Outputs) -> Result<&[f32], Error> {
        if part.begins() {
            self.step.clear();
            self.step.spans.extend_from_slice(&step.spans);
            self.step.rows.extend_from_slice(&step.rows);
            self.logits = 0;
            if let Some(ran) = &mut self.ran {
                ran.clear();
            }
            self.near.step(step, StepOptions::stage(Stage::Begin))?;
            if let Some(far) = &mut self.far {
                far.step(&self.step, StepOptions::stage(Stage::Begin))?;
            }
        }
        if let Some(commands) = part.commands() {
            self.run(step, commands, outputs)?;
        }
        if !part.ends() {
            return Ok(&[]);
        }
        let values = self.near.step(step, StepOptions::stage(Stage::End))?;
        let pass = &self.program.passes[self.pass];
        if pass.kind != PassKind::Embed {
            self.logits = values.len() / pass.width.max(1) as usize;
        }
        Ok(values)
    }

    /// Runs a decode step of the live slots of a chain.
    pub(crate) fn decode(&mut self) -> Result<(), Error> {
        let mut step = std::mem::take(&mut self.chained);
        step.clear();
        for start in &self.live {
            step.add(Role::Generated, [start.row()]);
        }
        self.pass = DECODE;
        let ran = self.take_part(&step, &Stage::Whole, Outputs::Needed);
        let ran = ran.map(drop);
        self.chained = step;
        ran
    }

    /// Runs commands of the step at hand.
    fn run(&mut self, step: &Step, commands: Range<usize>, outputs: Outputs) -> Result<(), Error> {
        let split = self.split.clone();
        for segment in &split.passes[self.pass] {
            let first = segment.commands.start.max(commands.start);
            let end = segment.commands.end.min(commands.end);
            if first < end {
                self.run_part(step, segment, first..end, outputs)?;
            }
        }
        Ok(())
    }

    /// Runs some commands of a segment, with its copies.
    fn run_part(
        &mut self,
        step: &Step,
        segment: &Segment,
        commands: Range<usize>,
        outputs: Outputs,
    ) -> Result<(), Error> {
        let split = self.split.clone();
        let first = segment.here.start + commands.start - segment.commands.start;
        let here = first..first + commands.len();
        if segment.side == Side::Near {
            return self.run_side(step, Side::Near, commands.start, here);
        }
        if commands.start == segment.commands.start {
            for region in &segment.inputs {
                self.copy(&split, region, Side::Near)?;
            }
        }
        self.run_side(step, Side::Far, commands.start, here)?;
        for region in &segment.outputs {
            if region.needed || outputs == Outputs::All {
                self.copy(&split, region, Side::Far)?;
            }
        }
        Ok(())
    }

    /// Copies a region's rows from one side to the other, through the host's memory.
    fn copy(&mut self, split: &Split, region: &Region, from: Side) -> Result<(), Error> {
        let id = |side| split.half(side).buffers[region.at.buffer as usize];
        let (near, far) = (id(Side::Near), id(Side::Far));
        let Some(far_context) = &mut self.far else {
            return Ok(());
        };
        for run in region.runs(self.step.rows.len()) {
            let bytes = &mut self.passage[..(run.end - run.start) as usize];
            match from {
                Side::Near => {
                    self.near.read_bytes(near, run.start, bytes)?;
                    far_context.write_bytes(far, run.start, bytes)?;
                }
                Side::Far => {
                    far_context.read_bytes(far, run.start, bytes)?;
                    self.near.write_bytes(near, run.start, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Runs commands of one side, of which the first has the number `first` in the whole program. Where profiling is on,
    /// one by one.
    fn run_side(
        &mut self,
        step: &Step,
        side: Side,
        first: usize,
        here: Range<usize>,
    ) -> Result<(), Error> {
        let (context, step) = match (side, &mut self.far) {
            (Side::Far, Some(far)) => (far.as_mut(), &self.step),
            _ => (self.near.as_mut(), step),
        };

        let Some(ran) = &mut self.ran else {
            return context
                .step(step, StepOptions::stage(Stage::run(here)))
                .map(drop);
        };
        for (index, command) in (first as u32..).zip(here) {
            context.step(step, StepOptions::stage(Stage::run(command..command + 1)))?;
            let begin = ran.last().map_or(0, |ran| ran.3);
            let timeline = context.last_step();
            if !timeline.is_empty() {
                ran.push((side, index, begin, begin + timeline.length()));
            }
        }
        Ok(())
    }

    /// Chooses the tokens of a chain's step: the work of the `sample` command that has not run.
    pub(crate) fn choose(&mut self) -> Result<(), Error> {
        let begun = self.ran.is_some().then(Instant::now);
        self.near.sample(&self.choices, &mut self.tokens)?;
        let sample = self.program.passes[DECODE].commands.last();
        if let (Some(begun), Some(sample)) = (begun, sample) {
            self.sampled.calls += 1;
            self.sampled.ns += begun.elapsed().as_nanos() as u64;
            self.sampled.bytes += sample.bytes;
            self.sampled.flops += sample.flops * self.step.rows.len() as u64;
        }
        Ok(())
    }

    /// A buffer's side: the near one, unless that has no place for it.
    fn side_of(&mut self, id: BufferId) -> (&mut dyn Context, BufferId) {
        let number = |side| self.split.half(side).buffers[id as usize];
        match (&mut self.far, number(Side::Near)) {
            (Some(far), NO_BUFFER) => (far.as_mut(), number(Side::Far)),
            (_, near) => (self.near.as_mut(), near),
        }
    }
}

impl Context for SplitContext {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn chain_slots(&self) -> usize {
        self.near.chain_slots()
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        let mut all = self.near.allocated();
        let Some(far) = &self.far else {
            return all;
        };
        let passage = (Class::Tables, self.passage.len() as u64);
        for (class, bytes) in far.allocated().into_iter().chain([passage]) {
            *all.entry(class).or_insert(0) += bytes;
        }
        all
    }

    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        self.near.set_pages(cache, slot, first, pages)
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        self.near.copy_page(cache, from, to)
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.near.read_page(cache, page, bytes)
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.near.write_page(cache, page, bytes)
    }

    /// When it is run part by part, buffers of the near side are as if all commands had run there, for whoever looks at them.
    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        self.pass = self.checks.step(&self.program, step, &options)?.pass;
        let outputs = match options.stage {
            Stage::Whole => Outputs::Needed,
            Stage::Begin | Stage::Run(_) | Stage::End => Outputs::All,
        };
        let Some(tokens) = options.tokens.filter(|_| options.stage.ends()) else {
            return self.take_part(step, &options.stage, outputs);
        };
        self.take_part(step, &options.stage, outputs)?;
        self.choices.clear();
        self.choices.extend(step.choices());
        self.near.sample(&self.choices, tokens)?;
        Ok(&[])
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.near.set_slot(slot, state)?;
        let own = SlotState {
            ends: state.ends,
            logprobs: state.logprobs,
            ..SlotState::default()
        };
        self.slots[slot as usize].set(&own);
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.near.masks()
    }

    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        self.checks
            .choices(&self.program, choices, tokens, self.logits)?;
        self.near.sample(choices, tokens)
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        self.checks
            .logprobs(&self.program, queries, answers, self.logits)?;
        self.near.logprobs(queries, answers)
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let most = self.chain_slots();
        self.checks.chain(&self.program, starts, most)?;
        let done = chain_by_steps(self, starts, control, emit);
        // The outputs belonged to the chain.
        self.logits = 0;
        done
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.checks.buffer(&self.program, id, first, bytes.len())?;
        let (context, id) = self.side_of(id);
        context.read_bytes(id, first, bytes)
    }

    /// Writes to both sides.
    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        self.checks.buffer(&self.program, id, first, bytes.len())?;
        let number = |side| self.split.half(side).buffers[id as usize];
        if number(Side::Near) != NO_BUFFER {
            self.near.write_bytes(number(Side::Near), first, bytes)?;
        }
        match &mut self.far {
            Some(far) if number(Side::Far) != NO_BUFFER => {
                far.write_bytes(number(Side::Far), first, bytes)
            }
            _ => Ok(()),
        }
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.ran = on.then(Vec::new);
        self.sampled = Sampled::default();
        self.near.set_profiling(on)?;
        match &mut self.far {
            Some(far) => far.set_profiling(on),
            None => Ok(()),
        }
    }

    fn profile(&self) -> Vec<Profile> {
        let mut all = self.near.profile();
        let far = self.far.as_ref().map_or(Vec::new(), |far| far.profile());
        for (one, far) in all.iter_mut().zip(far) {
            one.calls += far.calls;
            one.ns += far.ns;
            one.bytes += far.bytes;
            one.flops += far.flops;
        }
        if let Some(sample) = all.iter_mut().find(|one| one.op == Op::Sample) {
            sample.calls += self.sampled.calls;
            sample.ns += self.sampled.ns;
            sample.bytes += self.sampled.bytes;
            sample.flops += self.sampled.flops;
        }
        all
    }

    /// A lane for each side, without the copies between.
    fn last_step(&self) -> Timeline {
        let ran = self.ran.as_deref().unwrap_or_default();
        if ran.is_empty() {
            return Timeline::default();
        }
        let all: Vec<_> = ran.iter().map(|ran| (ran.1, ran.2, ran.3)).collect();
        let mut timeline = Timeline::in_order(&self.program, self.pass, &self.step.rows, &all);
        let spans: Vec<_> = timeline.lanes.drain(..).flatten().collect();
        timeline.lanes = [Side::Near, Side::Far]
            .map(|side| {
                let here = spans.iter().zip(ran).filter(|(_, ran)| ran.0 == side);
                here.map(|(span, _)| *span).collect()
            })
            .into_iter()
            .collect();
        timeline
    }
}
