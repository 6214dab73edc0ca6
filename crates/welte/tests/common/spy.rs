//! A context between the engine and the device that records every row of logits, decodes some chains step by step, ends
//! chains early and fails on demand.

#![allow(dead_code, unreachable_pub)]

use super::Random;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use welte::{ChainStart, Context, Profile, timeline::Timeline};
use welte_device::{
    Choice, Control, DeviceId, Emitted, Error, LogprobQuery, Logprobs, Made, MaskBoard, Role,
    SKIPPED, SlotState, Stage, Step, StepChain, StepOptions, chain_by_steps, is_token,
};
use welte_table::{BufferId, Class, PassKind, Program, Row};

/// A block of a drafter, and the logits of those of its masks that were picked.
pub struct SeenBlock {
    pub seed: u64,
    pub rows: Vec<Row>,
    /// Their places in the block.
    pub picked: Vec<usize>,
    pub logits: Vec<f32>,
}

/// What the spy saw and what it shall do. Requests are told apart by their seeds.
#[derive(Default)]
pub struct Watch {
    /// A hash of the logits that follow each position of each request.
    pub logits: Mutex<HashMap<(u64, u32), u64>>,
    /// Positions whose logits came twice with different bits.
    pub differing: Mutex<Vec<(u64, u32)>>,
    /// Calls left until one fails; 0: none will. Sampling does not count.
    pub fail_in: AtomicUsize,
    /// Every call fails from the one on that fails.
    pub lost: AtomicUsize,
    /// The call that fails panics instead.
    pub panics: AtomicUsize,
    /// Contexts made.
    pub contexts: AtomicUsize,
    /// Tokens that chains and steps have emitted.
    pub emitted: AtomicUsize,
    /// Steps with both generated rows and rows of prompts.
    pub mixed: AtomicUsize,
    /// The rows of all steps.
    pub rows: Mutex<Vec<Row>>,
    /// The blocks of a drafter of blocks.
    pub blocks: Mutex<Vec<SeenBlock>>,
    /// The starts of all chains.
    pub starts: Mutex<Vec<ChainStart>>,
    /// Writes into buffers left until one fails; 0: none will.
    pub fail_write_in: AtomicUsize,
    /// Bytes written into buffers.
    pub written: AtomicUsize,
}

impl Watch {
    fn see(&self, seed: u64, position: u32, logits: &[f32]) {
        let mut hasher = DefaultHasher::new();
        logits.iter().for_each(|v| v.to_bits().hash(&mut hasher));
        let hash = hasher.finish();
        let mut all = self.logits.lock().unwrap();
        if *all.entry((seed, position)).or_insert(hash) != hash {
            self.differing.lock().unwrap().push((seed, position));
        }
    }

    /// The blocks of a draft step; `outputs` are seeds, positions and logits of its output rows.
    fn see_blocks(&self, step: &Step, seeds: &[u64], outputs: &[(u64, u32, Vec<f32>)]) {
        let mut blocks = self.blocks.lock().unwrap();
        let mut first = 0;
        for rows in step.rows.chunk_by(|one, next| one.slot == next.slot) {
            let mut seen = SeenBlock {
                seed: seeds[rows[0].slot as usize],
                rows: rows.to_vec(),
                picked: Vec::new(),
                logits: Vec::new(),
            };
            for (row, (.., logits)) in step.chosen().zip(outputs) {
                let row = row as usize;
                if (first..first + rows.len()).contains(&row) {
                    seen.picked.push(row - first);
                    seen.logits.extend(logits);
                }
            }
            blocks.push(seen);
            first += rows.len();
        }
    }

    fn fail(&self, broken: &mut bool) -> Result<(), Error> {
        let left = self.fail_in.load(Ordering::SeqCst);
        let now = left == 1;
        if left > 0 {
            self.fail_in.store(left - 1, Ordering::SeqCst);
        }
        if now && self.panics.load(Ordering::SeqCst) > 0 {
            panic!("a planted panic");
        }
        *broken |= now && self.lost.load(Ordering::SeqCst) > 0;
        if now || *broken {
            Err(planted())
        } else {
            Ok(())
        }
    }
}

fn planted() -> Error {
    Error::Failed {
        device: DeviceId::only("spy"),
        source: "a planted fault".into(),
    }
}

pub struct Spy {
    inner: Box<dyn Context>,
    watch: Arc<Watch>,
    /// Ends chains at random, as an arriving request does; `None`: never.
    random: Option<Random>,
    /// Chains go to the device whole, and are not watched.
    plain: bool,
    /// Slots of a chain.
    chain_slots: usize,
    /// Mixes rows if the device does.
    mixes: bool,
    seeds: Vec<u64>,
    /// Positions and logits of the last step's outputs, until it is known which rows were wrong guesses.
    stepped: Vec<(u64, u32, Vec<f32>)>,
    /// Output rows of the last step that had no tokens.
    values: Vec<f32>,
    /// The slots of the chain at hand that have not stopped, and the tokens of its last step.
    live: Vec<ChainStart>,
    chosen: Vec<u32>,
    ends: Vec<Vec<u32>>,
    /// How many likeliest tokens chains report with each token of a slot, and its probability.
    tops: Vec<Option<u32>>,
    broken: bool,
}

impl Spy {
    pub fn new(inner: Box<dyn Context>, watch: &Arc<Watch>, seed: Option<u64>, plain: bool) -> Spy {
        watch.contexts.fetch_add(1, Ordering::SeqCst);
        let slots = inner.program().slots as usize;
        Spy {
            inner,
            watch: watch.clone(),
            random: seed.map(Random),
            plain,
            chain_slots: slots,
            mixes: true,
            seeds: vec![0; slots],
            stepped: Vec::new(),
            values: Vec::new(),
            live: Vec::new(),
            chosen: Vec::new(),
            ends: vec![Vec::new(); slots],
            tops: vec![None; slots],
            broken: false,
        }
    }

    /// Records the rows of the last step that were not wrong guesses.
    fn record(&mut self) {
        for (seed, position, logits) in self.stepped.drain(..) {
            self.watch.see(seed, position, &logits);
        }
    }

    /// Has no mixed steps.
    pub fn without_mixed_steps(mut self) -> Spy {
        self.mixes = false;
        self
    }

    /// Takes chains of at most `slots` slots.
    pub fn with_chain_slots(mut self, slots: usize) -> Spy {
        self.chain_slots = slots;
        self
    }
}

impl Drop for Spy {
    fn drop(&mut self) {
        self.record();
    }
}

impl StepChain for Spy {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.live
    }

    fn step_live(&mut self) -> Result<(), Error> {
        let mut step = Step::default();
        for start in &self.live {
            step.add(Role::Generated, [start.row()]);
        }
        self.step(&step, StepOptions::default())?;
        let numbered = (0..).zip(&self.live);
        let choices = numbered.map(|(output, start)| start.choice(output));
        let choices: Vec<Choice> = choices.collect();
        self.chosen = vec![0; choices.len()];
        self.inner.sample(&choices, &mut self.chosen)
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, Error> {
        let (slot, token) = (self.live[row].slot as usize, self.chosen[row]);
        let mut logprobs = None;
        if let Some(top) = self.tops[slot].filter(|_| is_token(token)) {
            let output = row as u32;
            let mut answer = [Logprobs::default()];
            let query = LogprobQuery { output, token, top };
            self.inner.logprobs(&[query], &mut answer)?;
            logprobs = Some(answer[0]);
        }
        Ok(Made {
            token,
            logprobs,
            ends: self.ends[slot].contains(&token),
        })
    }
}

impl Context for Spy {
    fn program(&self) -> &Arc<Program> {
        self.inner.program()
    }

    fn chain_slots(&self) -> usize {
        self.chain_slots
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        self.inner.allocated()
    }

    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        self.inner.set_pages(cache, slot, first, pages)
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        self.watch.fail(&mut self.broken)?;
        self.inner.copy_page(cache, from, to)
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read_page(cache, page, bytes)
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_page(cache, page, bytes)
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        if options.stage != Stage::Whole {
            return self.inner.step(step, options);
        }
        self.watch.fail(&mut self.broken)?;
        self.record();
        let mixed = &self.watch.mixed;
        mixed.fetch_add(usize::from(step.is_mixed()), Ordering::SeqCst);
        self.watch.rows.lock().unwrap().extend(&step.rows);
        let program = self.inner.program();
        let vocab = program.vocab as usize;
        let blocks = step.pass() == PassKind::Draft && program.block.is_some();
        let values = self.inner.step(step, StepOptions::default())?;
        if step.pass() != PassKind::Embed {
            let outputs = (0..step.generated() as u32).chain(step.chosen());
            let rows = outputs.map(|row| step.rows[row as usize]);
            for (row, logits) in rows.zip(values.chunks(vocab)) {
                let seed = self.seeds[row.slot as usize];
                self.stepped.push((seed, row.position, logits.to_vec()));
            }
        }
        if blocks {
            self.watch.see_blocks(step, &self.seeds, &self.stepped);
        }
        let Some(tokens) = options.tokens else {
            self.values.clear();
            self.values.extend_from_slice(values);
            return Ok(&self.values);
        };
        let choices: Vec<Choice> = step.choices().collect();
        self.sample(&choices, tokens)?;
        Ok(&[])
    }

    fn mixes(&self) -> bool {
        self.mixes && self.inner.mixes()
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.seeds[slot as usize] = state.sampling.seed;
        self.ends[slot as usize] = state.ends.to_vec();
        self.tops[slot as usize] = state.logprobs;
        self.inner.set_slot(slot, state)
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.inner.masks()
    }

    fn sample(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        self.inner.sample(picks, tokens)?;
        let chosen = picks.iter().zip(&*tokens);
        let mut output = 0;
        self.stepped.retain(|_| {
            output += 1;
            let pick = chosen.clone().find(|(pick, _)| pick.output + 1 == output);
            pick.is_none_or(|(_, token)| *token != SKIPPED)
        });
        self.record();
        Ok(())
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        self.inner.logprobs(queries, answers)
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let watch = self.watch.clone();
        watch.starts.lock().unwrap().extend(starts);
        let random = self.random.as_mut();
        let (stop_after, whole) = random.map_or((0, true), |r| (r.below(60), r.once_in(3)));
        let mut count = 0;
        let mut counted = |emitted| {
            count += 1;
            watch.emitted.fetch_add(1, Ordering::SeqCst);
            if count == stop_after {
                control.stop();
            }
            emit(emitted)
        };
        if (self.plain || whole) && starts.len() <= self.inner.chain_slots() {
            self.watch.fail(&mut self.broken)?;
            return self.inner.chain(starts, control, &mut counted);
        }
        chain_by_steps(self, starts, control, &mut counted)
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read_bytes(id, first, bytes)
    }

    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        let left = &self.watch.fail_write_in;
        let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if left == Ok(1) {
            return Err(planted());
        }
        let written = &self.watch.written;
        written.fetch_add(bytes.len(), Ordering::SeqCst);
        self.inner.write_bytes(id, first, bytes)
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.inner.set_profiling(on)
    }

    fn profile(&self) -> Vec<Profile> {
        self.inner.profile()
    }

    fn last_step(&self) -> Timeline {
        self.inner.last_step()
    }
}
