//! The blocks of a prefix cache with vLLM's hashes, and events about them in vLLM's format.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use welte::PrefixChange;

type Hash = [u8; 32];

/// What routers are told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Blocks that follow each other, after a parent.
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
    },
    Removed(Vec<u64>),
    Cleared,
}

/// The blocks that are known to be cached.
pub(super) struct Blocks {
    /// What stands before the first block.
    root: Hash,
    /// The hashes of pages.
    hashes: HashMap<u32, Hash>,
    /// Pages with a hash: a text may be cached in two roles.
    pages: HashMap<Hash, usize>,
}

impl Blocks {
    /// `seed`: what vLLM takes from PYTHONHASHSEED.
    pub(super) fn new(seed: &str) -> Blocks {
        let mut bytes = Vec::new();
        head(&mut bytes, 3, seed.len() as u64);
        bytes.extend_from_slice(seed.as_bytes());
        Blocks {
            root: Sha256::digest(bytes).into(),
            hashes: HashMap::new(),
            pages: HashMap::new(),
        }
    }

    /// Takes a change, and adds what routers must know of it.
    pub(super) fn take(&mut self, change: PrefixChange, events: &mut Vec<Event>) {
        match change {
            PrefixChange::Stored {
                node,
                parent,
                tokens,
            } => {
                let before = parent.and_then(|parent| self.hashes.get(&parent).copied());
                let hash = hash(&before.unwrap_or(self.root), &tokens);
                self.hashes.insert(node, hash);
                let pages = self.pages.entry(hash).or_default();
                *pages += 1;
                if *pages == 1 {
                    add_stored(
                        events,
                        short(&hash),
                        before.map(|before| short(&before)),
                        tokens,
                    );
                }
            }
            PrefixChange::Removed { node } => {
                let Some(hash) = self.hashes.remove(&node) else {
                    return;
                };
                let Some(pages) = self.pages.get_mut(&hash) else {
                    return;
                };
                *pages -= 1;
                if *pages == 0 {
                    self.pages.remove(&hash);
                    match events.last_mut() {
                        Some(Event::Removed(all)) => all.push(short(&hash)),
                        _ => events.push(Event::Removed(vec![short(&hash)])),
                    }
                }
            }
            PrefixChange::Cleared => {
                self.hashes.clear();
                self.pages.clear();
                events.push(Event::Cleared);
            }
        }
    }
}

/// A block, in the event before if it follows there.
fn add_stored(events: &mut Vec<Event>, hash: u64, parent: Option<u64>, more: Vec<u32>) {
    match events.last_mut() {
        Some(Event::Stored { hashes, tokens, .. })
            if parent.is_some() && hashes.last().copied() == parent =>
        {
            hashes.push(hash);
            tokens.extend(more);
        }
        _ => events.push(Event::Stored {
            hashes: vec![hash],
            parent,
            tokens: more,
        }),
    }
}

/// vLLM's `sha256_cbor`: over the block before, the tokens and null, in CBOR.
fn hash(before: &Hash, tokens: &[u32]) -> Hash {
    let mut bytes = vec![0x83];
    head(&mut bytes, 2, before.len() as u64);
    bytes.extend_from_slice(before);
    head(&mut bytes, 4, tokens.len() as u64);
    for token in tokens {
        head(&mut bytes, 0, u64::from(*token));
    }
    bytes.push(0xf6);
    Sha256::digest(bytes).into()
}

/// The beginning of a value in CBOR: its kind, with a number or a length.
fn head(out: &mut Vec<u8>, kind: u8, n: u64) {
    let kind = kind << 5;
    match n {
        0..24 => out.push(kind | n as u8),
        24..0x100 => out.extend([kind | 24, n as u8]),
        0x100..0x1_0000 => {
            out.push(kind | 25);
            out.extend((n as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(kind | 26);
            out.extend((n as u32).to_be_bytes());
        }
        _ => {
            out.push(kind | 27);
            out.extend(n.to_be_bytes());
        }
    }
}

/// The number that events have for a hash: its last 64 bits.
fn short(hash: &Hash) -> u64 {
    let last = hash.last_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(last)
}

/// A batch of events in MessagePack, as vLLM's `KVEventBatch` is written. `time`: seconds since 1970.
pub(super) fn batch(time: f64, block_size: usize, events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    list(&mut out, 3);
    out.push(0xcb);
    out.extend(time.to_be_bytes());
    list(&mut out, events.len());
    for event in events {
        match event {
            Event::Stored {
                hashes,
                parent,
                tokens,
            } => {
                list(&mut out, 7);
                text(&mut out, "BlockStored");
                numbers(&mut out, hashes.iter().copied());
                match parent {
                    Some(parent) => number(&mut out, *parent),
                    None => out.push(NIL),
                }
                numbers(&mut out, tokens.iter().map(|token| u64::from(*token)));
                number(&mut out, block_size as u64);
                // No adapter.
                out.push(NIL);
                text(&mut out, MEDIUM);
            }
            Event::Removed(hashes) => {
                list(&mut out, 3);
                text(&mut out, "BlockRemoved");
                numbers(&mut out, hashes.iter().copied());
                text(&mut out, MEDIUM);
            }
            Event::Cleared => {
                list(&mut out, 1);
                text(&mut out, "AllBlocksCleared");
            }
        }
    }
    // No rank of data parallelism.
    out.push(NIL);
    out
}

const NIL: u8 = 0xc0;

/// Where the blocks are: vLLM's word for the memory that the model computes in.
const MEDIUM: &str = "GPU";

fn list(out: &mut Vec<u8>, length: usize) {
    match length {
        0..16 => out.push(0x90 | length as u8),
        16..0x1_0000 => {
            out.push(0xdc);
            out.extend((length as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend((length as u32).to_be_bytes());
        }
    }
}

fn numbers(out: &mut Vec<u8>, all: impl ExactSizeIterator<Item = u64>) {
    list(out, all.len());
    all.for_each(|n| number(out, n));
}

fn number(out: &mut Vec<u8>, n: u64) {
    match n {
        0..0x80 => out.push(n as u8),
        0x80..0x100 => out.extend([0xcc, n as u8]),
        0x100..0x1_0000 => {
            out.push(0xcd);
            out.extend((n as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(0xce);
            out.extend((n as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend(n.to_be_bytes());
        }
    }
}

/// A text of at most 31 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests;
