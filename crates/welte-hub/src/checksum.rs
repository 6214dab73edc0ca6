//! The hub's two checksums: SHA-256 for large files, git's blob hash for small ones.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The kind of checksum in a file's tag. Tags of other kinds say nothing about the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sha256,
    Git,
}

impl Kind {
    pub(crate) fn of(tag: &str) -> Option<Kind> {
        match tag.len() {
            _ if !tag.bytes().all(|b| b.is_ascii_hexdigit()) => None,
            64 => Some(Kind::Sha256),
            40 => Some(Kind::Git),
            _ => None,
        }
    }
}

/// A checksum in progress.
pub(crate) struct Sum(Context);

impl Sum {
    pub(crate) fn new(kind: Kind, size: u64) -> Sum {
        match kind {
            Kind::Sha256 => Sum(Context::new(&SHA256)),
            Kind::Git => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Sum(context)
            }
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn hex(self) -> String {
        let digest = self.0.finish();
        digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// The hub's tag of a large file.
pub fn sha256(bytes: &[u8]) -> String {
    whole(Kind::Sha256, bytes)
}

/// The hub's tag of a small file.
pub fn git_blob(bytes: &[u8]) -> String {
    whole(Kind::Git, bytes)
}

fn whole(kind: Kind, bytes: &[u8]) -> String {
    let mut sum = Sum::new(kind, bytes.len() as u64);
    sum.add(bytes);
    sum.hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        // Of `printf 'hello\n' | sha256sum` and `git hash-object --stdin`.
        let large = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let small = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(sha256(b"hello\n"), large);
        assert_eq!(git_blob(b"hello\n"), small);
        assert_eq!(Kind::of(large), Some(Kind::Sha256));
        assert_eq!(Kind::of(small), Some(Kind::Git));
        assert_eq!(Kind::of("0123"), None);
        assert_eq!(Kind::of(&"g".repeat(64)), None);
    }
}
