//! The bytes of a file, wherever it lies.

use crate::mapped;
use memmap2::Mmap;
use std::borrow::Cow;
use std::fmt::Debug;
use std::io;
use std::ops::Range;

/// A file that is read piece by piece: a mapped one, or one that a browser holds.
pub trait Source: Debug + Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Some of its bytes. Beyond the end it fails with [`io::ErrorKind::UnexpectedEof`].
    fn read(&self, range: Range<usize>) -> io::Result<Cow<'_, [u8]>>;

    /// Takes what was read out of this process's memory. It can be read again.
    fn release(&self) {}
}

impl Source for Mmap {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<usize>) -> io::Result<Cow<'_, [u8]>> {
        let bytes = self.get(range).map(Cow::Borrowed);
        bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn release(&self) {
        mapped::release(self);
    }
}
