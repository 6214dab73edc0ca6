//! Stored responses. The oldest ones make room for new ones when the memory is used up.

use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most responses that are kept.
const MOST_RESPONSES: usize = 4096;

/// A part of a conversation. Responses that continue each other share their items.
pub(crate) struct Item {
    pub(super) value: Value,
    _memory: Memory,
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

    pub(super) fn item(&self, value: Value) -> Arc<Item> {
        let memory = Memory::new(bytes(&value) + size_of::<Item>(), &self.total);
        Arc::new(Item {
            value,
            _memory: memory,
        })
    }

    fn entries(&self) -> MutexGuard<'_, Vec<(Arc<Stored>, Memory)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response, in place of an earlier state of the same one.
    pub(super) fn put(&self, stored: Stored) {
        let mut entries = self.entries();
        entries.retain(|(entry, _)| entry.id != stored.id);
        let memory = Memory::new(stored.own_bytes(), &self.total);
        entries.push((Arc::new(stored), memory));
        let mut gone = Vec::new();
        while !entries.is_empty()
            && (entries.len() > MOST_RESPONSES || self.total.load(Ordering::Relaxed) > self.limit)
        {
            // Dropped here, so that the total shrinks.
            gone.push(entries.remove(0).0.id.clone());
        }
        drop(entries);
        if !gone.is_empty() {
            tracing::debug!(count = gone.len(), "stored responses were dropped");
        }
    }

    /// As [`Store::put`], unless the response has been deleted meanwhile.
    pub(super) fn replace(&self, stored: Stored) {
        let known = self
            .entries()
            .iter()
            .any(|(entry, _)| entry.id == stored.id);
        if known {
            self.put(stored);
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

    fn stored(store: &Store, id: &str, before: Vec<Arc<Item>>) -> Stored {
        Stored {
            id: id.to_string(),
            head: json!({ "id": id }),
            before,
            input: vec![store.item(json!({ "text": "a".repeat(1000) }))],
            output: Vec::new(),
            cancel: None,
        }
    }

    #[test]
    fn the_least_recently_used_response_makes_room() {
        let mut store = Store::new(usize::MAX);
        store.put(stored(&store, "a", Vec::new()));
        // Room for three and a half.
        store.limit = store.total.load(Ordering::Relaxed) * 7 / 2;
        for id in ["a", "b", "c"] {
            store.put(stored(&store, id, Vec::new()));
        }
        assert!(store.get("a").is_some());
        store.put(stored(&store, "d", Vec::new()));
        let known = ["a", "b", "c", "d"].map(|id| store.get(id).is_some());
        assert_eq!(known, [true, false, true, true]);
        store.put(stored(
            &store,
            "large",
            vec![store.item("a".repeat(9000).into())],
        ));
        assert!(store.get("large").is_none());
    }

    #[test]
    fn shared_items_count_once_and_until_the_last_use() {
        let store = Store::new(1 << 20);
        store.put(stored(&store, "a", Vec::new()));
        let one = store.total.load(Ordering::Relaxed);
        let before = store.get("a").map(|a| a.conversation()).unwrap();
        store.put(stored(&store, "b", before));
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
        store.put(stored(&store, "a", Vec::new()));
        store.remove("a");
        store.replace(stored(&store, "a", Vec::new()));
        assert!(store.get("a").is_none());
    }
}
