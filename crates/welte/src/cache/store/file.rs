//! Files of the prefix store: their names, their layout, and the checks before one is used.
//!
//! A file holds what a node of the prefix tree holds: up to a page of keys and a page of each cache.
//!
//! ```text
//! 0   magic, with the version of this layout
//! 8   identity: SHA-256 over model, arithmetic, page size and caches
//! 40  name of the page before it; the identity for the first page of a text
//! 72  number of keys
//! 76  keys, 4 bytes each
//!     a page of each cache, one after the other
//!     SHA-256 of all bytes before
//! ```
//!
//! All numbers are little-endian. A page's name is the SHA-256 over the name before it and its keys. It therefore stands
//! for the identity and for all keys from the start of the text.

use crate::cache::{Key, token_key, without_role};
use sha2::{Digest, Sha256 as Hasher};
use std::collections::BTreeMap;
use welte_table::{CacheKind, Program};

/// Copies the page of a cache.
pub(crate) type Fill<'a, E> = dyn FnMut(usize, &mut [u8]) -> Result<(), E> + 'a;

const MAGIC: &[u8; 8] = b"WELTEPF1";
const KEYS: usize = 76;
const SUM: usize = 32;

/// A SHA-256.
pub(crate) type Sha256 = [u8; 32];

/// SHA-256 over all parts, one after the other.
pub(crate) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Sha256 {
    let mut hasher = Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// A token's key as files have it. Keys of features never come here: their numbers mean nothing to another process.
fn stored(key: Key) -> [u8; 4] {
    debug_assert!(token_key(key).is_some(), "the key of a feature");
    (key as u32).to_le_bytes()
}

/// The end of a run of pages from the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Name of the last page: stands for its keys and all before.
    pub(crate) name: Sha256,
    /// Stands for the tokens without their roles.
    pub(crate) trail: [u8; 16],
}

impl Place {
    /// The place after these keys, which are at most a page.
    pub(crate) fn after(&self, keys: &[Key]) -> Place {
        let mut name = Hasher::new();
        let mut trail = Hasher::new();
        name.update(self.name);
        trail.update(self.trail);
        for key in keys {
            name.update(stored(*key));
            trail.update(stored(without_role(*key)));
        }
        let mut place = *self;
        place.name = name.finalize().into();
        place.trail.copy_from_slice(&trail.finalize()[..16]);
        place
    }
}

/// A stored page, as its file's name tells it. In order, pages with the same tokens are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(super) trail: [u8; 16],
    /// Start of the name of the page before it.
    pub(super) parent: [u8; 8],
    pub(super) name: Sha256,
}

impl FileId {
    /// The page that leads from one place to another.
    pub(crate) fn new(parent: &Place, place: &Place) -> FileId {
        let mut start = [0; 8];
        start.copy_from_slice(&parent.name[..8]);
        FileId {
            trail: place.trail,
            parent: start,
            name: place.name,
        }
    }

    /// The place at its end.
    pub(crate) fn place(&self) -> Place {
        Place {
            name: self.name,
            trail: self.trail,
        }
    }

    /// This page among entries, or else one with the same tokens after the same page, in whatever roles, unless `exact`.
    pub(crate) fn find<T>(&self, entries: &BTreeMap<FileId, T>, exact: bool) -> Option<FileId> {
        if entries.contains_key(self) {
            return Some(*self);
        }
        let [from, to] = [0, 255].map(|byte| FileId {
            name: [byte; 32],
            ..*self
        });
        let mut variants = entries.range(from..=to).filter(|_| !exact);
        variants.next().map(|(id, _)| *id)
    }

    pub(super) fn file_name(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        format!(
            "{}-{}-{}.page",
            hex(&self.trail),
            hex(&self.parent),
            hex(&self.name)
        )
    }

    pub(super) fn parse(file_name: &str) -> Option<FileId> {
        fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
            let mut bytes = [0; N];
            if text.len() != 2 * N {
                return None;
            }
            for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            }
            Some(bytes)
        }
        let mut parts = file_name.strip_suffix(".page")?.split('-');
        let id = FileId {
            trail: unhex(parts.next()?)?,
            parent: unhex(parts.next()?)?,
            name: unhex(parts.next()?)?,
        };
        // One spelling only.
        (id.file_name() == file_name).then_some(id)
    }
}

/// A stored page that would continue a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) id: FileId,
    /// Keys that it holds.
    pub(crate) tokens: usize,
}

/// What all files of a loaded model have in common.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Keys of a full page.
    pub(crate) page: usize,
    /// Bytes of a page of each cache.
    caches: Vec<usize>,
    identity: Sha256,
}

impl Layout {
    /// The layout of a program's pages. `model` stands for the weights, `arithmetic` for everything else that decides
    /// their bits. `None` if the program has caches that cannot be stored.
    pub(crate) fn new(program: &Program, model: &Sha256, arithmetic: &str) -> Option<Layout> {
        let attention = |kind: &CacheKind| matches!(kind, CacheKind::Attention { .. });
        if !program.caches.iter().all(|cache| attention(&cache.kind)) {
            return None;
        }
        let bytes = |bytes: Option<u64>| usize::try_from(bytes?).ok();
        let caches: Option<Vec<usize>> = program
            .caches
            .iter()
            .map(|cache| bytes(cache.page_bytes(program.page)))
            .collect();
        // The number of pages in the pool does not matter.
        let shapes: Vec<&CacheKind> = program.caches.iter().map(|cache| &cache.kind).collect();
        let rest = format!("\n{}\n{arithmetic}\n{shapes:?}", program.page);
        Some(Layout {
            page: program.page as usize,
            caches: caches?,
            identity: sha256([MAGIC.as_slice(), model, rest.as_bytes()]),
        })
    }

    /// The start of every text.
    pub(crate) fn start(&self) -> Place {
        let mut trail = [0; 16];
        trail.copy_from_slice(&self.identity[..16]);
        Place {
            name: self.identity,
            trail,
        }
    }

    /// The pages that continue a text at `place` with these keys, as far as `find` knows them; appended to `chain`.
    pub(crate) fn chain(
        &self,
        mut place: Place,
        mut keys: &[Key],
        find: impl Fn(&FileId) -> Option<FileId>,
        chain: &mut Vec<Stored>,
    ) {
        let find = |place: &Place, keys: &[Key]| find(&FileId::new(place, &place.after(keys)));
        while keys.len() >= self.page
            && let Some(id) = find(&place, &keys[..self.page])
        {
            let tokens = self.page;
            chain.push(Stored { id, tokens });
            place = id.place();
            keys = &keys[tokens..];
        }
        // A text may end with a part of a page.
        let longest = keys.len().min(self.page - 1);
        let part = (1..=longest).rev().find_map(|tokens| {
            let id = find(&place, &keys[..tokens])?;
            Some(Stored { id, tokens })
        });
        chain.extend(part);
    }

    /// Bytes of a file with a full page of keys and all pages.
    pub(super) fn most_bytes(&self) -> usize {
        KEYS + 4 * self.page + self.caches.iter().sum::<usize>() + SUM
    }

    /// Bytes of the pages of all caches.
    pub(crate) fn page_bytes(&self) -> usize {
        self.caches.iter().sum()
    }
}

/// The bytes of one file, in memory allocated once.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) bytes: Vec<u8>,
    /// Bytes of the file.
    pub(super) len: usize,
}

impl Staging {
    pub(super) fn new(layout: &Layout) -> Staging {
        Staging {
            bytes: vec![0; layout.most_bytes()],
            len: 0,
        }
    }

    /// Writes header and keys, and lets `fill` write the page of each cache.
    pub(super) fn encode<E>(
        &mut self,
        layout: &Layout,
        parent: &Place,
        keys: &[Key],
        fill: &mut Fill<'_, E>,
    ) -> Result<(), E> {
        self.bytes[..8].copy_from_slice(MAGIC);
        self.bytes[8..40].copy_from_slice(&layout.identity);
        self.bytes[40..72].copy_from_slice(&parent.name);
        self.bytes[72..76].copy_from_slice(&(keys.len() as u32).to_le_bytes());
        for (place, key) in self.bytes[KEYS..].chunks_exact_mut(4).zip(keys) {
            place.copy_from_slice(&stored(*key));
        }
        let mut at = KEYS + 4 * keys.len();
        for (cache, bytes) in layout.caches.iter().enumerate() {
            fill(cache, &mut self.bytes[at..at + bytes])?;
            at += bytes;
        }
        self.len = at + SUM;
        Ok(())
    }

    /// Adds the checksum.
    pub(super) fn seal(&mut self) {
        let end = self.len - SUM;
        let sum = sha256([&self.bytes[..end]]);
        self.bytes[end..self.len].copy_from_slice(&sum);
    }

    /// Checks everything: the file is what its name says, unchanged, and of this model and arithmetic.
    pub(super) fn check(&self, layout: &Layout, id: &FileId) -> Result<(), &'static str> {
        let file = &self.bytes[..self.len];
        if file.len() < KEYS + SUM {
            return Err("it is cut short");
        }
        if !file.starts_with(MAGIC) {
            return Err("it is not a page of this version");
        }
        if file[8..40] != layout.identity {
            return Err("it belongs to another model or arithmetic");
        }
        let count = self.word(72) as usize;
        if count == 0 || count > layout.page {
            return Err("it has an impossible number of keys");
        }
        if KEYS + 4 * count + layout.page_bytes() + SUM != file.len() {
            return Err("it has the wrong length");
        }
        let (body, sum) = file.split_at(file.len() - SUM);
        if sha256([body]) != sum {
            return Err("its checksum is wrong");
        }
        let parent = &file[40..72];
        let name = sha256([parent, &file[KEYS..KEYS + 4 * count]]);
        if name != id.name || parent[..8] != id.parent {
            return Err("its name belongs to other content");
        }
        Ok(())
    }

    fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(bytes)
    }

    /// The name of the page before it.
    pub(crate) fn parent(&self) -> &[u8] {
        &self.bytes[40..72]
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = Key> {
        (0..self.word(72) as usize).map(|i| self.word(KEYS + 4 * i).into())
    }

    /// The page of a cache.
    pub(crate) fn page(&self, layout: &Layout, cache: usize) -> &[u8] {
        let before: usize = layout.caches[..cache].iter().sum();
        let start = KEYS + 4 * self.word(72) as usize + before;
        &self.bytes[start..start + layout.caches[cache]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::GENERATED;

    /// What other versions have stored stays readable: whoever changes this changes the magic, too.
    #[test]
    fn the_layout_of_a_file_is_settled() {
        let layout = Layout {
            page: 4,
            caches: vec![8, 4],
            identity: [7; 32],
        };
        let (start, keys) = (layout.start(), [1, 2, GENERATED | 3, 4]);
        let id = FileId::new(&start, &start.after(&keys));
        assert_eq!(
            id.file_name(),
            "9a98d1402c2099337d36b5d5af052a09-0707070707070707-\
             dde53b2a72c3c7293221a9a2e571d35675a3477a4112a2697659d12821be8d07.page"
        );
        let mut staging = Staging::new(&layout);
        let fill = &mut |cache: usize, bytes: &mut [u8]| {
            bytes.fill(5 + cache as u8);
            Ok::<_, ()>(())
        };
        staging.encode(&layout, &start, &keys, fill).unwrap();
        staging.seal();
        let mut file = [&MAGIC[..], &[7; 64], &[4, 0, 0, 0]].concat();
        file.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 128, 4, 0, 0, 0]);
        file.extend([5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6]);
        file.extend(sha256([&file[..]]));
        assert_eq!(MAGIC, b"WELTEPF1");
        assert_eq!(staging.bytes[..staging.len], file);
        assert_eq!(staging.check(&layout, &id), Ok(()));
        assert_eq!(FileId::parse(&id.file_name()), Some(id));
    }
}
