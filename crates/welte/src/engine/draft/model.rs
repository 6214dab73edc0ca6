//! Guesses of a smaller model with the same vocabulary. It chooses with the noise and the options of the sequence, so it
//! agrees more often than one that draws its own.

use crate::cache::{NO_PAGE, PagePool};
use crate::engine::sequence::{Part, Sequence};
use crate::{Error, Model};
use std::sync::Arc;
use welte_device::{
    ChainStart, Context, Control, Error as DeviceError, Role, SlotState, Step, StepOptions,
};
use welte_table::{CacheKind, CacheSpec, PassKind, Program, Row};

/// Tokens of a sequence that the draft's penalties see.
const HISTORY: usize = 1024;

/// The model's own context, with pages of its own.
pub(crate) struct DraftModel {
    context: Box<dyn Context>,
    program: Arc<Program>,
    /// Tokens of the other model. A vocabulary may be padded.
    vocab: u32,
    decode: usize,
    prompt: usize,
    pools: Vec<PagePool>,
    /// By slot of the sequences.
    slots: Vec<Slot>,
    /// Never asks.
    control: Control,
    step: Step,
    starts: Vec<ChainStart>,
}

/// What the caches hold of a sequence.
struct Slot {
    /// The sequence's number.
    owner: Option<u64>,
    /// Tokens in the caches, the last guesses among them.
    computed: usize,
    /// The last guesses, and the position of the first.
    guesses: Vec<u32>,
    first: usize,
    lists: Vec<Vec<u32>>,
    /// The device has the sequence's options.
    told: bool,
}

/// True if what a program has computed of wrong guesses does no harm. Recurrent state cannot go back.
pub(crate) fn can_roll_back(program: &Program) -> bool {
    let recurrent = |cache: &CacheSpec| matches!(cache.kind, CacheKind::Recurrent { .. });
    !program.caches.iter().any(recurrent)
}

/// Checks that a model can guess for another one.
pub(crate) fn check(model: &Model, draft: &Model) -> Result<(), Error> {
    let refused = |problem: String| Error::Draft {
        draft: draft.origin().to_string(),
        model: model.origin().to_string(),
        problem,
    };
    let (slots, needed) = (draft.program().slots, model.program().slots);
    if slots < needed {
        return Err(refused(format!(
            "it was loaded with {slots} slots and the model with {needed}"
        )));
    }
    match (model.tokenizer(), draft.tokenizer()) {
        (Ok(own), Ok(other)) => {
            let sizes = (own.vocab_size(), other.vocab_size());
            let least = sizes.0.min(sizes.1) as u32;
            let differs = |token: &u32| own.token_bytes(*token) != other.token_bytes(*token);
            if let Some(token) = (0..least).find(differs) {
                return Err(refused(format!("token {token} is another one")));
            }
            if sizes.0 != sizes.1 {
                return Err(refused(format!(
                    "its vocabulary has {} tokens and the model's {}",
                    sizes.1, sizes.0
                )));
            }
        }
        _ if model.vocab() == draft.vocab() => {}
        _ => {
            return Err(refused(format!(
                "its vocabulary has {} tokens and the model's {}",
                draft.vocab(),
                model.vocab()
            )));
        }
    }
    if can_roll_back(draft.program()) {
        Ok(())
    } else {
        Err(refused("its recurrent state cannot go back".to_string()))
    }
}

impl DraftModel {
    /// Makes a context, to guess for a model. `rows`: the most guesses of a sequence.
    pub(crate) fn new(draft: &Model, model: &Model, rows: usize) -> Result<DraftModel, Error> {
        let context = draft.inner.loaded.context()?;
        let program = context.program().clone();
        let slot = |_| Slot {
            owner: None,
            computed: 0,
            guesses: Vec::with_capacity(rows),
            first: 0,
            lists: program
                .caches
                .iter()
                .map(|cache| Vec::with_capacity(cache.entries(&program) as usize))
                .collect(),
            told: false,
        };
        Ok(DraftModel {
            vocab: model.vocab(),
            decode: draft.inner.decode,
            prompt: draft.inner.prompt,
            pools: program
                .caches
                .iter()
                .map(|cache| PagePool::new(cache.pages))
                .collect(),
            slots: (0..program.slots).map(slot).collect(),
            control: Control::default(),
            step: Step::with_room(program.most_rows() as usize),
            starts: Vec::with_capacity(program.slots as usize),
            context,
            program,
        })
    }

    /// Guesses for each sequence as many tokens as are planned beyond one, or fewer. True if it only guessed: it may have
    /// had to compute much of the sequences first.
    pub(crate) fn guess(&mut self, running: &mut [Sequence]) -> Result<bool, DeviceError> {
        for sequence in running.iter_mut().filter(|s| s.part.count() > 1) {
            if let Some(draft) = sequence.draft.as_mut().filter(|draft| draft.is_of_model()) {
                draft.tokens.clear();
            }
        }
        for at in 0..running.len() {
            if wants(&running[at]) && !self.make_room(running, at)? {
                running[at].part = Part::Planned(1);
            }
        }
        let only = self.catch_up(running)?;
        self.starts.clear();
        for sequence in running.iter_mut().filter(|s| wants(s)) {
            let slot = &mut self.slots[sequence.slot as usize];
            if slot.computed + 1 < sequence.tokens.len() {
                sequence.part = Part::Planned(1);
                continue;
            }
            let state = sequence.slot_state();
            // Only penalties look at the history.
            if !slot.told || state.sampling.repeat_last_n > 0 {
                let history = &state.history[state.history.len().saturating_sub(HISTORY)..];
                let state = SlotState {
                    history,
                    // The guide checks what is guessed.
                    masked: false,
                    logprobs: None,
                    adapter: None,
                    ..state
                };
                self.context.set_slot(sequence.slot, &state)?;
                slot.told = true;
            }
            slot.first = sequence.tokens.len();
            let position = slot.first - 1;
            self.starts.push(ChainStart {
                slot: sequence.slot,
                token: sequence.tokens[position],
                position: position as u32,
                steps: sequence.part.count() as u32 - 1,
                shift: 0,
            });
        }
        let most = self.context.chain_slots().max(1);
        let (slots, vocab) = (&mut self.slots, self.vocab);
        for starts in self.starts.chunks(most) {
            self.context.chain(starts, &self.control, &mut |emitted| {
                let slot = &mut slots[emitted.slot as usize];
                slot.computed += 1;
                let known = emitted.token < vocab;
                if known {
                    slot.guesses.push(emitted.token);
                }
                known
            })?;
        }
        for sequence in running.iter_mut().filter(|s| wants(s)) {
            let guesses = &self.slots[sequence.slot as usize].guesses;
            if let Some(draft) = &mut sequence.draft {
                draft.tokens.extend_from_slice(guesses);
            }
        }
        Ok(only)
    }

    /// Takes back what was guessed wrong, and takes pages for the sequence and its guesses. False if there are too few.
    fn make_room(&mut self, running: &[Sequence], at: usize) -> Result<bool, DeviceError> {
        let sequence = &running[at];
        let positions = sequence.tokens.len() + sequence.part.count();
        let vocab = self.program.vocab;
        let slot = &mut self.slots[sequence.slot as usize];
        if slot.owner != Some(sequence.number) {
            release(slot, &mut self.pools);
            slot.owner = Some(sequence.number);
        }
        let came = &sequence.tokens[slot.first.min(sequence.tokens.len())..];
        let pairs = slot.guesses.drain(..).zip(came);
        let right = pairs.take_while(|(guess, token)| guess == *token).count();
        slot.computed = slot.computed.min(slot.first + right);
        slot.first = sequence.tokens.len();
        slot.computed = slot.computed.min(slot.first - 1);
        let unknown = |token: &u32| *token >= vocab;
        if positions > self.program.context as usize
            || sequence.tokens[slot.computed..].iter().any(unknown)
        {
            return Ok(false);
        }
        let page = self.program.page.max(1) as usize;
        for cache in 0..self.pools.len() {
            self.drop_before_window(sequence, cache);
            let first = self.slots[sequence.slot as usize].lists[cache].len();
            for _ in first..positions.div_ceil(page) {
                let Some(taken) = self.take(running, cache) else {
                    return Ok(false);
                };
                let list = &mut self.slots[sequence.slot as usize].lists[cache];
                let entry = list.len() as u32;
                list.push(taken);
                self.context
                    .set_pages(cache, sequence.slot, entry, &[taken])?;
            }
        }
        Ok(true)
    }

    /// Gives back the pages that no later row reads.
    fn drop_before_window(&mut self, sequence: &Sequence, cache: usize) {
        let CacheKind::Attention {
            window: window @ 1..,
            ..
        } = self.program.caches[cache].kind
        else {
            return;
        };
        let slot = &mut self.slots[sequence.slot as usize];
        let page = self.program.page.max(1) as usize;
        let needless = slot.computed.saturating_sub(window as usize) / page;
        for entry in slot.lists[cache].iter_mut().take(needless) {
            if *entry != NO_PAGE {
                self.pools[cache].release(std::mem::replace(entry, NO_PAGE));
            }
        }
    }

    /// A free page, if need be of a sequence that has ended.
    fn take(&mut self, running: &[Sequence], cache: usize) -> Option<u32> {
        if self.pools[cache].free() == 0 {
            let runs = |owner| running.iter().any(|s| Some(s.number) == owner);
            for slot in self.slots.iter_mut().filter(|slot| !runs(slot.owner)) {
                release(slot, &mut self.pools);
            }
        }
        self.pools[cache].take()
    }

    /// Computes the tokens that the caches lack, but for the last one of each sequence. With several sequences it runs one
    /// step at most, because the others wait. True if few tokens lacked.
    fn catch_up(&mut self, running: &[Sequence]) -> Result<bool, DeviceError> {
        let mut few = true;
        loop {
            let lack = |slots: &[Slot], s: &Sequence| {
                let computed = slots[s.slot as usize].computed;
                (s.tokens.len() - 1).saturating_sub(computed)
            };
            let wanting = || running.iter().filter(|s| wants(s));
            let rest: usize = wanting().map(|s| lack(&self.slots, s)).sum();
            if rest == 0 {
                return Ok(few);
            }
            let passes = &self.program.passes;
            let pass = if rest <= passes[self.decode].rows as usize {
                self.decode
            } else {
                self.prompt
            };
            few &= pass == self.decode;
            let most = passes[pass].rows as usize;
            debug_assert_ne!(passes[pass].kind, PassKind::Embed);
            let role = Role::of(passes[pass].kind);
            self.step.clear();
            for sequence in wanting() {
                let count = lack(&self.slots, sequence).min(most - self.step.rows.len());
                let slot = &mut self.slots[sequence.slot as usize];
                let tokens = &sequence.tokens[slot.computed..slot.computed + count];
                let rows = (slot.computed as u32..).zip(tokens);
                let rows = rows.map(|(at, token)| Row::new(*token, at, sequence.slot));
                self.step.add(role, rows);
                slot.computed += count;
            }
            self.context.step(&self.step, StepOptions::default())?;
            if running.len() > 1 {
                return Ok(few);
            }
        }
    }
}

/// True if the draft model shall guess for a sequence.
fn wants(sequence: &Sequence) -> bool {
    let draft = sequence.draft.as_ref();
    sequence.part.count() > 1 && draft.is_some_and(|draft| draft.is_of_model())
}

/// Forgets a sequence.
fn release(slot: &mut Slot, pools: &mut [PagePool]) {
    for (list, pool) in slot.lists.iter_mut().zip(pools) {
        for page in list.drain(..).filter(|page| *page != NO_PAGE) {
            pool.release(page);
        }
    }
    slot.guesses.clear();
    (slot.owner, slot.computed, slot.first, slot.told) = (None, 0, 0, false);
}
