//! How a weight matrix is stored: one row here, one file in `welte-formats`, one in each backend.

use crate::{Affine, Integers};

/// A storage format of weights (and of the KV cache, for `F16` and `Q8_0`).
#[allow(non_camel_case_types, missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    F8_E4M3,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    TQ1_0,
    TQ2_0,
    Q1_0,
    NVFP4,
    /// NVFP4 with an f32 factor per block: the factor of the whole matrix, which files store apart.
    NVFP4_F32,
    /// Scale, bias and integers by group, as MLX quantises.
    Affine(Affine),
    /// Scale, zero point and integers by group, as AWQ, GPTQ and compressed-tensors quantise.
    Integers(Integers),
}

/// One row per format outside families: name, elements per block, bytes per block.
macro_rules! rows {
    ($($format:ident $elements:literal $bytes:literal,)*) => {
        const ROWS: &[(Format, &str, usize, usize)] =
            &[$((Format::$format, stringify!($format), $elements, $bytes)),*];

        /// The format's place in `ROWS`, or what follows it.
        const fn row_of(format: Format) -> usize {
            let mut row = 0;
            $(
                if matches!(format, Format::$format) {
                    return row;
                }
                row += 1;
            )*
            row
        }
    };
}

rows! {
    F32 1 4,
    F16 1 2,
    BF16 1 2,
    Q4_0 32 18,
    Q4_1 32 20,
    Q5_0 32 22,
    Q5_1 32 24,
    Q8_0 32 34,
    Q2_K 256 84,
    Q3_K 256 110,
    Q4_K 256 144,
    Q5_K 256 176,
    Q6_K 256 210,
    IQ4_NL 32 18,
    IQ4_XS 256 136,
    MXFP4 32 17,
    F8_E4M3 128 132,
    IQ1_S 256 50,
    IQ1_M 256 56,
    IQ2_XXS 256 66,
    IQ2_XS 256 74,
    IQ2_S 256 82,
    IQ3_XXS 256 98,
    IQ3_S 256 110,
    TQ1_0 256 54,
    TQ2_0 256 66,
    Q1_0 128 18,
    NVFP4 64 36,
    NVFP4_F32 64 40,
}

/// Where the integers begin in `ALL`.
const INTEGERS: usize = ROWS.len() + Affine::ALL.len();

const COUNT: usize = INTEGERS + Integers::ALL.len();

impl Format {
    /// Every format; `ALL[f.index()] == f`.
    pub const ALL: [Format; COUNT] = {
        let mut all = [Format::F32; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = if i < ROWS.len() {
                ROWS[i].0
            } else if i < INTEGERS {
                Format::Affine(Affine::ALL[i - ROWS.len()])
            } else {
                Format::Integers(Integers::ALL[i - INTEGERS])
            };
            i += 1;
        }
        all
    };

    /// Its place in `ALL`.
    pub const fn index(self) -> usize {
        match self {
            Format::Affine(affine) => ROWS.len() + affine.index(),
            Format::Integers(integers) => INTEGERS + integers.index(),
            one => row_of(one),
        }
    }

    /// The name people know, as GGUF tools write it; `MLX4_64` for 4 bits in groups of 64 with scales in BF16,
    /// `MLX4_64_F16` with scales in F16; `INT4_64` for integers around the middle, `UINT4_64` with zero points.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Affine(affine) => affine.name(),
            Format::Integers(integers) => integers.name(),
            one => ROWS[row_of(one)].1,
        }
    }

    /// The format of that name, in any case.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL
            .into_iter()
            .find(|f| f.name().eq_ignore_ascii_case(name))
    }

    /// Elements in one block (1 for plain floats).
    pub const fn block(self) -> usize {
        match self {
            Format::Affine(affine) => affine.group(),
            Format::Integers(integers) => integers.group(),
            one => ROWS[row_of(one)].2,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::Affine(affine) => 4 + affine.group() * affine.bits() / 8,
            Format::Integers(integers) => 4 + integers.group() * integers.bits() / 8,
            one => ROWS[row_of(one)].3,
        }
    }

    /// Bytes of `elements` values, which must be a multiple of the block (`None` if not, or on overflow).
    pub fn bytes(self, elements: usize) -> Option<usize> {
        elements
            .is_multiple_of(self.block())
            .then(|| (elements / self.block()).checked_mul(self.block_bytes()))
            .flatten()
    }

    /// True for block formats (everything but F32, F16 and BF16).
    pub fn is_quantised(self) -> bool {
        self.block() > 1
    }

    /// True where devices round activations to 8 bits per 32 elements to multiply them with integers: the block formats
    /// whose values are integers times a scale.
    pub fn rounds_activations(self) -> bool {
        self.is_quantised() && self != Format::F8_E4M3
    }
}
