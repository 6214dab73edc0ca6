//! How a weight matrix is stored: one row here, one file in `welte-formats`, one in each backend.

use crate::Affine;

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
    /// Scale, bias and integers by group, as MLX quantises.
    Affine(Affine),
}

/// One row per format that is no family: name, elements per block, bytes per block.
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
}

const COUNT: usize = ROWS.len() + Affine::ALL.len();

impl Format {
    /// Every format; `ALL[f.index()] == f`.
    pub const ALL: [Format; COUNT] = {
        let mut all = [Format::F32; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = if i < ROWS.len() {
                ROWS[i].0
            } else {
                Format::Affine(Affine::ALL[i - ROWS.len()])
            };
            i += 1;
        }
        all
    };

    /// Its place in `ALL`.
    pub const fn index(self) -> usize {
        match self {
            Format::Affine(affine) => ROWS.len() + affine.index(),
            one => row_of(one),
        }
    }

    /// The name people know, as GGUF tools write it; `MLX4_64` for 4 bits in groups of 64 with scales in BF16,
    /// `MLX4_64_F16` with scales in F16.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Affine(affine) => affine.name(),
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
            one => ROWS[row_of(one)].2,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::Affine(affine) => 4 + affine.group() * affine.bits() / 8,
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
