//! What an engine is doing, for people who watch it.

use super::pages::Pages;
use super::sequence::Sequence;
use crate::cache::NO_PAGE;
use web_time::Instant;
use welte_table::Program;

/// The state of an engine between two turns of its scheduler. The caller allocates it; the scheduler only fills it in.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Every slot, in order.
    pub slots: Vec<SlotSnapshot>,
    /// Requests that wait, in no order.
    pub waiting: Vec<WaitingSnapshot>,
    /// For each cache, how many references each page has.
    pub references: Vec<Vec<u32>>,
    /// The nodes of the prefix tree, in no order.
    pub nodes: Vec<NodeSnapshot>,
    /// The most nodes of the tree.
    pub node_capacity: usize,
    /// Tokens of prompts that were computed since the start.
    pub prompt_tokens: u64,
    /// Tokens that were generated since the start.
    pub generated_tokens: u64,
    /// Steps of decoding since the start.
    pub decode_steps: u64,
}

/// A slot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SlotSnapshot {
    /// The number of the request that has it; `None` if it is free.
    pub request: Option<u64>,
    /// Whether its prompt is still being computed.
    pub in_prompt: bool,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were cached.
    pub cached_tokens: usize,
    /// Positions that are computed.
    pub position: usize,
    /// The position at which the request must end.
    pub limit: usize,
    /// When the request got a slot for the first time.
    pub admitted: Option<Instant>,
    /// Its pages in each cache, in order of position.
    pub pages: Vec<Vec<u32>>,
}

/// A request without a slot.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct WaitingSnapshot {
    /// Its number.
    pub request: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Its priority.
    pub priority: i32,
    /// Whether it ran before and gave its pages to others.
    pub preempted: bool,
}

/// A node of the prefix tree.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct NodeSnapshot {
    /// Its number.
    pub id: u32,
    /// The node before it; `None` at the beginning of a text.
    pub parent: Option<u32>,
    /// Its tokens.
    pub tokens: usize,
    /// A cache and the node's page in it.
    pub page: Option<(usize, u32)>,
}

impl Snapshot {
    /// An empty one with room for everything.
    pub(crate) fn with_room(program: &Program, requests: usize) -> Snapshot {
        let lists = || {
            program
                .caches
                .iter()
                .map(|cache| Vec::with_capacity(cache.entries(program) as usize))
        };
        let slot = |_| SlotSnapshot {
            pages: lists().collect(),
            ..SlotSnapshot::default()
        };
        let pages = program.caches.iter().map(|cache| cache.pages as usize);
        let node_capacity = pages.clone().max().unwrap_or(0);
        Snapshot {
            slots: (0..program.slots).map(slot).collect(),
            waiting: Vec::with_capacity(requests),
            references: pages.map(Vec::with_capacity).collect(),
            nodes: Vec::with_capacity(node_capacity),
            node_capacity,
            ..Snapshot::default()
        }
    }

    pub(crate) fn fill(&mut self, running: &[Sequence], waiting: &[Sequence], pages: &Pages) {
        for slot in &mut self.slots {
            slot.request = None;
            slot.pages.iter_mut().for_each(Vec::clear);
        }
        for sequence in running {
            let Some(slot) = self.slots.get_mut(sequence.slot as usize) else {
                continue;
            };
            let report = sequence.out.reported();
            slot.request = Some(sequence.number);
            slot.in_prompt = sequence.is_filling() || sequence.generated() == 0;
            slot.prompt_tokens = sequence.prompt;
            slot.cached_tokens = report.cached;
            slot.position = sequence.computed;
            slot.limit = sequence.tokens.len() + sequence.remaining();
            slot.admitted = report.admitted;
            for (list, own) in slot.pages.iter_mut().zip(&sequence.lists) {
                list.extend(own.iter().filter(|page| **page != NO_PAGE));
            }
        }
        self.waiting.clear();
        self.waiting
            .extend(waiting.iter().map(|sequence| WaitingSnapshot {
                request: sequence.number,
                prompt_tokens: sequence.prompt,
                priority: sequence.priority,
                preempted: sequence.begun,
            }));
        for (list, pool) in self.references.iter_mut().zip(pages.pools()) {
            list.clear();
            list.extend((0..pool.pages() as u32).map(|page| pool.references(page)));
        }
        let tree = pages.tree();
        self.nodes.clear();
        self.nodes.extend(tree.nodes().map(|id| {
            let mut pages = tree.pages(id).iter().copied().enumerate();
            NodeSnapshot {
                id,
                parent: tree.parent(id),
                tokens: tree.keys(id).len(),
                page: pages.find(|(_, page)| *page != NO_PAGE),
            }
        }));
    }
}
