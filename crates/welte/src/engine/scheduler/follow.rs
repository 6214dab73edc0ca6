//! The model's own draft layer follows every step: it reads the hidden states of the step's rows and the tokens after them, and goes on
//! from its own hidden states. A drafter of blocks has what it reads of them in its caches, so it runs for guesses only.

use super::own::Own;
use super::work::{Work, pick};
use super::{ContextLost, Scheduler};
use crate::engine::pages::Pages;
use crate::engine::sequence::Sequence;
use welte_device::{Context, Error, Role, Want};
use welte_table::{Input, Row};

/// Tokens of a chain that are computed again at most before the draft layer guesses. Of 8 its guesses are right nearly as often as if it had seen
/// all.
const LOOK_BACK: usize = 8;

/// Guesses that fail one after the other until there are no more.
const MOST_FAILURES: u32 = 3;

impl Scheduler {
    /// After a chain that guesses shall follow: its last tokens are computed again, so that the draft layer sees them. Their bits are the
    /// same again.
    pub(super) fn look_back(&mut self, sequences: usize) {
        let (Some(speculator), Some(own)) = (&self.speculator, &self.own) else {
            return;
        };
        for sequence in self.running.iter_mut().filter(|s| s.is_decoding()) {
            let guesses = sequence
                .draft
                .as_ref()
                .is_some_and(|draft| speculator.looks_back(draft, sequence.remaining(), sequences));
            // A drafter without keys and values of its own misses nothing, and one of blocks gets them in chains, too.
            if guesses && sequence.end.is_none() && !own.stays && own.block.is_none() {
                // Whole pages may be others', too.
                let first = sequence.computed.saturating_sub(LOOK_BACK);
                let whole = self.pages.first_computable(sequence);
                sequence.look_back(first.max(whole).max(sequence.inserted));
            }
        }
    }

    /// Lets the draft layer follow the step at hand, whose tokens are known, and guess for those who decode next.
    pub(super) fn follow(
        &mut self,
        context: &mut dyn Context,
        work: Work,
    ) -> Result<(), ContextLost> {
        if work == Work::Texts || !self.speculator.as_ref().is_some_and(|s| s.is_own()) {
            return Ok(());
        }
        let Some(mut own) = self.own.take() else {
            return Ok(());
        };
        let begun = self.shared.clock.now();
        self.plan_own(context, &mut own);
        if (own.stays || own.block.is_some()) && own.step.picks.is_empty() {
            // No keys and values of it could be missed later.
            self.own = Some(own);
            return Ok(());
        }
        let guessed = self.guess_ahead(context, &mut own);
        own.failures = match guessed {
            Ok(()) => 0,
            Err(_) => own.failures + 1,
        };
        if own.failures == MOST_FAILURES
            && let Some(speculator) = &mut self.speculator
        {
            speculator.give_up_own();
        }
        own.took = self.shared.clock.since(begun);
        // A few rows more take hardly longer.
        let few = self.step.rows.len() <= self.step.generated() + LOOK_BACK;
        own.only_guesses = own.block.is_some() || few;
        self.own = Some(own);
        match guessed {
            Ok(()) | Err(Error::Request(_)) => Ok(()),
            Err(_) if !self.free_slots.is_empty() && self.works(context).is_ok() => Ok(()),
            // Nobody depends on guesses, so all requests go on, on a new context.
            Err(_) => {
                self.retire();
                Err(ContextLost)
            }
        }
    }

    /// A row for each row of the step, and who is guessed for; or blocks for these.
    fn plan_own(&mut self, context: &mut dyn Context, own: &mut Own) {
        own.clear();
        // Who stays is where the token is that it reads.
        let ahead = u32::from(own.stays);
        let decodes = |s: &&Sequence| !s.is_filling() && s.end.is_none();
        let sequences = self.running.iter().filter(decodes).count();
        let guesses = !self.step.is_mixed();
        let mut rest = &self.step.rows[..];
        for (span, owner) in self.step.spans.iter().zip(&self.owners) {
            let rows;
            (rows, rest) = rest.split_at(span.rows as usize);
            let sequence = &mut self.running[owner.at];
            let mut first = 0;
            if own.block.is_none() {
                let follow = rows.iter().map(|row| Row {
                    input: sequence.input_after(row),
                    reach: row.position,
                    axes: row.axes.map(|axis| axis + ahead),
                    ..*row
                });
                first = own.step.add(Role::Draft, follow).start;
            }
            let last = |row: &Row| row.position as usize + 2 == sequence.tokens.len();
            let Some(at) = rows.iter().position(last).filter(|_| guesses) else {
                continue;
            };
            let wanted = match (&self.speculator, &sequence.draft) {
                (Some(speculator), Some(draft)) if decodes(&&*sequence) && draft.is_own() => {
                    speculator.depth(draft, sequence.remaining(), sequences)
                }
                _ => 0,
            };
            if wanted == 0 {
                continue;
            }
            if own.block.is_some() {
                own.plan_block(&mut self.pages, context, (owner.at, sequence), wanted);
                continue;
            }
            // A draft layer writes keys and values of its guesses, too.
            let end = sequence.computed + wanted;
            let room = match own.stays {
                true => end,
                false => self
                    .pages
                    .reserve(context, sequence, end, false)
                    .unwrap_or(0),
            };
            let wanted = wanted.min(room.saturating_sub(sequence.computed));
            if wanted > 0 {
                let token = Want::Token { draft: None };
                own.step.picks.push(pick(first + at as u32, token));
                own.open.push(owner.at);
                own.wanted.push(wanted as u32);
            }
        }
    }

    /// Runs the planned rows, and a row of each open sequence for every further guess.
    fn guess_ahead(&mut self, context: &mut dyn Context, own: &mut Own) -> Result<(), Error> {
        own.guess(context)?;
        for guesses in own.tokens.chunks(own.open.len().max(1)) {
            for ((at, left), token) in own.open.iter().zip(&mut own.wanted).zip(guesses) {
                if let (1.., Some(draft)) = (&*left, &mut self.running[*at].draft) {
                    draft.take(*token);
                    *left -= 1;
                }
            }
        }
        Ok(())
    }
}

impl Own {
    /// Plans a block after the last token of a sequence, as far as there is room, and that so many of its masks guess.
    fn plan_block(
        &mut self,
        pages: &mut Pages,
        context: &mut dyn Context,
        (at, sequence): (usize, &mut Sequence),
        wanted: usize,
    ) {
        let (Some(block), Some(last)) = (self.block, sequence.tokens.last().copied()) else {
            return;
        };
        let first = sequence.tokens.len() - 1;
        let most = (self.rows - self.step.rows.len()).min(block.size as usize);
        let end = (first + most).min(self.context);
        // Its rows write keys and values, too.
        let mut room = pages.reserve(context, sequence, end, false).unwrap_or(0);
        if room < end {
            // Next to a page's end hardly a mask would have room, and the sequence itself needs the next page soon.
            let page_more = end.min(room + pages.page());
            let reserved = pages.reserve(context, sequence, page_more, true);
            room = reserved.unwrap_or(0);
        }
        let count = room.saturating_sub(first);
        let wanted = wanted.min(count.saturating_sub(1));
        let wanted = wanted.min(self.outputs - self.step.picks.len()) as u32;
        if wanted == 0 {
            return;
        }
        let reach = (first + count - 1) as u32;
        let rows = (0..count as u32).map(|nth| {
            let token = if nth == 0 { last } else { block.mask };
            let row = Row::new(token, first as u32 + nth, sequence.slot);
            Row { reach, ..row }
        });
        let begin = self.step.add(Role::Draft, rows).start;
        for row in begin + 1..=begin + wanted {
            let token = Want::Token { draft: None };
            self.step.picks.push(pick(row, token));
            self.open.push(at);
            self.wanted.push(1);
        }
    }
}

impl Sequence {
    /// What the row after another one reads. Features that are not at hand count as token 0: a guess may be wrong.
    fn input_after(&self, row: &Row) -> Input {
        let next = row.position as usize + 1;
        if next >= self.tokens.len() {
            return Input::Token(0);
        }
        let input = self.rows(next..next + 1).next().map(|row| row.input);
        input
            .filter(|input| input.feature() != Some(u32::MAX))
            .unwrap_or(Input::Token(0))
    }
}
