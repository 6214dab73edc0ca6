//! IQ4_NL: 32 elements in 18 bytes, `x = d · value[q]`, q 0..=15.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..18 | q: byte j = element j low, element j + 16 high |

use super::{codebook, halves, nibbles};

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = halves::get(block, 0);
    let Some(q) = block[2..].first_chunk() else {
        return;
    };
    nibbles::unpack4(q, out, |q| d * f32::from(codebook::UNEVEN[usize::from(q)]));
}

pub(super) fn encode(x: &[f32; 32], importance: &[f32; 32], block: &mut [u8; 18]) {
    let weights = codebook::weights(x, importance);
    halves::put(block, 0, codebook::best_scale(x, &weights));
    let (q, _) = codebook::fit(x, &weights, halves::get(block, 0));
    nibbles::pack4(&q, &mut block[2..]);
}
