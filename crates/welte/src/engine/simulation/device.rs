//! A device that costs simulated time. Its caches hold what was computed from which tokens in which role, so every row
//! finds out whether it reads the right ones.

use super::world::{Marks, World, choice, mix};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use web_time::Instant;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Choice, Context, Control, DeviceId, Emitted, Error, LogprobQuery, Logprobs, Made,
    MaskBoard, Profile, SKIPPED, SlotState, Stage, Step, StepChain, StepOptions, chain_by_steps,
};
use welte_table::{BufferId, CacheKind, Class, PassKind, Program, Row};

/// A position of a cache, or the state at the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    position: u32,
    token: u32,
    generated: bool,
    marks: Marks,
}

impl Cell {
    /// What nobody has written.
    const NOISE: Cell = Cell {
        position: u32::MAX,
        token: u32::MAX,
        generated: false,
        marks: Marks {
            content: 1,
            bits: 1,
        },
    };
    /// Bytes of a cell in a page's bytes.
    const BYTES: usize = 25;

    fn write(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.position.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8] = self.generated.into();
        bytes[9..17].copy_from_slice(&self.marks.content.to_le_bytes());
        bytes[17..25].copy_from_slice(&self.marks.bits.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Cell {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Cell {
            position: word(0),
            token: word(4),
            generated: bytes[8] != 0,
            marks: Marks {
                content: long(9),
                bits: long(17),
            },
        }
    }
}

#[derive(Clone, Copy)]
enum Reach {
    /// All earlier positions, or a number of the last ones.
    Positions(usize),
    /// The state at the end.
    State,
}

struct Cache {
    reach: Reach,
    /// `page` cells for each page; one for a state.
    cells: Vec<Cell>,
    /// Cells of a page.
    page: usize,
    lists: Vec<Vec<u32>>,
}

impl Cache {
    /// Where a position of a slot is.
    fn at(&self, slot: u32, position: u32) -> Option<usize> {
        let (entry, offset) = match self.reach {
            Reach::State => (0, 0),
            Reach::Positions(_) => (position as usize / self.page, position as usize % self.page),
        };
        let page = *self.lists[slot as usize].get(entry)? as usize;
        (page < self.cells.len() / self.page).then_some(page * self.page + offset)
    }

    /// What a row at this position finds. `None`: something else is there.
    fn before(&self, slot: u32, position: u32) -> Option<Marks> {
        let first = match self.reach {
            _ if position == 0 => return Some(Marks::START),
            Reach::Positions(window) => (position as usize + 1).saturating_sub(window) as u32,
            Reach::State => position - 1,
        };
        let mut marks = match first {
            0 => Some(Marks::START),
            _ => None,
        };
        for position in first.min(position - 1)..position {
            let cell = self.cells[self.at(slot, position)?];
            let follows = marks.is_none_or(|m| m.after(cell.token, cell.generated) == cell.marks);
            if cell.position != position || !follows {
                return None;
            }
            marks = Some(cell.marks);
        }
        marks
    }
}

/// What a slot's tokens are chosen by.
#[derive(Default)]
struct Slot {
    request: u64,
    history: Vec<u32>,
    ends: Vec<u32>,
    /// Tokens with the bias minus infinity.
    forbidden: Vec<u32>,
    logprobs: bool,
}

/// The context.
pub(super) struct SimulatedContext {
    program: Arc<Program>,
    world: Arc<World>,
    caches: Vec<Cache>,
    slots: Vec<Slot>,
    /// What the output rows of the last step stand for.
    outputs: Vec<(u32, u32, Marks)>,
    logits: Vec<f32>,
    /// The slots of the chain at hand that have not stopped, and what the rows of its step stand for.
    live: Vec<ChainStart>,
    chained: Vec<Marks>,
    /// Steps of the chain at hand.
    steps: usize,
    masks: Arc<MaskBoard>,
    /// Every call fails.
    broken: bool,
    /// Pages of its own shelf, by place and cache, and what is on its way to which pages, and from when on it is there.
    shelf: Vec<Vec<Vec<Cell>>>,
    fetched: Vec<(Instant, u32, Vec<u32>)>,
    /// Nothing was called. The first call of a new context finds out whether it works, and never fails.
    fresh: bool,
}

impl SimulatedContext {
    pub(super) fn new(program: &Arc<Program>, world: &Arc<World>) -> SimulatedContext {
        let page = program.page as usize;
        let cache = |cache: &welte_table::CacheSpec| {
            let (reach, page) = match cache.kind {
                CacheKind::Attention { window: 0, .. } => (Reach::Positions(usize::MAX), page),
                CacheKind::Attention { window, .. } => (Reach::Positions(window as usize), page),
                CacheKind::Recurrent { .. } => (Reach::State, 1),
            };
            Cache {
                reach,
                cells: vec![Cell::NOISE; cache.pages as usize * page],
                page,
                lists: vec![
                    vec![u32::MAX; cache.entries(program) as usize];
                    program.slots as usize
                ],
            }
        };
        SimulatedContext {
            caches: program.caches.iter().map(cache).collect(),
            slots: (0..program.slots).map(|_| Slot::default()).collect(),
            outputs: Vec::new(),
            logits: Vec::new(),
            live: Vec::new(),
            chained: Vec::new(),
            steps: 0,
            masks: Arc::new(MaskBoard::new(
                program.slots as usize,
                program.vocab as usize,
            )),
            broken: false,
            shelf: Vec::new(),
            fetched: Vec::new(),
            fresh: true,
            program: program.clone(),
            world: world.clone(),
        }
    }

    /// The cells of a page.
    fn page(&mut self, cache: usize, page: u32) -> &mut [Cell] {
        let cache = &mut self.caches[cache];
        &mut cache.cells[page as usize * cache.page..][..cache.page]
    }

    /// Does the copies from the shelf that have ended by now. They overwrite whatever is in the pages.
    fn land(&mut self, now: Instant) {
        while self.fetched.first().is_some_and(|(ends, ..)| *ends <= now) {
            let (_, place, pages) = self.fetched.remove(0);
            for (cache, page) in pages.into_iter().enumerate() {
                let cells = self.shelf[place as usize][cache].clone();
                self.page(cache, page).copy_from_slice(&cells);
            }
        }
    }

    /// Lets the call fail if it is its turn. The requests of these slots take part.
    fn fail(&mut self, slots: impl Iterator<Item = u32>) -> Result<(), Error> {
        if std::mem::take(&mut self.fresh) {
            return Ok(());
        }
        let requests = slots.map(|slot| self.slots[slot as usize].request);
        if self.world.fails(&mut self.broken, requests) {
            Err(Error::Failed {
                device: DeviceId::only("simulated"),
                source: "a planted fault".into(),
            })
        } else {
            Ok(())
        }
    }

    /// Computes rows of one role. Returns what each stands for.
    fn compute(&mut self, rows: &[Row], generated: bool) -> Vec<Marks> {
        let mut all: Vec<Marks> = Vec::with_capacity(rows.len());
        for (nth, row) in rows.iter().enumerate() {
            let follows = nth > 0
                && rows[nth - 1].slot == row.slot
                && rows[nth - 1].position + 1 == row.position;
            let before = if follows {
                Some(all[nth - 1])
            } else {
                self.read(row)
            };
            let marks = before.unwrap_or(Cell::NOISE.marks);
            let marks = marks.after(row.token(), generated);
            let cell = Cell {
                position: row.position,
                token: row.token(),
                generated,
                marks,
            };
            for cache in &mut self.caches {
                match cache.at(row.slot, row.position) {
                    Some(at) => cache.cells[at] = cell,
                    None => self.world.wrong(format!("{row:?} has no page to write")),
                }
            }
            all.push(marks);
        }
        all
    }

    /// What a row reads from all caches.
    fn read(&self, row: &Row) -> Option<Marks> {
        let mut found = None;
        for cache in &self.caches {
            let marks = cache.before(row.slot, row.position);
            if marks.is_none() || found.is_some_and(|found| Some(found) != marks) {
                let request = self.slots[row.slot as usize].request;
                let what = format!("request {request}: {row:?} reads what is not its own");
                self.world.wrong(what);
                return None;
            }
            found = marks;
        }
        found
    }

    /// Chooses the token after a row.
    fn choose(&mut self, slot: u32, position: u32, marks: Marks) -> u32 {
        let own = &mut self.slots[slot as usize];
        let seen = marks.seen(self.world.shape.roles);
        let token = choice(own.request, seen, &own.history, &own.forbidden);
        self.world
            .chosen(own.request, position, token, marks, &own.history);
        own.history.push(token);
        token
    }

    fn give(&mut self, outputs: Vec<(u32, u32, Marks)>) {
        self.logits.clear();
        let width = self.program.vocab as usize;
        self.logits.resize(outputs.len() * width, 0.0);
        self.outputs = outputs;
    }
}

/// Fills a vector with what it stands for.
pub(super) fn vector(marks: Marks, width: usize) -> impl Iterator<Item = f32> {
    (0..width as u64).map(move |nth| (mix(marks.content, nth) % 1000) as f32)
}

impl StepChain for SimulatedContext {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.live
    }

    fn step_live(&mut self) -> Result<(), Error> {
        if self.steps > 0 {
            let requests = self.live.iter();
            let requests = requests.map(|start| self.slots[start.slot as usize].request);
            self.world.chain_goes_on(requests);
        }
        self.steps += 1;
        let rows: Vec<Row> = self.live.iter().map(ChainStart::row).collect();
        self.world.step(rows.len(), true);
        self.world.decoded();
        self.world.inner().chained += 1;
        // Others do not wait for the end of the chain.
        self.world.others_act();
        self.chained = self.compute(&rows, true);
        Ok(())
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, Error> {
        let ChainStart { slot, position, .. } = self.live[row];
        let token = self.choose(slot, position + 1, self.chained[row]);
        let own = &self.slots[slot as usize];
        self.world.emitted(own.request, position + 1);
        Ok(Made {
            token,
            logprobs: own.logprobs.then(Logprobs::default),
            ends: own.ends.contains(&token),
        })
    }
}

impl Context for SimulatedContext {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn chain_slots(&self) -> usize {
        self.world.shape.chain_slots
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        BTreeMap::new()
    }

    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        let list = &mut self.caches[cache].lists[slot as usize];
        list[first as usize..first as usize + pages.len()].copy_from_slice(pages);
        Ok(())
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        let cache = &mut self.caches[cache];
        let (from, to) = (from as usize * cache.page, to as usize * cache.page);
        cache.cells.copy_within(from..from + cache.page, to);
        Ok(())
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let cells = self.page(cache, page);
        for (cell, bytes) in cells.iter().zip(bytes.chunks_exact_mut(Cell::BYTES)) {
            cell.write(bytes);
        }
        Ok(())
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let cells = self.page(cache, page);
        for (cell, bytes) in cells.iter_mut().zip(bytes.chunks_exact(Cell::BYTES)) {
            *cell = Cell::read(bytes);
        }
        Ok(())
    }

    fn shelf_place(&self) -> Option<u64> {
        self.world.fetching?;
        welte_device::Shelf::place_bytes(self.program())
    }

    fn make_shelf(&mut self, places: u32) -> Result<(), Error> {
        let page = |cache: &Cache| vec![Cell::NOISE; cache.page];
        let place = || self.caches.iter().map(page).collect();
        self.shelf = (0..places).map(|_| place()).collect();
        Ok(())
    }

    fn shelve(&mut self, place: u32, pages: &[u32]) -> Result<(), Error> {
        // A place is written after it was read.
        if let Some(last) = self.fetched.iter().rfind(|(_, from, _)| *from == place) {
            self.land(last.0);
        }
        for (cache, page) in pages.iter().enumerate() {
            self.shelf[place as usize][cache] = self.page(cache, *page).to_vec();
        }
        Ok(())
    }

    fn fetch(&mut self, place: u32, pages: &[u32]) -> Result<(), Error> {
        self.fail(std::iter::empty())?;
        for (cache, page) in pages.iter().enumerate() {
            self.page(cache, *page).fill(Cell::NOISE);
        }
        let took = self.world.fetching.unwrap_or_default();
        let after = self.fetched.last().map(|(ends, ..)| *ends);
        let begins = after
            .unwrap_or(self.world.clock.now())
            .max(self.world.clock.now());
        self.fetched.push((begins + took, place, pages.to_vec()));
        Ok(())
    }

    fn has_fetched(&mut self, wait: bool) -> Result<bool, Error> {
        let clock = &self.world.clock;
        if let Some((ends, ..)) = self.fetched.last().filter(|_| wait) {
            clock.advance(ends.saturating_duration_since(clock.now()));
        }
        self.land(self.world.clock.now());
        Ok(self.fetched.is_empty())
    }

    fn read_shelf(&mut self, range: Range<usize>, bytes: &mut [u8]) -> Result<(), Error> {
        let ends = self.program.caches.iter().scan(0, |end, cache| {
            let start = *end;
            *end += cache.page_bytes(self.program.page).unwrap() as usize;
            Some(start..*end)
        });
        let ranges: Vec<Range<usize>> = ends.collect();
        let each = ranges.last().unwrap().end;
        let (place, start) = (range.start / each, range.start % each);
        let cache = ranges.iter().position(|one| one.start == start).unwrap();
        assert_eq!(range.len(), ranges[cache].len());
        let cells = self.shelf[place][cache].iter();
        cells
            .zip(bytes.chunks_exact_mut(Cell::BYTES))
            .for_each(|(cell, bytes)| cell.write(bytes));
        Ok(())
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        if options.stage != Stage::Whole {
            return Err(Error::request("a part of a step"));
        }
        self.fail(step.rows.iter().map(|row| row.slot))?;
        let kind = step.pass();
        let (generated, others) = step.rows.split_at(step.generated());
        self.world.step(step.rows.len(), kind == PassKind::Decode);
        if kind == PassKind::Prompt {
            self.world.piece(others.len());
        }
        if !generated.is_empty() {
            self.world.decoded();
        }
        if step.is_mixed() && !self.world.shape.mixes {
            self.world.wrong("a mixed step".to_string());
        }
        let mut marks = self.compute(generated, true);
        marks.extend(self.compute(others, false));
        if !others.is_empty() {
            let requests = others.iter();
            let requests = requests.map(|row| self.slots[row.slot as usize].request);
            self.world.computed(requests);
        }
        let outputs = (0..generated.len() as u32).chain(step.chosen());
        let outputs = outputs.map(|row| {
            let Row { slot, position, .. } = step.rows[row as usize];
            (slot, position, marks[row as usize])
        });
        let outputs: Vec<_> = outputs.collect();
        if kind == PassKind::Embed {
            let pass = self.program.pass(kind).expect("an embed pass");
            let width = self.program.passes[pass].width as usize;
            self.logits.clear();
            let values = outputs
                .iter()
                .flat_map(|(_, _, marks)| vector(*marks, width));
            self.logits.extend(values);
            return Ok(&self.logits);
        }
        self.give(outputs);
        if let Some(tokens) = options.tokens {
            let choices: Vec<Choice> = step.choices().collect();
            self.sample(&choices, tokens)?;
        }
        Ok(&self.logits)
    }

    fn mixes(&self) -> bool {
        self.world.shape.mixes
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        let own = &mut self.slots[slot as usize];
        own.request = state.sampling.seed;
        own.history.clear();
        own.history.extend_from_slice(state.history);
        own.ends = state.ends.to_vec();
        let never = state
            .bias
            .iter()
            .filter(|(_, bias)| *bias == f32::NEG_INFINITY);
        own.forbidden = never.map(|(token, _)| *token).collect();
        own.logprobs = state.logprobs.is_some();
        self.world.entered(state.sampling.seed);
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        for (nth, pick) in picks.iter().enumerate() {
            tokens[nth] = if Choice::is_skipped(picks, tokens, nth) {
                SKIPPED
            } else {
                let (slot, position, marks) = self.outputs[pick.output as usize];
                if (slot, position + 1) != (pick.slot, pick.position) {
                    self.world
                        .wrong(format!("{pick:?} is of slot {slot}, row {position}"));
                }
                self.choose(slot, pick.position, marks)
            };
            if pick.draft.is_some() {
                self.world.drafted(self.slots[pick.slot as usize].request);
            }
        }
        Ok(())
    }

    fn logprobs(&mut self, _: &[LogprobQuery], answers: &mut [Logprobs]) -> Result<(), Error> {
        answers.fill(Logprobs::default());
        Ok(())
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        self.fail(starts.iter().map(|start| start.slot))?;
        self.steps = 0;
        let world = self.world.clone();
        chain_by_steps(self, starts, control, &mut |emitted| {
            let wanted = emit(emitted);
            if !wanted {
                world.leaves_chain();
            }
            wanted
        })
    }

    fn read_bytes(&mut self, _: BufferId, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::request("bytes of a buffer"))
    }

    fn write_bytes(&mut self, _: BufferId, _: u64, _: &[u8]) -> Result<(), Error> {
        Err(Error::request("bytes of a buffer"))
    }

    fn set_profiling(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn profile(&self) -> Vec<Profile> {
        Vec::new()
    }

    fn last_step(&self) -> Timeline {
        Timeline::default()
    }
}
