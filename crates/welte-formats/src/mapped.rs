//! A file in memory: the one place of this crate that needs `unsafe`.

use crate::{Error, TensorInfo};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// Maps a regular file for reading. Anything else (a pipe, a device) is refused before it is opened, so that opening
/// never blocks.
pub(crate) fn map(path: &Path) -> Result<Mmap, Error> {
    let file = open_regular(path)?;
    // SAFETY: the map is read-only and private to this process. The one way to make it unsound is that someone
    // shortens or rewrites the file while we use it; that is the user's own file, every loader of weights accepts the
    // same, and nothing read through the map is trusted: all lengths are checked against the map's own length.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    map.map_err(|source| Error::io(path, source))
}

/// Opens a regular, non-empty file.
pub(crate) fn open_regular(path: &Path) -> Result<File, Error> {
    let found = std::fs::metadata(path).map_err(|source| Error::io(path, source))?;
    if found.is_dir() {
        return Err(Error::unsupported(
            path,
            "is a directory where a file is meant",
        ));
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
            "is empty; the download may have failed: fetch it again",
        ));
    }
    File::open(path).map_err(|source| Error::io(path, source))
}

/// The bytes of rows `first..first + rows` of a tensor that starts at `start` of a file's bytes.
pub(crate) fn rows<'a>(
    path: &Path,
    bytes: &'a [u8],
    tensor: &TensorInfo,
    start: usize,
    first: usize,
    rows: usize,
) -> Result<&'a [u8], Error> {
    let end = first.checked_add(rows).filter(|end| *end <= tensor.n);
    let found = end
        .zip(tensor.format.bytes(tensor.k))
        .and_then(|(end, row)| {
            let from = start.checked_add(first.checked_mul(row)?)?;
            let to = start.checked_add(end.checked_mul(row)?)?;
            bytes.get(from..to)
        });
    found.ok_or_else(|| {
        let problem = format!(
            "has no rows {first} to {} (it has {})",
            first.saturating_add(rows),
            tensor.n
        );
        Error::malformed(path, format!("tensor {}", tensor.name), problem)
    })
}
