//! The host tier: evicted pages wait in host memory, and go from there to disk.

use super::disk::{Disk, Prefix, parent_of};
use super::restore::Fetching;
use super::sequence::Sequence;
use crate::Error;
use crate::cache::{FileId, Layout, NO_PAGE, Places, PrefixTree, Stored};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use welte_device::{Context, Error as DeviceError, Shelf};

/// What the host tier has done, as anybody may ask.
#[derive(Debug, Default)]
pub(crate) struct HostCounts {
    fetched: AtomicU64,
    kept: AtomicU64,
}

/// What a host tier has done since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixHostStatus {
    /// Pages that prompts got back from host memory.
    pub pages_fetched: u64,
    /// Pages in host memory.
    pub pages: u64,
    /// Bytes of a page of all caches.
    pub page_bytes: u64,
}

/// Pages in host memory.
pub(crate) struct Host {
    shelf: Shelf,
    places: Places,
    count: u32,
    /// What is held for the sequence that is being admitted.
    chain: Vec<Stored>,
    /// Scratch: a node and those before it, and the pages at an entry of a sequence.
    path: Vec<u32>,
    pages: Vec<u32>,
    counts: Arc<HostCounts>,
}

impl Host {
    /// A tier of `bytes` for the pages of this context. `layout`: that of the disk tier, if there is one.
    pub(crate) fn new(
        context: &mut dyn Context,
        bytes: u64,
        layout: Option<&Layout>,
        nodes: usize,
        origin: impl Fn() -> String,
    ) -> Result<Host, Error> {
        let program = context.program().clone();
        let own = || Layout::new(&program, &[0; 32], "");
        let layout = layout.cloned().or_else(own);
        let layout = layout.ok_or_else(|| Error::PrefixStore { origin: origin() })?;
        let count = places(context, bytes).ok_or_else(|| Error::HostCache {
            bytes,
            page: Shelf::place_of(context).unwrap_or(layout.page_bytes() as u64),
        })?;
        Ok(Host {
            shelf: Shelf::new(context, count)?,
            places: Places::new(layout, count),
            count,
            chain: Vec::new(),
            path: Vec::with_capacity(nodes),
            pages: Vec::with_capacity(program.caches.len()),
            counts: Arc::default(),
        })
    }

    pub(crate) fn monitor(&self) -> HostMonitor {
        HostMonitor {
            counts: self.counts.clone(),
            page_bytes: self.places.layout().page_bytes() as u64,
        }
    }

    /// Takes a new context, whose shelf is empty.
    pub(crate) fn renew(mut self, context: &mut dyn Context) -> Result<Host, DeviceError> {
        self.clear();
        self.shelf = Shelf::new(context, self.count)?;
        Ok(self)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.chain.clear();
        self.places.clear();
        self.count_kept();
    }

    fn count_kept(&self) {
        let kept = self.places.len() as u64;
        self.counts.kept.store(kept, Ordering::Relaxed);
    }

    /// Looks for pages that continue what a sequence has found in the tree, up to `limit` tokens, and holds them until
    /// [`Host::let_go`].
    pub(crate) fn look(&mut self, sequence: &Sequence, limit: usize, settled: bool) {
        self.let_go();
        let layout = self.places.layout();
        if let Some(prefix) = Prefix::of(sequence, layout, limit) {
            let keys = &sequence.keys[prefix.from..prefix.limit];
            let exact = sequence.exact || settled;
            self.places.hold(prefix.place, keys, exact, &mut self.chain);
        }
    }

    /// The admission has ended, in whatever way.
    pub(crate) fn let_go(&mut self) {
        self.places.used(&self.chain);
        self.chain.clear();
    }

    /// Copies the pages that were found to those of the sequence, which then waits for them.
    pub(crate) fn fetch(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        settled: bool,
    ) -> Result<(), DeviceError> {
        let page = self.places.layout().page;
        let from = sequence.computed / page * page;
        let found: usize = self.chain.iter().map(|stored| stored.tokens).sum();
        if from + found <= sequence.computed {
            return Ok(());
        }
        if !settled {
            // A copied page is read anew, in whatever roles it was kept.
            sequence.forget_roles(from);
        }
        (sequence.computed, sequence.inserted) = (from, from);
        let fetching = Fetching {
            tokens: found,
            first: !settled,
        };
        // Should a copy fail, nobody may have the pages of earlier ones before those have ended.
        sequence.fetching = Some(fetching);
        let mut at = from;
        for stored in &self.chain {
            let (place, held) = self.places.get(&stored.id);
            self.pages.clear();
            self.pages
                .extend(sequence.lists.iter().map(|list| list[at / page]));
            self.shelf.fetch(context, place, &self.pages)?;
            sequence.keys[at..][..held.len()].copy_from_slice(held);
            at += held.len();
        }
        let fetched = self.chain.len() as u64;
        self.counts.fetched.fetch_add(fetched, Ordering::Relaxed);
        if self.shelf.has_fetched(context, false)? {
            sequence.fetching = None;
            sequence.fetched(fetching);
        }
        Ok(())
    }

    /// Whether all that was asked for has come.
    pub(crate) fn has_fetched(
        &mut self,
        context: &mut dyn Context,
        wait: bool,
    ) -> Result<bool, DeviceError> {
        self.shelf.has_fetched(context, wait)
    }

    /// Keeps a node that is about to be evicted. What makes room for it goes to disk.
    pub(crate) fn save(
        &mut self,
        context: &mut dyn Context,
        tree: &PrefixTree,
        node: u32,
        mut disk: Option<&mut Disk>,
    ) {
        let pages = tree.pages(node);
        if pages.contains(&NO_PAGE) {
            return;
        }
        let start = self.places.layout().start();
        let Some(parent) = parent_of(tree, node, start, &mut self.path) else {
            return;
        };
        let keys = tree.keys(node);
        if self
            .places
            .touch(&FileId::new(&parent, &parent.after(keys)))
        {
            return;
        }
        let Some((place, old)) = self.places.next() else {
            return;
        };
        if let (Some(old), Some(disk)) = (old, disk.as_mut()) {
            let shelf = &self.shelf;
            disk.write_page(&old.parent, &old.keys, false, &mut |cache, bytes| {
                shelf.read(context, place, cache, bytes)
            });
        }
        // A page that the device does not give is lost. If the device is broken, the next step says so.
        if self.shelf.put(context, place, pages).is_ok() {
            self.places.set(place, &parent, keys);
        }
        self.count_kept();
    }

    /// Writes the pages that were used last to disk, at most so many.
    pub(crate) fn save_all(&mut self, context: &mut dyn Context, disk: &mut Disk, most: usize) {
        let needless = self.places.len().saturating_sub(most);
        for (place, kept) in self.places.iter().skip(needless) {
            let shelf = &self.shelf;
            disk.write_page(&kept.parent, &kept.keys, true, &mut |cache, bytes| {
                shelf.read(context, place, cache, bytes)
            });
        }
    }
}

/// Tells what a host tier does.
#[derive(Clone)]
pub(crate) struct HostMonitor {
    counts: Arc<HostCounts>,
    page_bytes: u64,
}

impl HostMonitor {
    pub(crate) fn status(&self) -> PrefixHostStatus {
        PrefixHostStatus {
            pages_fetched: self.counts.fetched.load(Ordering::Relaxed),
            pages: self.counts.kept.load(Ordering::Relaxed),
            page_bytes: self.page_bytes,
        }
    }
}

/// Places that fit into so many bytes; `None` if not even one does.
fn places(context: &dyn Context, bytes: u64) -> Option<u32> {
    let each = Shelf::place_of(context)?.max(1);
    let count = u32::try_from(bytes / each).unwrap_or(u32::MAX - 1);
    (count > 0).then_some(count)
}
