//! The layout of packed tiles and of prepared activation rows. Every instruction set uses the same layout.
//!
//! A tile holds 16 output rows. Block formats are cut into chunks of 32 k. The quants of a chunk are unsigned. They take
//! one vector of 64 bytes (16 rows x 4 k) per bit. "Group" g is k = 4g..4g+4 of the chunk:
//!
//! | bits | content of a byte of vector j |
//! |---|---|
//! | 8 | group j |
//! | 4 | group j low, group j + 4 high |
//! | 2 | group 4j + i at bit 2i |
//! | 3 | group j, group j + 3 at bit 3, two bits of the others on top |
//! | 5 | group j, three bits of the others on top |
//! | 6 | group j, two bits of the others on top |
//!
//! "The others" are the groups that do not fit into one vector: 6 and 7, and with 5 bits also 5. [`leftovers`] lists
//! where their bits lie. Most groups thus cost one or two instructions; only the others are assembled from pieces.
//!
//! Quants of 3 or 4 bits may be indices into a table of 16 values: see [`Layout::codes`].
//!
//! Scales precede their quants, so that a matrix is one sequential stream. With scales in a separate array, throughput
//! was little more than half. A tile is a sequence of records. A record starts with a head of 64 bytes: 16 f16 `d` of
//! each of two blocks, or `d` and `dmin` of one block, or 16 exponents of each of four, or 16 f32 `d` of one block. The
//! chunks of each block follow.
//! Sub-scales take 64 bytes before every two (or four) chunks. The last record may have fewer blocks.
//!
//! Floats: F32 and F16 lie as 16 rows per k, BF16 as 16 rows x 2 k; F8_E4M3 as 16 rows per k, 128 k after 16 f32 scales.

use welte_formats::quant::coded;
use welte_table::{Affine, Format, GroupScale, Integers};

/// Output rows of one tile.
pub(super) const ROWS: usize = 16;
/// Elements that share one activation scale.
pub(super) const CHUNK: usize = 32;
/// Bytes of one prepared activation chunk: 32 int8, then the scale (f32) and two correction words.
pub(super) const ACT: usize = 48;
/// Offset of the scale in an activation chunk.
pub(super) const ACT_SCALE: usize = 32;
/// Offset of the two correction words: see [`Layout::correction`].
pub(super) const ACT_FIRST: usize = 36;
/// The second correction word.
pub(super) const ACT_SECOND: usize = 40;

/// Bytes of a record's head.
pub(super) const HEAD: usize = 64;
/// Bytes of 16 f16.
pub(super) const HALVES: usize = 2 * ROWS;

/// Elements of a block of F8_E4M3.
pub(super) const F8_BLOCK: usize = 128;
/// Bytes of a block of F8_E4M3 of 16 rows: scales, then elements.
pub(super) const F8_BYTES: usize = 64 + F8_BLOCK * ROWS;

/// A part of a group that is split over several vectors: `bits` bits, from bit `from` of the quants on, lie in vector
/// `vector` at bit `at`.
#[derive(Clone, Copy)]
pub(super) struct GroupPart {
    pub(super) group: usize,
    pub(super) vector: usize,
    pub(super) at: u32,
    pub(super) from: u32,
    pub(super) bits: u32,
}

/// The pieces of all split groups.
pub(super) const fn leftovers(bits: usize) -> &'static [GroupPart] {
    const fn piece(group: usize, vector: usize, at: u32, from: u32, bits: u32) -> GroupPart {
        GroupPart {
            group,
            vector,
            at,
            from,
            bits,
        }
    }
    const THREE: [GroupPart; 4] = [
        piece(6, 0, 6, 0, 2),
        piece(6, 2, 6, 2, 1),
        piece(7, 1, 6, 0, 2),
        piece(7, 2, 7, 2, 1),
    ];
    const FIVE: [GroupPart; 7] = [
        piece(5, 0, 5, 0, 3),
        piece(5, 3, 5, 3, 2),
        piece(6, 1, 5, 0, 3),
        piece(6, 4, 5, 3, 2),
        piece(7, 2, 5, 0, 3),
        piece(7, 3, 7, 3, 1),
        piece(7, 4, 7, 4, 1),
    ];
    const SIX: [GroupPart; 6] = [
        piece(6, 0, 6, 0, 2),
        piece(6, 1, 6, 2, 2),
        piece(6, 2, 6, 4, 2),
        piece(7, 3, 6, 0, 2),
        piece(7, 4, 6, 2, 2),
        piece(7, 5, 6, 4, 2),
    ];
    match bits {
        3 => &THREE,
        5 => &FIVE,
        6 => &SIX,
        _ => &[],
    }
}

/// The pieces of one group, none if it is not split.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) const fn pieces(bits: usize, group: usize) -> [Option<GroupPart>; 3] {
    let (all, mut own, mut count, mut i) = (leftovers(bits), [None; 3], 0, 0);
    while i < all.len() {
        if all[i].group == group {
            own[count] = Some(all[i]);
            count += 1;
        }
        i += 1;
    }
    own
}

/// The vector of a group that is not split, and the bit where it starts.
pub(super) const fn place(bits: usize, group: usize) -> (usize, usize) {
    match bits {
        2 => (group / 4, group % 4 * 2),
        3 => (group % 3, group / 3 * 3),
        4 => (group % 4, group / 4 * 4),
        _ => (group, 0),
    }
}

/// How the scales of a block lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// Blocks of 32. w = d (q - offset).
    Plain,
    /// Blocks of 32, or groups of 32, 64 or 128. w = d q + dmin.
    PlainMin,
    /// Blocks of 32. w = 2^(e - 128) (q - offset), e: 16 u8.
    Powers,
    /// Blocks of 256, sub-scales by chunk: 16 i8. w = d sc (q - offset).
    Super,
    /// Blocks of 256, sub-scales by chunk: 16 u8 scales, 16 u8 minima. w = d sc q - dmin m.
    SuperMin,
    /// Blocks of 256, sub-scales by half chunk: 16 i8. w = d sc (q - offset).
    Halves,
    /// Blocks of 64, an f32 `d`, sub-scales by half chunk: 16 E4M3. w = d sc (q - offset).
    Floats,
    /// Blocks of 256, sub-scales by chunk: 16 pairs of i8. w = d sc (q - offset). Sums by 16 fit into i16.
    Pairs,
    /// Blocks of 256, sub-scales by chunk: 16 pairs of u8 of scale (low nibble) and minimum (high).
    /// w = d sc q - dmin m. Sums by 16 fit into i16.
    PairsMin,
}

/// Contents of the two correction words of an activation chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Correction {
    /// i32: -offset x sum over 32. The accumulator starts from it.
    Offset,
    /// f32: scale x sum over 32, then i32: 128 x sum over 32, for products of unsigned 8-bit quants as signed ones.
    Sum,
    /// i32 x 2: -offset x sums over 16.
    OffsetHalves,
    /// i16 x 2 in the first word: sums over 16.
    SumPair,
}

/// How `d` and `dmin` of a row are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// F16.
    Half,
    /// BF16.
    BHalf,
    /// F16; in place of `dmin` a zero point: dmin = -d zero.
    HalfZero,
    /// BF16 with a zero point.
    BHalfZero,
    /// An f32 `d`.
    Float,
}

impl Head {
    /// True if the 16-bit floats are BF16.
    pub(super) const fn bf16(self) -> bool {
        matches!(self, Head::BHalf | Head::BHalfZero)
    }

    /// True if zero points are stored.
    pub(super) const fn has_zero(self) -> bool {
        matches!(self, Head::HalfZero | Head::BHalfZero)
    }
}

/// The packed form of a block format.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) bits: usize,
    pub(super) offset: i32,
    pub(super) scales: Scales,
    /// The values of 3-bit and 4-bit quants that are indices. The offset is included.
    pub(super) codes: Option<[u8; 16]>,
    /// All scales and minima are multiplied by this power of two.
    pub(super) factor: f32,
    /// Chunks of a block.
    pub(super) chunks: usize,
    /// How `d` and `dmin` are stored.
    pub(super) head: Head,
}

/// The layout of format F. If F represents a family, the layout is that of the member with its number of bits: code for a
/// family is generated once per number of bits.
#[inline(always)]
pub(super) const fn layout_of<const F: usize>(member: Format) -> Layout {
    match const { Format::ALL[F] } {
        Format::Affine(_) | Format::Integers(_) => Layout::of(member),
        _ => const { Layout::of(Format::ALL[F]) },
    }
}

/// The format that stands for the integer formats of `bits` bits without zero points. The others are like affine ones.
pub(super) const fn integers(bits: usize) -> usize {
    match Integers::new(bits, 32, GroupScale::F32) {
        Some(integers) => Format::Integers(integers).index(),
        None => panic!("no such format"),
    }
}

/// The format that stands for the affine formats of `bits` bits.
pub(super) const fn affine(bits: usize) -> usize {
    match Affine::new(bits, 32, true) {
        Some(affine) => Format::Affine(affine).index(),
        None => panic!("no such format"),
    }
}

/// The values of IQ4_NL and IQ4_XS, plus 128.
const UNEVEN: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];
/// Twice the values of MXFP4, plus 12.
const DOUBLED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The values of a format's codes plus an offset, and their factor.
const fn coded(format: Format, offset: i32) -> (Option<[u8; 16]>, f32) {
    let Some((values, factor)) = coded::values(format) else {
        return (None, 1.0);
    };
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    (Some(codes), factor)
}

impl Layout {
    /// The layout of a block format. Plain floats get an arbitrary one, which nobody reads.
    pub(super) const fn of(format: Format) -> Layout {
        let (bits, offset, scales) = match format {
            Format::Q4_0 => (4, 8, Scales::Plain),
            Format::Q4_1 => (4, 0, Scales::PlainMin),
            Format::Q5_0 => (5, 16, Scales::Plain),
            Format::Q5_1 => (5, 0, Scales::PlainMin),
            Format::Q2_K => (2, 0, Scales::PairsMin),
            Format::Q3_K => (3, 4, Scales::Pairs),
            Format::Q4_K => (4, 0, Scales::SuperMin),
            Format::Q5_K => (5, 0, Scales::SuperMin),
            Format::Q6_K => (6, 32, Scales::Halves),
            Format::IQ4_NL => (4, 128, Scales::Plain),
            Format::IQ4_XS => (4, 128, Scales::Super),
            Format::MXFP4 => (4, 12, Scales::Powers),
            Format::IQ1_S => (2, 0, Scales::SuperMin),
            Format::IQ1_M => (3, 9, Scales::Halves),
            Format::IQ2_XXS => (3, 43, Scales::Super),
            Format::IQ2_XS | Format::IQ2_S => (3, 43, Scales::Halves),
            Format::IQ3_XXS => (4, 62, Scales::Super),
            Format::IQ3_S => (4, 15, Scales::Super),
            Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 => (2, 1, Scales::Plain),
            Format::NVFP4 | Format::NVFP4_F32 => (4, 12, Scales::Floats),
            Format::Q8_0 | Format::F32 | Format::F16 | Format::BF16 | Format::F8_E4M3 => {
                (8, 128, Scales::Plain)
            }
            Format::Affine(affine) => {
                return Layout {
                    bits: affine.bits(),
                    offset: 0,
                    scales: Scales::PlainMin,
                    codes: None,
                    factor: 1.0,
                    chunks: affine.group() / CHUNK,
                    head: if affine.bf16() {
                        Head::BHalf
                    } else {
                        Head::Half
                    },
                };
            }
            Format::Integers(integers) => {
                let (offset, scales, head) = match integers.scale() {
                    GroupScale::F32 => (integers.middle() as i32, Scales::Plain, Head::Float),
                    GroupScale::BF16 => (0, Scales::PlainMin, Head::BHalfZero),
                    GroupScale::F16 => (0, Scales::PlainMin, Head::HalfZero),
                };
                return Layout {
                    bits: integers.bits(),
                    offset,
                    scales,
                    codes: None,
                    factor: 1.0,
                    chunks: integers.group() / CHUNK,
                    head,
                };
            }
        };
        let (codes, factor) = match format {
            Format::IQ4_NL | Format::IQ4_XS => (Some(UNEVEN), 1.0),
            Format::MXFP4 => (Some(DOUBLED), 1.0),
            // Quants of two bits are the values, apart from offset and minimum.
            _ => match coded(format, offset) {
                (_, factor) if bits == 2 => (None, factor),
                known => known,
            },
        };
        Layout {
            bits,
            offset,
            scales,
            codes,
            factor,
            chunks: match format.block() / CHUNK {
                0 => 1,
                chunks => chunks,
            },
            head: match scales {
                Scales::Floats => Head::Float,
                _ => Head::Half,
            },
        }
    }

    /// Bits of the values that the quants encode.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) const fn value_bits(self) -> usize {
        let Some(codes) = self.codes else {
            return self.bits;
        };
        let (mut most, mut i) = (0, 0);
        while i < 16 {
            if codes[i] > most {
                most = codes[i];
            }
            i += 1;
        }
        8 - most.leading_zeros() as usize
    }

    /// Bytes of the quants of one chunk of a tile.
    pub(super) const fn chunk_bytes(self) -> usize {
        self.bits * CHUNK * ROWS / 8
    }

    /// Bytes of the sub-scales of one chunk, if there are any.
    pub(super) const fn sub_size(self) -> usize {
        match self.scales {
            Scales::Plain | Scales::PlainMin | Scales::Powers => 0,
            Scales::Super => ROWS,
            _ => 2 * ROWS,
        }
    }

    /// Chunks whose sub-scales lie together, in 64 bytes; 1 without sub-scales.
    pub(super) const fn together(self) -> usize {
        match self.sub_size() {
            0 => 1,
            size => 64 / size,
        }
    }

    /// Bytes of a block's sub-scales.
    pub(super) const fn sub_bytes(self) -> usize {
        self.chunks * self.sub_size()
    }

    /// Bytes of a block's sub-scales and quants.
    pub(super) const fn block_bytes(self) -> usize {
        self.sub_bytes() + self.chunks * self.chunk_bytes()
    }

    /// Blocks of a whole record.
    pub(super) const fn record_blocks(self) -> usize {
        HEAD / self.head_size()
    }

    /// Bytes of a block's part of the head.
    pub(super) const fn head_size(self) -> usize {
        match self.scales {
            Scales::Powers => ROWS,
            _ if matches!(self.head, Head::Float) => 4 * ROWS,
            _ if self.has_minima() => 2 * HALVES,
            _ => HALVES,
        }
    }

    /// Bytes of a whole record.
    pub(super) const fn record_bytes(self) -> usize {
        HEAD + self.record_blocks() * self.block_bytes()
    }

    /// Where in a tile the `d` of block b lie; `dmin` follows them.
    pub(super) const fn head_at(self, b: usize) -> usize {
        b / self.record_blocks() * self.record_bytes() + b % self.record_blocks() * self.head_size()
    }

    /// Where in a tile block b lies.
    pub(super) const fn block_at(self, b: usize) -> usize {
        (b / self.record_blocks() + 1) * HEAD + b * self.block_bytes()
    }

    /// Where in a block the sub-scales of chunk c lie, if there are any.
    pub(super) const fn sub_at(self, c: usize) -> usize {
        let many = self.together();
        match self.sub_size() {
            0 => 0,
            size => c / many * (64 + many * self.chunk_bytes()) + c % many * size,
        }
    }

    /// Where in a block the quants of chunk c lie.
    pub(super) const fn quants_at(self, c: usize) -> usize {
        match self.sub_size() {
            0 => c * self.chunk_bytes(),
            _ => (c / self.together() + 1) * 64 + c * self.chunk_bytes(),
        }
    }

    /// True if the scales have minima.
    pub(super) const fn has_minima(self) -> bool {
        matches!(
            self.scales,
            Scales::PlainMin | Scales::SuperMin | Scales::PairsMin
        )
    }

    /// Whether the halves of a chunk have scales, so that dot products end after 16 k.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) const fn by_halves(self) -> bool {
        matches!(
            self.scales,
            Scales::Halves | Scales::Floats | Scales::Pairs | Scales::PairsMin
        )
    }

    /// The corrections that activations carry for the offset or the minima.
    pub(super) const fn correction(self) -> Correction {
        match self.scales {
            Scales::Plain | Scales::Powers | Scales::Super => Correction::Offset,
            Scales::PlainMin | Scales::SuperMin => Correction::Sum,
            Scales::Halves | Scales::Floats | Scales::Pairs => Correction::OffsetHalves,
            Scales::PairsMin => Correction::SumPair,
        }
    }
}

/// Bytes of one packed tile of `k` columns.
pub(super) fn tile_bytes(format: Format, k: usize) -> usize {
    let bytes = match format {
        Format::F32 => k * ROWS * 4,
        Format::F16 => k * ROWS * 2,
        Format::BF16 => k.next_multiple_of(2) * ROWS * 2,
        Format::F8_E4M3 => k / F8_BLOCK * F8_BYTES,
        _ => {
            let layout = Layout::of(format);
            let blocks = k.div_ceil(CHUNK * layout.chunks);
            blocks.div_ceil(layout.record_blocks()) * HEAD + blocks * layout.block_bytes()
        }
    };
    bytes.next_multiple_of(64)
}

/// Bytes of one prepared activation row. It is never a multiple of 512, so that neighbouring rows use different cache sets.
pub(super) fn acts_bytes(format: Format, k: usize, bf16: bool) -> usize {
    let bytes = match format {
        _ if bf16 => k.next_multiple_of(2) * 2,
        _ if !format.rounds_activations() => k.next_multiple_of(2) * 4,
        _ => k.div_ceil(CHUNK) * ACT,
    };
    let bytes = bytes.next_multiple_of(64).max(64);
    if bytes.is_multiple_of(512) {
        bytes + 64
    } else {
        bytes
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}
