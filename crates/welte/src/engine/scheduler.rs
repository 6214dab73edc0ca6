//! The scheduler: which rows the next step has. It owns no device; each turn gets the context.
//!
//! A turn takes new requests, admits as many as have a slot and pages, computes a piece of the waiting prompts or of an encoder's
//! pass, and decodes a chain. Each kind of work is planned ([`plan`]), then run and settled ([`run`]). What a turn decides by timing
//! changes when a token appears and never which one.

mod admit;
#[cfg(test)]
mod audit;
mod chain;
mod drafts;
mod encode;
mod follow;
mod guided;
mod measure;
mod own;
mod plan;
mod publish;
mod recovery;
mod run;
mod texts;
mod work;

use super::adapters::{LoadedAdapter, Written};
use super::draft::Speculator;
use super::encoding::Encoding;
use super::logprobs::LogprobQueries;
use super::pace::Pace;
use super::pages::{Pages, Tiers};
use super::pooling::pools_several;
use super::sequence::Sequence;
use super::shared::Shared;
use crate::PrefixChange;
#[cfg(test)]
pub(crate) use audit::{Audit, Audited};
use own::Own;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use welte_device::{ChainStart, Context, Error as DeviceError, Role, Step};
use welte_table::{PassKind, Program};
use work::{Drafting, Owner, Work};

/// The context does not work any more.
#[derive(Debug)]
pub(crate) struct ContextLost;

/// The passes that the scheduler runs.
#[derive(Clone, Copy)]
struct PassSpec {
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
    /// Passes of encoders.
    encoding: Encoding,
    /// `None`: nothing is guessed.
    speculator: Option<Speculator>,
    /// Of the model's own draft layer. `None` without one.
    own: Option<Own>,
    /// Requests without a slot, in no order.
    waiting: Vec<Sequence>,
    /// Sequences with a slot, in the order of their admission.
    running: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// The best waiting request lacks pages, and none has come back since.
    short: bool,
    /// The step at hand, and whose spans it has.
    step: Step,
    owners: Vec<Owner>,
    /// Where those who decode begin the next chain, or step.
    starts: Vec<ChainStart>,
    /// Where sequences run whose states were copied before the step at hand, with their first positions and rows.
    spans: Vec<(usize, usize, usize)>,
    /// The guesses in the step at hand.
    drafting: Option<Drafting>,
    /// The tokens that the step at hand has yielded.
    chosen: Vec<u32>,
    logprobs: LogprobQueries,
    /// Adapters that are not in the banks yet, and those that are.
    new_adapters: Vec<Arc<LoadedAdapter>>,
    adapters: Written,
    /// Sequences with an adapter rest, or those without one, if any do.
    adapters_rest: bool,
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
        tiers: Tiers,
        speculator: Option<Speculator>,
    ) -> Scheduler {
        let slots = program.slots as usize;
        let pass = |index: usize| PassSpec {
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
            // Without caches, too, nothing is left of a part.
            whole_texts: embed.is_some_and(|embed| {
                program.caches.is_empty() || pools_several(&program.passes[embed])
            }),
            pages: Pages::new(program, tiers),
            pace: Pace::new(prompt.rows),
            encoding: Encoding::default(),
            own: None,
            speculator,
            waiting: Vec::with_capacity(shared.max_requests),
            running: Vec::with_capacity(slots),
            free_slots: (0..program.slots).rev().collect(),
            short: false,
            step: Step::with_room(decode.rows.max(prompt.rows).max(embed_rows)),
            owners: Vec::with_capacity(slots),
            starts: Vec::with_capacity(slots),
            spans: Vec::with_capacity(slots),
            drafting: None,
            chosen: Vec::with_capacity(slots.max(decode.rows)),
            logprobs: LogprobQueries::with_room(prompt.outputs + slots.max(decode.rows)),
            new_adapters: Vec::new(),
            adapters: Written::default(),
            adapters_rest: false,
            totals: Totals::default(),
            shared,
        }
    }

    /// Guesses with the program's draft pass.
    pub(crate) fn guess_with_own(&mut self, program: &Program) {
        let pass = program.pass(PassKind::Draft);
        self.own = pass.map(|_| Own::new(program));
    }

    /// Tells of the prefixes that come and go.
    pub(crate) fn watch(&mut self, watcher: Sender<PrefixChange>) {
        self.pages.watch(watcher);
    }

    /// True if no request and no pass is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && !self.encoding.waits()
    }

    /// One round. After an error the context must be replaced and [`Scheduler::start_over`] called.
    pub(crate) fn turn(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        self.intake();
        self.write_adapters(context)?;
        self.admit(context)?;
        // The first prompt and its chain may take long.
        self.publish_status();
        self.restore(context)?;
        self.take_turns(context);
        let encodes = self.encodes();
        let mixed = !encodes && self.mixes(context);
        if !encodes && !mixed {
            self.work(context, Work::Prompts)?;
        }
        self.work(context, Work::Texts)?;
        self.follow_guides(context)?;
        self.work(context, Work::Known)?;
        self.work(context, Work::Next { mixed })?;
        if encodes {
            // Last: a request that comes meanwhile ends the chain at hand, and must not end the next one before its first step.
            self.encode();
        }
        self.publish();
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Hands kept pages to the sequences that wait for them. If all do, nothing else can be done meanwhile.
    fn restore(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let all = !self.running.is_empty() && self.running.iter().all(Sequence::waits_for_pages);
        match self.pages.bring(context, &mut self.running, all) {
            Ok(()) => Ok(()),
            Err(error) => self.fault(context, error),
        }
    }

    /// Where rows with and without an adapter cannot share a step, they have turns of their own, one after the other.
    fn take_turns(&mut self, context: &dyn Context) {
        let adapted = |s: &Sequence| s.adapter.is_some();
        let some = self.running.iter().any(adapted);
        let both = some && !self.running.iter().all(adapted) && !context.mixes_adapters();
        self.adapters_rest = both && !self.adapters_rest;
        for sequence in &mut self.running {
            sequence.rests = both && adapted(sequence) == self.adapters_rest;
        }
    }

    /// Puts adapters that were loaded into the banks. A place that is half written must not be read, whether or not the context works.
    fn write_adapters(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        if self.new_adapters.is_empty() {
            return Ok(());
        }
        let new = std::mem::take(&mut self.new_adapters);
        self.adapters.write(context, new).map_err(|_| ContextLost)
    }

    /// The context is new.
    pub(crate) fn renew(&mut self, context: &mut dyn Context) -> Result<(), DeviceError> {
        self.adapters.renew(context)?;
        self.pages.renew(context);
        self.works(context)
    }

    /// Writes the cached prefixes to the disk tier.
    pub(crate) fn save(&mut self, context: &mut dyn Context) {
        self.pages.save(context);
    }

    /// Whether the device has mixed steps with room for every slot.
    pub(super) fn can_mix(&self, context: &dyn Context) -> bool {
        self.rows_for_all && context.mixes()
    }

    /// True if this turn computes prompts together with the sequences that decode.
    pub(super) fn mixes(&self, context: &dyn Context) -> bool {
        let begins = |s: &Sequence| {
            let computes = s.is_filling() && !s.waits_for_pages() && !s.embeds && !s.rests;
            computes && s.next_run().0 == Role::Prompt
        };
        self.can_mix(context)
            && self.running.iter().any(begins)
            && self.running.iter().any(|s| !s.is_filling())
    }
}
