//! The pages of the running sequences: taken from the pools, shared through the prefix tree, told to the device.

use super::disk::Disk;
use super::features::Features;
use super::host::Host;
use super::sequence::Sequence;
use crate::cache::{NO_PAGE, PagePool, PrefixChange, PrefixTree};
use std::sync::mpsc::Sender;
use welte_device::{Context, Error};
use welte_table::{CacheKind, Program};

/// Positions between two checkpoints of recurrent state, if pages are not longer.
const CHECKPOINT_EVERY: usize = 512;

/// What the scheduler has to know of a cache.
#[derive(Clone, Copy)]
enum Kind {
    /// Keys and values, of which no row reads further back than the window; 0: no bound.
    Attention { window: usize },
    /// One page per sequence.
    Recurrent,
}

/// Where pages go that leave the device.
#[derive(Default)]
pub(crate) struct Tiers {
    pub(crate) host: Option<Host>,
    pub(crate) disk: Option<Disk>,
}

/// Pools and prefix tree of one context.
pub(crate) struct Pages {
    /// Positions of a page.
    page: usize,
    kinds: Vec<Kind>,
    pools: Vec<PagePool>,
    tree: PrefixTree,
    /// The media that sequences compute.
    pub(crate) features: Features,
    /// Where evicted pages go first.
    host: Option<Host>,
    /// Where prefixes outlive their pages and the process.
    pub(crate) disk: Option<Disk>,
    /// Pages were given back that the host tier may still be writing.
    unsettled: bool,
    /// One entry per cache: the page that a hit ends in.
    copies: Vec<u32>,
    /// Running sequences have dropped pages before their windows since somebody asked.
    dropped: bool,
}

impl Pages {
    /// All pages free, and an empty tree.
    pub(crate) fn new(program: &Program, Tiers { host, disk }: Tiers) -> Pages {
        let kind = |cache: &welte_table::CacheSpec| match cache.kind {
            CacheKind::Attention { window, .. } => Kind::Attention {
                window: window as usize,
            },
            CacheKind::Recurrent { .. } => Kind::Recurrent,
        };
        let pool = |cache: &welte_table::CacheSpec| PagePool::new(cache.pages);
        Pages {
            page: program.page.max(1) as usize,
            kinds: program.caches.iter().map(kind).collect(),
            pools: program.caches.iter().map(pool).collect(),
            tree: PrefixTree::new(program),
            features: Features::new(program),
            host,
            disk,
            unsettled: false,
            copies: vec![NO_PAGE; program.caches.len()],
            dropped: false,
        }
    }

    /// Tells of the prefixes that come and go.
    pub(crate) fn watch(&mut self, watcher: Sender<PrefixChange>) {
        self.tree.watch(watcher);
    }

    /// Pages that nobody uses, of all caches.
    pub(crate) fn free(&self) -> usize {
        self.pools.iter().map(PagePool::free).sum()
    }

    /// Pages of all caches.
    pub(crate) fn total(&self) -> usize {
        self.pools.iter().map(PagePool::pages).sum()
    }

    /// The pools, one per cache.
    pub(crate) fn pools(&self) -> &[PagePool] {
        &self.pools
    }

    pub(crate) fn tree(&self) -> &PrefixTree {
        &self.tree
    }

    /// Forgets all prefixes.
    pub(crate) fn clear(&mut self) {
        self.tree.clear(&mut self.pools);
        if let Some(host) = &mut self.host {
            host.clear();
        }
    }

    /// Finds what is cached of a sequence's tokens, and takes pages for the other tokens and, unless it is a text to embed, one
    /// more position. Returns false, and leaves the sequence without pages, if there are too few.
    pub(crate) fn admit(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
    ) -> Result<bool, Error> {
        let admitted = self.try_to_admit(context, sequence);
        if let Some(host) = &mut self.host {
            host.let_go();
        }
        admitted
    }

    fn try_to_admit(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
    ) -> Result<bool, Error> {
        let target = sequence.target();
        let positions = target + usize::from(!sequence.embeds);
        let most = sequence.most_cached();
        // A hit that ends within a page costs a further page for the copy. If there is none, fewer tokens are reused.
        for limit in [most, most / self.page * self.page, 0] {
            let taken = self.take_over(context, sequence, limit)?;
            if let Some(host) = self.host.as_mut().filter(|_| taken && sequence.shared) {
                // What makes room for the sequence must not drive out what it needs.
                host.look(sequence, most, sequence.begun);
            }
            if taken && self.reserve(context, sequence, positions, true)? == positions {
                let settled = std::mem::replace(&mut sequence.begun, true);
                if !settled {
                    let cached = sequence.computed;
                    sequence.out.report(|report| report.cached = cached);
                }
                if let Some(host) = &mut self.host {
                    host.fetch(context, sequence, settled)?;
                }
                if sequence.fetching.is_none() {
                    self.begin_restore(sequence, settled);
                }
                return Ok(true);
            }
            self.release(sequence);
            if !sequence.begun {
                sequence.forget_roles(0);
            }
        }
        Ok(false)
    }

    /// Looks on disk for what continues a sequence.
    fn begin_restore(&mut self, sequence: &mut Sequence, settled: bool) {
        let most = sequence.most_cached();
        if let Some(disk) = self.disk.as_mut().filter(|_| sequence.shared) {
            disk.begin(sequence, most, settled);
        }
    }

    /// Hands kept pages that have come to the sequences that wait for them. `all`: every sequence waits.
    pub(crate) fn bring(
        &mut self,
        context: &mut dyn Context,
        sequences: &mut [Sequence],
        all: bool,
    ) -> Result<(), Error> {
        if sequences.iter().any(|s| s.fetching.is_some())
            && let Some(host) = &mut self.host
            && host.has_fetched(context, all)?
        {
            for sequence in &mut *sequences {
                if let Some(fetched) = sequence.fetching.take() {
                    sequence.fetched(fetched);
                    self.begin_restore(sequence, !fetched.first);
                }
            }
        }
        let Some(disk) = &mut self.disk else {
            return Ok(());
        };
        if all && sequences.iter().all(|s| s.restore.is_some()) {
            disk.wait();
        }
        disk.advance(context, sequences)
    }

    /// The context is new, and its caches hold nothing. If there is no host memory any more, the engine does without.
    pub(crate) fn renew(&mut self, context: &mut dyn Context) {
        self.unsettled = false;
        self.host = self.host.take().and_then(|host| host.renew(context).ok());
    }

    /// True if a sequence would find further pages in the tree, once another one has computed its prompt: both prompts
    /// begin with the same tokens.
    pub(crate) fn would_share(&self, computing: &Sequence, waiting: &Sequence) -> bool {
        // The last token of a prompt is computed anyway.
        let end = if self.has_states() {
            self.next_checkpoint(computing)
        } else {
            computing.computed / self.page * self.page + self.page
        };
        let last = computing.target().min(waiting.target() - 1);
        computing.shared
            && waiting.shared
            && computing.is_filling()
            && end <= last
            && computing.keys[..end] == waiting.keys[..end]
    }

    /// Gives a sequence the pages of its longest cached prefix of at most `limit` tokens.
    fn take_over(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        limit: usize,
    ) -> Result<bool, Error> {
        if !sequence.shared || limit == 0 {
            return Ok(true);
        }
        let target = sequence.target();
        let keys = &mut sequence.keys[..target];
        // What is computed again must have the bits that it had.
        let exact = sequence.exact || sequence.begun;
        let hit = self.tree.find(keys, limit, exact);
        let (pools, lists) = (&mut self.pools, &mut sequence.lists);
        self.tree
            .acquire(&hit, keys, pools, lists, &mut self.copies);
        if !sequence.begun {
            sequence
                .out
                .report(|report| report.differs_at = hit.differs_at);
        }
        sequence.computed = hit.tokens;
        sequence.inserted = hit.tokens;
        let copied = self.copy_last_pages(context, sequence);
        for (pool, copy) in self.pools.iter_mut().zip(&self.copies) {
            if *copy != NO_PAGE {
                pool.release(*copy);
            }
        }
        if !copied? {
            return Ok(false);
        }
        for cache in 0..self.kinds.len() {
            self.tell(context, sequence, cache, 0)?;
        }
        Ok(true)
    }

    /// Copies the pages that a hit ends in, because the sequence goes on writing them.
    fn copy_last_pages(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
    ) -> Result<bool, Error> {
        for cache in 0..self.copies.len() {
            let source = self.copies[cache];
            if source == NO_PAGE {
                continue;
            }
            let Some(own) = self.take(context, cache, true) else {
                return Ok(false);
            };
            sequence.lists[cache].push(own);
            context.copy_page(cache, source, own)?;
        }
        Ok(true)
    }

    /// Takes pages until the sequence has room for `positions`. Returns the positions for which it has room, which are
    /// fewer if pages run out. `evict`: cached prefixes may be given up for them.
    pub(crate) fn reserve(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        positions: usize,
        evict: bool,
    ) -> Result<usize, Error> {
        let mut room = positions;
        for cache in 0..self.kinds.len() {
            let entries = self.entries(cache, positions);
            let first = sequence.lists[cache].len();
            while sequence.lists[cache].len() < entries {
                match self.take(context, cache, evict) {
                    Some(page) => sequence.lists[cache].push(page),
                    None => break,
                }
            }
            self.tell(context, sequence, cache, first)?;
            let have = sequence.lists[cache].len();
            if have < entries {
                room = room.min(have * self.page);
            }
        }
        Ok(room)
    }

    /// Positions of a page.
    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Pages of a cache that `positions` positions take.
    pub(crate) fn entries(&self, cache: usize, positions: usize) -> usize {
        match self.kinds[cache] {
            Kind::Attention { .. } => positions.div_ceil(self.page),
            Kind::Recurrent => 1,
        }
    }

    /// Tells the device a sequence's pages from an entry on.
    fn tell(
        &self,
        context: &mut dyn Context,
        sequence: &Sequence,
        cache: usize,
        first: usize,
    ) -> Result<(), Error> {
        let list = &sequence.lists[cache];
        let mut at = first;
        // Nobody reads the entries of pages that were dropped.
        for run in list[first..].split(|page| *page == NO_PAGE) {
            if !run.is_empty() {
                context.set_pages(cache, sequence.slot, at as u32, run)?;
            }
            at += run.len() + 1;
        }
        Ok(())
    }

    fn take(&mut self, context: &mut dyn Context, cache: usize, evict: bool) -> Option<u32> {
        if std::mem::take(&mut self.unsettled)
            && let Some(host) = &mut self.host
        {
            // If the device is broken, the next step says so.
            let _ = host.has_fetched(context, true);
        }
        loop {
            if let Some(page) = self.pools[cache].take() {
                return Some(page);
            }
            let (host, disk) = (&mut self.host, &mut self.disk);
            let mut save = |tree: &PrefixTree, node| match (host.as_mut(), disk.as_mut()) {
                (Some(host), disk) => host.save(context, tree, node, disk),
                (None, Some(disk)) => disk.save(context, tree, node),
                (None, None) => (),
            };
            if !evict || !self.tree.evict(cache, &mut self.pools, &mut save) {
                return None;
            }
        }
    }

    /// Where the next piece of a prompt must end at the latest, so that a checkpoint can be taken there.
    pub(crate) fn next_checkpoint(&self, sequence: &Sequence) -> usize {
        if !sequence.shared || !self.has_states() || sequence.generated() > 0 {
            return usize::MAX;
        }
        let (every, last) = self.checkpoints(sequence);
        let regular = sequence.computed / every * every + every;
        if last > sequence.computed {
            regular.min(last)
        } else {
            regular
        }
    }

    /// Checkpoints of a prompt: their regular distance, and the last position that an equal prompt can take over.
    fn checkpoints(&self, sequence: &Sequence) -> (usize, usize) {
        let every = CHECKPOINT_EVERY.next_multiple_of(self.page);
        (every, (sequence.target() - 1) / self.page * self.page)
    }

    /// Leaves a prompt's pages in the tree, with a copy of the state at their end.
    fn checkpoint(&mut self, context: &mut dyn Context, sequence: &mut Sequence) {
        let (every, last) = self.checkpoints(sequence);
        let computed = sequence.computed;
        let due = computed.is_multiple_of(every) || computed == last;
        if !due || computed == sequence.inserted || sequence.generated() > 0 {
            return;
        }
        self.copies.fill(NO_PAGE);
        let mut copied = true;
        for cache in 0..self.kinds.len() {
            if !matches!(self.kinds[cache], Kind::Recurrent) {
                continue;
            }
            let own = sequence.lists[cache].first().copied();
            if let (Some(own), Some(copy)) = (own, self.take(context, cache, true)) {
                self.copies[cache] = copy;
                // A fault of the device shows in the next step.
                copied &= context.copy_page(cache, own, copy).is_ok();
            } else {
                copied = false;
            }
        }
        if copied {
            swap_states(&mut sequence.lists, &mut self.copies);
            let keys = &sequence.keys[..computed];
            self.tree
                .insert(keys, &sequence.lists, true, &mut self.pools);
            swap_states(&mut sequence.lists, &mut self.copies);
            sequence.inserted = computed;
        }
        for (pool, copy) in self.pools.iter_mut().zip(&self.copies) {
            if *copy != NO_PAGE {
                pool.release(*copy);
            }
        }
    }

    /// True if sequences have recurrent state, which cannot go back by itself.
    pub(crate) fn has_states(&self) -> bool {
        self.kinds
            .iter()
            .any(|kind| matches!(kind, Kind::Recurrent))
    }

    /// Copies a sequence's states, because guesses may be wrong and states cannot go back. False if there are no pages for the
    /// copies.
    pub(crate) fn keep_states(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
    ) -> Result<bool, Error> {
        for cache in 0..self.kinds.len() {
            if !matches!(self.kinds[cache], Kind::Recurrent) {
                continue;
            }
            let own = sequence.lists[cache].first().copied();
            let (Some(own), Some(copy)) = (own, self.take(context, cache, true)) else {
                self.forget_states(sequence);
                return Ok(false);
            };
            sequence.kept.push((cache, copy));
            context.copy_page(cache, own, copy)?;
        }
        Ok(true)
    }

    /// Gives a sequence its copied states back.
    pub(crate) fn restore_states(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
    ) -> Result<(), Error> {
        for (cache, copy) in sequence.kept.drain(..) {
            if let Some(own) = sequence.lists[cache].first_mut() {
                self.pools[cache].release(std::mem::replace(own, copy));
            }
            context.set_pages(cache, sequence.slot, 0, &[copy])?;
        }
        Ok(())
    }

    /// Needs the copies of a sequence's states no more.
    pub(crate) fn forget_states(&mut self, sequence: &mut Sequence) {
        for (cache, copy) in sequence.kept.drain(..) {
            self.pools[cache].release(copy);
        }
    }

    /// After a step: leaves pages that have become full in the tree, and gives back those that are not needed.
    pub(crate) fn settle(&mut self, context: &mut dyn Context, sequence: &mut Sequence) {
        self.features.settle(sequence);
        self.trim(sequence);
        let full = sequence.computed / self.page * self.page;
        if sequence.shared && self.has_states() {
            self.checkpoint(context, sequence);
        } else if sequence.shared && full > sequence.inserted {
            let keys = &sequence.keys[..sequence.computed];
            let pools = &mut self.pools;
            self.tree.insert(keys, &sequence.lists, false, pools);
            sequence.inserted = full;
        }
        for cache in 0..self.kinds.len() {
            self.drop_before_window(cache, sequence);
        }
    }

    /// The first position whose row finds all that it attends to: windowed caches have given back what lies further back.
    pub(crate) fn first_computable(&self, sequence: &Sequence) -> usize {
        let of_cache = |(kind, list): (&Kind, &Vec<u32>)| match kind {
            Kind::Attention {
                window: window @ 1..,
            } => first_whole(*window, self.page, list),
            _ => 0,
        };
        let caches = self.kinds.iter().zip(&sequence.lists);
        caches.map(of_cache).max().unwrap_or(0)
    }

    /// Gives back the pages of a windowed cache that no later row reads.
    fn drop_before_window(&mut self, cache: usize, sequence: &mut Sequence) {
        let Kind::Attention {
            window: window @ 1..,
        } = self.kinds[cache]
        else {
            return;
        };
        let needless = sequence.computed.saturating_sub(window) / self.page;
        let list = &mut sequence.lists[cache];
        let count = needless.min(list.len());
        for entry in list[..count].iter_mut().rev() {
            // What lies before a dropped page was dropped earlier.
            if *entry == NO_PAGE {
                break;
            }
            self.pools[cache].release(std::mem::replace(entry, NO_PAGE));
            self.dropped = true;
        }
    }

    /// True if running sequences have dropped pages since the last call.
    pub(crate) fn have_come_back(&mut self) -> bool {
        std::mem::take(&mut self.dropped)
    }

    /// Gives back the pages beyond the position that is computed next, unless the tokens before it are still to come.
    fn trim(&mut self, sequence: &mut Sequence) {
        let positions = sequence.computed.max(sequence.target()) + 1;
        for (cache, kind) in self.kinds.iter().enumerate() {
            if matches!(kind, Kind::Recurrent) {
                continue;
            }
            let entries = positions.div_ceil(self.page);
            while sequence.lists[cache].len() > entries {
                if let Some(page) = sequence.lists[cache].pop() {
                    self.pools[cache].release(page);
                }
            }
        }
    }

    /// Leaves all that a sequence has computed in the tree. It must not write its pages after that.
    pub(crate) fn keep(&mut self, sequence: &mut Sequence) {
        if sequence.shared {
            let keys = &sequence.keys[..sequence.computed];
            let pools = &mut self.pools;
            self.tree.insert(keys, &sequence.lists, true, pools);
        }
    }

    /// Writes all prefixes to the disk tier.
    pub(crate) fn save(&mut self, context: &mut dyn Context) {
        if let Some(disk) = &mut self.disk {
            if let Some(host) = &mut self.host {
                let rest = disk.most_pages().saturating_sub(self.tree.len());
                host.save_all(context, disk, rest);
            }
            disk.save_all(context, &self.tree);
        }
    }

    /// Takes all pages and features from a sequence. Nothing of it is computed then.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        for (pool, list) in self.pools.iter_mut().zip(&mut sequence.lists) {
            for page in list.drain(..).filter(|page| *page != NO_PAGE) {
                pool.release(page);
            }
        }
        self.forget_states(sequence);
        self.features.release(sequence);
        (sequence.computed, sequence.inserted) = (0, 0);
        sequence.restore = None;
        self.unsettled |= sequence.fetching.take().is_some();
    }

    /// Runs a device call that writes the first page of a free slot. `None`: a cache has no page to lend.
    pub(crate) fn lend<T>(
        &mut self,
        context: &mut dyn Context,
        slot: u32,
        work: impl FnOnce(&mut dyn Context) -> Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        self.copies.fill(NO_PAGE);
        for cache in 0..self.copies.len() {
            self.copies[cache] = self.take(context, cache, true).unwrap_or(NO_PAGE);
        }
        let enough = !self.copies.contains(&NO_PAGE);
        let done = enough.then(|| {
            for (cache, page) in self.copies.iter().enumerate() {
                context.set_pages(cache, slot, 0, &[*page])?;
            }
            work(context)
        });
        for (pool, page) in self.pools.iter_mut().zip(&self.copies) {
            if *page != NO_PAGE {
                pool.release(*page);
            }
        }
        done
    }
}

/// Exchanges the pages of recurrent caches: the first entries of the lists with those of `copies` that are pages.
fn swap_states(lists: &mut [Vec<u32>], copies: &mut [u32]) {
    for (list, copy) in lists.iter_mut().zip(copies) {
        if let Some(own) = list.first_mut().filter(|_| *copy != NO_PAGE) {
            std::mem::swap(own, copy);
        }
    }
}

/// The first position whose window holds no page that was given back.
fn first_whole(window: usize, page: usize, list: &[u32]) -> usize {
    match list.iter().take_while(|entry| **entry == NO_PAGE).count() {
        0 => 0,
        dropped => dropped * page + window - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_not_begin_in_a_dropped_page() {
        assert_eq!(first_whole(20, 16, &[7, 8, 9]), 0);
        // Position 51 sees 32 to 51.
        assert_eq!(first_whole(20, 16, &[NO_PAGE, NO_PAGE, 9, 4]), 51);
        assert_eq!(first_whole(1, 16, &[NO_PAGE, 9]), 16);
    }
}
