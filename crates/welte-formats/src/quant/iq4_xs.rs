//! IQ4_XS: 256 elements in 136 bytes, 8 sub-blocks of 32: `x = (d · (scale - 32)) · value[q]`, q 0..=15,
//! scale 0..=63.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | upper two bits of the scales: bits 2i..2i + 2 = scale i |
//! | 4..8 | lower four bits of the scales: byte i = scale 2i low, scale 2i + 1 high |
//! | 8..136 | q: byte 16i + j = element 32i + j low, element 32i + j + 16 high |

use super::{codebook, halves, nibbles, search};

pub(super) fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = halves::get(block, 0);
    let quants = block[8..].as_chunks::<16>().0;
    let subs = out.as_chunks_mut::<32>().0.iter_mut().zip(quants);
    for (sub, (x, q)) in subs.enumerate() {
        let scale = d * scale(block, sub);
        nibbles::unpack4(q, x, |q| {
            scale * f32::from(codebook::UNEVEN[usize::from(q)])
        });
    }
}

fn scale(block: &[u8; 136], sub: usize) -> f32 {
    let low = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * sub)) & 3;
    f32::from(low) + f32::from(high << 4) - 32.0
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 136]) {
    block.fill(0);
    let subs = x.as_chunks::<32>().0;
    let matter = importance.as_chunks::<32>().0;
    let mut ideal = [0f32; 8];
    for ((ideal, x), matters) in ideal.iter_mut().zip(subs).zip(matter) {
        *ideal = codebook::best_scale(x, &codebook::weights(x, matters));
    }
    let extreme = ideal
        .iter()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { *b } else { a });
    // The extreme maps to the negative end, which reaches one step further.
    let d = search::as_half(extreme / -32.0);
    halves::put(block, 0, d);
    let mut high = 0u16;
    for (sub, x) in subs.iter().enumerate() {
        let weights = codebook::weights(x, &matter[sub]);
        let near = if d == 0.0 { 0.0 } else { ideal[sub] / d };
        let near = near.round().clamp(-32.0, 31.0);
        let (mut best, mut least) = ((0.0, [0; 32]), f32::INFINITY);
        for scale in [near, (near - 1.0).max(-32.0), (near + 1.0).min(31.0)] {
            let (q, error) = codebook::fit(x, &weights, d * scale);
            if error < least {
                (best, least) = ((scale, q), error);
            }
        }
        let (scale, q) = best;
        let bits = (scale + 32.0) as u16;
        block[4 + sub / 2] |= ((bits & 15) as u8) << (4 * (sub % 2));
        high |= (bits >> 4) << (2 * sub);
        nibbles::pack4(&q, &mut block[8 + 16 * sub..]);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}
