//! Banks of adapters whose rows are dealt: where the bytes of a bank lie at a rank.

use std::ops::Range;
use welte_table::{Bank, BankPart};

/// The runs of bytes of a whole bank that a rank has, as ranges of the bank, and where each begins in the rank's. `first` is the byte of the
/// bank at which `len` bytes begin that are wanted.
pub(crate) fn runs(
    whole: Bank,
    part: &BankPart,
    first: u64,
    len: u64,
) -> impl Iterator<Item = (Range<u64>, u64)> {
    let n = part.rows.iter().map(|rows| rows.len() as u32).sum();
    let own = Bank { n, ..whole };
    // Both have a size, since they are buffers.
    let [each, own_each] = [whole, own].map(|bank| bank.place_bytes().unwrap_or(1));
    let places = first / each..(first + len).div_ceil(each);
    let row = 2 * u64::from(whole.rank);
    places.flat_map(move |place| {
        // Ranks, scales and A are every rank's.
        let head = (0..whole.b_at(0), 0);
        let experts = 0..whole.experts;
        let rows = experts.flat_map(move |expert| {
            let mut at = own.b_at(expert);
            part.rows.iter().map(move |rows| {
                let start = whole.b_at(expert) + row * u64::from(rows.start);
                let run = start..start + row * rows.len() as u64;
                let own = at;
                at += row * rows.len() as u64;
                (run, own)
            })
        });
        std::iter::once(head)
            .chain(rows)
            .filter_map(move |(run, at)| {
                let (start, end) = (place * each + run.start, place * each + run.end);
                let wanted = start.max(first)..end.min(first + len);
                let skipped = wanted.start.saturating_sub(start);
                (!wanted.is_empty()).then_some((wanted, place * own_each + at + skipped))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_its_rows_of_every_expert_in_every_place() {
        let whole = Bank {
            n: 6,
            k: 5,
            parts: 1,
            rank: 4,
            experts: 2,
        };
        let part = BankPart {
            of: 0,
            buffer: 0,
            rows: vec![1..2, 4..6],
        };
        let own = Bank { n: 3, ..whole };
        let [each, own_each] = [whole, own].map(|bank| bank.place_bytes().unwrap());
        assert_eq!(own.b_at(0), whole.b_at(0));
        let all: Vec<_> = runs(whole, &part, 0, 2 * each).collect();
        let (b, c) = (whole.b_at(0), whole.b_at(1));
        let mut wanted = Vec::new();
        for place in 0..2 {
            let (at, own_at) = (place * each, place * own_each);
            wanted.push((at..at + b, own_at));
            for (expert, first) in [b, c].into_iter().enumerate() {
                let own_first = own_at + own.b_at(expert as u32);
                let first = at + first;
                wanted.push((first + 8..first + 16, own_first));
                wanted.push((first + 32..first + 48, own_first + 8));
            }
        }
        assert_eq!(all, wanted);
        // In the middle of a row of the second place.
        let some: Vec<_> = runs(whole, &part, each + b + 34, 4).collect();
        assert_eq!(
            some,
            [(each + b + 34..each + b + 38, own_each + own.b_at(0) + 8 + 2)]
        );
        assert_eq!(runs(whole, &part, b, 8).count(), 0);
    }
}
