//! IQ3_XXS: 256 elements in 98 bytes, 8 sub-blocks of 32: `x = (d · (2 scale + 1) / 4) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | entries of four elements each |
//! | 66 + 4s.. of sub-block s | u32: four times seven bits of signs, then the scale in the top four bits |

use super::codes::Coded;
use super::grid;

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
