//! How a weight lies in device memory.

use crate::launch::Launch;
use welte_table::Format;

/// Bytes of a matrix in device memory; `None` if its rows are no whole number of blocks.
pub(crate) fn bytes(format: Format, n: u32, k: u32) -> Option<u64> {
    u64::try_from(format.bytes(k as usize)?)
        .ok()?
        .checked_mul(n.into())?
        .checked_next_multiple_of(256)
}

/// None: rows lie as they are encoded, one after the other. The kernel that regroups `count` encoded rows (from `first` on) lying at `raw` into the matrix at `start`.
pub(crate) fn repack_launch(
    format: Format,
    n: u32,
    k: u32,
    first: u32,
    count: u32,
    raw: u64,
    start: u64,
) -> Option<Launch> {
    let _ = (format, n, k, first, count, raw, start);
    None
}
