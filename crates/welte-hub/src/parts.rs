//! A partly downloaded file: its bytes, followed by a record of the parts that are complete.
//!
//! The record is in the same file, so that there is one file to resume, lock and delete. It is cut off when all parts
//! are complete.

use crate::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const MARK: &[u8; 8] = b"welteprt";
/// Bytes of the mark and the part size.
const HEAD: u64 = 16;

/// A file of known size with some complete parts.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) part: u64,
    there: Mutex<Record>,
}

struct Record {
    file: File,
    /// A bit per part.
    bits: Vec<u8>,
}

impl Parts {
    /// Resumes the file, or starts it if none of this size and part size exists.
    pub(crate) fn open(path: &Path, size: u64, part: u64) -> Result<Parts, Error> {
        let at = Error::io;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at(path))?;
        let bits = match record(&mut file, size, part).map_err(at(path))? {
            Some(bits) => bits,
            None => {
                let bits = vec![0; size.div_ceil(part).div_ceil(8) as usize];
                let begin = |file: &mut File| {
                    file.set_len(0)?;
                    file.seek(SeekFrom::Start(size))?;
                    file.write_all(MARK)?;
                    file.write_all(&part.to_le_bytes())?;
                    file.write_all(&bits)
                };
                begin(&mut file).map_err(at(path))?;
                bits
            }
        };
        Ok(Parts {
            path: path.to_path_buf(),
            size,
            part,
            there: Mutex::new(Record { file, bits }),
        })
    }

    /// Bytes that an earlier run completed.
    pub(crate) fn left_over(path: &Path, size: u64, part: u64) -> u64 {
        let bits = File::open(path).and_then(|mut file| record(&mut file, size, part));
        let bits = bits.ok().flatten().unwrap_or_default();
        let there = |i: &u64| bits[(i / 8) as usize] & (1 << (i % 8)) != 0;
        let bytes = |i: u64| ((i + 1) * part).min(size).saturating_sub(i * part);
        (0..bits.len() as u64 * 8).filter(there).map(bytes).sum()
    }

    pub(crate) fn count(&self) -> u64 {
        self.size.div_ceil(self.part)
    }

    /// The start of a part; `part == count()` gives the end of the file.
    pub(crate) fn start(&self, part: u64) -> u64 {
        (part * self.part).min(self.size)
    }

    pub(crate) fn has(&self, part: u64) -> bool {
        let record = self.there.lock().unwrap_or_else(|e| e.into_inner());
        record.bits[(part / 8) as usize] & (1 << (part % 8)) != 0
    }

    /// Bytes of complete parts.
    pub(crate) fn bytes(&self) -> u64 {
        (0..self.count())
            .filter(|i| self.has(*i))
            .map(|i| self.start(i + 1) - self.start(i))
            .sum()
    }

    /// Records that a part is complete, after its bytes were written.
    pub(crate) fn mark(&self, part: u64) -> Result<(), Error> {
        let mut record = self.there.lock().unwrap_or_else(|e| e.into_inner());
        let at = (part / 8) as usize;
        record.bits[at] |= 1 << (part % 8);
        let byte = record.bits[at];
        let place = SeekFrom::Start(self.size + HEAD + at as u64);
        let written = record
            .file
            .seek(place)
            .and_then(|_| record.file.write_all(&[byte]));
        written.map_err(Error::io(&self.path))
    }

    /// Another handle on the file, for another thread.
    pub(crate) fn handle(&self) -> Result<File, Error> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .map_err(Error::io(&self.path))
    }

    /// Cuts off the record and gives the file its name.
    pub(crate) fn finish(self, name: &Path) -> Result<(), Error> {
        let record = self.there.into_inner().unwrap_or_else(|e| e.into_inner());
        record
            .file
            .set_len(self.size)
            // The name must not outlive a loss of power without the bytes.
            .and_then(|()| record.file.sync_all())
            .map_err(Error::io(&self.path))?;
        // Windows cannot rename an open file.
        drop(record);
        std::fs::rename(&self.path, name).map_err(Error::io(name))
    }

    /// Deletes the file.
    pub(crate) fn discard(self) -> Result<(), Error> {
        let Parts { path, there, .. } = self;
        drop(there);
        std::fs::remove_file(&path).map_err(Error::io(&path))
    }
}

/// The record of a file that was started with the same size and part size.
fn record(file: &mut File, size: u64, part: u64) -> std::io::Result<Option<Vec<u8>>> {
    let bytes = size.div_ceil(part).div_ceil(8);
    if file.metadata()?.len() != size + HEAD + bytes {
        return Ok(None);
    }
    let mut head = [0; HEAD as usize];
    file.seek(SeekFrom::Start(size))?;
    file.read_exact(&mut head)?;
    if head[..8] != *MARK || head[8..] != part.to_le_bytes() {
        return Ok(None);
    }
    let mut bits = vec![0; bytes as usize];
    file.read_exact(&mut bits)?;
    Ok(Some(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_remembered_and_the_record_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let (path, name) = (folder.path().join("x.incomplete"), folder.path().join("x"));
        let parts = Parts::open(&path, 25, 10).unwrap();
        assert_eq!((parts.count(), parts.bytes(), parts.start(3)), (3, 0, 25));
        parts.handle().unwrap().write_all(b"0123456789").unwrap();
        parts.mark(0).unwrap();
        parts.mark(2).unwrap();
        drop(parts);
        let again = Parts::open(&path, 25, 10).unwrap();
        assert_eq!(
            [again.has(0), again.has(1), again.has(2)],
            [true, false, true]
        );
        assert_eq!(again.bytes(), 15);
        assert_eq!(Parts::left_over(&path, 25, 10), 15);
        assert_eq!(Parts::left_over(&path, 25, 5), 0);
        again.finish(&name).unwrap();
        let whole = std::fs::read(&name).unwrap();
        assert_eq!((whole.len(), &whole[..10]), (25, &b"0123456789"[..]));
        assert!(!path.exists());
    }

    /// Without opening the file for writing, and beyond the first eight parts.
    #[test]
    fn what_is_left_over_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        assert_eq!(Parts::left_over(&path, 97, 10), 0);
        let parts = Parts::open(&path, 97, 10).unwrap();
        for (part, bytes) in [(1, 10), (8, 20), (9, 27)] {
            parts.mark(part).unwrap();
            assert_eq!(Parts::left_over(&path, 97, 10), bytes);
            assert_eq!(parts.bytes(), bytes);
        }
    }

    #[test]
    fn a_file_of_another_shape_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let parts = Parts::open(&path, 25, 10).unwrap();
        parts.mark(0).unwrap();
        for (size, part) in [(25, 5), (26, 5), (26, 26), (0, 1)] {
            let other = Parts::open(&path, size, part).unwrap();
            assert_eq!(other.bytes(), 0, "{size} {part}");
        }
        std::fs::write(&path, vec![0xff; 25 + 16 + 1]).unwrap();
        assert_eq!(Parts::open(&path, 25, 10).unwrap().bytes(), 0);
    }
}
