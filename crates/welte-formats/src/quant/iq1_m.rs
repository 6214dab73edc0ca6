//! IQ1_M: 256 elements in 56 bytes, 16 sub-blocks of 16: `x = (d · (2 scale + 1)) · (q ± 1/8)`, q -1, 0 or 1.
//!
//! | bytes | what |
//! |---|---|
//! | 0..32 | lower eight bits of the entries of eight elements each |
//! | 32..48 | per entry four bits: its upper three bits, and a bit for -1/8 |
//! | 48..56 | four u16, each with four scales of three bits; their top four bits together are d, f16 |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 56]) -> Coded {
    let words: [u16; 4] = std::array::from_fn(|i| grid::half_word(block, 48 + 2 * i));
    let d = words
        .iter()
        .rev()
        .fold(0, |d, word| d << 4 | u32::from(word >> 12));
    let mut coded = Coded {
        d,
        scales: std::array::from_fn(|i| (2 * (words[i / 4] >> (3 * (i % 4)) & 7) + 1) as u8),
        ..Coded::EMPTY
    };
    for (i, codes) in coded.codes.chunks_exact_mut(8).enumerate() {
        let high = block[32 + i / 2] >> (4 * (i % 2)) & 15;
        let below = if high & 8 != 0 { 0xff } else { 0 };
        let index = u16::from_le_bytes([block[i], high & 7]);
        grid::eight(grid::iq1(index), below, codes);
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 56]) {
    let fit = grid_search::IQ1.fit(x, importance, 16, 7, 8);
    block.fill(0);
    for (i, entry) in fit.entries.iter().enumerate().take(32) {
        block[i] = *entry as u8;
        let high = (entry >> 8) as u8 | u8::from(fit.below[i]) << 3;
        block[32 + i / 2] |= high << (4 * (i % 2));
    }
    let mut d = [0; 2];
    halves::put(&mut d, 0, fit.d);
    let d = u16::from_le_bytes(d);
    for (i, scales) in fit.scales.as_chunks::<4>().0.iter().enumerate() {
        let scales = (0..4).map(|j| u16::from(scales[j]) << (3 * j)).sum::<u16>();
        let word = scales | (d >> (4 * i) & 15) << 12;
        block[48 + 2 * i..50 + 2 * i].copy_from_slice(&word.to_le_bytes());
    }
}
