//! IQ2_S: 256 elements in 82 bytes, 16 sub-blocks of 16: `x = (d · (2 scale + 1) / 8) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | lower eight bits of the entries of eight elements each |
//! | 34..66 | signs: bit i of byte j = element 8j + i |
//! | 66..74 | upper two bits of the entries: bits 2i..2i + 2 of byte j = entry 4j + i |
//! | 74..82 | scales: byte i = sub-block 2i low, sub-block 2i + 1 high |

use super::codes::Coded;
use super::iq2_xs::{odd_scales, put_scales};
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 82]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        scales: odd_scales(&block[74..]),
        ..Coded::EMPTY
    };
    for (i, codes) in coded.codes.chunks_exact_mut(8).enumerate() {
        let high = block[66 + i / 4] >> (2 * (i % 4)) & 3;
        let entry = grid::iq2_s(u16::from_le_bytes([block[2 + i], high]));
        grid::eight(entry, block[34 + i], codes);
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 82]) {
    let fit = grid_search::IQ2_S.fit(x, importance, 16, 15, 0);
    block.fill(0);
    halves::put(block, 0, fit.d);
    for i in 0..32 {
        block[2 + i] = fit.entries[i] as u8;
        block[34 + i] = fit.signs[i];
        block[66 + i / 4] |= ((fit.entries[i] >> 8) as u8) << (2 * (i % 4));
    }
    put_scales(&fit.scales, &mut block[74..]);
}
