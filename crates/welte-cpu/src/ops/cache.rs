//! Caches as ops address them: where a slot's page lies.

use super::{Bytes, State};
use welte_table::Format;

/// Keys and values: `[layer][k or v][page][kv head][position in page][head_dim]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvCache {
    pub(crate) start: Bytes,
    /// Index of slot 0's page list in [`State::pages`].
    pub(crate) lists: usize,
    /// Entries of a slot's page list.
    pub(crate) entries: usize,
    /// Pages of the cache.
    pub(crate) pages: usize,
    /// Positions of a page.
    pub(crate) page_len: usize,
    pub(crate) format: Format,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Bytes of one head at one position.
    pub(crate) row_bytes: usize,
}

impl KvCache {
    /// Where keys (`part` 0) or values (1) of a position lie.
    ///
    /// # Safety
    /// Layer, head, slot and position lie inside the cache.
    pub(crate) unsafe fn at(
        &self,
        state: &State,
        layer: usize,
        part: usize,
        head: usize,
        slot: usize,
        position: usize,
    ) -> *mut u8 {
        let entry = self.lists + slot * self.entries + position / self.page_len;
        let page = state.pages[entry] as usize;
        let run = ((layer * 2 + part) * self.pages + page) * self.kv_heads + head;
        let row = run * self.page_len + position % self.page_len;
        // SAFETY: every index is inside the cache: promised, and page lists hold only its pages.
        unsafe { self.start.0.add(row * self.row_bytes) }
    }
}

/// Recurrent state: `[layer][page][floats]`, one page per slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateCache {
    pub(crate) start: Bytes,
    /// Index of slot 0's page in [`State::pages`].
    pub(crate) lists: usize,
    /// Pages of the cache.
    pub(crate) pages: usize,
    /// Floats of one layer's state.
    pub(crate) floats: usize,
}

impl StateCache {
    /// Where a slot's state lies.
    ///
    /// # Safety
    /// Layer and slot lie inside the cache.
    pub(crate) unsafe fn at(&self, state: &State, layer: usize, slot: usize) -> *mut f32 {
        let page = state.pages[self.lists + slot] as usize;
        let index = (layer * self.pages + page) * self.floats;
        // SAFETY: every index is inside the cache: promised, and page lists hold only its pages.
        unsafe { self.start.0.cast::<f32>().add(index) }
    }
}
