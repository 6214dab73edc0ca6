//! The prefix tree: finds the longest prefix of a prompt whose pages are still in the caches.

use super::lru::Lru;
use super::{GENERATED, NO_PAGE, PagePool, token_of};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use welte_table::{CacheKind, Program};

/// No node; as a parent: the root.
const NONE: u32 = u32::MAX;

/// How much of a prompt the tree has. Valid until the tree changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Keys from the start of the prompt that need not be computed.
    pub(crate) tokens: usize,
    /// The node that holds the last one of them.
    pub(crate) node: Option<u32>,
    /// Position of the first token that differs from the cached text with the longest common prefix. `None` if no text
    /// begins like the prompt, or if the prompt differs nowhere: it is all cached, or it continues a cached text.
    pub(crate) differs_at: Option<usize>,
}

/// Which pages of a cache a hit of `n` tokens needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// All.
    Whole,
    /// Those with positions that row `n` reads.
    Window(usize),
    /// The checkpoint at the end.
    End,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    first_child: u32,
    /// Next and previous child of the same parent.
    next: u32,
    previous: u32,
    /// Next node in the same bucket of the hash; next free node.
    chain: u32,
    /// Pages from the root: its keys are those of positions `depth * page ..`.
    depth: u32,
    /// Keys it holds, at most a page.
    len: u32,
    used: bool,
}

/// Runs of keys that sequences have left behind, with their pages. Each node holds up to one page of keys and one page
/// of each cache, or [`NO_PAGE`]. Full nodes have children; a partial node is a leaf. Everything is allocated in `new`.
///
/// The tree owns one reference to each of its pages. A page list has one entry per page of positions; entries of pages
/// outside a window are `NO_PAGE`.
#[derive(Debug)]
pub(crate) struct PrefixTree {
    /// Positions of a page.
    page: usize,
    needs: Vec<Need>,
    nodes: Vec<Node>,
    /// `page` keys per node.
    keys: Vec<u32>,
    /// One page per node and cache.
    pages: Vec<u32>,
    first_free: u32,
    used: usize,
    roots: u32,
    /// Heads of the hash chains of full nodes, by parent and tokens without roles.
    buckets: Vec<u32>,
    hasher: RandomState,
    /// All nodes. A parent is newer than its children, so the oldest node is a leaf.
    recent: Lru,
    /// Nodes with a page of this cache, for caches that nodes may lack a page of.
    recent_in: Vec<Option<Lru>>,
    /// Nodes still to be visited by a search, and the path to the current one.
    stack: Vec<u32>,
    path: Vec<u32>,
}

impl PrefixTree {
    /// An empty tree with as many nodes as the largest cache has pages.
    pub(crate) fn new(program: &Program) -> PrefixTree {
        let caches = &program.caches;
        let most = caches.iter().map(|cache| cache.pages).max().unwrap_or(0) as usize;
        let needs: Vec<Need> = caches
            .iter()
            .map(|cache| match cache.kind {
                CacheKind::Attention { window: 0, .. } => Need::Whole,
                CacheKind::Attention { window, .. } => Need::Window(window as usize),
                CacheKind::Recurrent { .. } => Need::End,
            })
            .collect();
        let page = program.page.max(1) as usize;
        let free = |i: usize| Node {
            parent: NONE,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            chain: if i + 1 < most { i as u32 + 1 } else { NONE },
            depth: 0,
            len: 0,
            used: false,
        };
        PrefixTree {
            page,
            recent_in: needs
                .iter()
                .map(|need| (*need != Need::Whole).then(|| Lru::new(most)))
                .collect(),
            pages: vec![NO_PAGE; most * needs.len()],
            needs,
            nodes: (0..most).map(free).collect(),
            keys: vec![0; most * page],
            first_free: if most > 0 { 0 } else { NONE },
            used: 0,
            roots: NONE,
            buckets: vec![NONE; (most * 2).next_power_of_two()],
            hasher: RandomState::new(),
            recent: Lru::new(most),
            stack: Vec::with_capacity(most),
            path: Vec::with_capacity(most),
        }
    }

    /// The longest prefix of `keys`, of at most `limit` keys, that a sequence may take over. A key with the role
    /// "generated" matches that role only. A key with the role "prompt" matches both roles unless `exact`; among
    /// prefixes of one length, the one with the earlier prompt role wins. Changes nothing that a caller can see.
    pub(crate) fn find(&mut self, keys: &[u32], limit: usize, exact: bool) -> Hit {
        let _ = (keys, limit, exact);
        Hit {
            tokens: 0,
            node: None,
            differs_at: None,
        }
    }

    /// Takes over a hit: directly after [`PrefixTree::find`].
    ///
    /// - `keys[..hit.tokens]` get the roles in which they were computed. Keep them: a sequence that is computed again
    ///   must look up and compute these keys.
    /// - `lists[cache]`, empty before, receives the entries of the full pages of the hit, each with a reference that the
    ///   sequence owns. Entries outside a window are `NO_PAGE`. Lists of recurrent caches stay empty.
    /// - `copies[cache]` becomes the page that the sequence goes on writing, or `NO_PAGE`: the last, partly used page of
    ///   an attention cache, or the state of a recurrent one. The caller owns a reference to it, copies the page to a
    ///   page of its own, and releases the reference.
    pub(crate) fn acquire(
        &mut self,
        hit: &Hit,
        keys: &mut [u32],
        pools: &mut [PagePool],
        lists: &mut [Vec<u32>],
        copies: &mut [u32],
    ) {
        let _ = (hit, keys, pools, lists);
        copies.fill(NO_PAGE);
    }

    /// Leaves a sequence's pages in the tree, which takes references of its own. `keys` are the keys of all positions
    /// that are in the caches (the last sampled token is not). A running sequence leaves its full pages. A `finished` one
    /// also leaves its partial last page and the page of its recurrent state; it must not write them again.
    ///
    /// Nodes that exist stay as they are, but take pages that they lack. A list may hold `NO_PAGE`, or be too short,
    /// where the node exists or where the page is outside the window. Where a page that every hit needs is missing, the
    /// rest is not inserted.
    pub(crate) fn insert(
        &mut self,
        keys: &[u32],
        lists: &[Vec<u32>],
        finished: bool,
        pools: &mut [PagePool],
    ) {
        let _ = (keys, lists, finished, pools);
    }

    /// Frees at least one page of a cache: removes the least recently used leaf whose page no sequence references, or in
    /// caches with a window the least recently used page. `evicted` sees each leaf before it is removed. Returns false if
    /// every page is in use.
    pub(crate) fn evict(
        &mut self,
        cache: usize,
        pools: &mut [PagePool],
        evicted: &mut dyn FnMut(&PrefixTree, u32),
    ) -> bool {
        let _ = (cache, pools, evicted);
        false
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self, pools: &mut [PagePool]) {
        let _ = pools;
    }

    /// Nodes in use, in no particular order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        let all = self.nodes.iter().enumerate();
        all.filter(|(_, node)| node.used).map(|(i, _)| i as u32)
    }

    /// Number of nodes in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The node's keys.
    pub(crate) fn keys(&self, node: u32) -> &[u32] {
        let first = node as usize * self.page;
        &self.keys[first..first + self.nodes[node as usize].len as usize]
    }

    /// The node's pages, one per cache, or `NO_PAGE`.
    pub(crate) fn pages(&self, node: u32) -> &[u32] {
        let caches = self.needs.len();
        &self.pages[node as usize * caches..][..caches]
    }

    /// The node before it; `None` for the first page of a text.
    pub(crate) fn parent(&self, node: u32) -> Option<u32> {
        let parent = self.nodes[node as usize].parent;
        (parent != NONE).then_some(parent)
    }
}
