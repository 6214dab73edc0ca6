//! The disk tier: reads the stored pages of admitted prompts, and writes evicted ones.

use super::restore::Restore;
use super::sequence::{Part, Sequence};
use crate::Error;
use crate::average::moving_average;
use crate::cache::{
    Fill, Key, Layout, NO_PAGE, Place, PrefixStore, PrefixTree, Rates, Staging, StoreMonitor,
    matches, token_key,
};
use std::time::Duration;
use welte_device::{Context, Error as DeviceError};

/// Rows that a step must have to tell how fast prompts are computed.
const TELLING: usize = 32;

/// The store, as the scheduler uses it.
pub(crate) struct Disk {
    store: PrefixStore,
    rates: Rates,
    /// A node and those before it.
    path: Vec<u32>,
}

impl Disk {
    /// A tier on this store, for a tree of at most `nodes` nodes.
    pub(crate) fn new(store: PrefixStore, nodes: usize) -> Disk {
        Disk {
            rates: store.kept_rates(),
            store,
            path: Vec::with_capacity(nodes),
        }
    }

    /// Tells what the store does.
    pub(crate) fn monitor(&self) -> StoreMonitor {
        self.store.monitor()
    }

    /// A step with `rows` rows of prompts took `took`.
    pub(crate) fn computed(&mut self, rows: usize, took: Duration) {
        if rows >= TELLING {
            let rate = rows as f64 / took.as_secs_f64().max(1e-9);
            self.rates.compute = moving_average(self.rates.compute, rate, 0.25);
        }
    }

    /// Looks for stored pages that continue what a sequence has found in the tree, up to `limit` tokens. `settled`: it has
    /// run before, so it takes only the roles that it had.
    pub(crate) fn begin(&mut self, sequence: &mut Sequence, limit: usize, settled: bool) {
        let Some(prefix) = Prefix::of(sequence, self.store.layout(), limit) else {
            return;
        };
        let Prefix { from, limit, place } = prefix;
        let exact = sequence.exact || settled;
        let mut chain = Vec::new();
        self.store
            .chain(place, &sequence.keys[from..limit], exact, &mut chain);
        let found: usize = chain.iter().map(|stored| stored.tokens).sum();
        if from + found > sequence.computed {
            sequence.computed = from;
            sequence.inserted = from;
            if !settled {
                // A copied page is read anew, in whatever roles it was stored.
                sequence.forget_roles(from);
                sequence.out.report(|report| report.cached = from);
            }
            sequence.restore = Some(Box::new(Restore {
                chain,
                asked: 0,
                done: 0,
                before: place.name,
                exact,
                first: !settled,
            }));
        }
    }

    /// Asks for the next pages of sequences, and hands out those that have arrived. If a page cannot be copied to the
    /// device, the sequence is marked as its victim.
    pub(crate) fn advance(
        &mut self,
        context: &mut dyn Context,
        sequences: &mut [Sequence],
    ) -> Result<(), DeviceError> {
        while let Some(answer) = self.store.poll() {
            let waits = |sequence: &&mut Sequence| {
                let restore = sequence.restore.as_ref();
                restore.is_some_and(|r| {
                    r.done < r.asked && r.chain.get(r.done).is_some_and(|s| s.id == answer.id)
                })
            };
            let sequence = sequences.iter_mut().find(waits);
            let taken = match (sequence, &answer.page) {
                (Some(sequence), Some(page)) => self.take(context, sequence, page),
                (Some(sequence), None) => {
                    stop(sequence);
                    Ok(())
                }
                // Nobody waits for it any more.
                (None, _) => Ok(()),
            };
            if let Some(page) = answer.page {
                self.store.recycle(page);
            }
            taken?;
        }
        self.rates.read = self.store.read_rate();
        for sequence in sequences {
            self.ask(sequence);
        }
        Ok(())
    }

    /// Asks for further pages as long as reading is faster than computing, and lets go of a sequence that has all.
    fn ask(&mut self, sequence: &mut Sequence) {
        let Some(restore) = &mut sequence.restore else {
            return;
        };
        let rest = &restore.chain[restore.asked..];
        let bytes = rest.len() * self.store.layout().page_bytes();
        let tokens = rest.iter().map(|stored| stored.tokens).sum();
        if !self.rates.reading_is_faster(bytes as u64, tokens) {
            restore.chain.truncate(restore.asked);
        }
        while let Some(next) = restore.chain.get(restore.asked) {
            if !self.store.read(next.id) {
                break;
            }
            restore.asked += 1;
        }
        if restore.done == restore.chain.len() {
            let chain = std::mem::take(&mut restore.chain);
            self.store.used(chain);
            if restore.first {
                sequence
                    .out
                    .report(|report| report.cached = sequence.computed);
            }
            sequence.restore = None;
        }
    }

    /// Copies a page to the device, if it is the one that the sequence needs.
    fn take(
        &mut self,
        context: &mut dyn Context,
        sequence: &mut Sequence,
        page: &Staging,
    ) -> Result<(), DeviceError> {
        let Some(restore) = &mut sequence.restore else {
            return Ok(());
        };
        let first = sequence.computed;
        let wanted = &mut sequence.keys[first..];
        let fits = page.parent() == restore.before
            && page.keys().len() == restore.chain[restore.done].tokens
            && page
                .keys()
                .zip(&*wanted)
                .all(|(held, wanted)| matches(held, *wanted, restore.exact));
        if !fits {
            stop(sequence);
            return Ok(());
        }
        let layout = self.store.layout();
        let entry = first / layout.page;
        for (cache, list) in sequence.lists.iter().enumerate() {
            if let Err(error) = context.write_page(cache, list[entry], page.page(layout, cache)) {
                sequence.part = Part::Victim;
                return Err(error);
            }
        }
        for (key, held) in wanted.iter_mut().zip(page.keys()) {
            *key = held;
        }
        sequence.computed += page.keys().len();
        restore.before = restore.chain[restore.done].id.place().name;
        restore.done += 1;
        Ok(())
    }

    /// Sleeps until a page arrives, or for a moment.
    pub(crate) fn wait(&mut self) {
        self.store.wait(Duration::from_millis(5));
    }

    /// Writes a node that is about to be evicted. If the disk is too slow, it is lost.
    pub(crate) fn save(&mut self, context: &mut dyn Context, tree: &PrefixTree, node: u32) {
        self.write(context, tree, node, false);
    }

    /// Writes all nodes, or the most recently used ones of as many bytes as the store may take, and the rates.
    pub(crate) fn save_all(&mut self, context: &mut dyn Context, tree: &PrefixTree) {
        self.store.keep_rates(self.rates);
        let most = self.most_pages();
        // Children come before their parents, which are then the newer files.
        for node in tree.nodes().skip(tree.len().saturating_sub(most)) {
            self.write(context, tree, node, true);
        }
    }

    /// Pages that the store may hold.
    pub(crate) fn most_pages(&self) -> usize {
        let each = self.store.layout().page_bytes().max(1) as u64;
        usize::try_from(self.store.most_bytes() / each).unwrap_or(usize::MAX)
    }

    fn write(&mut self, context: &mut dyn Context, tree: &PrefixTree, node: u32, wait: bool) {
        let pages = tree.pages(node);
        if pages.contains(&NO_PAGE) {
            return;
        }
        let start = self.store.layout().start();
        if let Some(parent) = parent_of(tree, node, start, &mut self.path) {
            self.write_page(&parent, tree.keys(node), wait, &mut |cache, bytes| {
                context.read_page(cache, pages[cache], bytes)
            });
        }
    }

    /// Writes a page that `fill` copies, unless it is stored already.
    pub(crate) fn write_page(
        &mut self,
        parent: &Place,
        keys: &[Key],
        wait: bool,
        fill: &mut Fill<'_, DeviceError>,
    ) {
        // A page that the device does not give is lost. If the device is broken, the next step says so.
        let _ = self.store.write(parent, keys, wait, fill);
    }

    /// The layout of its pages.
    pub(crate) fn layout(&self) -> &Layout {
        self.store.layout()
    }
}

/// What a sequence has found in the tree, as the tiers below name it.
pub(super) struct Prefix {
    /// Tokens up to the page at which further ones continue.
    pub(super) from: usize,
    /// The most tokens that may be found.
    pub(super) limit: usize,
    /// Where the text stands there.
    pub(super) place: Place,
}

impl Prefix {
    /// `None`: no further token can be found.
    pub(super) fn of(sequence: &Sequence, layout: &Layout, limit: usize) -> Option<Prefix> {
        let from = sequence.computed / layout.page * layout.page;
        // Features have numbers that another process does not know, so the tiers have nothing after one.
        let texts = sequence.keys[..limit].iter();
        let limit = texts.take_while(|key| token_key(**key).is_some()).count();
        let pages = || sequence.keys[..from].chunks(layout.page);
        let place = || pages().fold(layout.start(), |place, keys| place.after(keys));
        (limit > from).then(|| Prefix {
            from,
            limit,
            place: place(),
        })
    }
}

/// Where a node's text stands before it; `None` if it is not all text. `path` is scratch.
pub(super) fn parent_of(
    tree: &PrefixTree,
    node: u32,
    start: Place,
    path: &mut Vec<u32>,
) -> Option<Place> {
    let is_text = |node: u32| tree.keys(node).iter().all(|key| token_key(*key).is_some());
    path.clear();
    path.extend(std::iter::successors(tree.parent(node), |node| {
        tree.parent(*node)
    }));
    let all = is_text(node) && path.iter().all(|node| is_text(*node));
    let before = path.iter().rev();
    all.then(|| before.fold(start, |place, node| place.after(tree.keys(*node))))
}

/// The rest of the chain is computed.
fn stop(sequence: &mut Sequence) {
    if let Some(restore) = &mut sequence.restore {
        restore.chain.truncate(restore.done);
        restore.asked = restore.done;
    }
}

/// Opens the store of a loaded model.
pub(crate) fn open(
    options: &crate::PrefixStoreOptions,
    model: &crate::Model,
    nodes: usize,
) -> Result<Disk, Error> {
    let loaded = &model.inner.loaded;
    let origin = || model.origin().to_string();
    let fingerprint = model.inner.fingerprint.as_ref();
    let fingerprint = fingerprint.ok_or_else(|| Error::NoFingerprint { origin: origin() })?;
    let layout = Layout::new(loaded.program(), fingerprint, &loaded.arithmetic());
    let layout = layout.ok_or_else(|| Error::PrefixStore { origin: origin() })?;
    let store = PrefixStore::open(options, layout, &model.device().name);
    Ok(Disk::new(store, nodes))
}
