//! IQ3_S: 256 elements in 110 bytes, 8 sub-blocks of 32: `x = (d · (2 scale + 1)) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | lower eight bits of the entries of four elements each |
//! | 66..74 | ninth bits of the entries: bit i of byte j = entry 8j + i |
//! | 74..106 | signs: bit i of byte j = element 8j + i |
//! | 106..110 | scales: byte i = sub-block 2i low, sub-block 2i + 1 high |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 110]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        ..Coded::EMPTY
    };
    for (i, codes) in coded.codes.chunks_exact_mut(8).enumerate() {
        let entries = [2 * i, 2 * i + 1].map(|i| {
            let high = block[66 + i / 8] >> (i % 8) & 1;
            grid::iq3_s(u16::from_le_bytes([block[2 + i], high]))
        });
        grid::twice_four(entries, block[74 + i], codes);
    }
    for (i, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (block[106 + i / 4] >> (4 * (i / 2 % 2)) & 15) + 1;
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 110]) {
    let fit = grid_search::IQ3_S.fit(x, importance, 32, 15, 0);
    block.fill(0);
    halves::put(block, 0, fit.d);
    for (i, entry) in fit.entries.iter().enumerate() {
        block[2 + i] = *entry as u8;
        block[66 + i / 8] |= ((entry >> 8) as u8) << (i % 8);
    }
    block[74..106].copy_from_slice(&fit.signs);
    for sub in 0..8 {
        block[106 + sub / 2] |= fit.scales[2 * sub] << (4 * (sub % 2));
    }
}
