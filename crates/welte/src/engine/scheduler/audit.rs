//! The state of the scheduler between two turns, for the simulation.

use super::{Scheduler, Sequence};
use crate::cache::{NO_PAGE, PagePool};
use crate::engine::pages::Pages;
use std::sync::atomic::Ordering;

/// A request in the scheduler's hands.
#[derive(Clone, Debug)]
pub(crate) struct Audited {
    pub(crate) number: u64,
    pub(crate) priority: i32,
    /// Its first token: requests that begin alike may wait for each other.
    pub(crate) first: u32,
    pub(crate) is_filling: bool,
    /// It was preempted, and nobody has ended since.
    pub(crate) set_back: bool,
    /// It waits for the disk.
    pub(crate) restores: bool,
    /// It has a deadline, which has passed.
    pub(crate) is_late: bool,
    /// Pages of each cache that its admission takes at most.
    pub(crate) pages: Vec<usize>,
}

/// What the scheduler has decided so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audit {
    pub(crate) running: Vec<Audited>,
    pub(crate) waiting: Vec<Audited>,
    pub(crate) free_slots: usize,
    /// Free pages of each cache.
    pub(crate) free: Vec<usize>,
    /// Rows of the next piece of a prompt beside a stream.
    pub(crate) piece: usize,
    /// Rows of prompts that running sequences still need.
    pub(crate) rows_ahead: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
}

impl Scheduler {
    pub(crate) fn audit(&self) -> Audit {
        let audited = |sequence: &Sequence| Audited {
            number: sequence.number,
            priority: sequence.priority,
            first: sequence.tokens[0],
            is_filling: sequence.is_filling(),
            set_back: sequence.set_back,
            restores: sequence.waits_for_pages(),
            is_late: sequence.is_late(),
            pages: self.pages.demand(sequence),
        };
        Audit {
            running: self.running.iter().map(audited).collect(),
            waiting: self.waiting.iter().map(audited).collect(),
            free_slots: self.free_slots.len(),
            free: self.pages.pools().iter().map(PagePool::free).collect(),
            piece: self.pace.rows(),
            rows_ahead: self.rows_ahead(),
            prompt_tokens: self.totals.prompt_tokens,
            generated_tokens: self.totals.generated_tokens,
        }
    }

    /// Every slot is free or has one sequence, and every page has as many references as sequences and the tree use it.
    pub(crate) fn adds_up(&self, slots: usize) -> Result<(), String> {
        let taken = self.running.iter().map(|sequence| sequence.slot);
        let mut all: Vec<u32> = taken.chain(self.free_slots.iter().copied()).collect();
        all.sort_unstable();
        if !all.iter().copied().eq(0..slots as u32) {
            return Err(format!("slots do not add up: {all:?}"));
        }
        let known = self.running.len() + self.waiting.len() + self.shared.inbox().arrivals.len();
        let inside = self.shared.inside.load(Ordering::Relaxed);
        if inside != known {
            return Err(format!("{inside} requests count as inside, {known} are"));
        }
        if let Some(held) = self
            .waiting
            .iter()
            .find(|s| s.lists.iter().any(|l| !l.is_empty()))
        {
            return Err(format!("request {} waits with pages", held.number));
        }
        let lists: Vec<&[Vec<u32>]> = self.running.iter().map(|s| &s.lists[..]).collect();
        self.pages.add_up(&lists)
    }
}

impl Pages {
    /// Pages that the admission of a sequence takes of each cache at most.
    fn demand(&self, sequence: &Sequence) -> Vec<usize> {
        let positions = sequence.target() + usize::from(!sequence.embeds);
        (0..self.pools().len())
            .map(|cache| self.entries(cache, positions))
            .collect()
    }

    fn add_up(&self, lists: &[&[Vec<u32>]]) -> Result<(), String> {
        for (cache, pool) in self.pools().iter().enumerate() {
            let mut references = vec![0u32; pool.pages()];
            let own = lists.iter().flat_map(|lists| &lists[cache]).copied();
            let tree = self
                .tree()
                .nodes()
                .map(|node| self.tree().pages(node)[cache]);
            for page in own.chain(tree).filter(|page| *page != NO_PAGE) {
                references[page as usize] += 1;
            }
            let free = references.iter().filter(|count| **count == 0).count();
            for (page, count) in (0..).zip(&references) {
                if pool.references(page) != *count {
                    return Err(format!(
                        "page {page} of cache {cache} has {} references, and {count} users",
                        pool.references(page)
                    ));
                }
            }
            if free != pool.free() {
                return Err(format!(
                    "{} pages of cache {cache} count as free, {free} are",
                    pool.free()
                ));
            }
        }
        Ok(())
    }
}
