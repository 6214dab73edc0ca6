//! Formats whose elements are numbers of a small table of values, once a block is unpacked: `x = d · factor · scale ·
//! value[code]`. The decoder and the devices read such blocks in this form.

use half::f16;
use welte_table::Format;

/// A block of up to 256 elements. Smaller blocks use the first places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The places of the elements' values in [`values`].
    pub codes: [u8; 256],
    /// A scale for every 16 elements: a whole number, or the bits of an E4M3 float in NVFP4.
    pub scales: [u8; 16],
    /// The bits of the block's scale, as an f16; as an f32 in NVFP4.
    pub d: u32,
}

impl Coded {
    pub(super) const EMPTY: Coded = Coded {
        codes: [0; 256],
        scales: [1; 16],
        d: 0,
    };
}

/// The values of a format's codes, and their factor. `None` if the format has no such form.
pub const fn values(format: Format) -> Option<([i8; 16], f32)> {
    Some(match format {
        // Three numbers, each with a difference of one above or below.
        Format::IQ1_S | Format::IQ1_M => {
            ([-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0.125)
        }
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => (
            [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            0.125,
        ),
        Format::IQ3_XXS => (
            [
                4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62,
            ],
            0.25,
        ),
        Format::IQ3_S => (
            [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
            1.0,
        ),
        Format::TQ1_0 | Format::TQ2_0 => ([-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1.0),
        Format::NVFP4 | Format::NVFP4_F32 => (
            [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
            0.5,
        ),
        _ => return None,
    })
}

/// Unpacks one block. Panics if `block` is not one block of a format that has [`values`].
pub fn unpack(format: Format, block: &[u8]) -> Coded {
    let read = |at: usize| block.get(at..);
    match format {
        Format::IQ1_S => whole(read(0), super::iq1_s::unpack),
        Format::IQ1_M => whole(read(0), super::iq1_m::unpack),
        Format::IQ2_XXS => whole(read(0), super::iq2_xxs::unpack),
        Format::IQ2_XS => whole(read(0), super::iq2_xs::unpack),
        Format::IQ2_S => whole(read(0), super::iq2_s::unpack),
        Format::IQ3_XXS => whole(read(0), super::iq3_xxs::unpack),
        Format::IQ3_S => whole(read(0), super::iq3_s::unpack),
        Format::TQ1_0 => whole(read(0), super::tq1_0::unpack),
        Format::TQ2_0 => whole(read(0), super::tq2_0::unpack),
        Format::NVFP4 => whole(read(0), |block| super::nvfp4::unpack(1.0, block)),
        Format::NVFP4_F32 => {
            let factor = block.first_chunk().map_or(0.0, |d| f32::from_le_bytes(*d));
            whole(read(4), |block| super::nvfp4::unpack(factor, block))
        }
        other => panic!("{} has no codes", other.name()),
    }
}

fn whole<const B: usize>(block: Option<&[u8]>, unpack: impl Fn(&[u8; B]) -> Coded) -> Coded {
    let block = block.and_then(|block| block.first_chunk());
    unpack(block.expect("a whole block"))
}

pub(super) fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    let Some((values, factor)) = values(format) else {
        return;
    };
    let floats = matches!(format, Format::NVFP4 | Format::NVFP4_F32);
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(format.block())) {
        let coded = unpack(format, block);
        let parts = out.chunks_exact_mut(16).zip(coded.codes.chunks_exact(16));
        for ((x, codes), scale) in parts.zip(coded.scales) {
            let scale = match floats {
                true => f32::from_bits(coded.d) * super::f8_e4m3::value(scale),
                false => f16::from_bits(coded.d as u16).to_f32() * f32::from(scale),
            };
            for (x, code) in x.iter_mut().zip(codes) {
                *x = scale * factor * f32::from(values[usize::from(*code)]);
            }
        }
    }
}
