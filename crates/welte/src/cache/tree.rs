//! The prefix tree: finds the longest prefix of a prompt whose pages are still in the caches.

use super::lru::Lru;
use super::{Key, NO_PAGE, PagePool, PrefixChange, matches, token_key, without_role};
use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::mpsc::Sender;
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
    len: usize,
    /// Whoever watches was told of it.
    told: bool,
}

impl Node {
    const UNUSED: Node = Node {
        parent: NONE,
        first_child: NONE,
        next: NONE,
        previous: NONE,
        chain: NONE,
        depth: 0,
        len: 0,
        told: false,
    };
}

/// Keys that two runs have in common at their start.
fn common(held: &[Key], wanted: &[Key], exact: bool) -> usize {
    let pairs = held.iter().zip(wanted);
    let matching = pairs.take_while(|(held, wanted)| matches(**held, **wanted, exact));
    matching.count()
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
    keys: Vec<Key>,
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
    /// Who is told of changes.
    watcher: Option<Sender<PrefixChange>>,
    /// Of a search: nodes still to be visited, the path to the current one, and the path of the best hit so far.
    stack: Vec<u32>,
    path: Vec<u32>,
    best: Vec<u32>,
}

/// States that are compared for one to be given up.
const MOST_STATES: usize = 64;

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
            chain: if i + 1 < most { i as u32 + 1 } else { NONE },
            ..Node::UNUSED
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
            watcher: None,
            stack: Vec::with_capacity(most),
            path: Vec::with_capacity(most + 1),
            best: Vec::with_capacity(most + 1),
        }
    }

    /// Tells of changes from now on. The tree is empty.
    pub(crate) fn watch(&mut self, watcher: Sender<PrefixChange>) {
        self.watcher = Some(watcher);
    }

    /// Tells of a full node that has just got its keys.
    fn tell(&mut self, node: u32) {
        let Some(watcher) = &self.watcher else { return };
        let parent = self.parent(node);
        if parent.is_some_and(|parent| !self.node(parent).told) {
            return;
        }
        let tokens = self
            .keys(node)
            .iter()
            .map(|key| token_key(without_role(*key)));
        let Some(tokens) = tokens.collect() else {
            return;
        };
        let stored = PrefixChange::Stored {
            node,
            parent,
            tokens,
        };
        // Nobody may listen any more.
        let told = watcher.send(stored).is_ok();
        self.node_mut(node).told = told;
    }

    /// The longest prefix of `keys`, of at most `limit` keys, that a sequence may take over. A key with the role
    /// "generated" matches that role only. A key with the role "prompt" matches both roles unless `exact`; among
    /// prefixes of one length, the one with the earlier prompt role wins. Changes nothing that a caller can see.
    pub(crate) fn find(&mut self, keys: &[Key], limit: usize, exact: bool) -> Hit {
        let keys = &keys[..limit.min(keys.len())];
        let mut hit = Hit {
            tokens: 0,
            node: None,
            differs_at: None,
        };
        let mut longest = 0;
        self.stack.clear();
        self.path.clear();
        self.best.clear();
        let mut parent = NONE;
        loop {
            let start = self.path.len() * self.page;
            let rest = &keys[start..];
            let continues = self.push_full_children(parent, rest, exact);
            // A longer path is better, unless it lacks a page.
            if !continues || self.may_lack_pages() {
                self.consider(start, &mut hit);
                if start > longest {
                    (longest, hit.differs_at) = (start, None);
                }
                let mut child = self.first_child_of(parent);
                while child != NONE {
                    let n = common(self.keys(child), rest, exact);
                    if start + n > longest {
                        (longest, hit.differs_at) = (start + n, None);
                    }
                    let differs = n < rest.len() && n < self.node(child).len;
                    if differs && start + n == longest && longest > 0 {
                        hit.differs_at = Some(longest);
                    }
                    if n > 0 {
                        self.path.push(child);
                        self.consider(start + n, &mut hit);
                        self.path.pop();
                    }
                    child = self.node(child).next;
                }
            }
            // A node is visited right after its parent or after nodes below its siblings, so the path above it stands.
            let Some(node) = self.stack.pop() else {
                return hit;
            };
            self.path.truncate(self.node(node).depth as usize);
            self.path.push(node);
            parent = node;
        }
    }

    /// Takes the first `total` keys of the path for the hit if that is better.
    fn consider(&mut self, total: usize, hit: &mut Hit) {
        if total < hit.tokens {
            return;
        }
        let tokens = self.usable(total);
        let better = match tokens.cmp(&hit.tokens) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => self.prompt_role_is_earlier(tokens),
        };
        if better {
            self.best.clear();
            self.best.extend_from_slice(&self.path);
            hit.tokens = tokens;
            hit.node = Some(self.path[(tokens - 1) / self.page]);
        }
    }

    /// True if of the first `tokens` keys of the path and the best path so far, which have the same tokens, the path's
    /// have the earlier prompt role. Keys of one token differ in the role's bit only, so these keys are the smaller ones.
    fn prompt_role_is_earlier(&self, tokens: usize) -> bool {
        let nodes = self.path.iter().zip(&self.best);
        let differing = (0..tokens)
            .step_by(self.page)
            .zip(nodes)
            .filter(|(_, (a, b))| a != b)
            .map(|(start, (a, b))| {
                let n = self.page.min(tokens - start);
                self.keys(*a)[..n].cmp(&self.keys(*b)[..n])
            })
            .find(|order| order.is_ne());
        differing == Some(Ordering::Less)
    }

    /// Pushes the full children of a node that match the next page of a prompt, the best one last. True if there is one.
    fn push_full_children(&mut self, parent: u32, rest: &[Key], exact: bool) -> bool {
        let Some(chunk) = rest.get(..self.page) else {
            return false;
        };
        let first = self.stack.len();
        let mut node = self.buckets[self.bucket(parent, chunk)];
        while node != NONE {
            let full = self.node(node).parent == parent && self.node(node).len == chunk.len();
            if full && common(self.keys(node), chunk, exact) == chunk.len() {
                self.stack.push(node);
            }
            node = self.node(node).chain;
        }
        let mut stack = std::mem::take(&mut self.stack);
        stack[first..].sort_unstable_by(|a, b| self.keys(*b).cmp(self.keys(*a)));
        self.stack = stack;
        self.stack.len() > first
    }

    /// The longest prefix, of at most `tokens`, of the path's keys for which every cache has the pages.
    fn usable(&self, mut tokens: usize) -> usize {
        while tokens > 0 {
            let last = (tokens - 1) / self.page;
            let mut longest = tokens;
            // Every node has a page of every other cache.
            for cache in (0..self.needs.len()).filter(|c| self.needs[*c] != Need::Whole) {
                let range = self.needed(cache, tokens);
                let lacks = |i: &usize| {
                    let node = self.path[*i];
                    let inside = self.needs[cache] == Need::End
                        && tokens != last * self.page + self.node(node).len;
                    inside || self.page_of(node, cache) == NO_PAGE
                };
                // Every longer prefix would need this page too.
                if let Some(lacking) = range.rev().find(lacks) {
                    longest = longest.min(lacking * self.page);
                }
            }
            if longest == tokens {
                break;
            }
            tokens = longest;
        }
        tokens
    }

    /// Which pages of a cache a hit of `tokens` tokens needs, at least one.
    fn needed(&self, cache: usize, tokens: usize) -> Range<usize> {
        let end = tokens.div_ceil(self.page);
        match self.needs[cache] {
            Need::Whole => 0..end,
            // Row `tokens` is the first one to be computed. It reads itself and the `window - 1` positions before it.
            Need::Window(window) => ((tokens + 1).saturating_sub(window) / self.page)..end,
            Need::End => end - 1..end,
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
        keys: &mut [Key],
        pools: &mut [PagePool],
        lists: &mut [Vec<u32>],
        copies: &mut [u32],
    ) {
        copies.fill(NO_PAGE);
        let Some(node) = hit.node else {
            return;
        };
        let full = hit.tokens / self.page;
        for (cache, list) in lists.iter_mut().enumerate() {
            if self.needs[cache] != Need::End {
                list.resize(full, NO_PAGE);
            }
        }
        let mut at = node;
        while at != NONE {
            let depth = self.node(at).depth as usize;
            let start = depth * self.page;
            let end = hit.tokens.min(start + self.page);
            keys[start..end].copy_from_slice(&self.keys(at)[..end - start]);
            for (cache, pool) in pools.iter_mut().enumerate() {
                if !self.needed(cache, hit.tokens).contains(&depth) {
                    continue;
                }
                let page = self.page_of(at, cache);
                pool.share(page);
                if self.needs[cache] == Need::End || depth == full {
                    copies[cache] = page;
                } else {
                    lists[cache][depth] = page;
                }
            }
            at = self.node(at).parent;
        }
        self.touch(node, hit.tokens);
    }

    /// Leaves a sequence's pages in the tree, which takes references of its own. `keys` are the keys of all positions
    /// that are in the caches (the last sampled token is not). A running sequence leaves its full pages, but nothing if
    /// there are recurrent caches. A `finished` one also leaves its partial last page and the page of its recurrent state;
    /// it must not write them again. A checkpoint is left like this too.
    ///
    /// Nodes that exist stay as they are, but take pages that they lack. A list may hold `NO_PAGE`, or be too short,
    /// where the node exists or where the page is outside the window. Where a page that every hit needs is missing, the
    /// rest is not inserted.
    pub(crate) fn insert(
        &mut self,
        keys: &[Key],
        lists: &[Vec<u32>],
        finished: bool,
        pools: &mut [PagePool],
    ) {
        // Without the state at its end, no hit can end at a page.
        if !finished && self.has_states() {
            return;
        }
        let keys = if finished {
            keys
        } else {
            &keys[..keys.len() / self.page * self.page]
        };
        let (mut parent, mut inserted) = (NONE, 0);
        for (depth, chunk) in keys.chunks(self.page).enumerate() {
            inserted += chunk.len();
            let last = inserted == keys.len();
            let complete = (0..self.needs.len()).all(|cache| {
                self.needs[cache] != Need::Whole || self.given(lists, cache, depth, last) != NO_PAGE
            });
            let node = match self.holder(parent, chunk) {
                Some(node) => Some(node),
                None if complete => match self.replaceable(parent, chunk, pools) {
                    Some(node) => Some(node),
                    None => self.new_node(parent, depth, pools),
                },
                None => None,
            };
            let Some(node) = node else {
                inserted -= chunk.len();
                break;
            };
            if self.node(node).len == 0 {
                self.set_keys(node, chunk);
            }
            // A page of a longer node holds more than the sequence has computed.
            if self.node(node).len == chunk.len() {
                for (cache, pool) in pools.iter_mut().enumerate() {
                    let page = self.given(lists, cache, depth, last);
                    if page != NO_PAGE && self.page_of(node, cache) == NO_PAGE {
                        pool.share(page);
                        self.pages[node as usize * lists.len() + cache] = page;
                        if let Some(recent) = &mut self.recent_in[cache] {
                            recent.touch(node);
                        }
                    }
                }
            }
            parent = node;
        }
        self.touch(parent, inserted);
    }

    /// The page that a sequence leaves in a node: an entry of its list, or in the `last` node its state.
    fn given(&self, lists: &[Vec<u32>], cache: usize, depth: usize, last: bool) -> u32 {
        let list = &lists[cache];
        let page = match self.needs[cache] {
            Need::End => list.first().filter(|_| last),
            Need::Whole | Need::Window(_) => list.get(depth),
        };
        page.copied().unwrap_or(NO_PAGE)
    }

    /// The child that holds these keys. A shorter run is held by any child that begins with it, unless hits must end at
    /// the end of a node.
    fn holder(&self, parent: u32, chunk: &[Key]) -> Option<u32> {
        if chunk.len() == self.page {
            let mut node = self.buckets[self.bucket(parent, chunk)];
            while node != NONE && (self.node(node).parent != parent || self.keys(node) != chunk) {
                node = self.node(node).chain;
            }
            return (node != NONE).then_some(node);
        }
        self.children(parent).find(|child| {
            if self.has_states() {
                self.keys(*child) == chunk
            } else {
                self.keys(*child).starts_with(chunk)
            }
        })
    }

    /// A partial child whose keys these begin with, emptied: the longer run serves all its hits.
    fn replaceable(&mut self, parent: u32, chunk: &[Key], pools: &mut [PagePool]) -> Option<u32> {
        if self.has_states() {
            return None;
        }
        let node = self
            .children(parent)
            .find(|child| chunk.starts_with(self.keys(*child)))?;
        self.release_pages(node, pools);
        self.node_mut(node).len = 0;
        Some(node)
    }

    /// An empty child. If all nodes are in use, the least recently used leaf makes room.
    fn new_node(&mut self, parent: u32, depth: usize, pools: &mut [PagePool]) -> Option<u32> {
        if self.first_free == NONE {
            self.touch(parent, 0);
            let oldest = self.recent.oldest().filter(|oldest| *oldest != parent)?;
            self.remove(oldest, pools);
        }
        let node = self.first_free;
        self.first_free = self.node(node).chain;
        self.used += 1;
        let next = self.first_child_of(parent);
        *self.node_mut(node) = Node {
            parent,
            next,
            depth: depth as u32,
            ..Node::UNUSED
        };
        self.set_first_child(parent, node);
        if next != NONE {
            self.node_mut(next).previous = node;
        }
        self.recent.touch(node);
        Some(node)
    }

    fn set_keys(&mut self, node: u32, chunk: &[Key]) {
        let first = node as usize * self.page;
        self.keys[first..first + chunk.len()].copy_from_slice(chunk);
        self.node_mut(node).len = chunk.len();
        if chunk.len() == self.page {
            let bucket = self.bucket(self.node(node).parent, chunk);
            self.node_mut(node).chain = std::mem::replace(&mut self.buckets[bucket], node);
            self.tell(node);
        }
    }

    /// Makes a node and all before it the most recently used ones. Of a cache with a window only the pages that a hit of
    /// `tokens` tokens needs count as used.
    fn touch(&mut self, node: u32, tokens: usize) {
        let mut at = node;
        while at != NONE {
            self.recent.touch(at);
            let depth = self.node(at).depth as usize;
            for cache in 0..self.needs.len() {
                let needed = tokens > 0 && self.needed(cache, tokens).contains(&depth);
                let has = self.page_of(at, cache) != NO_PAGE;
                if let Some(recent) = self.recent_in[cache].as_mut().filter(|_| needed && has) {
                    recent.touch(at);
                }
            }
            at = self.node(at).parent;
        }
    }

    /// Frees at least one page of a cache: removes the least recently used leaf whose page no sequence references, in
    /// caches with a window the least recently used page, or the state whose loss costs least. `evicted` sees each leaf
    /// before it is removed. Returns false if every page is in use.
    pub(crate) fn evict(
        &mut self,
        cache: usize,
        pools: &mut [PagePool],
        evicted: &mut dyn FnMut(&PrefixTree, u32),
    ) -> bool {
        for _ in 0..self.used {
            let recent = self.recent_in[cache].as_ref().unwrap_or(&self.recent);
            let oldest = match self.needs[cache] {
                Need::End => self.cheapest_state(cache, pools),
                Need::Whole | Need::Window(_) => recent.oldest(),
            };
            let Some(node) = oldest else {
                return false;
            };
            if pools[cache].references(self.page_of(node, cache)) > 1 {
                // A sequence uses it now.
                match &mut self.recent_in[cache] {
                    Some(recent) => recent.touch(node),
                    None => self.touch(node, 0),
                }
            } else if self.node(node).first_child == NONE {
                self.remove_branch(node, pools, evicted);
                return true;
            } else {
                pools[cache].release(self.page_of(node, cache));
                self.pages[node as usize * self.needs.len() + cache] = NO_PAGE;
                if let Some(recent) = &mut self.recent_in[cache] {
                    recent.remove(node);
                }
                return true;
            }
        }
        false
    }

    /// Of the less recently used half of the states that no sequence references, the one that is cheapest to compute again: from the
    /// state before it. A long text thus keeps states all along.
    fn cheapest_state(&self, cache: usize, pools: &[PagePool]) -> Option<u32> {
        let idle = |node: &u32| pools[cache].references(self.page_of(*node, cache)) == 1;
        let states = || {
            self.recent_in[cache]
                .iter()
                .flat_map(Lru::iter)
                .filter(idle)
        };
        let old = states().take(states().count().div_ceil(2).min(MOST_STATES));
        old.min_by_key(|node| self.distance_to_state(*node, cache))
    }

    /// Positions from the nearest state before a node, or from the start, to the node's end.
    fn distance_to_state(&self, node: u32, cache: usize) -> usize {
        let before = std::iter::successors(self.parent(node), |node| self.parent(*node));
        let without = before.take_while(|before| self.page_of(*before, cache) == NO_PAGE);
        self.node(node).len + without.count() * self.page
    }

    /// Removes a leaf, and then each node before it that has become a leaf at which no hit can end.
    fn remove_branch(
        &mut self,
        leaf: u32,
        pools: &mut [PagePool],
        evicted: &mut dyn FnMut(&PrefixTree, u32),
    ) {
        evicted(self, leaf);
        let mut parent = self.node(leaf).parent;
        self.remove(leaf, pools);
        while parent != NONE
            && self.node(parent).first_child == NONE
            && self.pages(parent).contains(&NO_PAGE)
        {
            let node = parent;
            parent = self.node(node).parent;
            self.remove(node, pools);
        }
    }

    /// Removes a leaf.
    fn remove(&mut self, node: u32, pools: &mut [PagePool]) {
        self.release_pages(node, pools);
        let Node {
            parent,
            next,
            previous,
            len,
            told,
            ..
        } = *self.node(node);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| told) {
            let _ = watcher.send(PrefixChange::Removed { node });
        }
        match previous {
            NONE => self.set_first_child(parent, next),
            previous => self.node_mut(previous).next = next,
        }
        if next != NONE {
            self.node_mut(next).previous = previous;
        }
        if len == self.page {
            let bucket = self.bucket(parent, self.keys(node));
            let after = self.node(node).chain;
            let mut at = self.buckets[bucket];
            if at == node {
                self.buckets[bucket] = after;
            } else {
                while self.node(at).chain != node {
                    at = self.node(at).chain;
                }
                self.node_mut(at).chain = after;
            }
        }
        self.recent.remove(node);
        *self.node_mut(node) = Node {
            chain: self.first_free,
            ..Node::UNUSED
        };
        self.first_free = node;
        self.used -= 1;
    }

    fn release_pages(&mut self, node: u32, pools: &mut [PagePool]) {
        for (cache, pool) in pools.iter_mut().enumerate() {
            let page = &mut self.pages[node as usize * self.needs.len() + cache];
            if *page != NO_PAGE {
                pool.release(*page);
                *page = NO_PAGE;
            }
            if let Some(recent) = &mut self.recent_in[cache] {
                recent.remove(node);
            }
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self, pools: &mut [PagePool]) {
        let watcher = self.watcher.take();
        while let Some(oldest) = self.recent.oldest() {
            self.remove(oldest, pools);
        }
        if let Some(watcher) = &watcher {
            let _ = watcher.send(PrefixChange::Cleared);
        }
        self.watcher = watcher;
    }

    /// True if a cache holds states, so that hits end only where a node ends.
    fn has_states(&self) -> bool {
        self.needs.contains(&Need::End)
    }

    /// True if nodes may lack a page of some cache.
    fn may_lack_pages(&self) -> bool {
        self.needs.iter().any(|need| *need != Need::Whole)
    }

    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    fn page_of(&self, node: u32, cache: usize) -> u32 {
        self.pages[node as usize * self.needs.len() + cache]
    }

    fn first_child_of(&self, parent: u32) -> u32 {
        match parent {
            NONE => self.roots,
            parent => self.node(parent).first_child,
        }
    }

    fn set_first_child(&mut self, parent: u32, child: u32) {
        match parent {
            NONE => self.roots = child,
            parent => self.node_mut(parent).first_child = child,
        }
    }

    fn children(&self, parent: u32) -> impl Iterator<Item = u32> {
        let some = |node: u32| (node != NONE).then_some(node);
        std::iter::successors(some(self.first_child_of(parent)), move |node| {
            some(self.node(*node).next)
        })
    }

    /// Where the chain of full nodes with these tokens begins. Runs that differ in roles only share a bucket.
    fn bucket(&self, parent: u32, chunk: &[Key]) -> usize {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(parent);
        for key in chunk {
            hasher.write_u64(without_role(*key));
        }
        hasher.finish() as usize & (self.buckets.len() - 1)
    }

    /// Nodes in use, from the one that has not been used for the longest time. Children come before their parents.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.recent.iter()
    }

    /// Number of nodes in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The node's keys.
    pub(crate) fn keys(&self, node: u32) -> &[Key] {
        let first = node as usize * self.page;
        &self.keys[first..first + self.node(node).len]
    }

    /// The node's pages, one per cache, or `NO_PAGE`.
    pub(crate) fn pages(&self, node: u32) -> &[u32] {
        let first = node as usize * self.needs.len();
        &self.pages[first..first + self.needs.len()]
    }

    /// The node before it; `None` for the first page of a text.
    pub(crate) fn parent(&self, node: u32) -> Option<u32> {
        let parent = self.node(node).parent;
        (parent != NONE).then_some(parent)
    }
}

#[cfg(test)]
mod tests;
