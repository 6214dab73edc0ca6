//! IQ1_M: 256 elements in 56 bytes, 16 sub-blocks of 16: `x = (d · (2 scale + 1)) · (q ± 1/8)`, q -1, 0 or 1.
//!
//! | bytes | what |
//! |---|---|
//! | 0..32 | lower eight bits of the entries of eight elements each |
//! | 32..48 | per entry four bits: its upper three bits, and a bit for -1/8 |
//! | 48..56 | four u16, each with four scales of three bits; their top four bits together are d, f16 |

use super::codes::Coded;
use super::grid;

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
