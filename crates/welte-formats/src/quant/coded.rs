//! Formats whose elements are numbers of a small table of values, once a block is unpacked: `x = d · factor · scale ·
//! value[code]`. The decoder and the devices read such blocks in this form.

pub use super::codes::{Coded, values};
use half::f16;
use welte_table::Format;

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
        Format::Q1_0 => whole(read(0), super::q1_0::unpack),
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
            let scale = if floats {
                f32::from_bits(coded.d) * super::f8_e4m3::value(scale)
            } else {
                f16::from_bits(coded.d as u16).to_f32() * f32::from(scale)
            };
            for (x, code) in x.iter_mut().zip(codes) {
                *x = scale * factor * f32::from(values[usize::from(*code)]);
            }
        }
    }
}
