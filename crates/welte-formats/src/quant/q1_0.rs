//! Q1_0: 128 elements in 18 bytes: `x = ±d`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..18 | bit b of byte j: element 8j + b is d, not -d |

use super::codes::Coded;
use super::{grid, halves};

/// Codes are those of the ternary formats: 0 is -d and 2 is d.
pub(super) fn unpack(block: &[u8; 18]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        ..Coded::EMPTY
    };
    for (i, code) in coded.codes[..128].iter_mut().enumerate() {
        *code = (block[2 + i / 8] >> (i % 8) & 1) << 1;
    }
    coded
}

/// The signs of the elements, and the mean of their magnitudes.
pub(super) fn encode(x: &[f32; 128], block: &mut [u8; 18]) {
    block.fill(0);
    halves::put(block, 0, x.iter().map(|x| x.abs()).sum::<f32>() / 128.0);
    for (i, x) in x.iter().enumerate() {
        block[2 + i / 8] |= u8::from(*x >= 0.0) << (i % 8);
    }
}
