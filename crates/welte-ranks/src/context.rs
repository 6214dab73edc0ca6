//! A context of every rank, and replay: all ranks do the same at the same time.

use crate::banks;
use crate::chain::Follower;
use crate::crew::{Crew, Job};
use crate::dealt::Dealt;
use crate::pages::{self, Heads};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use welte_device::timeline::{Span, Timeline};
use welte_device::{
    ChainStart, Checks, Choice, Context, Control, Emitted, Error, LogprobQuery, Logprobs,
    MaskBoard, Profile, Replay, ReplayTools, Replaying, Seat, SlotState, Stage, Step, StepOptions,
    check_draft,
};
use welte_table::{Bank, BufferId, Class, Kept, PassKind, Program};

/// Everything that replay changes.
pub(crate) struct RanksContext {
    dealt: Arc<Dealt>,
    /// Rank 0, which the caller's thread runs.
    first: First,
    seat: Seat,
    crew: Crew,
    follower: Follower,
    masks: Arc<MaskBoard>,
    checks: Checks,
    /// The pass of the step at hand.
    pass: usize,
    /// Output rows of the last step from which tokens may be chosen.
    logits: usize,
    /// By cache that is dealt.
    heads: Vec<Option<Heads>>,
    /// A rank's part of a page.
    page: Vec<u8>,
}

/// The context of rank 0: one, until it is taken out.
struct First(Vec<Box<dyn Context>>);

impl Deref for First {
    type Target = dyn Context;

    fn deref(&self) -> &Self::Target {
        &*self.0[0]
    }
}

impl DerefMut for First {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0[0]
    }
}

impl Drop for RanksContext {
    /// A rank that is lost may still write into the memory of all others.
    fn drop(&mut self) {
        self.crew.keep(std::mem::take(&mut self.first.0));
    }
}

/// What a rank runs of a stage of the whole program.
fn stage_of(dealt: &Dealt, rank: usize, pass: usize, stage: &Stage) -> Stage {
    let Stage::Run(_) = stage else {
        return stage.clone();
    };
    let commands = stage.commands().unwrap_or_default();
    let origins = &dealt.numbers[rank].commands[pass];
    let before = |end: usize| origins.partition_point(|origin| *origin < end);
    Stage::run(before(commands.start)..before(commands.end))
}

impl RanksContext {
    pub(crate) fn new(
        dealt: Arc<Dealt>,
        contexts: Vec<Box<dyn Context>>,
        seats: Vec<Seat>,
    ) -> Result<RanksContext, Error> {
        let program = dealt.program.clone();
        let (rows, slots) = (program.most_rows() as usize, program.slots as usize);
        let follower = Follower::new(dealt.numbers.len() as u32, slots);
        let mut ranks = seats.into_iter().zip(contexts);
        let (seat, first) = ranks.next().ok_or_else(|| Error::request("no ranks"))?;
        let checks = Checks::new(&program).mixing(first.mixes());
        let caches = program.caches.iter().zip(&dealt.caches);
        let heads = caches.map(|(cache, deal)| Heads::of(&program, cache, (*deal)?, seat.ranks()));
        Ok(RanksContext {
            heads: heads.collect(),
            page: vec![0; pages::bytes(&dealt) as usize],
            masks: first.masks(),
            checks: match dealt.takes_features {
                true => checks.taking_features(),
                false => checks,
            },
            crew: Crew::new(ranks.collect(), rows, slots, &follower, dealt.patience)?,
            follower,
            seat,
            first: First(vec![first]),
            pass: 0,
            logits: 0,
            dealt,
        })
    }

    /// The same of every rank, one after the other.
    fn each(
        &mut self,
        mut act: impl FnMut(&mut dyn Context) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.crew.check()?;
        act(&mut *self.first)?;
        let mut desks = self.crew.desks();
        desks.try_for_each(|mut desk| act(desk.context.as_mut()))
    }

    /// The error of the rank that failed while all were at work, if one did. The next work begins anew.
    fn outcome(seat: &Seat, crew: &Crew) -> Result<(), Error> {
        let outcome = seat.check();
        if outcome.is_err() && crew.check().is_ok() {
            seat.reset();
        }
        outcome
    }

    /// A rank's number for a buffer of the whole program.
    fn number(&self, rank: usize, id: BufferId) -> Option<(BufferId, Kept)> {
        *self.dealt.numbers[rank].buffers.get(id as usize)?
    }

    /// The heads of a cache that is dealt, by its buffer, with the number of the cache.
    fn dealt_buffer(&self, id: BufferId) -> Option<Heads> {
        let caches = &self.dealt.program.caches;
        let cache = caches.iter().position(|cache| cache.buffer == id)?;
        self.heads[cache]
    }

    /// A rank's number for the buffer of a cache.
    fn cache_buffer(context: &dyn Context, whole: &Program, id: BufferId) -> BufferId {
        let cache = whole.caches.iter().position(|cache| cache.buffer == id);
        cache.map_or(id, |cache| context.program().caches[cache].buffer)
    }

    /// Writes bytes of a bank to the ranks that have them.
    fn write_bank(
        &mut self,
        bank: Bank,
        id: BufferId,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let dealt = self.dealt.clone();
        for (rank, numbers) in (0..).zip(&dealt.numbers) {
            for part in numbers.banks.iter().filter(|part| part.of == id) {
                for (run, at) in banks::runs(bank, part, first, bytes.len() as u64) {
                    let run = &bytes[(run.start - first) as usize..(run.end - first) as usize];
                    self.with(rank, |context| context.write_bytes(part.buffer, at, run))?;
                }
            }
        }
        Ok(())
    }

    fn with<T>(&mut self, rank: u32, act: impl FnOnce(&mut dyn Context) -> T) -> T {
        match rank {
            0 => act(&mut *self.first),
            rank => act(self.crew.desk(rank).context.as_mut()),
        }
    }
}

/// What rank 0 has done: a failure, or a panic, ends the work of the others.
fn led<T>(seat: &Seat, act: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => seat.fail_by(error),
        Err(_) => seat.fail("it panicked"),
    }
    None
}

impl Context for RanksContext {
    fn program(&self) -> &Arc<Program> {
        &self.dealt.program
    }

    fn chain_slots(&self) -> usize {
        self.first.chain_slots()
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        let mut all = self.first.allocated();
        *all.entry(Class::Tables).or_insert(0) += self.page.len() as u64;
        for desk in self.crew.desks() {
            for (class, bytes) in desk.context.allocated() {
                *all.entry(class).or_insert(0) += bytes;
            }
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
        self.each(|context| context.set_pages(cache, slot, first, pages))
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        self.each(|context| context.copy_page(cache, from, to))
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.crew.check()?;
        self.checks
            .page(&self.dealt.program, cache, page, bytes.len())?;
        let Some(heads) = self.heads[cache] else {
            return self.first.read_page(cache, page, bytes);
        };
        let mut part = std::mem::take(&mut self.page);
        let mut read = Ok(());
        for rank in 0..self.seat.ranks() {
            let own = &mut part[..heads.bytes(rank, bytes.len())];
            read = read.and(self.with(rank, |context| context.read_page(cache, page, own)));
            heads.gather(rank, own, bytes);
        }
        self.page = part;
        read
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.crew.check()?;
        self.checks
            .page(&self.dealt.program, cache, page, bytes.len())?;
        let Some(heads) = self.heads[cache] else {
            return self.each(|context| context.write_page(cache, page, bytes));
        };
        let mut part = std::mem::take(&mut self.page);
        let mut written = Ok(());
        for rank in 0..self.seat.ranks() {
            let own = &mut part[..heads.bytes(rank, bytes.len())];
            for (all, own_run) in heads.runs(rank, bytes.len()) {
                own[own_run].copy_from_slice(&bytes[all]);
            }
            written = written.and(self.with(rank, |context| context.write_page(cache, page, own)));
        }
        self.page = part;
        written
    }

    /// Each rank keeps its parts of pages, and caches that are not dealt whole.
    fn shelf_place(&self) -> Option<u64> {
        let others = self.crew.desks().map(|desk| desk.context.shelf_place());
        std::iter::once(self.first.shelf_place())
            .chain(others)
            .sum()
    }

    fn make_shelf(&mut self, places: u32) -> Result<(), Error> {
        let made = self.each(|context| context.make_shelf(places));
        if made.is_err() {
            // Those that some could pin would serve nobody.
            let _ = self.each(|context| context.make_shelf(0));
        }
        made
    }

    fn shelve(&mut self, place: u32, pages: &[u32]) -> Result<(), Error> {
        self.each(|context| context.shelve(place, pages))
    }

    fn fetch(&mut self, place: u32, pages: &[u32]) -> Result<(), Error> {
        self.each(|context| context.fetch(place, pages))
    }

    fn has_fetched(&mut self, wait: bool) -> Result<bool, Error> {
        self.crew.check()?;
        let mut all = true;
        for rank in 0..self.seat.ranks() {
            all &= self.with(rank, |context| context.has_fetched(wait))?;
        }
        Ok(all)
    }

    fn read_shelf(&mut self, range: Range<usize>, bytes: &mut [u8]) -> Result<(), Error> {
        self.crew.check()?;
        let whole = self.dealt.program.clone();
        let (place, cache) = pages::on_shelf(&whole, &range)
            .ok_or_else(|| Error::request(format!("bytes {range:?} of the shelf, not a page")))?;
        let own_range = |program: &Program| pages::shelf_range(program, place, cache);
        let wrong = || Error::request("pages of a rank that have no size");
        let Some(heads) = self.heads[cache] else {
            let own = own_range(self.first.program()).ok_or_else(wrong)?;
            return self.first.read_shelf(own, bytes);
        };
        let mut part = std::mem::take(&mut self.page);
        let mut read = Ok(());
        for rank in 0..self.seat.ranks() {
            let own = &mut part[..heads.bytes(rank, bytes.len())];
            read = read.and(self.with(rank, |context| {
                let range = own_range(context.program()).ok_or_else(wrong)?;
                context.read_shelf(range, own)
            }));
            heads.gather(rank, own, bytes);
        }
        self.page = part;
        read
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        self.crew.check()?;
        let program = &self.dealt.program;
        let plan = self.checks.step(program, step, &options)?;
        if options.stage.begins() {
            self.logits = 0;
        }
        self.pass = plan.pass;
        let (dealt, pass) = (&self.dealt, self.pass);
        let StepOptions { stage, mut tokens } = options;
        // Only the last stage chooses.
        let wanted = tokens.as_ref().map_or(0, |tokens| tokens.len());
        let chooses = tokens.is_some();
        self.masks.begin_round();
        self.crew.begin(|rank, desk| {
            if stage.begins() {
                desk.step.copy_from(step);
            }
            desk.make_room(wanted);
            Job::Step {
                stage: stage_of(dealt, rank as usize, pass, &stage),
                tokens: chooses,
            }
        });
        let first = &mut self.first;
        let values = led(&self.seat, || {
            let options = StepOptions {
                stage: stage_of(dealt, 0, pass, &stage),
                tokens: tokens.as_deref_mut(),
            };
            first.step(step, options)
        });
        self.crew.finish();
        RanksContext::outcome(&self.seat, &self.crew)?;
        let values = values.unwrap_or_default();
        if stage.ends() && program.passes[pass].kind != PassKind::Embed {
            self.logits = plan.outputs;
        }
        if let Some(tokens) = tokens.filter(|_| stage.ends()) {
            same_tokens(&self.seat, &self.crew, tokens, |_| true)?;
        }
        Ok(values)
    }

    fn mixes(&self) -> bool {
        self.first.mixes()
    }

    fn mixes_adapters(&self) -> bool {
        self.first.mixes_adapters()
    }

    /// Every rank goes on from its own guesses, which are those of the others.
    fn draft(&mut self, step: &mut Step, wanted: &[u32], tokens: &mut [u32]) -> Result<(), Error> {
        self.crew.check()?;
        let options = StepOptions::default();
        self.pass = self.checks.step(&self.dealt.program, step, &options)?.pass;
        check_draft(&self.dealt.program, step, wanted, tokens)?;
        self.logits = 0;
        self.masks.begin_round();
        self.crew.begin(|_, desk| {
            desk.step.copy_from(step);
            desk.wanted.clear();
            desk.wanted.extend_from_slice(wanted);
            desk.make_room(tokens.len());
            Job::Draft
        });
        let first = &mut self.first;
        led(&self.seat, || first.draft(step, wanted, tokens));
        self.crew.finish();
        RanksContext::outcome(&self.seat, &self.crew)?;
        let is_wanted = |at: usize| at / wanted.len() < wanted[at % wanted.len()] as usize;
        same_tokens(&self.seat, &self.crew, tokens, is_wanted)
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.checks.slot_state(&self.dealt.program, slot, state)?;
        self.each(|context| context.set_slot(slot, state))
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        self.crew.check()?;
        let program = &self.dealt.program;
        self.checks.choices(program, choices, tokens, self.logits)?;
        self.masks.begin_round();
        self.crew.begin(|_, desk| {
            desk.choices.clear();
            desk.choices.extend_from_slice(choices);
            desk.make_room(tokens.len());
            Job::Sample
        });
        let first = &mut self.first;
        led(&self.seat, || first.sample(choices, tokens));
        self.crew.finish();
        RanksContext::outcome(&self.seat, &self.crew)?;
        same_tokens(&self.seat, &self.crew, tokens, |_| true)
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        self.crew.check()?;
        self.first.logprobs(queries, answers)
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        self.crew.check()?;
        let most = self.chain_slots();
        self.checks.chain(&self.dealt.program, starts, most)?;
        self.logits = 0;
        if control.is_stopped() {
            return Ok(());
        }
        self.masks.begin_round();
        self.follower.clear();
        self.crew.begin(|_, desk| {
            desk.starts.clear();
            desk.starts.extend_from_slice(starts);
            Job::Chain
        });
        let mut events = self.follower.of(&self.seat, starts.len());
        let first = &mut self.first;
        led(&self.seat, || {
            // The caller's wish to stop must reach all ranks at the same token.
            let own = Control::default();
            first.chain(starts, &own, &mut |emitted| {
                let goes_on = emit(emitted) && !control.is_stopped();
                events.decide(emitted.token, goes_on);
                goes_on
            })
        });
        self.crew.finish();
        RanksContext::outcome(&self.seat, &self.crew)
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.crew.check()?;
        self.checks
            .buffer(&self.dealt.program, id, first, bytes.len())?;
        let whole = self.dealt.program.clone();
        let Some(heads) = self.dealt_buffer(id) else {
            let own = self.number(0, id).filter(|(_, kept)| *kept == Kept::Whole);
            let (own, _) = own.ok_or_else(|| dealt_error(&whole, id))?;
            return self.first.read_bytes(own, first, bytes);
        };
        let mut at = 0;
        while at < bytes.len() {
            let Some((rank, place, most)) = heads.byte(first + at as u64, 0) else {
                break;
            };
            let run = &mut bytes[at..];
            let len = run.len().min(most);
            self.with(rank, |context| {
                let own = RanksContext::cache_buffer(context, &whole, id);
                context.read_bytes(own, place, &mut run[..len])
            })?;
            at += len;
        }
        Ok(())
    }

    /// Writes to all ranks. A buffer of which a rank has a part only is left: nothing that is written there is read.
    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        self.crew.check()?;
        self.checks
            .buffer(&self.dealt.program, id, first, bytes.len())?;
        let whole = self.dealt.program.clone();
        if let Some(bank) = bank_at(&whole, id) {
            return self.write_bank(bank, id, first, bytes);
        }
        let Some(heads) = self.dealt_buffer(id) else {
            for rank in 0..self.seat.ranks() {
                if let Some((own, _)) = self.number(rank as usize, id) {
                    self.with(rank, |context| context.write_bytes(own, first, bytes))?;
                }
            }
            return Ok(());
        };
        let mut at = 0;
        while at < bytes.len() {
            let mut len = bytes.len() - at;
            for nth in 0..self.seat.ranks() as usize {
                let Some((rank, place, most)) = heads.byte(first + at as u64, nth) else {
                    break;
                };
                len = len.min(most);
                let run = &bytes[at..at + len];
                self.with(rank, |context| {
                    let own = RanksContext::cache_buffer(context, &whole, id);
                    context.write_bytes(own, place, run)
                })?;
            }
            at += len;
        }
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.each(|context| context.set_profiling(on))
    }

    /// That of rank 0.
    fn profile(&self) -> Vec<Profile> {
        self.first.profile()
    }

    fn replays(&mut self) -> Option<&mut dyn ReplayTools> {
        self.first.replays().is_some().then_some(self)
    }

    /// The lanes of all ranks, one rank after the other. Clocks of ranks begin with their own step.
    fn last_step(&self) -> Timeline {
        let mut timeline = self.first.last_step();
        let names = timeline.commands.len();
        for desk in self.crew.desks() {
            let own = desk.context.last_step();
            // All ranks run the same commands.
            let known = |span: &Span| (span.index as usize) < names;
            let lanes = own.lanes.into_iter();
            timeline
                .lanes
                .extend(lanes.map(|lane| lane.into_iter().filter(known).collect()));
        }
        let origins = &self.dealt.numbers[0].commands[self.pass];
        for command in &mut timeline.commands {
            command.command = origins[command.command as usize] as u32;
        }
        timeline
    }
}

/// What rank 0 says counts for all, since they do the same.
impl ReplayTools for RanksContext {
    fn replaying(&mut self) -> Replaying {
        match self.first.replays() {
            Some(tools) => tools.replaying(),
            None => Replaying {
                replay: Replay::Launches,
                note: None,
            },
        }
    }

    fn set_replay(&mut self, replay: Replay) -> Result<(), Error> {
        self.each(|context| {
            let tools = context.replays();
            tools.map_or(Ok(()), |tools| tools.set_replay(replay))
        })
    }

    fn has_timeline(&self) -> bool {
        false
    }

    fn timeline(&mut self, _: ChainStart) -> Result<Timeline, Error> {
        Err(Error::request("several ranks have no timeline of a chain"))
    }

    fn launch_ns(&mut self, times: u32) -> Result<u64, Error> {
        match self.first.replays() {
            Some(tools) => tools.launch_ns(times),
            None => Ok(0),
        }
    }

    /// Ranks are not tuned.
    fn tuning(&mut self) -> Option<String> {
        None
    }
}

/// Checks that all ranks have chosen the same tokens, of those that count.
fn same_tokens(
    seat: &Seat,
    crew: &Crew,
    tokens: &[u32],
    counts: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let differs = |own: &[u32]| {
        let mut pairs = own.iter().zip(tokens).enumerate();
        own.len() != tokens.len() || pairs.any(|(at, (own, first))| counts(at) && own != first)
    };
    let mut desks = (1..).zip(crew.desks());
    match desks.find(|(_, desk)| differs(&desk.tokens)) {
        Some((rank, desk)) => Err(Error::Rank {
            rank,
            ranks: seat.ranks(),
            why: format!("it chose tokens {:?}, rank 0 chose {tokens:?}", desk.tokens),
        }),
        None => Ok(()),
    }
}

/// The bank of adapters that a buffer of the whole program is.
fn bank_at(program: &Program, id: BufferId) -> Option<Bank> {
    let banks = program.adapters.as_ref().map(|adapters| &adapters.banks)?;
    banks
        .iter()
        .find(|bank| bank.buffer == id)
        .map(|spec| spec.bank)
}

fn dealt_error(program: &Program, id: BufferId) -> Error {
    let name = program
        .buffers
        .get(id as usize)
        .map_or("", |spec| &spec.name);
    Error::request(format!("every rank has only a part of '{name}'"))
}
