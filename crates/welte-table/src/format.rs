//! How a weight matrix is stored: one row here, one file in `welte-formats`, one in each backend.

/// A storage format of weights (and of the KV cache, for `F16` and `Q8_0`).
#[allow(non_camel_case_types, missing_docs)]
#[repr(u8)]
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
}

/// One row per format: name, elements per block, bytes per block.
const ROWS: [(Format, &str, u32, u32); 17] = [
    (Format::F32, "F32", 1, 4),
    (Format::F16, "F16", 1, 2),
    (Format::BF16, "BF16", 1, 2),
    (Format::Q4_0, "Q4_0", 32, 18),
    (Format::Q4_1, "Q4_1", 32, 20),
    (Format::Q5_0, "Q5_0", 32, 22),
    (Format::Q5_1, "Q5_1", 32, 24),
    (Format::Q8_0, "Q8_0", 32, 34),
    (Format::Q2_K, "Q2_K", 256, 84),
    (Format::Q3_K, "Q3_K", 256, 110),
    (Format::Q4_K, "Q4_K", 256, 144),
    (Format::Q5_K, "Q5_K", 256, 176),
    (Format::Q6_K, "Q6_K", 256, 210),
    (Format::IQ4_NL, "IQ4_NL", 32, 18),
    (Format::IQ4_XS, "IQ4_XS", 256, 136),
    (Format::MXFP4, "MXFP4", 32, 17),
    (Format::F8_E4M3, "F8_E4M3", 128, 132),
];

impl Format {
    /// Every format, in declaration order (`ALL[f as usize] == f`).
    pub const ALL: [Format; 17] = {
        let mut all = [Format::F32; 17];
        let mut i = 0;
        while i < 17 {
            all[i] = ROWS[i].0;
            i += 1;
        }
        all
    };

    /// The name people know, as GGUF tools write it.
    pub fn name(self) -> &'static str {
        ROWS[self as usize].1
    }

    /// The format of that name, in any case.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL
            .into_iter()
            .find(|f| f.name().eq_ignore_ascii_case(name))
    }

    /// Elements in one block (1 for plain floats).
    pub fn block(self) -> usize {
        ROWS[self as usize].2 as usize
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        ROWS[self as usize].3 as usize
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
