//! Memory-mapped files. This is the only `unsafe` code of the crate.

use crate::{Error, TensorInfo};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// Maps a regular file for reading. Other files (pipes, devices) are refused before opening, since opening could block.
pub(crate) fn map(path: &Path) -> Result<Mmap, Error> {
    let file = open_regular(path)?;
    // SAFETY: the map is read-only and private to this process. It is unsound only if another program truncates or
    // rewrites the file meanwhile. All loaders of weights accept this. Nothing read through the map is trusted: all
    // offsets are checked against its length.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    map.map_err(|source| Error::io(path, source))
}

/// Takes what was read of a map out of this process's memory.
#[cfg_attr(not(unix), allow(unused_variables))]
pub(crate) fn release(map: &Mmap) {
    #[cfg(unix)]
    {
        // SAFETY: the map is read-only and backed by its file, so a page that is read again has the same content.
        #[allow(unsafe_code)]
        let released = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        // A system that does not know the advice keeps the pages, which does no harm.
        let _ = released;
    }
}

/// Opens a regular, non-empty file.
pub(crate) fn open_regular(path: &Path) -> Result<File, Error> {
    let found = std::fs::metadata(path).map_err(|source| Error::io(path, source))?;
    if found.is_dir() {
        return Err(Error::unsupported(path, "is a directory, expected a file"));
    }
    if !found.is_file() {
        return Err(Error::unsupported(
            path,
            "is not a regular file; weights are read from regular files only",
        ));
    }
    if found.len() == 0 {
        return Err(Error::unsupported(
            path,
            "is empty; the download may have failed: download it again",
        ));
    }
    File::open(path).map_err(|source| Error::io(path, source))
}

/// The bytes of rows of a tensor that starts at `start` of a file's bytes.
pub(crate) fn rows<'a>(
    bytes: &'a [u8],
    tensor: &TensorInfo,
    start: usize,
    rows: Range<usize>,
) -> Option<&'a [u8]> {
    bytes.get(places(tensor, start, rows)?)
}

/// Where rows of a tensor lie in a file in which it starts at `start`.
pub(crate) fn places(
    tensor: &TensorInfo,
    start: usize,
    rows: Range<usize>,
) -> Option<Range<usize>> {
    let row = tensor.format.bytes(tensor.k)?;
    let from = start.checked_add(rows.start.checked_mul(row)?)?;
    let to = start.checked_add(rows.end.checked_mul(row)?)?;
    Some(from..to)
}
