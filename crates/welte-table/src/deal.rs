//! Which part of a row belongs to which rank: one formula that programs, devices and tests share.

use crate::params;
use std::ops::Range;

/// How a run of floats is dealt to ranks: `groups` groups of `per` units of `unit` floats. No part cuts a unit.
///
/// With at least as many groups as ranks, every rank has whole groups. With fewer, the ranks share the groups out first and
/// each group's units then. Where a group has fewer units than ranks, several ranks have the same unit, so no part is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deal {
    /// Groups of units that should stay together: heads that share a head of keys and values.
    pub groups: u32,
    /// Units of a group.
    pub per: u32,
    /// Floats of a unit.
    pub unit: u32,
}

/// The most floats of a unit of rows that are dealt without any structure.
const MOST_ROWS: u32 = 64;
/// The fewest: devices store rows in tiles of as many.
const TILE_ROWS: u32 = 16;

impl Deal {
    /// Deals `count` things of `size` floats that have no structure. Units are as large as an even deal allows, up to
    /// 64 things, so that parts begin where devices read fast; of single floats, they are 16 or more if that is possible.
    pub fn even(count: u32, size: u32, ranks: u32) -> Deal {
        let mut unit = MOST_ROWS;
        // Parts of whole tiles, even if several ranks then have the same one.
        let least = match size == 1 && count.is_multiple_of(TILE_ROWS) {
            true => TILE_ROWS,
            false => 1,
        };
        let fits = |unit: u32| {
            let units = count / unit;
            let even = units.is_multiple_of(ranks) || units / 8 >= ranks;
            count.is_multiple_of(unit) && units >= ranks && even
        };
        while unit > least && !fits(unit) {
            unit /= 2;
        }
        Deal {
            groups: 1,
            per: count / unit,
            unit: unit * size,
        }
    }

    /// Floats of all units.
    pub fn width(self) -> u32 {
        self.groups
            .saturating_mul(self.per)
            .saturating_mul(self.unit)
    }

    /// The same deal of units of another size.
    pub fn with_unit(self, unit: u32) -> Deal {
        Deal { unit, ..self }
    }

    /// The floats of a rank.
    pub fn part(self, rank: u32, ranks: u32) -> Range<u32> {
        let units = self.units(rank, ranks);
        units.start.saturating_mul(self.unit)..units.end.saturating_mul(self.unit)
    }

    /// The units of a rank, which is below `ranks`.
    pub fn units(self, rank: u32, ranks: u32) -> Range<u32> {
        let [groups, per, ranks] = [self.groups, self.per, ranks].map(|n| u64::from(n.max(1)));
        let rank = u64::from(rank).min(ranks - 1);
        let cut = |all: u64, nth: u64, of: u64| all * nth / of;
        let units = if groups >= ranks {
            cut(groups, rank, ranks) * per..cut(groups, rank + 1, ranks) * per
        } else {
            let group = cut(groups, rank, ranks);
            // The first rank of a group.
            let first = |group: u64| (group * ranks).div_ceil(groups);
            let (nth, all) = (rank - first(group), first(group + 1) - first(group));
            let begin = group * per + cut(per, nth, all);
            let end = group * per + cut(per, nth + 1, all);
            begin..end.max(begin + 1)
        };
        units.start as u32..units.end as u32
    }
}

impl params::Exchange {
    /// How each vector is dealt.
    pub fn deal(&self) -> Deal {
        Deal {
            groups: self.groups,
            per: self.per,
            unit: self.unit,
        }
    }

    /// The floats of a vector that a rank has before the exchange.
    pub fn part(&self, rank: u32) -> Range<u32> {
        self.deal().part(rank, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every unit has a rank, parts ascend, and they differ by at most one unit of what is dealt.
    #[test]
    fn every_unit_is_dealt_and_no_part_is_empty() {
        for ranks in 1..=9 {
            for groups in 1..=12 {
                for per in 1..=9 {
                    let deal = Deal {
                        groups,
                        per,
                        unit: 3,
                    };
                    let parts: Vec<_> = (0..ranks).map(|rank| deal.units(rank, ranks)).collect();
                    let mut covered = 0;
                    for part in &parts {
                        assert!(
                            !part.is_empty() && part.start <= covered,
                            "{deal:?} {parts:?}"
                        );
                        assert!(part.end >= covered, "{deal:?} {parts:?}");
                        covered = part.end;
                        let (first, last) = (part.start / per, (part.end - 1) / per);
                        let whole = part.start.is_multiple_of(per) && part.end.is_multiple_of(per);
                        assert!(whole || first == last, "{deal:?} {part:?} cuts groups");
                    }
                    assert_eq!(covered, groups * per, "{deal:?} {parts:?}");
                }
            }
        }
    }

    #[test]
    fn parts_are_even() {
        let parts = |deal: Deal, ranks| -> Vec<u32> {
            (0..ranks)
                .map(|rank| deal.part(rank, ranks).len() as u32)
                .collect()
        };
        assert_eq!(parts(Deal::even(4096, 1, 2), 2), [2048, 2048]);
        assert_eq!(parts(Deal::even(4096, 1, 3), 3), [1344, 1344, 1408]);
        assert_eq!(parts(Deal::even(896, 1, 2), 2), [448, 448]);
        assert_eq!(parts(Deal::even(7, 5, 2), 2), [15, 20]);
        // 14 heads over 2 heads of keys and values.
        let heads = Deal {
            groups: 2,
            per: 7,
            unit: 1,
        };
        assert_eq!(parts(heads, 2), [7, 7]);
        assert_eq!(parts(heads, 3), [3, 4, 7]);
        assert_eq!(parts(heads, 8), [1, 2, 2, 2, 1, 2, 2, 2]);
        // Fewer heads than ranks.
        let few = Deal {
            groups: 2,
            per: 1,
            unit: 1,
        };
        assert_eq!(
            (0..4).map(|r| few.units(r, 4).start).collect::<Vec<_>>(),
            [0, 0, 1, 1]
        );
    }
}
