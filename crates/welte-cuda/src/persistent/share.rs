//! The division of a matrix's rows among blocks. Every block takes a share of every product, as even as whole rows allow.

use crate::mirror::mirrored;

mirrored! {
    /// A block's rows of one product.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Share = "Share" {
        pub(crate) first: u32,
        pub(crate) rows: u32,
    }
}

/// Divides rows among blocks. The remainder of each division goes to the next blocks in turn, so that all blocks stream
/// nearly the same number of rows per token.
#[derive(Debug, Default)]
pub(crate) struct RowDivider {
    blocks: u32,
    /// The block that gets the next odd row.
    next: u32,
}

impl RowDivider {
    pub(crate) fn new(blocks: u32) -> RowDivider {
        RowDivider { blocks, next: 0 }
    }

    /// The shares of `n` rows, by block.
    pub(crate) fn divide(&mut self, n: u32) -> Vec<Share> {
        let blocks = self.blocks.max(1);
        let (each, odd) = (n / blocks, n % blocks);
        let shares = (0..blocks).map(|block| {
            let turn = (block + blocks - self.next) % blocks;
            Share {
                first: turn * each + turn.min(odd),
                rows: each + u32::from(turn < odd),
            }
        });
        let shares = shares.collect();
        self.next = (self.next + odd) % blocks;
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers, the same at every run.
    fn numbers() -> impl FnMut(u32) -> u32 {
        let mut state = 7u64;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u32 % below
        }
    }

    #[test]
    fn every_row_has_one_block_and_blocks_have_equal_shares() {
        let mut number = numbers();
        for _ in 0..200 {
            let blocks = 1 + number(160);
            let mut divider = RowDivider::new(blocks);
            let mut all = vec![0u64; blocks as usize];
            let mut products = 0;
            for _ in 0..1 + number(40) {
                let n = number(20_000);
                let shares = divider.divide(n);
                products += 1;
                let mut seen = vec![0u8; n as usize];
                for (share, sum) in shares.iter().zip(&mut all) {
                    for row in share.first..share.first + share.rows {
                        seen[row as usize] += 1;
                    }
                    assert!(share.rows.abs_diff(n / blocks) <= 1);
                    *sum += u64::from(share.rows);
                }
                assert!(seen.iter().all(|times| *times == 1));
            }
            let (most, least) = (all.iter().max(), all.iter().min());
            assert!(
                products > 0 && most.unwrap() - least.unwrap() <= 1,
                "{all:?}"
            );
        }
    }
}
