//! IQ2_XS: 256 elements in 74 bytes, 16 sub-blocks of 16: `x = (d · (2 scale + 1) / 8) · ±magnitude`.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | u16 per eight elements: the entry in nine bits, then seven bits of signs |
//! | 66..74 | scales: byte i = sub-block 2i low, sub-block 2i + 1 high |

use super::codes::Coded;
use super::{grid, grid_search, halves};

pub(super) fn unpack(block: &[u8; 74]) -> Coded {
    let mut coded = Coded {
        d: grid::half_word(block, 0).into(),
        scales: odd_scales(&block[66..]),
        ..Coded::EMPTY
    };
    for (i, codes) in coded.codes.chunks_exact_mut(8).enumerate() {
        let both = grid::half_word(block, 2 + 2 * i);
        grid::eight(
            grid::iq2_xs(both),
            grid::even_signs(u32::from(both >> 9)),
            codes,
        );
    }
    coded
}

/// 16 times `2 scale + 1`, from 8 bytes with two scales each.
pub(super) fn odd_scales(bytes: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| 2 * (bytes[i / 2] >> (4 * (i % 2)) & 15) + 1)
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 74]) {
    let fit = grid_search::IQ2_XS.fit(x, importance, 16, 15, 0);
    halves::put(block, 0, fit.d);
    for i in 0..32 {
        let both = fit.entries[i] | u16::from(fit.signs[i] & 127) << 9;
        block[2 + 2 * i..4 + 2 * i].copy_from_slice(&both.to_le_bytes());
    }
    put_scales(&fit.scales, &mut block[66..]);
}

/// The inverse of `odd_scales`.
pub(super) fn put_scales(scales: &[u8; 16], bytes: &mut [u8]) {
    for (byte, pair) in bytes.iter_mut().zip(scales.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
}
