//! The scheduler: which rows the next step has. It owns no device; each turn gets the context.
//!
//! A turn takes new requests, admits as many as have a slot and pages, computes a piece of the waiting prompts, and decodes
//! a chain. What it decides by timing changes when a token appears and never which one.

#[cfg(test)]
mod audit;
mod decode;
mod embed;
mod guided;
mod mixed;
mod publish;
mod recovery;
mod verify;

use super::channel::Finish;
use super::disk::Disk;
use super::draft::Speculator;
use super::logprobs::LogprobQueries;
use super::pace::Pace;
use super::pages::Pages;
use super::sequence::Sequence;
use super::shared::Shared;
use crate::Error;
#[cfg(test)]
pub(crate) use audit::{Audit, Audited};
use embed::pools_several;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use welte_device::{ChainStart, Context, Error as DeviceError, Pick, is_token};
use welte_table::{Program, Row};

/// The context does not work any more.
#[derive(Debug)]
pub(crate) struct ContextLost;

/// The passes that the scheduler runs.
#[derive(Clone, Copy)]
struct PassSpec {
    index: usize,
    /// The most rows of a step.
    rows: usize,
    /// The most output rows of a step.
    outputs: usize,
}

/// What was done since the start.
#[derive(Default)]
struct Totals {
    prompt_tokens: u64,
    generated_tokens: u64,
    decode_steps: u64,
}

/// Everything that decides what happens next.
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    decode: PassSpec,
    prompt: PassSpec,
    /// The prompt pass has room for a row of every slot.
    rows_for_all: bool,
    embed: Option<PassSpec>,
    /// All rows of a text are in one embed step.
    whole_texts: bool,
    pages: Pages,
    pace: Pace,
    /// `None`: nothing is guessed.
    speculator: Option<Speculator>,
    /// Requests without a slot, in no order.
    waiting: Vec<Sequence>,
    /// Sequences with a slot, in the order of their admission.
    running: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// The best waiting request lacks pages, and none has come back since.
    short: bool,
    rows: Vec<Row>,
    outputs: Vec<u32>,
    starts: Vec<ChainStart>,
    picks: Vec<Pick>,
    chosen: Vec<u32>,
    logprobs: LogprobQueries,
    totals: Totals,
}

impl Scheduler {
    /// A scheduler without requests. `decode`, `prompt` and `embed` are the numbers of these passes.
    pub(crate) fn new(
        shared: Arc<Shared>,
        program: &Arc<Program>,
        decode: usize,
        prompt: usize,
        embed: Option<usize>,
        disk: Option<Disk>,
        speculator: Option<Speculator>,
    ) -> Scheduler {
        let slots = program.slots as usize;
        let pass = |index: usize| PassSpec {
            index,
            rows: program.passes[index].rows as usize,
            outputs: program.passes[index].outputs as usize,
        };
        let (decode, prompt) = (pass(decode), pass(prompt));
        let embed_rows = embed.map_or(0, |embed| pass(embed).rows);
        Scheduler {
            decode,
            prompt,
            rows_for_all: slots <= prompt.outputs && slots < prompt.rows,
            embed: embed.map(pass),
            whole_texts: embed.is_some_and(|embed| pools_several(&program.passes[embed])),
            pages: Pages::new(program, disk),
            pace: Pace::new(prompt.rows),
            speculator,
            waiting: Vec::with_capacity(shared.most),
            running: Vec::with_capacity(slots),
            free_slots: (0..program.slots).rev().collect(),
            short: false,
            rows: Vec::with_capacity(decode.rows.max(prompt.rows).max(embed_rows)),
            outputs: Vec::with_capacity(prompt.outputs.max(slots)),
            starts: Vec::with_capacity(slots),
            picks: Vec::with_capacity(slots.max(decode.rows)),
            chosen: Vec::with_capacity(slots.max(decode.rows)),
            logprobs: LogprobQueries::with_room(slots.max(prompt.outputs).max(decode.rows)),
            totals: Totals::default(),
            shared,
        }
    }

    /// True if no request is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// One round. After an error the context must be replaced and [`Scheduler::start_over`] called.
    pub(crate) fn turn(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        self.intake();
        self.admit(context)?;
        // The first prompt and its chain may take long.
        self.publish_status();
        self.restore(context)?;
        let mixes = self.mixes(context);
        if !mixes {
            self.compute_prompts(context)?;
        }
        self.compute_embeddings(context)?;
        self.follow_guides(context)?;
        self.compute_generated(context)?;
        match mixes {
            true => self.compute_mixed(context)?,
            false => self.decode(context, false)?,
        }
        self.publish();
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes new requests, and drops those that nobody wants any more.
    fn intake(&mut self) {
        // Cleared first: a request that arrives from here on ends the next chain.
        self.shared.control.clear();
        let (arrived, forget) = {
            let mut inbox = self.shared.inbox();
            let arrived = !inbox.arrivals.is_empty();
            self.waiting.append(&mut inbox.arrivals);
            inbox.ping = false;
            (arrived, std::mem::take(&mut inbox.forget))
        };
        if forget {
            self.pages.clear();
        }
        let before = self.waiting.len();
        self.waiting.retain_mut(|sequence| sequence.is_wanted());
        // A new request may be more urgent, or need fewer pages. So may the next one, if the one that lacked pages has left.
        self.short &= !arrived && !forget && self.waiting.len() == before;
        for sequence in &mut self.running {
            sequence.is_wanted();
        }
        self.retire();
    }

    /// Gives slots and pages to the best waiting requests, as long as the next step has rows for them. A request whose
    /// prompt begins like one that is being computed waits for that one's pages.
    fn admit(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        if self.pages.have_come_back() {
            self.short = false;
        }
        while (!self.short || self.running.is_empty()) && self.rows_ahead() < self.budget() {
            let (running, pages) = (&self.running, &self.pages);
            let shares = |s: &Sequence| running.iter().any(|r| pages.would_share(r, s));
            let best = self.waiting.iter().enumerate();
            let best = best.filter(|(_, sequence)| !shares(sequence));
            let best = best.min_by_key(|(_, sequence)| order(sequence));
            let Some((best, first)) = best else { break };
            if first.set_back && !self.running.is_empty() {
                break;
            }
            let Some(slot) = self.free_slots.pop() else {
                break;
            };
            let mut sequence = self.waiting.swap_remove(best);
            sequence.slot = slot;
            let admitted = self.pages.admit(context, &mut sequence);
            let admitted = admitted.and_then(|enough| {
                if enough {
                    sequence.enter_slot(context)?;
                }
                Ok(enough)
            });
            match admitted {
                Ok(true) => {
                    let now = self.shared.clock.now();
                    sequence.out.report(|report| {
                        report.admitted.get_or_insert(now);
                    });
                    sequence.out.progress(sequence.computed);
                    self.running.push(sequence);
                }
                Ok(false) if self.running.is_empty() => {
                    self.free_slots.push(slot);
                    sequence.end = Some(Err(Error::Device(DeviceError::Request(
                        "the page pool is too small for the request".into(),
                    ))));
                }
                Ok(false) => {
                    self.free_slots.push(slot);
                    self.waiting.push(sequence);
                    self.short = true;
                }
                Err(error) => {
                    sequence.planned = 1;
                    self.running.push(sequence);
                    self.fault(context, error)?;
                }
            }
        }
        Ok(())
    }

    /// Hands stored pages to the sequences that wait for them. If all do, nothing else can be done meanwhile.
    fn restore(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let Some(disk) = &mut self.pages.disk else {
            return Ok(());
        };
        let waits = |s: &Sequence| s.restore.is_some();
        if !self.running.is_empty() && self.running.iter().all(waits) {
            disk.wait();
        }
        match disk.advance(context, &mut self.running) {
            Ok(()) => Ok(()),
            Err(error) => self.fault(context, error),
        }
    }

    /// Writes the cached prefixes to the disk tier.
    pub(crate) fn save(&mut self, context: &mut dyn Context) {
        self.pages.save(context);
    }

    /// Rows of prompts that running sequences still need.
    fn rows_ahead(&self) -> usize {
        let rest = |s: &Sequence| s.target().saturating_sub(s.computed);
        self.running.iter().map(rest).sum()
    }

    /// Rows of the next step of a prompt.
    fn budget(&self) -> usize {
        let decodes = |s: &Sequence| !s.is_filling();
        match self.running.iter().any(decodes) {
            true => self.pace.rows(),
            false => self.prompt.rows,
        }
    }

    /// Requests that wait for their prompts, for each one that decodes.
    fn waiting_for_each(&self) -> f64 {
        let filling = self.running.iter().filter(|s| s.is_filling()).count();
        let decoding = self.running.len() - filling;
        (self.waiting.len() + filling) as f64 / decoding.max(1) as f64
    }

    /// One step over prompts, and the first tokens of those that are complete.
    fn compute_prompts(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        self.rows.clear();
        self.plan_rows(false, self.budget());
        if self.rows.is_empty() {
            return Ok(());
        }
        let begun = self.shared.clock.now();
        let stepped = context.step(self.prompt.index, &self.rows, &self.outputs);
        if let Err(error) = stepped.map(drop) {
            return self.fault(context, error);
        }
        let took = self.shared.clock.since(begun);
        if !self.can_mix(context) {
            let waiting = self.waiting_for_each();
            self.pace.prompted(self.rows.len(), took, waiting);
        }
        if let Some(disk) = &mut self.pages.disk {
            disk.computed(self.rows.len(), took);
        }
        self.finish_prompts(context, 0)
    }

    /// After a step over prompts, with `generated` rows of sequences that decode before them: chooses tokens for the latter, and for
    /// the prompts that are complete.
    fn finish_prompts(
        &mut self,
        context: &mut dyn Context,
        generated: usize,
    ) -> Result<(), ContextLost> {
        self.totals.prompt_tokens += (self.rows.len() - generated) as u64;
        self.score_prompts(context, generated)?;
        self.picks.clear();
        let (mut decoded, mut outputs) = (0, generated);
        for sequence in &mut self.running {
            let rows = std::mem::take(&mut sequence.planned);
            if rows == 0 {
                continue;
            }
            let decodes = !sequence.is_filling();
            sequence.computed += rows;
            if sequence.generated() == 0 {
                sequence.out.progress(sequence.computed);
            }
            let output = match decodes {
                true => {
                    decoded += 1;
                    decoded - 1
                }
                false => {
                    outputs += sequence.outputs;
                    if sequence.is_filling() || sequence.generated() > 0 {
                        continue;
                    }
                    if sequence.remaining() == 0 {
                        sequence.end = Some(Ok(Finish::Length));
                        continue;
                    }
                    if !sequence.begins_by_choice() {
                        continue;
                    }
                    outputs - 1
                }
            };
            sequence.planned = 1;
            self.picks.push(Pick {
                output: output as u32,
                slot: sequence.slot,
                position: sequence.computed as u32,
                draft: None,
            });
        }
        self.totals.generated_tokens += self.picks.len() as u64;
        self.choose(context)?;
        self.settle(context);
        Ok(())
    }

    /// Reports the probabilities of the prompts' tokens that the step's output rows give from `outputs` on, where they are wanted.
    fn score_prompts(
        &mut self,
        context: &mut dyn Context,
        mut outputs: usize,
    ) -> Result<(), ContextLost> {
        self.logprobs.clear();
        let computed = |s: &&Sequence| s.planned > 0 && s.is_filling();
        for sequence in self.running.iter().filter(computed) {
            if let Some(top) = sequence.prompt_top.filter(|_| sequence.is_scoring()) {
                for (output, token) in (outputs..).zip(sequence.scored()) {
                    self.logprobs.ask(output, *token, top);
                }
            }
            outputs += sequence.outputs;
        }
        let mut answers = match self.logprobs.fetch(context) {
            Ok(answers) => answers.iter(),
            Err(error) => return self.fault(context, error),
        };
        for sequence in self.running.iter().filter(computed) {
            let scored = match sequence.is_scoring() {
                true => sequence.scored().len(),
                false => 0,
            };
            let positions = sequence.computed + 1..;
            for (position, answer) in positions.zip(answers.by_ref().take(scored)) {
                sequence.out.push_prompt(position, answer);
            }
        }
        Ok(())
    }

    /// One step over generated tokens of sequences that were preempted: they get the bits that they had.
    fn compute_generated(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        self.rows.clear();
        self.plan_rows(true, self.decode.rows);
        if self.rows.is_empty() {
            return Ok(());
        }
        let stepped = context.step(self.decode.index, &self.rows, &[]);
        if let Err(error) = stepped.map(drop) {
            return self.fault(context, error);
        }
        for sequence in &mut self.running {
            sequence.computed += std::mem::take(&mut sequence.planned);
        }
        self.settle(context);
        Ok(())
    }

    /// Adds rows of one role, up to `budget` in all, in the order of admission. Rows that complete a prompt are outputs.
    fn plan_rows(&mut self, generated: bool, budget: usize) {
        let before = self.rows.len();
        self.outputs.clear();
        let mut behind = self.running.iter().filter(|s| s.is_filling()).count();
        for sequence in &mut self.running {
            behind -= usize::from(sequence.is_filling());
            let left = budget - self.rows.len();
            let computes = sequence.is_filling() && sequence.restore.is_none();
            let (role, run) = match computes && !sequence.embeds {
                true => sequence.next_run(),
                false => continue,
            };
            if role != generated || left == 0 {
                continue;
            }
            let scores = sequence.is_scoring() && !generated;
            let left = match scores {
                // Each sequence behind it may need an output row.
                true => {
                    let taken = before + self.outputs.len() + behind;
                    left.min(self.prompt.outputs.saturating_sub(taken).max(1))
                }
                false => left,
            };
            let first = sequence.computed;
            let count = run
                .min(left)
                .min(self.pages.next_checkpoint(sequence) - first);
            let tokens = &sequence.tokens[first..first + count];
            let row = |(position, &token): (usize, &u32)| Row {
                token,
                position: position as u32,
                slot: sequence.slot,
            };
            self.rows.extend((first..).zip(tokens).map(row));
            sequence.planned = count;
            let complete = first + count == sequence.target() && sequence.generated() == 0;
            let end = self.rows.len();
            let chooses = complete && sequence.begins_by_choice();
            let outputs = match scores {
                true => end - count..end - usize::from(complete && !chooses),
                false => end - usize::from(chooses)..end,
            };
            sequence.outputs = outputs.len();
            self.outputs.extend(outputs.map(|row| row as u32));
        }
    }

    /// Chooses a token for each of `picks`, whose sequences are planned in the same order.
    fn choose(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        if self.picks.is_empty() {
            return Ok(());
        }
        self.chosen.clear();
        self.chosen.resize(self.picks.len(), 0);
        if let Err(error) = context.sample(&self.picks, &mut self.chosen) {
            return self.fault(context, error);
        }
        self.hand_out(context)
    }

    /// Hands the chosen tokens to their sequences, with probabilities where these are wanted.
    fn hand_out(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        self.logprobs.clear();
        let picked = self.running.iter().filter(|s| s.planned > 0);
        for (sequence, (pick, token)) in picked.zip(self.picks.iter().zip(&self.chosen)) {
            if let Some(top) = sequence.top.filter(|_| is_token(*token)) {
                self.logprobs.ask(pick.output as usize, *token, top);
            }
        }
        let mut answers = match self.logprobs.fetch(context) {
            Ok(answers) => answers.iter(),
            Err(error) => return self.fault(context, error),
        };
        let mut chosen = self.chosen.iter();
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            sequence.planned = 0;
            if let Some(&token) = chosen.next() {
                let asked = sequence.top.filter(|_| is_token(token));
                let answer = asked.and_then(|_| answers.next());
                sequence.take_with(token, answer);
            }
        }
        Ok(())
    }

    /// Takes the pages of the least urgent sequence and lets it wait. Returns where it ran.
    fn preempt(&mut self) -> usize {
        let all = self.running.iter().enumerate();
        let last = all.max_by_key(|(_, sequence)| order(sequence));
        let at = last.map_or(0, |(at, _)| at);
        let mut sequence = self.running.remove(at);
        self.pages.keep(&mut sequence);
        self.pages.release(&mut sequence);
        sequence.leave_slot();
        self.free_slots.push(sequence.slot);
        sequence.out.report(|report| report.preemptions += 1);
        sequence.set_back = true;
        self.waiting.push(sequence);
        // A more urgent one may fit now.
        self.short = false;
        at
    }

    /// After a step: full pages go to the prefix tree, needless ones back to the pools, and what has ended leaves.
    fn settle(&mut self, context: &mut dyn Context) {
        for sequence in &mut self.running {
            self.pages.settle(context, sequence);
        }
        self.retire();
    }

    /// Sequences that have ended give back slot and pages.
    fn retire(&mut self) {
        let (pages, free) = (&mut self.pages, &mut self.free_slots);
        let before = self.running.len();
        self.running.retain_mut(|sequence| {
            let Some(end) = &sequence.end else {
                return true;
            };
            if end.is_ok() {
                pages.keep(sequence);
            }
            pages.release(sequence);
            free.push(sequence.slot);
            false
        });
        if self.running.len() < before {
            self.short = false;
            self.waiting.iter_mut().for_each(|s| s.set_back = false);
        }
    }
}

/// Small is urgent: by priority, then by age.
fn order(sequence: &Sequence) -> (Reverse<i32>, u64) {
    (Reverse(sequence.priority), sequence.number)
}
