//! Blocks whose elements are numbers of a small table of values: see `coded.rs`.

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
        Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 => {
            ([-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1.0)
        }
        Format::NVFP4 | Format::NVFP4_F32 => (
            [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
            0.5,
        ),
        _ => return None,
    })
}
