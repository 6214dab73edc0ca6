//! What the prefix cache holds, in Dynamo's words.

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq,
};
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use welte::PrefixChange;

/// Tells of changes until the engine has ended. Runs on a thread of its own.
pub(crate) fn tell(changes: &Receiver<PrefixChange>, publisher: &KvEventPublisher) {
    let mut blocks = Blocks::new(publisher.kv_block_size());
    while let Ok(change) = changes.recv() {
        // Those that have come with it go with it.
        let changes = std::iter::once(change).chain(changes.try_iter().take(1023));
        let events: Vec<KvCacheEvent> = changes
            .filter_map(|change| blocks.take(change))
            .map(|data| KvCacheEvent {
                event_id: publisher.next_event_id(),
                data,
                dp_rank: 0,
            })
            .collect();
        if publisher.publish_batch(events).is_err() {
            return;
        }
    }
}

/// The blocks that are known to be cached.
struct Blocks {
    /// Tokens of a block.
    size: u32,
    /// The names of pages.
    names: HashMap<u32, u64>,
    /// Pages with a name: a text may be cached as prompt and as answer.
    pages: HashMap<u64, usize>,
}

impl Blocks {
    fn new(size: u32) -> Blocks {
        Blocks {
            size,
            names: HashMap::new(),
            pages: HashMap::new(),
        }
    }

    /// Takes a change. Returns what routers must know of it.
    fn take(&mut self, change: PrefixChange) -> Option<KvCacheEventData> {
        match change {
            PrefixChange::Stored {
                node,
                parent,
                tokens,
            } => {
                let parent = parent.and_then(|parent| self.names.get(&parent).copied());
                let tokens_hash =
                    compute_block_hash_for_seq(&tokens, self.size, BlockHashOptions::default());
                let tokens_hash = tokens_hash.into_iter().next()?;
                let name = name(parent, tokens_hash.0);
                self.names.insert(node, name);
                let pages = self.pages.entry(name).or_default();
                *pages += 1;
                (*pages == 1).then(|| {
                    KvCacheEventData::Stored(KvCacheStoreData {
                        parent_hash: parent.map(ExternalSequenceBlockHash),
                        start_position: None,
                        blocks: vec![KvCacheStoredBlockData {
                            block_hash: ExternalSequenceBlockHash(name),
                            tokens_hash,
                            mm_extra_info: None,
                        }],
                    })
                })
            }
            PrefixChange::Removed { node } => {
                let name = self.names.remove(&node)?;
                let pages = self.pages.get_mut(&name)?;
                *pages -= 1;
                if *pages > 0 {
                    return None;
                }
                self.pages.remove(&name);
                Some(KvCacheEventData::Removed(KvCacheRemoveData {
                    block_hashes: vec![ExternalSequenceBlockHash(name)],
                }))
            }
            PrefixChange::Cleared => {
                self.names.clear();
                self.pages.clear();
                Some(KvCacheEventData::Cleared)
            }
        }
    }
}

/// The name of a block: it follows from its tokens and the block before.
fn name(parent: Option<u64>, tokens: u64) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one((parent, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(node: u32, parent: Option<u32>, first: u32) -> PrefixChange {
        let tokens = (first..first + 4).collect();
        PrefixChange::Stored {
            node,
            parent,
            tokens,
        }
    }

    fn block(data: Option<KvCacheEventData>) -> (Option<u64>, u64) {
        let Some(KvCacheEventData::Stored(data)) = data else {
            panic!("{data:?}");
        };
        (
            data.parent_hash.map(|hash| hash.0),
            data.blocks[0].block_hash.0,
        )
    }

    #[test]
    fn blocks_are_named_by_what_is_before_them() {
        let mut blocks = Blocks::new(4);
        let (none, first) = block(blocks.take(stored(7, None, 10)));
        let (parent, second) = block(blocks.take(stored(8, Some(7), 20)));
        assert_eq!((none, parent), (None, Some(first)));
        let (_, alone) = block(blocks.take(stored(9, None, 20)));
        assert_ne!(second, alone);
        // The same text in another role is told of once, and removed when both are.
        assert_eq!(blocks.take(stored(10, Some(7), 20)), None);
        assert_eq!(blocks.take(PrefixChange::Removed { node: 8 }), None);
        let removed = KvCacheRemoveData {
            block_hashes: vec![ExternalSequenceBlockHash(second)],
        };
        let removed = Some(KvCacheEventData::Removed(removed));
        assert_eq!(blocks.take(PrefixChange::Removed { node: 10 }), removed);
        assert_eq!(blocks.take(PrefixChange::Removed { node: 10 }), None);
        assert_eq!(
            blocks.take(PrefixChange::Cleared),
            Some(KvCacheEventData::Cleared)
        );
    }
}
