//! Pages of caches whose heads are dealt: which bytes of a page, or of a cache, a rank has.

use crate::dealt::Dealt;
use std::ops::Range;
use welte_table::{CacheKind, CacheSpec, Deal, Program};

/// Bytes of the memory in which pages are put together: the largest page of a cache that is dealt.
pub(crate) fn bytes(dealt: &Dealt) -> u64 {
    let caches = dealt.program.caches.iter().zip(&dealt.caches);
    let pages = caches.filter(|(_, deal)| deal.is_some());
    let bytes = pages.filter_map(|(cache, _)| cache.page_bytes(dealt.program.page));
    bytes.max().unwrap_or(0)
}

/// Where a page of a cache lies at a place of a [`Shelf`](welte_device::Shelf) of a program: pages of all caches follow each other.
pub(crate) fn shelf_range(program: &Program, place: usize, cache: usize) -> Option<Range<usize>> {
    let bytes = |cache: &CacheSpec| Some(cache.page_bytes(program.page)? as usize);
    let sum = |caches: &[CacheSpec]| caches.iter().map(bytes).sum::<Option<usize>>();
    let start = place * sum(&program.caches)? + sum(&program.caches[..cache])?;
    Some(start..start + bytes(program.caches.get(cache)?)?)
}

/// The place and the cache whose page such a range is.
pub(crate) fn on_shelf(program: &Program, range: &Range<usize>) -> Option<(usize, usize)> {
    let all = shelf_range(program, 1, 0)?.start;
    let place = range.start.checked_div(all)?;
    let mut caches = 0..program.caches.len();
    let cache = caches.find(|cache| shelf_range(program, place, *cache).as_ref() == Some(range));
    Some((place, cache?))
}

/// A cache whose heads are dealt. Its bytes are runs of heads, layer by layer, keys and values apart, page by page.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    deal: Deal,
    ranks: u32,
    /// Bytes of a head in a page of one layer.
    pub(crate) head: usize,
    /// Heads of all ranks.
    heads: usize,
}

impl Heads {
    pub(crate) fn of(
        program: &Program,
        cache: &CacheSpec,
        deal: Deal,
        ranks: u32,
    ) -> Option<Heads> {
        let CacheKind::Attention { kv_heads, .. } = cache.kind else {
            return None;
        };
        let head = cache.head_bytes()?.checked_mul(program.page.into())?;
        Some(Heads {
            deal,
            ranks,
            head: head as usize,
            heads: kv_heads as usize,
        })
    }

    /// The heads of a rank.
    pub(crate) fn of_rank(&self, rank: u32) -> Range<usize> {
        let heads = self.deal.units(rank, self.ranks);
        heads.start as usize..heads.end as usize
    }

    /// Bytes of a rank where all ranks together have `whole`, a number of whole runs.
    pub(crate) fn bytes(&self, rank: u32, whole: usize) -> usize {
        whole / self.heads.max(1) * self.of_rank(rank).len()
    }

    /// Where the bytes of a rank lie among those of all, run by run: `whole` is cut into runs.
    pub(crate) fn runs(
        &self,
        rank: u32,
        whole: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let heads = self.of_rank(rank);
        let (run, own) = (self.head * self.heads, self.head * heads.len());
        let first = heads.start * self.head;
        (0..whole / run.max(1)).map(move |nth| {
            let at = nth * run + first;
            (at..at + own, nth * own..(nth + 1) * own)
        })
    }

    /// Puts a rank's bytes among those of all.
    pub(crate) fn gather(&self, rank: u32, own: &[u8], all: &mut [u8]) {
        for (run, own_run) in self.runs(rank, all.len()) {
            all[run].copy_from_slice(&own[own_run]);
        }
    }

    /// The rank that has a byte of the cache, where it has it, and how many bytes follow in the same head. If several ranks
    /// have it, `nth` chooses among them.
    pub(crate) fn byte(&self, at: u64, nth: usize) -> Option<(u32, u64, usize)> {
        let (head, inner) = (at / self.head as u64, at % self.head as u64);
        let (run, head) = (
            head / self.heads as u64,
            (head % self.heads as u64) as usize,
        );
        let mut ranks = (0..self.ranks).filter(|rank| self.of_rank(*rank).contains(&head));
        let rank = ranks.nth(nth)?;
        let own = self.of_rank(rank);
        let first = run * own.len() as u64 + (head - own.start) as u64;
        Some((
            rank,
            first * self.head as u64 + inner,
            self.head - inner as usize,
        ))
    }
}
