//! The tree against a brute-force search, with simulated page contents.

use super::*;
use crate::cache::{GENERATED, feature_key};
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver};
use welte_table::{CacheSpec, Format};

const PAGE: usize = 4;

fn attention(pages: u32, window: u32) -> CacheSpec {
    CacheSpec {
        name: "kv".to_string(),
        buffer: 0,
        pages,
        kind: CacheKind::Attention {
            format: Format::F16,
            layers: 1,
            kv_heads: 1,
            head_dim: 1,
            window,
        },
    }
}

fn recurrent(pages: u32) -> CacheSpec {
    CacheSpec {
        kind: CacheKind::Recurrent {
            layers: 1,
            floats: 1,
        },
        ..attention(pages, 0)
    }
}

fn program(caches: Vec<CacheSpec>) -> Program {
    Program {
        weights: Vec::new(),
        buffers: Vec::new(),
        caches,
        vocab: 100,
        context: 64,
        page: PAGE as u32,
        slots: 1,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: Vec::new(),
    }
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// What the caches hold for the last of these keys. Stands for the bits that a device would compute.
fn value(keys: &[Key]) -> u64 {
    keys.iter().fold(1, |value, key| {
        (value ^ *key).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (value >> 29)
    })
}

/// A sequence as the scheduler would run it.
#[derive(Default)]
struct Sequence {
    keys: Vec<Key>,
    lists: Vec<Vec<u32>>,
    /// Positions computed.
    computed: usize,
}

/// Tree, pools, and what the pages hold: a value per position, or one per state.
struct Simulation {
    specs: Vec<CacheSpec>,
    tree: PrefixTree,
    pools: Vec<PagePool>,
    values: Vec<Vec<u64>>,
    running: Vec<Sequence>,
    texts: Vec<Vec<Key>>,
    random: Random,
    hits: usize,
    evictions: usize,
    /// What the tree tells, and what is known from that: parents and tokens.
    changes: Receiver<PrefixChange>,
    known: BTreeMap<u32, (Option<u32>, Vec<u32>)>,
}

impl Simulation {
    fn new(specs: Vec<CacheSpec>, seed: u64) -> Simulation {
        let mut tree = PrefixTree::new(&program(specs.clone()));
        let (watcher, changes) = mpsc::channel();
        tree.watch(watcher);
        Simulation {
            tree,
            changes,
            known: BTreeMap::new(),
            pools: specs.iter().map(|spec| PagePool::new(spec.pages)).collect(),
            values: specs
                .iter()
                .map(|spec| vec![0; spec.pages as usize * PAGE])
                .collect(),
            specs,
            running: Vec::new(),
            texts: Vec::new(),
            random: Random(seed),
            hits: 0,
            evictions: 0,
        }
    }

    fn is_state(&self, cache: usize) -> bool {
        matches!(self.specs[cache].kind, CacheKind::Recurrent { .. })
    }

    /// First position that computing position `next` reads.
    fn first_read(&self, cache: usize, next: usize) -> usize {
        match self.specs[cache].kind {
            CacheKind::Attention { window: 0, .. } => 0,
            CacheKind::Attention { window, .. } => (next + 1).saturating_sub(window as usize),
            CacheKind::Recurrent { .. } => next - 1,
        }
    }

    fn take(&mut self, cache: usize) -> Option<u32> {
        while self.pools[cache].free() == 0 {
            let mut evicted = 0;
            let freed = self.tree.evict(cache, &mut self.pools, &mut |tree, leaf| {
                assert!(!tree.keys(leaf).is_empty());
                evicted += 1;
            });
            self.evictions += evicted;
            if !freed {
                return None;
            }
        }
        self.pools[cache].take()
    }

    /// The longest usable prefix and where it differs, by trying every node and every length.
    fn brute_force(
        &self,
        keys: &[Key],
        limit: usize,
        exact: bool,
    ) -> (usize, Vec<Key>, Option<usize>) {
        let matches = |held: Key, wanted: Key| {
            held == wanted || (!exact && wanted < GENERATED && held == wanted | GENERATED)
        };
        let keys = &keys[..limit.min(keys.len())];
        let (mut best, mut best_keys) = (0, Vec::new());
        let (mut longest, mut differs) = (0, false);
        for node in self.tree.nodes() {
            let mut chain = vec![node];
            while let Some(parent) = self.tree.parent(chain[0]) {
                chain.insert(0, parent);
            }
            let held: Vec<Key> = chain
                .iter()
                .flat_map(|n| self.tree.keys(*n))
                .copied()
                .collect();
            let same = held
                .iter()
                .zip(keys)
                .take_while(|(h, k)| matches(**h, **k))
                .count();
            if same > longest {
                (longest, differs) = (same, false);
            }
            differs |= same == longest && held.len() > same && keys.len() > same;
            for length in 1..=same {
                let usable = (0..self.specs.len()).all(|cache| {
                    if self.is_state(cache) {
                        return length == held.len() && self.tree.pages(node)[cache] != NO_PAGE;
                    }
                    (self.first_read(cache, length)..length)
                        .all(|position| self.tree.pages(chain[position / PAGE])[cache] != NO_PAGE)
                });
                let earlier = length == best && held[..length] < best_keys[..];
                if usable && (length > best || earlier) {
                    (best, best_keys) = (length, held[..length].to_vec());
                }
            }
        }
        (best, best_keys, (differs && longest > 0).then_some(longest))
    }

    /// A prompt that often begins like an earlier text.
    fn prompt(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        if !self.texts.is_empty() && self.random.below(4) > 0 {
            let text = &self.texts[self.random.below(self.texts.len())];
            let end = self.random.below(text.len()) + 1;
            keys.extend(text[..end].iter().map(|key| without_role(*key)));
        }
        for _ in 0..1 + self.random.below(9) {
            let token = self.random.below(3);
            // Media are told apart by their numbers.
            keys.push(match self.random.below(8) {
                0 => feature_key(1 + token as u32 / 2, token as u32 % 2),
                _ => token as Key,
            });
        }
        keys.truncate(50);
        keys
    }

    /// Looks a prompt up, checks the hit against brute force and the contents of its pages, and starts a sequence.
    fn start(&mut self) {
        let mut keys = self.prompt();
        let exact = self.random.below(3) == 0;
        let limit = match self.random.below(4) {
            0 => keys.len(),
            _ => keys.len() - 1,
        };
        let wanted = keys.clone();
        let hit = self.tree.find(&keys, limit, exact);
        let (tokens, best, differs_at) = self.brute_force(&keys, limit, exact);
        assert_eq!(
            hit.tokens, tokens,
            "{keys:?}, at most {limit}, exact {exact}"
        );
        assert_eq!(hit.differs_at, differs_at, "{keys:?}");
        self.hits += usize::from(tokens > 0);

        let caches = self.specs.len();
        let mut lists = vec![Vec::with_capacity(keys.len() / PAGE + 1); caches];
        let mut copies = vec![0; caches];
        self.tree
            .acquire(&hit, &mut keys, &mut self.pools, &mut lists, &mut copies);
        assert_eq!(keys[..tokens], best);
        assert_eq!(keys[tokens..], wanted[tokens..]);
        let mut sequence = Sequence {
            keys,
            lists,
            computed: tokens,
        };
        for cache in 0..caches {
            if self.copy(cache, copies[cache], &mut sequence).is_none() {
                for copy in copies[cache..].iter().zip(&mut self.pools[cache..]) {
                    if *copy.0 != NO_PAGE {
                        copy.1.release(*copy.0);
                    }
                }
                return self.release(sequence);
            }
        }
        self.check(&sequence);
        self.running.push(sequence);
    }

    /// Gives the sequence its own copy of the page that it goes on writing.
    fn copy(&mut self, cache: usize, from: u32, sequence: &mut Sequence) -> Option<()> {
        if self.is_state(cache) || !sequence.computed.is_multiple_of(PAGE) {
            let to = self.take(cache)?;
            sequence.lists[cache].push(to);
            if from != NO_PAGE {
                let from_values = from as usize * PAGE..(from as usize + 1) * PAGE;
                self.values[cache].copy_within(from_values, to as usize * PAGE);
                self.pools[cache].release(from);
            }
        }
        Some(())
    }

    /// Every position that the next one reads holds the bits of these keys.
    fn check(&self, sequence: &Sequence) {
        let done = sequence.computed;
        for cache in 0..self.specs.len() {
            let values = &self.values[cache];
            if done == 0 {
                continue;
            }
            for position in self.first_read(cache, done)..done {
                let (entry, offset) = if self.is_state(cache) {
                    (0, 0)
                } else {
                    (position / PAGE, position % PAGE)
                };
                let page = sequence.lists[cache][entry];
                assert_ne!(page, NO_PAGE, "cache {cache}, position {position}");
                let held = values[page as usize * PAGE + offset];
                assert_eq!(
                    held,
                    value(&sequence.keys[..=position]),
                    "position {position}"
                );
            }
        }
    }

    /// Computes one position. False if there is no page for it.
    fn compute(&mut self, sequence: &mut Sequence) -> bool {
        self.check(sequence);
        let position = sequence.computed;
        if position == sequence.keys.len() {
            sequence.keys.push(self.random.below(3) as Key | GENERATED);
        }
        for cache in 0..self.specs.len() {
            let state = self.is_state(cache);
            let entry = if state { 0 } else { position / PAGE };
            if sequence.lists[cache].len() <= entry {
                let Some(page) = self.take(cache) else {
                    return false;
                };
                sequence.lists[cache].push(page);
            }
            let page = sequence.lists[cache][entry];
            assert_eq!(
                self.pools[cache].references(page),
                1,
                "a shared page is written"
            );
            let offset = if state { 0 } else { position % PAGE };
            self.values[cache][page as usize * PAGE + offset] = value(&sequence.keys[..=position]);
        }
        sequence.computed += 1;
        if sequence.computed.is_multiple_of(PAGE) {
            let keys = &sequence.keys[..sequence.computed];
            self.tree
                .insert(keys, &sequence.lists, false, &mut self.pools);
            self.leave_windows(sequence);
        }
        true
    }

    /// Drops pages that no later position reads.
    fn leave_windows(&mut self, sequence: &mut Sequence) {
        for cache in 0..self.specs.len() {
            if self.is_state(cache) {
                continue;
            }
            let first = self.first_read(cache, sequence.computed) / PAGE;
            for page in sequence.lists[cache].iter_mut().take(first) {
                if *page != NO_PAGE {
                    self.pools[cache].release(*page);
                    *page = NO_PAGE;
                }
            }
        }
    }

    fn finish(&mut self, sequence: Sequence) {
        let keys = &sequence.keys[..sequence.computed];
        self.tree
            .insert(keys, &sequence.lists, true, &mut self.pools);
        if !keys.is_empty() {
            self.texts.push(keys.to_vec());
        }
        self.release(sequence);
    }

    fn release(&mut self, sequence: Sequence) {
        for (list, pool) in sequence.lists.iter().zip(&mut self.pools) {
            for page in list.iter().filter(|page| **page != NO_PAGE) {
                pool.release(*page);
            }
        }
    }

    /// Each page has a reference of each sequence and node that uses it, and parents are newer than their children.
    fn check_references(&self) {
        for (cache, pool) in self.pools.iter().enumerate() {
            let mut references = vec![0; pool.pages()];
            let of_sequences = self
                .running
                .iter()
                .flat_map(|s| s.lists[cache].iter().copied());
            let of_nodes = self.tree.nodes().map(|node| self.tree.pages(node)[cache]);
            for page in of_sequences.chain(of_nodes).filter(|page| *page != NO_PAGE) {
                references[page as usize] += 1;
            }
            for (page, references) in references.iter().enumerate() {
                assert_eq!(pool.references(page as u32), *references, "page {page}");
            }
            assert_eq!(pool.free(), references.iter().filter(|n| **n == 0).count());
        }
        assert_eq!(self.tree.nodes().count(), self.tree.len());
    }

    /// Whoever listens knows the full pages of tokens that follow others of tokens, and each after the one before it.
    fn check_changes(&mut self) {
        for change in self.changes.try_iter() {
            match change {
                PrefixChange::Stored {
                    node,
                    parent,
                    tokens,
                } => {
                    assert!(parent.is_none_or(|parent| self.known.contains_key(&parent)));
                    assert!(self.known.insert(node, (parent, tokens)).is_none());
                }
                PrefixChange::Removed { node } => {
                    assert!(self.known.remove(&node).is_some());
                    assert!(self.known.values().all(|(parent, _)| *parent != Some(node)));
                }
                PrefixChange::Cleared => self.known.clear(),
            }
        }
        let tokens = |node: u32| -> Option<Vec<u32>> {
            let keys = self.tree.keys(node).iter();
            keys.map(|key| token_key(without_role(*key))).collect()
        };
        let is_told = |node: u32| {
            let mut path = std::iter::successors(Some(node), |node| self.tree.parent(*node));
            path.all(|node| self.tree.keys(node).len() == PAGE && tokens(node).is_some())
        };
        let expected = self.tree.nodes().filter(|node| is_told(*node));
        let expected: BTreeMap<_, _> = expected
            .map(|node| (node, (self.tree.parent(node), tokens(node).unwrap())))
            .collect();
        assert_eq!(self.known, expected);
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 | 1 if self.running.len() < 3 => self.start(),
            2 if !self.running.is_empty() => {
                let sequence = self.running.remove(0);
                self.finish(sequence);
            }
            _ if !self.running.is_empty() => {
                let mut sequence = self.running.remove(self.random.below(self.running.len()));
                if sequence.keys.len() == 60 {
                    self.finish(sequence);
                } else if self.compute(&mut sequence) {
                    self.running.push(sequence);
                } else {
                    self.release(sequence);
                }
            }
            _ => (),
        }
    }

    /// Takes random steps, gives everything back, and returns the number of hits.
    fn run(mut self, steps: usize) -> usize {
        for _ in 0..steps {
            self.step();
            self.check_references();
            self.check_changes();
        }
        while let Some(sequence) = self.running.pop() {
            self.release(sequence);
        }
        self.tree.clear(&mut self.pools);
        assert_eq!(self.tree.len(), 0);
        self.check_changes();
        assert!(self.pools.iter().all(|pool| pool.free() == pool.pages()));
        // The empty tree works as a new one.
        let hit = self.tree.find(&[0, 1, 2], 3, false);
        assert_eq!((hit.tokens, hit.node, hit.differs_at), (0, None, None));
        self.hits
    }
}

fn simulate(caches: impl Fn() -> Vec<CacheSpec>) {
    let hits: usize = (0..40)
        .map(|seed| Simulation::new(caches(), seed).run(500))
        .sum();
    assert!(hits > 200, "{hits} hits");
}

#[test]
fn full_attention() {
    simulate(|| vec![attention(1000, 0)]);
    simulate(|| vec![attention(40, 0)]);
}

#[test]
fn two_pools_of_different_size() {
    simulate(|| vec![attention(60, 0), attention(45, 0)]);
}

#[test]
fn windows_beside_full_attention() {
    simulate(|| vec![attention(60, 0), attention(16, 6)]);
    simulate(|| vec![attention(60, 0), attention(16, 2)]);
    simulate(|| vec![attention(14, 4), attention(60, 0), attention(20, 9)]);
}

#[test]
fn windows_only() {
    simulate(|| vec![attention(14, 5)]);
}

#[test]
fn recurrent_states() {
    simulate(|| vec![recurrent(12)]);
    simulate(|| vec![attention(60, 0), recurrent(12)]);
    simulate(|| vec![attention(60, 0), attention(30, 6), recurrent(20)]);
}

/// A tree with one cache, and a way to leave texts in it.
struct Small {
    tree: PrefixTree,
    pools: Vec<PagePool>,
}

impl Small {
    fn new(pages: u32) -> Small {
        Small::of(attention(pages, 0))
    }

    fn of(cache: CacheSpec) -> Small {
        Small {
            pools: vec![PagePool::new(cache.pages)],
            tree: PrefixTree::new(&program(vec![cache])),
        }
    }

    fn leave(&mut self, keys: &[Key]) {
        let pages = (0..keys.len().div_ceil(PAGE)).map(|_| self.pools[0].take().unwrap());
        let lists = [pages.collect::<Vec<_>>()];
        self.tree.insert(keys, &lists, true, &mut self.pools);
        for page in &lists[0] {
            self.pools[0].release(*page);
        }
    }

    fn find(&mut self, keys: &[Key]) -> (usize, Option<usize>) {
        let hit = self.tree.find(keys, keys.len(), false);
        (hit.tokens, hit.differs_at)
    }

    /// Takes a prompt over and gives it back: marks it as used.
    fn hit(&mut self, keys: &[Key]) {
        let hit = self.tree.find(keys, keys.len(), false);
        let (mut lists, mut copies) = ([Vec::new()], [NO_PAGE]);
        let mut keys = keys.to_vec();
        self.tree
            .acquire(&hit, &mut keys, &mut self.pools, &mut lists, &mut copies);
        for page in lists[0]
            .iter()
            .chain(&copies)
            .filter(|page| **page != NO_PAGE)
        {
            self.pools[0].release(*page);
        }
    }

    fn evict(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut note = |tree: &PrefixTree, node| keys.extend_from_slice(tree.keys(node));
        assert!(self.tree.evict(0, &mut self.pools, &mut note));
        keys
    }
}

#[test]
fn a_hit_says_where_the_prompt_differs() {
    let mut small = Small::new(20);
    assert_eq!(small.find(&[1, 2, 3]), (0, None));
    small.leave(&[1, 2, 3, 4, 5, 6]);
    // Continued, repeated, cut short.
    assert_eq!(small.find(&[1, 2, 3, 4, 5, 6, 7, 8]), (6, None));
    assert_eq!(small.find(&[1, 2, 3, 4, 5, 6]), (6, None));
    assert_eq!(small.find(&[1, 2, 3]), (3, None));
    // Another token in the second page, in the first, and at once.
    assert_eq!(small.find(&[1, 2, 3, 4, 5, 9, 7]), (5, Some(5)));
    assert_eq!(small.find(&[1, 2, 3, 4, 9]), (4, Some(4)));
    assert_eq!(small.find(&[1, 9]), (1, Some(1)));
    assert_eq!(small.find(&[9]), (0, None));
    // The closest of two texts counts.
    small.leave(&[1, 2, 9]);
    assert_eq!(small.find(&[1, 2, 3, 8]), (3, Some(3)));
    assert_eq!(small.find(&[1, 2, 9, 8]), (3, None));
}

#[test]
fn roles_are_kept_apart() {
    let g = |token: Key| token | GENERATED;
    let mut small = Small::new(20);
    small.leave(&[1, 2, g(3), g(4), g(5), 6]);
    let found = |small: &mut Small, keys: &[Key], exact| small.tree.find(keys, 99, exact).tokens;
    assert_eq!(found(&mut small, &[1, 2, 3, 4, 5, 6, 7], false), 6);
    assert_eq!(found(&mut small, &[1, 2, 3, 4, 5, 6, 7], true), 2);
    assert_eq!(found(&mut small, &[1, 2, g(3), g(4), g(5), 6], true), 6);
    assert_eq!(found(&mut small, &[1, 2, g(3), g(4), g(5), g(6)], false), 5);
    // A text in the role of the prompt is preferred to one of the same length.
    small.leave(&[1, 2, 3, 4, 5, 6]);
    for exact in [false, true] {
        let mut keys = [1, 2, 3, 4, 5, 6];
        let hit = small.tree.find(&keys, 6, exact);
        assert_eq!(hit.tokens, 6);
        let (mut lists, mut copies) = ([Vec::new()], [NO_PAGE]);
        small
            .tree
            .acquire(&hit, &mut keys, &mut small.pools, &mut lists, &mut copies);
        assert_eq!(keys, [1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn a_longer_text_takes_the_place_of_its_beginning() {
    let mut small = Small::new(20);
    small.leave(&[1, 2]);
    small.leave(&[1, 2, 3]);
    assert_eq!((small.tree.len(), small.pools[0].free()), (1, 19));
    small.leave(&[1]);
    assert_eq!(small.find(&[1, 2, 3]), (3, None));
    small.leave(&[1, 2, 3, 4, 5]);
    assert_eq!((small.tree.len(), small.pools[0].free()), (2, 18));
    small.leave(&[1, 2, 7]);
    assert_eq!((small.tree.len(), small.pools[0].free()), (3, 17));
}

#[test]
fn the_least_recently_used_leaf_is_evicted_first() {
    let mut small = Small::new(5);
    small.leave(&[1, 1, 1, 1, 2, 2, 2, 2]);
    small.leave(&[3, 3, 3, 3]);
    small.leave(&[1, 1, 1, 1, 4, 4]);
    small.leave(&[5]);
    small.hit(&[1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(small.evict(), [3, 3, 3, 3]);
    assert_eq!(small.evict(), [4, 4]);
    assert_eq!(small.evict(), [5]);
    assert_eq!(small.evict(), [2, 2, 2, 2]);
    assert_eq!(small.evict(), [1, 1, 1, 1]);
    assert!(!small.tree.evict(0, &mut small.pools, &mut |_, _| ()));
}

/// A window gives up pages and keeps their nodes, which end with the next text.
#[test]
fn nodes_without_pages_make_room() {
    let mut small = Small::of(attention(4, 2));
    small.leave(&[1; 16]);
    for _ in 0..3 {
        assert!(small.tree.evict(0, &mut small.pools, &mut |_, _| ()));
    }
    assert_eq!((small.tree.len(), small.pools[0].free()), (4, 3));
    small.leave(&[9; 4]);
    assert_eq!(small.find(&[9; 4]).0, 4);
}

#[test]
fn pages_of_sequences_are_not_evicted() {
    let mut small = Small::new(3);
    small.leave(&[1, 1, 1, 1, 2, 2, 2, 2]);
    small.leave(&[3]);
    let mut keys = [1, 1, 1, 1, 2, 2, 2, 2];
    let hit = small.tree.find(&keys, 8, false);
    let (mut lists, mut copies) = ([Vec::new()], [NO_PAGE]);
    small
        .tree
        .acquire(&hit, &mut keys, &mut small.pools, &mut lists, &mut copies);
    small.hit(&[3]);
    assert_eq!(small.evict(), [3]);
    assert!(!small.tree.evict(0, &mut small.pools, &mut |_, _| ()));
    assert_eq!(lists[0].len(), 2);
    small.pools[0].release(lists[0][1]);
    assert_eq!(small.evict(), [2, 2, 2, 2]);
    assert!(!small.tree.evict(0, &mut small.pools, &mut |_, _| ()));
}

#[test]
fn a_cache_with_a_window_gives_up_old_pages_first() {
    let mut simulation = Simulation::new(vec![attention(20, 0), attention(6, 4)], 1);
    let keys: Vec<Key> = (0..16).collect();
    let mut sequence = Sequence {
        keys,
        lists: vec![Vec::new(), Vec::new()],
        ..Sequence::default()
    };
    while sequence.computed < 16 {
        assert!(simulation.compute(&mut sequence));
    }
    simulation.finish(sequence);
    let keys: Vec<Key> = (0..16).collect();
    let mut lengths = Vec::new();
    for _ in 0..4 {
        assert!(
            simulation
                .tree
                .evict(1, &mut simulation.pools, &mut |_, _| ())
        );
        lengths.push([16, 9, 4, 3].map(|limit| simulation.tree.find(&keys, limit, true).tokens));
    }
    // Only the end stays of use, until the last page and with it everything goes.
    assert_eq!(
        lengths,
        [[16, 9, 0, 0], [16, 0, 0, 0], [16, 0, 0, 0], [0; 4]]
    );
    assert_eq!(simulation.tree.len(), 0);
}

#[test]
fn states_thin_out_along_a_text() {
    let mut small = Small::of(recurrent(20));
    let text: Vec<Key> = (0..32).collect();
    let ends: Vec<usize> = (PAGE..=32).step_by(PAGE).collect();
    for end in &ends {
        small.leave(&text[..*end]);
    }
    (0..3).for_each(|_| drop(small.evict()));
    let mut kept = ends;
    kept.retain(|end| small.find(&text[..*end]).0 == *end);
    // The later half was not looked at.
    assert_eq!(kept, [8, 16, 24, 28, 32]);
}

#[test]
fn nothing_grows_after_construction() {
    let mut simulation = Simulation::new(vec![attention(40, 0), attention(20, 6)], 3);
    let sizes = |s: &Simulation| [&s.tree.stack, &s.tree.path, &s.tree.best].map(Vec::capacity);
    let before = sizes(&simulation);
    for _ in 0..2000 {
        simulation.step();
    }
    assert!(simulation.evictions > 0 && simulation.hits > 0);
    assert_eq!(sizes(&simulation), before);
}
