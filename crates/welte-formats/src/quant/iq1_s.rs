//! IQ1_S: 256 elements in 50 bytes, 8 sub-blocks of 32: `x = (d · (2 scale + 1)) · (q ± 1/8)`, q -1, 0 or 1.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | lower eight bits of the entries of eight elements each |
//! | 34 + 2s.. of sub-block s | u16: the upper three bits of four entries, the scale in three bits, and a bit for -1/8 |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 50]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        ..Coded::EMPTY
    };
    for (sub, codes) in coded.codes.chunks_exact_mut(32).enumerate() {
        let high = grid::half_word(block, 34 + 2 * sub);
        let below = if high >> 15 != 0 { 0xff } else { 0 };
        for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
            let upper = (high >> (3 * i) & 7) as u8;
            let index = u16::from_le_bytes([block[2 + 4 * sub + i], upper]);
            grid::eight(grid::iq1(index), below, codes);
        }
        coded.scales[2 * sub..][..2].fill((2 * (high >> 12 & 7) + 1) as u8);
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 50]) {
    let fit = grid_search::IQ1.fit(x, importance, 32, 7, 32);
    halves::put(block, 0, fit.d);
    for sub in 0..8 {
        let mut high = u16::from(fit.scales[2 * sub]) << 12 | u16::from(fit.below[4 * sub]) << 15;
        for i in 0..4 {
            let entry = fit.entries[4 * sub + i];
            block[2 + 4 * sub + i] = entry as u8;
            high |= (entry >> 8) << (3 * i);
        }
        block[34 + 2 * sub..36 + 2 * sub].copy_from_slice(&high.to_le_bytes());
    }
}
