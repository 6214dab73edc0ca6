//! TQ2_0: 256 elements in 66 bytes: `x = d · (q - 1)`, q 0..=2.
//!
//! | bytes | what |
//! |---|---|
//! | 0..64 | bits 2g..2g + 2 of byte 32h + j = element 128h + 32g + j |
//! | 64..66 | d, f16 |

use super::codes::Coded;
use super::{grid, halves};

pub(super) fn unpack(block: &[u8; 66]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 64).into(),
        ..Coded::EMPTY
    };
    for (i, code) in coded.codes.iter_mut().enumerate() {
        *code = block[byte_of(i)] >> (i / 32 % 4 * 2) & 3;
    }
    coded
}

fn byte_of(element: usize) -> usize {
    element / 128 * 32 + element % 32
}

pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 66]) {
    let (d, q) = ternary(x);
    block.fill(0);
    halves::put(block, 64, d);
    for (i, q) in q.iter().enumerate() {
        block[byte_of(i)] |= q << (i / 32 % 4 * 2);
    }
}

/// The largest magnitude, and every element as the nearest of its multiples by -1, 0 and 1, plus 1.
pub(super) fn ternary(x: &[f32; 256]) -> (f32, [u8; 256]) {
    let d = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (
        d,
        x.map(|x| ((x * inverse).round().clamp(-1.0, 1.0) + 1.0) as u8),
    )
}
