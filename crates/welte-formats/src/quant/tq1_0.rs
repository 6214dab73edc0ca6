//! TQ1_0: 256 elements in 54 bytes: `x = d · (q - 1)`, q 0..=2. A byte holds five numbers in base 3, as a fraction of 256:
//! three times the byte is the first number times 256 and a remainder, which holds the next ones.
//!
//! | bytes | what |
//! |---|---|
//! | 0..32 | number i of byte j = element 32i + j |
//! | 32..48 | number i of byte j = element 160 + 16i + j |
//! | 48..52 | number i of byte j = element 240 + 4i + j, i 0..=3 |
//! | 52..54 | d, f16 |

use super::codes::Coded;
use super::{grid, halves, tq2_0};

/// First byte, bytes, and numbers in each byte of the three parts.
const PARTS: [(usize, usize, usize); 3] = [(0, 32, 5), (32, 16, 5), (48, 4, 4)];

pub(super) fn unpack(block: &[u8; 54]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 52).into(),
        ..Coded::EMPTY
    };
    let mut rest = &mut coded.codes[..];
    for (first, count, numbers) in PARTS {
        let (part, others) = rest.split_at_mut(count * numbers);
        for (j, byte) in block[first..first + count].iter().enumerate() {
            let mut fraction = *byte;
            for i in 0..numbers {
                let next = u16::from(fraction) * 3;
                part[i * count + j] = (next >> 8) as u8;
                fraction = next as u8;
            }
        }
        rest = others;
    }
    coded
}

pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 54]) {
    let (d, q) = tq2_0::ternary(x);
    halves::put(block, 52, d);
    let mut rest = &q[..];
    for (first, count, numbers) in PARTS {
        let (part, others) = rest.split_at(count * numbers);
        for (j, byte) in block[first..first + count].iter_mut().enumerate() {
            // The number in base 3, with a zero digit where there are only four, as a fraction rounded up.
            let digits = (0..5).map(|i| part.get(i * count + j).copied().unwrap_or(0));
            let number = digits.fold(0, |n, q| 3 * n + u16::from(q));
            *byte = (number * 256).div_ceil(243) as u8;
        }
        rest = others;
    }
}
