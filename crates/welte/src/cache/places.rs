//! What the places of the shelf hold: pages of texts by name, in the order of their last use.

use super::Key;
use super::lru::Lru;
use super::store::{FileId, Layout, Place, Stored};
use std::collections::BTreeMap;

/// A page on the shelf.
#[derive(Clone, Debug)]
pub(crate) struct Shelved {
    /// Where its text stands before it.
    pub(crate) parent: Place,
    /// Its keys. Empty: the place holds nothing.
    pub(crate) keys: Vec<Key>,
}

/// The places by name. No call but [`Places::new`] allocates more than nodes of the map.
pub(crate) struct Places {
    layout: Layout,
    places: BTreeMap<FileId, u32>,
    held: Vec<Shelved>,
    /// Places that hold nothing.
    free: Vec<u32>,
    /// The others, without those that are held for an admission.
    lru: Lru,
}

impl Places {
    pub(crate) fn new(layout: Layout, count: u32) -> Places {
        let nothing = Shelved {
            parent: layout.start(),
            keys: Vec::with_capacity(layout.page),
        };
        let held = (0..count).map(|_| Shelved {
            keys: Vec::with_capacity(layout.page),
            ..nothing
        });
        Places {
            places: BTreeMap::new(),
            held: held.collect(),
            free: (0..count).rev().collect(),
            lru: Lru::new(count as usize),
            layout,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Pages held.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The pages that continue a text, as [`Layout::chain`] finds them. They stay until [`Places::used`].
    pub(crate) fn hold(
        &mut self,
        place: Place,
        keys: &[Key],
        exact: bool,
        chain: &mut Vec<Stored>,
    ) {
        let find = |id: &FileId| id.find(&self.places, exact);
        self.layout.chain(place, keys, find, chain);
        for stored in chain {
            self.lru.remove(self.places[&stored.id]);
        }
    }

    /// They were used, or are not needed: those near the start of the text count as used later.
    pub(crate) fn used(&mut self, chain: &[Stored]) {
        for stored in chain.iter().rev() {
            self.lru.touch(self.places[&stored.id]);
        }
    }

    /// The place of a page that is held, and its keys.
    pub(crate) fn get(&self, id: &FileId) -> (u32, &[Key]) {
        let place = self.places[id];
        (place, &self.held[place as usize].keys)
    }

    /// Whether a page is here. It counts as used now.
    pub(crate) fn touch(&mut self, id: &FileId) -> bool {
        let place = self.places.get(id);
        if let Some(place) = place.filter(|place| self.lru.contains(**place)) {
            self.lru.touch(*place);
        }
        place.is_some()
    }

    /// A place for a further page, and what is to be given up for it. `None`: all are held.
    pub(crate) fn next(&self) -> Option<(u32, Option<&Shelved>)> {
        if let Some(place) = self.free.last() {
            return Some((*place, None));
        }
        let oldest = self.lru.oldest()?;
        Some((oldest, Some(&self.held[oldest as usize])))
    }

    /// The place that [`Places::next`] gave holds this page from now on.
    pub(crate) fn set(&mut self, place: u32, parent: &Place, keys: &[Key]) {
        self.forget(place);
        debug_assert_eq!(self.free.last(), Some(&place));
        self.free.pop();
        let id = FileId::new(parent, &parent.after(keys));
        let held = &mut self.held[place as usize];
        held.parent = *parent;
        held.keys.extend_from_slice(keys);
        self.places.insert(id, place);
        self.lru.touch(place);
    }

    /// Its page is not in this place.
    fn forget(&mut self, place: u32) {
        let held = &mut self.held[place as usize];
        if !held.keys.is_empty() {
            let id = FileId::new(&held.parent, &held.parent.after(&held.keys));
            self.places.remove(&id);
            held.keys.clear();
            self.lru.remove(place);
            self.free.push(place);
        }
    }

    /// All places hold nothing.
    pub(crate) fn clear(&mut self) {
        (0..self.held.len() as u32).for_each(|place| self.forget(place));
    }

    /// All pages, the least recently used one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Shelved)> {
        self.lru
            .iter()
            .map(|place| (place, &self.held[place as usize]))
    }
}
