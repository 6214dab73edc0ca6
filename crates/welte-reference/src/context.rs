//! The memory of one context, and replay.

use crate::ops::{Execution, Memory, floats};
use crate::sample::{Slot, log_softmax};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use web_time::Instant;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Checks, Choice, Context, Control, Emitted, Error, LogprobQuery, Logprobs, Made,
    MaskBoard, Profile, SKIPPED, Seat, SlotState, Step, StepChain, StepOptions, chain_by_steps,
    is_token, same_commands,
};
use welte_table::{BufferId, Class, Op, PassKind, Program, Row};

pub(crate) struct ReferenceContext {
    program: Arc<Program>,
    /// By weight id.
    weights: Arc<Vec<Vec<f32>>>,
    memory: Memory,
    slots: Vec<Slot>,
    masks: Arc<MaskBoard>,
    checks: Checks,
    last: LastStep,
    /// The slots of the chain at hand that have not stopped.
    live: Vec<ChainStart>,
    profile: Option<Vec<Profile>>,
    /// Among the ranks of its program.
    seat: Option<Seat>,
}

/// What the last step ran, and what it yielded.
#[derive(Default)]
struct LastStep {
    pass: usize,
    rows: Vec<Row>,
    /// The chosen rows, of a decode pass all of them.
    outputs: Vec<u32>,
    /// The output rows.
    values: Vec<f32>,
    /// Output rows that are logits.
    logits: usize,
    /// Number, begin and end of each command, if the step was profiled.
    ran: Vec<(u32, u64, u64)>,
}

impl ReferenceContext {
    pub(crate) fn new(
        program: Arc<Program>,
        weights: Arc<Vec<Vec<f32>>>,
        seat: Option<Seat>,
    ) -> ReferenceContext {
        let buffers = program.buffers.iter().map(|b| vec![0; b.bytes as usize]);
        let caches = 0..program.caches.len();
        let memory = Memory {
            buffers: buffers.collect(),
            pages: caches.map(|c| Checks::first_pages(&program, c)).collect(),
        };
        let masks = || MaskBoard::new(program.slots as usize, program.vocab as usize);
        if let Some(seat) = &seat {
            seat.reserve(&program);
        }
        ReferenceContext {
            weights,
            memory,
            slots: vec![Slot::default(); program.slots as usize],
            masks: match &seat {
                Some(seat) => seat.masks(masks),
                None => Arc::new(masks()),
            },
            checks: Checks::new(&program)
                .mixing(same_commands(&program))
                .taking_features(),
            last: LastStep::default(),
            live: Vec::new(),
            profile: None,
            seat,
            program,
        }
    }

    /// Makes a step over checked rows the last one. `outputs` are the chosen rows, of a decode pass all of them.
    fn begin(&mut self, pass: usize, rows: &[Row], outputs: Vec<u32>) {
        self.last = LastStep {
            pass,
            rows: rows.to_vec(),
            outputs,
            ..LastStep::default()
        };
        let tokens = rows.iter().flat_map(|row| row.token().to_ne_bytes());
        let tokens: Vec<u8> = tokens.collect();
        self.memory.buffers[self.program.tokens as usize][..tokens.len()].copy_from_slice(&tokens);
    }

    /// Runs commands of the last step. If `sample`, the caller chooses tokens after the command has had its turn.
    fn replay(&mut self, commands: Range<usize>, sample: bool) -> Result<(), Error> {
        let program = self.program.clone();
        let spec = &program.passes[self.last.pass];
        let outputs_from = spec.outputs_from().unwrap_or(usize::MAX);
        self.last.ran.clear();
        let begun = Instant::now();
        for (index, command) in spec.commands.iter().enumerate() {
            if !commands.contains(&index) || command.op == Op::Sample && !sample {
                continue;
            }
            let (rows, outputs) = (&self.last.rows, &self.last.outputs);
            let live = if index >= outputs_from {
                outputs.len()
            } else {
                rows.len()
            };
            let begin = begun.elapsed().as_nanos() as u64;
            let mut execution = Execution {
                program: &program,
                weights: &self.weights,
                memory: &mut self.memory,
                command,
                rows,
                outputs,
                on_outputs: index >= outputs_from,
                adapters: self.checks.adapters(),
            };
            match command.op {
                Op::Exchange => execution.exchange(self.seat.as_ref(), live)?,
                _ => execution.run(live),
            }
            if let Some(profile) = &mut self.profile {
                let end = begun.elapsed().as_nanos() as u64;
                profile[command.op as usize].count(&program, command, rows, live);
                profile[command.op as usize].ns += end - begin;
                self.last.ran.push((index as u32, begin, end));
            }
        }
        Ok(())
    }

    /// Keeps the output rows of the last step, whose commands have run.
    fn end(&mut self) {
        let spec = &self.program.passes[self.last.pass];
        let outputs = self.last.outputs.len();
        let bytes = outputs * spec.width as usize * 4;
        if bytes > 0 {
            let buffer = &self.memory.buffers[spec.result.buffer as usize];
            self.last.values = floats(&buffer[spec.result.offset as usize..][..bytes]);
        }
        if spec.kind != PassKind::Embed {
            self.last.logits = outputs;
        }
    }

    /// Chooses a slot's token at `position` from an output row of the last step. A guess leaves no trace.
    fn choose(&mut self, output: usize, slot: u32, position: u32) -> u32 {
        let vocab = self.program.vocab as usize;
        let logits = &self.last.values[output * vocab..][..vocab];
        let own = &mut self.slots[slot as usize];
        match self.program.passes[self.last.pass].kind {
            PassKind::Draft => own.guess(logits, position),
            _ => own.next(logits, &self.masks, slot, position),
        }
    }
}

impl StepChain for ReferenceContext {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.live
    }

    fn step_live(&mut self) -> Result<(), Error> {
        let rows: Vec<Row> = self.live.iter().map(ChainStart::row).collect();
        self.begin(self.last.pass, &rows, (0..rows.len() as u32).collect());
        self.replay(0..usize::MAX, true)?;
        self.end();
        Ok(())
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, Error> {
        let ChainStart { slot, position, .. } = self.live[row];
        let token = self.choose(row, slot, position + 1);
        let tokens = &mut self.memory.buffers[self.program.tokens as usize];
        tokens[row * 4..][..4].copy_from_slice(&token.to_ne_bytes());
        let own = &self.slots[slot as usize];
        let logprobs = own.logprobs.filter(|_| is_token(token)).map(|top| {
            let vocab = self.program.vocab as usize;
            let output = row as u32;
            let logits = &self.last.values[row * vocab..][..vocab];
            log_softmax(logits, &LogprobQuery { output, token, top })
        });
        Ok(Made {
            token,
            logprobs,
            ends: own.ends_at(token),
        })
    }
}

impl Context for ReferenceContext {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn chain_slots(&self) -> usize {
        self.program.slots.min(self.program.passes[0].rows) as usize
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        let mut bytes: BTreeMap<Class, u64> = BTreeMap::new();
        let weights = self.weights.iter().map(|w| 4 * w.len() as u64).sum();
        let buffers = self.program.buffers.iter().zip(&self.memory.buffers);
        let entries = buffers.map(|(spec, buffer)| (spec.class, buffer.len() as u64));
        let pages = self
            .memory
            .pages
            .iter()
            .map(|p| 4 * p.len() as u64)
            .sum::<u64>();
        let exchange = self.seat.as_ref().map_or(0, |_| Seat::bytes(&self.program));
        let fixed = [(Class::Weights, weights), (Class::Tables, pages + exchange)];
        for (class, size) in entries.chain(fixed) {
            *bytes.entry(class).or_default() += size;
        }
        bytes
    }

    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        let at = self
            .checks
            .pages(&self.program, cache, slot, first, pages)?;
        self.memory.pages[cache][at..at + pages.len()].copy_from_slice(pages);
        Ok(())
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        let spec = self.checks.cache(&self.program, cache, [from, to])?;
        let bytes = &mut self.memory.buffers[spec.buffer as usize];
        for (source, target) in spec.page_copies(self.program.page, from, to) {
            bytes.copy_within(source, target);
        }
        Ok(())
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let spec = self.checks.page(&self.program, cache, page, bytes.len())?;
        let buffer = &self.memory.buffers[spec.buffer as usize];
        let mut at = 0;
        for range in spec.page_ranges(self.program.page, page) {
            let run = at..at + range.len();
            at = run.end;
            bytes[run].copy_from_slice(&buffer[range]);
        }
        Ok(())
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let spec = self.checks.page(&self.program, cache, page, bytes.len())?;
        let buffer = &mut self.memory.buffers[spec.buffer as usize];
        let mut at = 0;
        for range in spec.page_ranges(self.program.page, page) {
            let run = at..at + range.len();
            at = run.end;
            buffer[range].copy_from_slice(&bytes[run]);
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        let plan = self.checks.step(&self.program, step, &options)?;
        if options.stage.begins() {
            let generated = 0..plan.generated.min(plan.outputs) as u32;
            let outputs = generated.chain(step.chosen()).collect();
            self.begin(plan.pass, &step.rows, outputs);
        }
        if let Some(commands) = options.stage.commands() {
            self.replay(commands, false)?;
        }
        if !options.stage.ends() {
            return Ok(&[]);
        }
        self.end();
        let Some(tokens) = options.tokens else {
            return Ok(&self.last.values);
        };
        let choices: Vec<Choice> = step.choices().collect();
        self.sample(&choices, tokens).map(|()| &[][..])
    }

    /// Both roles have the same arithmetic here.
    fn mixes(&self) -> bool {
        same_commands(&self.program)
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.checks.slot_state(&self.program, slot, state)?;
        self.slots[slot as usize] = Slot::new(state);
        self.masks.clear(slot);
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        let logits = self.last.logits;
        self.checks
            .choices(&self.program, choices, tokens, logits)?;
        for (nth, choice) in choices.iter().enumerate() {
            tokens[nth] = if Choice::is_skipped(choices, tokens, nth) {
                SKIPPED
            } else {
                self.choose(choice.output as usize, choice.slot, choice.position)
            };
        }
        Ok(())
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        let (program, logits) = (&self.program, self.last.logits);
        self.checks.logprobs(program, queries, answers, logits)?;
        let vocab = program.vocab as usize;
        for (query, answer) in queries.iter().zip(answers) {
            let row = &self.last.values[query.output as usize * vocab..][..vocab];
            *answer = log_softmax(row, query);
        }
        Ok(())
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let most = self.chain_slots();
        self.last.pass = self.checks.chain(&self.program, starts, most)?;
        let done = chain_by_steps(self, starts, control, emit);
        // The outputs belonged to the chain.
        self.last.logits = 0;
        done
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.checks.buffer(&self.program, id, first, bytes.len())?;
        let from = &self.memory.buffers[id as usize][first as usize..];
        bytes.copy_from_slice(&from[..bytes.len()]);
        Ok(())
    }

    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        self.checks.buffer(&self.program, id, first, bytes.len())?;
        let to = &mut self.memory.buffers[id as usize][first as usize..];
        to[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.profile = on.then(Profile::zeros);
        self.last.ran.clear();
        Ok(())
    }

    fn profile(&self) -> Vec<Profile> {
        self.profile.clone().unwrap_or_default()
    }

    fn last_step(&self) -> Timeline {
        if self.last.ran.is_empty() {
            Timeline::default()
        } else {
            Timeline::in_order(
                &self.program,
                self.last.pass,
                &self.last.rows,
                &self.last.ran,
            )
        }
    }
}
