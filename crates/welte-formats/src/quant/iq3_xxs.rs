//! IQ3_XXS: 256 elements in 98 bytes, 8 sub-blocks of 32: `x = (d · (2 scale + 1) / 4) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | entries of four elements each |
//! | 66 + 4s.. of sub-block s | u32: four times seven bits of signs, then the scale in the top four bits |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 98]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        ..Coded::EMPTY
    };
    for (i, codes) in coded.codes.chunks_exact_mut(8).enumerate() {
        let signs = grid::even_signs(grid::word(block, 66 + i / 4 * 4) >> (7 * (i % 4)));
        let entries = [0, 1].map(|half| grid::iq3_xxs(block[2 + 2 * i + half]));
        grid::twice_four(entries, signs, codes);
    }
    for (i, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (block[69 + i / 2 * 4] >> 4) + 1;
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 98]) {
    let fit = grid_search::IQ3_XXS.fit(x, importance, 32, 15, 0);
    halves::put(block, 0, fit.d);
    for (byte, entry) in block[2..66].iter_mut().zip(fit.entries) {
        *byte = entry as u8;
    }
    for sub in 0..8 {
        let signs = (0..4).map(|i| u32::from(fit.signs[4 * sub + i] & 127) << (7 * i));
        let word = u32::from(fit.scales[2 * sub]) << 28 | signs.sum::<u32>();
        block[66 + 4 * sub..70 + 4 * sub].copy_from_slice(&word.to_le_bytes());
    }
}
