//! Stored responses. The oldest ones make room for new ones when the memory is used up.

use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// The most responses that are kept.
const MOST_RESPONSES: usize = 4096;

/// A part of a conversation. Responses that continue each other share their items.
pub(crate) struct Item {
    pub(super) value: Value,
    /// Once it is stored. The items of requests count as their bodies.
    memory: OnceLock<Memory>,
}

impl Item {
    pub(super) fn new(value: Value) -> Arc<Item> {
        Arc::new(Item {
            value,
            memory: OnceLock::new(),
        })
    }

    fn bytes(&self) -> usize {
        bytes(&self.value) + size_of::<Item>()
    }
}

/// Memory that counts against the limit until it is dropped.
struct Memory {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Memory {
    fn new(bytes: usize, total: &Arc<AtomicUsize>) -> Memory {
        total.fetch_add(bytes, Ordering::Relaxed);
        Memory {
            bytes,
            total: total.clone(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A response with the conversation that led to it.
pub(super) struct Stored {
    pub(super) id: String,
    /// The response without its output.
    pub(super) head: Value,
    /// The items of the responses that it continues.
    pub(super) before: Vec<Arc<Item>>,
    pub(super) input: Vec<Arc<Item>>,
    pub(super) output: Vec<Arc<Item>>,
    /// Ends the generation, while it goes on in the background.
    pub(super) cancel: Option<Arc<Notify>>,
}

impl Stored {
    /// The response as the API returns it.
    pub(super) fn response(&self) -> Value {
        let mut response = self.head.clone();
        response["output"] = self.output.iter().map(|item| item.value.clone()).collect();
        response
    }

    /// Its items and those of the responses that it continues.
    pub(super) fn conversation(&self) -> Vec<Arc<Item>> {
        let all = [&self.before, &self.input, &self.output];
        all.into_iter().flatten().cloned().collect()
    }

    fn own_bytes(&self) -> usize {
        let items = self.before.len() + self.input.len() + self.output.len();
        size_of::<Stored>() + self.id.len() + bytes(&self.head) + items * size_of::<Arc<Item>>()
    }
}

/// The stored responses.
pub(crate) struct Store {
    /// Oldest use first.
    entries: Mutex<Vec<(Arc<Stored>, Memory)>>,
    total: Arc<AtomicUsize>,
    limit: usize,
}

impl Store {
    /// A store of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Store {
        Store {
            entries: Mutex::default(),
            total: Arc::default(),
            limit,
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<(Arc<Stored>, Memory)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response, in place of an earlier state of the same one.
    pub(super) fn put(&self, stored: Stored) {
        self.keep(&mut self.entries(), stored);
    }

    /// As [`Store::put`], unless the response has been deleted meanwhile.
    pub(super) fn replace(&self, stored: Stored) {
        let mut entries = self.entries();
        if entries.iter().any(|(entry, _)| entry.id == stored.id) {
            self.keep(&mut entries, stored);
        }
    }

    fn keep(&self, entries: &mut Vec<(Arc<Stored>, Memory)>, stored: Stored) {
        entries.retain(|(entry, _)| entry.id != stored.id);
        let items = stored.conversation();
        let own = stored.own_bytes();
        if own + items.iter().map(|item| item.bytes()).sum::<usize>() > self.limit {
            // It would push out all others, and itself.
            tracing::debug!(id = stored.id, "a response is too large to be stored");
            return;
        }
        for item in items {
            let weigh = || Memory::new(item.bytes(), &self.total);
            item.memory.get_or_init(weigh);
        }
        let memory = Memory::new(own, &self.total);
        entries.push((Arc::new(stored), memory));
        let mut gone = 0;
        while entries.len() > MOST_RESPONSES || self.total.load(Ordering::Relaxed) > self.limit {
            // One that is still generated must be found by whoever wants to cancel it.
            let Some(oldest) = entries.iter().position(|(entry, _)| entry.cancel.is_none()) else {
                break;
            };
            // Dropped here, so that the total shrinks.
            entries.remove(oldest);
            gone += 1;
        }
        if gone > 0 {
            tracing::debug!(count = gone, "stored responses were dropped");
        }
    }

    /// A response. It counts as used now.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        let mut entries = self.entries();
        let at = entries.iter().position(|(entry, _)| entry.id == id)?;
        let entry = entries.remove(at);
        let stored = entry.0.clone();
        entries.push(entry);
        Some(stored)
    }

    /// Removes a response and returns it.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<Stored>> {
        let mut entries = self.entries();
        let at = entries.iter().position(|(entry, _)| entry.id == id)?;
        Some(entries.remove(at).0)
    }
}

/// About the memory of a value.
fn bytes(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(all) => all.iter().map(bytes).sum(),
        Value::Object(map) => {
            let field = |(name, value): (&String, &Value)| name.len() + 64 + bytes(value);
            map.iter().map(field).sum()
        }
        _ => 0,
    };
    size_of::<Value>() + inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(id: &str, before: Vec<Arc<Item>>) -> Stored {
        Stored {
            id: id.to_string(),
            head: json!({ "id": id }),
            before,
            input: vec![Item::new(json!({ "text": "a".repeat(1000) }))],
            output: Vec::new(),
            cancel: None,
        }
    }

    #[test]
    fn the_least_recently_used_response_makes_room() {
        let mut store = Store::new(usize::MAX);
        store.put(stored("a", Vec::new()));
        // Room for three and a half.
        store.limit = store.total.load(Ordering::Relaxed) * 7 / 2;
        for id in ["a", "b", "c"] {
            store.put(stored(id, Vec::new()));
        }
        assert!(store.get("a").is_some());
        store.put(stored("d", Vec::new()));
        let known = ["a", "b", "c", "d"].map(|id| store.get(id).is_some());
        assert_eq!(known, [true, false, true, true]);
        store.put(stored("large", vec![Item::new("a".repeat(9000).into())]));
        assert!(store.get("large").is_none());
    }

    /// Items of requests in flight push nothing out, nor does what is too large for the store.
    #[test]
    fn only_what_is_stored_counts() {
        let store = Store::new(4000);
        store.put(stored("a", Vec::new()));
        let large = Item::new("a".repeat(1 << 20).into());
        store.put(stored("b", Vec::new()));
        store.put(stored("large", vec![large]));
        let known = ["a", "b", "large"].map(|id| store.get(id).is_some());
        assert_eq!(known, [true, true, false]);
    }

    /// One that is still generated can be found and cancelled.
    #[test]
    fn responses_in_progress_stay() {
        let store = Store::new(4000);
        let going = Stored {
            cancel: Some(Arc::default()),
            ..stored("going", Vec::new())
        };
        store.put(going);
        for id in ["a", "b", "c", "d", "e"] {
            store.put(stored(id, Vec::new()));
        }
        assert!(store.get("going").is_some() && store.get("e").is_some());
        assert!(store.get("a").is_none());
    }

    #[test]
    fn shared_items_count_once_and_until_the_last_use() {
        let store = Store::new(1 << 20);
        store.put(stored("a", Vec::new()));
        let one = store.total.load(Ordering::Relaxed);
        let before = store.get("a").map(|a| a.conversation()).unwrap();
        store.put(stored("b", before));
        let two = store.total.load(Ordering::Relaxed);
        assert!(two < 2 * one + 100, "{one}, {two}");
        store.remove("a");
        assert!(store.total.load(Ordering::Relaxed) > one + 900);
        store.remove("b");
        assert_eq!(store.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_deleted_response_does_not_come_back() {
        let store = Store::new(1 << 20);
        store.put(stored("a", Vec::new()));
        store.remove("a");
        store.replace(stored("a", Vec::new()));
        assert!(store.get("a").is_none());
    }
}
