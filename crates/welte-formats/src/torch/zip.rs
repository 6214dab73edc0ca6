//! The list of files in a zip archive whose files are stored without compression, as PyTorch writes them.

use crate::Error;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";
/// Bytes of these records without what varies.
const LOCAL_BYTES: usize = 30;
const ENTRY_BYTES: usize = 46;
const END_BYTES: usize = 22;
const LOCATOR_BYTES: usize = 20;
/// The longest comment after the end.
const MOST_COMMENT: usize = 0xffff;
/// The kind of an extra field with numbers of 64 bits.
const EXTRA_64: u16 = 1;
/// Stands for a number that an extra field has.
const ELSEWHERE: u32 = u32::MAX;

/// Where the files of an archive lie, by their names without the folder that all are in.
pub(super) struct Archive {
    files: HashMap<String, Range<usize>>,
}

impl Archive {
    pub(super) fn file(&self, name: &str) -> Option<&Range<usize>> {
        self.files.get(name)
    }

    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Archive, Error> {
        let wrong = |problem: &str| {
            let problem = format!("{problem}: the file is damaged; download it again");
            Error::malformed(path, "zip archive", problem)
        };
        let (count, mut at) = directory(bytes).ok_or_else(|| wrong("has no list of its files"))?;
        let mut files = HashMap::new();
        for _ in 0..count {
            let entry = entry(bytes, at).ok_or_else(|| wrong("has a broken list of its files"))?;
            at = entry.next;
            let name = String::from_utf8_lossy(entry.name).into_owned();
            if entry.method != 0 {
                let problem = format!("{name} is compressed; PyTorch stores files as they are");
                return Err(Error::malformed(path, "zip archive", problem));
            }
            let place = data(bytes, &entry);
            let place = place.ok_or_else(|| wrong(&format!("{name} is beyond its end")))?;
            // Everything lies in a folder with the name of the file that was saved.
            let inner = name
                .split_once('/')
                .map_or(name.as_str(), |(_, inner)| inner);
            if files.insert(inner.to_string(), place).is_some() {
                return Err(wrong(&format!("has {inner} twice")));
            }
        }
        Ok(Archive { files })
    }
}

/// A file as the list at the archive's end has it.
struct Entry<'a> {
    name: &'a [u8],
    method: u16,
    size: usize,
    /// Where its local record lies.
    at: usize,
    /// Where the next entry lies.
    next: usize,
}

fn part(bytes: &[u8], at: usize, size: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(size)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(part(bytes, at, 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(part(bytes, at, 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    let value = u64::from_le_bytes(part(bytes, at, 8)?.try_into().ok()?);
    usize::try_from(value).ok()
}

/// The number of files, and where their list begins.
fn directory(bytes: &[u8]) -> Option<(usize, usize)> {
    let last = bytes.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(MOST_COMMENT);
    let end = (first..=last)
        .rev()
        .find(|at| bytes[*at..].starts_with(&END))?;
    let locator = end.checked_sub(LOCATOR_BYTES);
    if let Some(locator) = locator.filter(|at| bytes[*at..].starts_with(&LOCATOR_64)) {
        let end = u64_at(bytes, locator + 8)?;
        if part(bytes, end, 4)? != END_64 {
            return None;
        }
        return Some((
            u64_at(bytes, end.checked_add(32)?)?,
            u64_at(bytes, end.checked_add(48)?)?,
        ));
    }
    let count = u16_at(bytes, end + 10)?.into();
    Some((count, u32_at(bytes, end + 16)? as usize))
}

fn entry(bytes: &[u8], at: usize) -> Option<Entry<'_>> {
    let fixed = part(bytes, at, ENTRY_BYTES)?;
    if !fixed.starts_with(&ENTRY) {
        return None;
    }
    let lengths = [28, 30, 32].map(|at| u16_at(fixed, at).map(usize::from));
    let [name_bytes, extra_bytes, comment] = lengths;
    let (name_bytes, extra_bytes) = (name_bytes?, extra_bytes?);
    let name = part(bytes, at + ENTRY_BYTES, name_bytes)?;
    let extra = part(bytes, at + ENTRY_BYTES + name_bytes, extra_bytes)?;
    let (stored, size, place) = (u32_at(fixed, 20)?, u32_at(fixed, 24)?, u32_at(fixed, 42)?);
    // The extra field has, in this order, the numbers that do not fit: size, stored size, place.
    let mut wide = extra_64(extra);
    let mut number = |short: u32| {
        if short != ELSEWHERE {
            return Some(short as usize);
        }
        let value = u64_at(wide?, 0)?;
        wide = wide?.get(8..);
        Some(value)
    };
    let (size, _, place) = (number(size)?, number(stored)?, number(place)?);
    Some(Entry {
        name,
        method: u16_at(fixed, 10)?,
        size,
        at: place,
        next: at + ENTRY_BYTES + name_bytes + extra_bytes + comment?,
    })
}

/// The extra field with numbers of 64 bits.
fn extra_64(mut extra: &[u8]) -> Option<&[u8]> {
    loop {
        let (kind, size) = (u16_at(extra, 0)?, u16_at(extra, 2)?.into());
        let own = part(extra, 4, size)?;
        if kind == EXTRA_64 {
            return Some(own);
        }
        extra = &extra[4 + size..];
    }
}

/// Where the data of a file lie: after its local record, which has lengths of its own.
fn data(bytes: &[u8], entry: &Entry<'_>) -> Option<Range<usize>> {
    let fixed = part(bytes, entry.at, LOCAL_BYTES)?;
    if !fixed.starts_with(&LOCAL) {
        return None;
    }
    let lengths = usize::from(u16_at(fixed, 26)?) + usize::from(u16_at(fixed, 28)?);
    let start = entry.at + LOCAL_BYTES + lengths;
    part(bytes, start, entry.size).map(|data| start..start + data.len())
}
