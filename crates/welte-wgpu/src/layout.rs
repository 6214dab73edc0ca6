//! How weights lie in the GPU's memory.
//!
//! A vector is an array of f32. A row of a matrix has its blocks as whole words, then the scales that are stored apart, so that
//! every block begins at a word; rows are padded to 16 bytes. A matrix that is larger than a binding is cut into pieces of whole
//! rows (of whole experts, if it holds experts).

use std::ops::Range;
use welte_formats::quant::coded;
use welte_table::{Format, GroupScale, Op, Program, Usage, WeightId, WeightSpec, params};

/// How the blocks of a format are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// Elements of a block.
    pub(crate) block: usize,
    /// Words of a block.
    pub(crate) words: usize,
    /// Bytes of a block that are stored apart.
    pub(crate) tail: usize,
    repack: Repack,
}

#[derive(Clone, Debug, PartialEq)]
enum Repack {
    /// As they are.
    Copy,
    /// These bytes of a block are stored apart.
    Split(Range<usize>),
    /// Codes of four bits, then a byte of scale for every 16 elements, then the block's scale.
    Coded,
}

impl Layout {
    pub(crate) fn of(format: Format) -> Layout {
        let split = |range: Range<usize>| {
            let words = (format.block_bytes() - range.len()) / 4;
            (format.block(), words, range.len(), Repack::Split(range))
        };
        let (block, words, tail, repack) = match format {
            Format::F32 => (8, 8, 0, Repack::Copy),
            Format::F16 | Format::BF16 => (8, 4, 0, Repack::Copy),
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4_NL => split(0..2),
            Format::MXFP4 => split(0..1),
            Format::Q3_K => split(108..110),
            Format::Q6_K => split(208..210),
            coded if coded::values(coded).is_some() => {
                let block = coded.block();
                (block, block / 8 + block / 64 + 1, 0, Repack::Coded)
            }
            other => (other.block(), other.block_bytes() / 4, 0, Repack::Copy),
        };
        Layout {
            block,
            words,
            tail,
            repack,
        }
    }

    /// Bytes of a row of `k` elements.
    pub(crate) fn row_bytes(&self, k: usize) -> usize {
        let blocks = k.div_ceil(self.block);
        (blocks * self.words * 4 + blocks * self.tail).next_multiple_of(16)
    }

    /// Stores a row. `out` is zero.
    pub(crate) fn store(&self, format: Format, k: usize, row: &[u8], out: &mut [u8]) {
        let block = format.block_bytes();
        let main = self.words * 4;
        match &self.repack {
            Repack::Copy => out[..row.len()].copy_from_slice(row),
            Repack::Split(apart) => {
                let (blocks, tails) = out.split_at_mut(k / self.block * main);
                let places = blocks.chunks_exact_mut(main);
                let tails = tails.chunks_exact_mut(self.tail);
                for ((bytes, place), tail) in row.chunks_exact(block).zip(places).zip(tails) {
                    place[..apart.start].copy_from_slice(&bytes[..apart.start]);
                    place[apart.start..].copy_from_slice(&bytes[apart.end..]);
                    tail.copy_from_slice(&bytes[apart.clone()]);
                }
            }
            Repack::Coded => {
                for (bytes, place) in row.chunks_exact(block).zip(out.chunks_exact_mut(main)) {
                    store_coded(format, bytes, place);
                }
            }
        }
    }

    /// The constants of the format's shader.
    pub(crate) fn constants(&self, format: Format) -> String {
        let mut text = format!(
            "const BLOCK = {}u;\nconst WORDS = {}u;\nconst TAIL = {}u;\n",
            self.block, self.words, self.tail
        );
        if let Some((values, factor)) = coded::values(format) {
            let words = values.as_chunks::<4>().0.iter();
            let words = words.map(|four| u32::from_le_bytes(four.map(|v| v as u8)));
            let words: Vec<String> = words.map(|word| format!("{word:#x}u")).collect();
            let e4m3 = matches!(format, Format::NVFP4 | Format::NVFP4_F32);
            text += &format!(
                "const VALUES = array<u32, 4>({});\nconst FACTOR = {factor:?};\nconst E4M3 = {e4m3};\n",
                words.join(", ")
            );
        }
        let group = match format {
            Format::Affine(affine) => Some((affine.bits(), u32::from(!affine.bf16()), 0, true)),
            Format::Integers(one) => {
                let head = match one.scale() {
                    GroupScale::BF16 => 0,
                    GroupScale::F16 => 1,
                    GroupScale::F32 => 2,
                };
                Some((one.bits(), head, one.middle(), false))
            }
            _ => None,
        };
        if let Some((bits, head, middle, affine)) = group {
            text += &format!(
                "const BITS = {bits}u;\nconst HEAD = {head}u;\nconst MIDDLE = {middle}.0;\nconst AFFINE = {affine};\n"
            );
        }
        text
    }
}

fn store_coded(format: Format, block: &[u8], place: &mut [u8]) {
    let elements = format.block();
    let one = coded::unpack(format, block);
    let (codes, rest) = place.split_at_mut(elements / 2);
    let (scales, d) = rest.split_at_mut(elements / 16);
    for (byte, pair) in codes.iter_mut().zip(one.codes.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
    scales.copy_from_slice(&one.scales[..elements / 16]);
    d.copy_from_slice(&one.d.to_le_bytes());
}

/// Rows of a weight that a binding can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) first: u32,
    pub(crate) rows: u32,
}

/// How a weight of a program is stored.
pub(crate) struct Stored {
    /// `None` for a vector.
    pub(crate) layout: Option<Layout>,
    /// Bytes of a row.
    pub(crate) row: u64,
    pub(crate) pieces: Vec<RowRange>,
}

impl Stored {
    /// `together` rows stay in one piece.
    pub(crate) fn of(spec: &WeightSpec, together: u32, binding: u64) -> Stored {
        let whole = vec![RowRange {
            first: 0,
            rows: spec.n,
        }];
        if spec.usage == Usage::Vector {
            return Stored {
                layout: None,
                row: 4 * u64::from(spec.k),
                pieces: whole,
            };
        }
        let layout = Layout::of(spec.format);
        let row = layout.row_bytes(spec.k as usize) as u64;
        let most = (binding / (row * u64::from(together)).max(1)).max(1);
        let most = u32::try_from(most * u64::from(together)).unwrap_or(u32::MAX);
        let pieces = (0..spec.n).step_by(most as usize).map(|first| RowRange {
            first,
            rows: most.min(spec.n - first),
        });
        Stored {
            layout: Some(layout),
            row,
            pieces: pieces.collect(),
        }
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        let rows = self.pieces.iter().map(|piece| u64::from(piece.rows));
        self.row * rows.sum::<u64>()
    }
}

/// Rows of a weight that belong together: those of an expert.
pub(crate) fn together(program: &Program, weight: WeightId) -> u32 {
    let commands = program.passes.iter().flat_map(|pass| &pass.commands);
    let mut of_experts = commands.filter(|c| c.weights[0] == weight).filter_map(|c| {
        Some(match c.op {
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(&c.params);
                p.matrices() * p.n
            }
            Op::ExpertsAdd => params::ExpertsAdd::of(&c.params).n,
            _ => return None,
        })
    });
    of_experts.next().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_words() {
        for format in Format::ALL {
            let layout = Layout::of(format);
            let stored = layout.words * 4 + layout.tail;
            let least = match layout.repack {
                Repack::Coded => layout.block / 2,
                _ => format.block_bytes() * layout.block / format.block(),
            };
            assert!(stored >= least, "{}: {stored} bytes", format.name());
        }
    }

    #[test]
    fn scales_are_stored_apart() {
        let layout = Layout::of(Format::Q4_0);
        let row: Vec<u8> = (0..36).collect();
        let mut out = vec![0; layout.row_bytes(64)];
        layout.store(Format::Q4_0, 64, &row, &mut out);
        let want: Vec<u8> = (2..18).chain(20..36).chain([0, 1, 18, 19]).collect();
        assert_eq!(out[..36], want);
        assert_eq!(out.len(), 48);
    }

    #[test]
    fn pieces_hold_whole_experts() {
        let spec = WeightSpec {
            name: "w".into(),
            format: Format::F32,
            n: 12,
            k: 8,
            usage: Usage::Matrix,
            add: 0.0,
            source: welte_table::Source::Parts(Vec::new()),
        };
        let pieces = |together, binding| {
            let stored = Stored::of(&spec, together, binding);
            assert_eq!(stored.bytes(), 12 * 32);
            let rows = stored.pieces.iter().map(|piece| piece.rows);
            rows.collect::<Vec<_>>()
        };
        assert_eq!(pieces(1, 1000), [12]);
        assert_eq!(pieces(1, 7 * 32), [7, 5]);
        assert_eq!(pieces(3, 7 * 32), [6, 6]);
        assert_eq!(pieces(4, 1), [4, 4, 4]);
    }
}
