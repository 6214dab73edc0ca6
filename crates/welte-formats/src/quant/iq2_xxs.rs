//! IQ2_XXS: 256 elements in 66 bytes, 8 sub-blocks of 32: `x = (d · (2 scale + 1) / 8) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2 + 8s.. of sub-block s | four bytes: entries of eight elements each |
//! | 6 + 8s.. | u32: four times seven bits of signs, then the scale in the top four bits |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 66]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        ..Coded::EMPTY
    };
    for (sub, codes) in coded.codes.chunks_exact_mut(32).enumerate() {
        let at = 2 + 8 * sub;
        let signs = grid::word(block, at + 4);
        for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
            let entry = grid::iq2_xxs(block[at + i]);
            grid::eight(entry, grid::even_signs(signs >> (7 * i)), codes);
        }
        coded.scales[2 * sub..][..2].fill((2 * (signs >> 28) + 1) as u8);
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 66]) {
    let fit = grid_search::IQ2_XXS.fit(x, importance, 32, 15, 0);
    halves::put(block, 0, fit.d);
    for sub in 0..8 {
        let at = 2 + 8 * sub;
        let mut word = u32::from(fit.scales[2 * sub]) << 28;
        for i in 0..4 {
            block[at + i] = fit.entries[4 * sub + i] as u8;
            word |= u32::from(fit.signs[4 * sub + i] & 127) << (7 * i);
        }
        block[at + 4..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}
