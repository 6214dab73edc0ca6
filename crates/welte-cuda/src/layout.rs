//! The layout of a weight in device memory. Its blocks are regrouped into planes: one array per field of a block, with
//! every row aligned to 16 bytes.
//!
//! `kernels/format/<format>.cuh` has the same numbers and reads a block from its planes.

use crate::launch::{ByRows, Launch, Unit, args};
use crate::mirror::{Layout, mirrored};
use welte_formats::quant::grid;
use welte_table::{Format, Usage, WeightSpec};

/// One field of a format's blocks, gathered from a whole matrix: `[n][stride]`, with rows padded by zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plane {
    /// Elements of a row that share one entry.
    pub(crate) elements: u32,
    /// Bytes per entry.
    pub(crate) bytes: u32,
}

impl Plane {
    /// Bytes from one row to the next.
    pub(crate) fn stride(self, k: u32) -> u64 {
        (u64::from(k.div_ceil(self.elements)) * u64::from(self.bytes)).next_multiple_of(16)
    }
}

/// Planes, each written as `elements / bytes`.
macro_rules! planes {
    ($($elements:literal / $bytes:literal),*) => { &[$(Plane { elements: $elements, bytes: $bytes }),*] };
}

/// The planes of a format, in memory order.
pub(crate) fn planes(format: Format) -> &'static [Plane] {
    match format {
        Format::F32 => planes![1 / 4],
        Format::F16 | Format::BF16 => planes![1 / 2],
        Format::Q4_0 => planes![32 / 16, 32 / 2],
        Format::Q4_1 => planes![32 / 16, 32 / 4],
        Format::Q5_0 => planes![32 / 16, 32 / 4, 32 / 2],
        Format::Q5_1 => planes![32 / 16, 32 / 4, 32 / 4],
        Format::Q8_0 => planes![32 / 16, 32 / 16, 32 / 2],
        Format::Q2_K => planes![32 / 8, 32 / 2, 256 / 4],
        Format::Q3_K => planes![32 / 8, 32 / 4, 32 / 2, 256 / 2],
        Format::Q4_K => planes![32 / 16, 256 / 16],
        Format::Q5_K => planes![32 / 16, 32 / 4, 256 / 16],
        Format::Q6_K => planes![32 / 16, 32 / 8, 32 / 2, 256 / 2],
        Format::IQ4_NL => planes![32 / 16, 32 / 2],
        Format::IQ4_XS => planes![32 / 16, 32 / 1, 256 / 2],
        Format::MXFP4 => planes![32 / 16, 32 / 1],
        Format::F8_E4M3 => planes![32 / 16, 32 / 16, 128 / 4],
        Format::IQ1_S => planes![32 / 8, 32 / 1, 256 / 2],
        Format::IQ1_M => planes![32 / 8, 32 / 2, 256 / 2],
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => {
            planes![32 / 8, 32 / 4, 32 / 1, 256 / 2]
        }
        Format::IQ3_XXS | Format::IQ3_S => planes![32 / 16, 32 / 1, 256 / 2],
        Format::TQ1_0 | Format::TQ2_0 => planes![32 / 8, 256 / 2],
        Format::Q1_0 => planes![32 / 4, 128 / 2],
        Format::NVFP4 => planes![32 / 16, 32 / 2],
        Format::NVFP4_F32 => planes![32 / 16, 32 / 2, 64 / 4],
        Format::Affine(_) | Format::Integers(_) => {
            let (bits, group) = match format {
                Format::Affine(affine) => (affine.bits(), affine.group()),
                Format::Integers(integers) => (integers.bits(), integers.group()),
                _ => (4, format.block()),
            };
            macro_rules! quants {
                ($($plane:tt)*) => {
                    match group {
                        32 => planes![$($plane)*, 32 / 4],
                        64 => planes![$($plane)*, 64 / 4],
                        _ => planes![$($plane)*, 128 / 4],
                    }
                };
            }
            match bits {
                2 => quants!(32 / 8),
                3 => quants!(32 / 8, 32 / 4),
                4 => quants!(32 / 16),
                5 => quants!(32 / 16, 32 / 4),
                6 => quants!(32 / 16, 32 / 8),
                _ => quants!(32 / 16, 32 / 16),
            }
        }
    }
}

/// Bytes of scales and sums that are kept beside a block of rounded activations: more for formats with a scale per 16 elements
/// (`HALVES` in `kernels/format/`), because each half needs a sum of its own.
pub(crate) fn side_bytes(format: Format) -> u32 {
    match format {
        Format::Q2_K | Format::Q3_K | Format::Q6_K => 16,
        Format::IQ1_M | Format::IQ2_XS | Format::IQ2_S => 16,
        Format::NVFP4 | Format::NVFP4_F32 => 16,
        _ => 8,
    }
}

/// Bytes of a matrix in device memory; `None` if `k` is not a multiple of the block, or on overflow.
pub(crate) fn bytes(format: Format, n: u32, k: u32) -> Option<u64> {
    format.bytes(k as usize)?;
    let row: u64 = planes(format).iter().map(|p| p.stride(k)).sum();
    u64::from(n).checked_mul(row)
}

/// The macros that select a format: its file, and the parameters of a member of a family.
pub(crate) fn format_defines(format: Format) -> Vec<(&'static str, String)> {
    let file = |name: &str| ("FORMAT_FILE", format!("\"format/{name}.cuh\""));
    match format {
        Format::Affine(affine) => vec![
            file("affine"),
            ("BITS", affine.bits().to_string()),
            ("GROUP", affine.group().to_string()),
            ("BF16", u32::from(affine.bf16()).to_string()),
        ],
        Format::Integers(integers) => vec![
            file("integers"),
            ("BITS", integers.bits().to_string()),
            ("GROUP", integers.group().to_string()),
            ("KIND", (integers.scale() as u32).to_string()),
        ],
        one => vec![file(&one.name().to_lowercase())],
    }
}

/// The formats that tests compile for. Of a family, enough members to compile every line.
pub(crate) fn listed() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| match format {
        Format::Affine(a) if a.bits() == 4 => a.bf16() == (a.group() == 64),
        Format::Affine(a) => a.bf16() && a.group() == 64,
        Format::Integers(i) => i.group() == 32 << (i.scale() as usize),
        _ => true,
    })
}

mirrored! {
    /// `RepackArgs` of `repack.cu`.
    struct RepackArgs = "RepackArgs" {
        raw: u64,
        weight: u64,
        n: u32,
        k: u32,
        first_row: u32,
        rows: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[RepackArgs::LAYOUT];

/// A launch that moves `count` encoded rows at `raw` to rows `first..` of the weight at `start`. `None` if the layout is
/// that of the file, so that rows can be copied as they are.
pub(crate) fn repack_launch(
    format: Format,
    n: u32,
    k: u32,
    first: u32,
    count: u32,
    raw: u64,
    start: u64,
) -> Option<Launch> {
    if is_plain(format, k) {
        return None;
    }
    let unit = if format.is_quantised() {
        32
    } else {
        16 / format.block_bytes() as u32
    };
    let threads = u64::from(count) * u64::from(k.div_ceil(unit));
    Some(Launch {
        unit: repack_unit(format),
        function: "repack",
        // Threads loop over the rest.
        grid: [threads.div_ceil(256).clamp(1, 1 << 16) as u32, 1, 1],
        by_rows: ByRows::Fixed,
        block: 256,
        shared: 0,
        args: args(&RepackArgs {
            raw,
            weight: start,
            n,
            k,
            first_row: first,
            rows: count,
        }),
    })
}

/// Whether rows are stored as in the file, without gaps.
fn is_plain(format: Format, k: u32) -> bool {
    !format.is_quantised() && (u64::from(k) * format.block_bytes() as u64).is_multiple_of(16)
}

/// The unit that repacks a format.
pub(crate) fn repack_unit(format: Format) -> Unit {
    let mut unit = Unit {
        file: "repack.cu",
        generated: String::new(),
        defines: format_defines(format),
    };
    if let Some(table) = grid::table(format) {
        let entries: Vec<String> = table.iter().map(u16::to_string).collect();
        unit.generated = format!(
            "__device__ const u16 table[] = {{{}}};\n",
            entries.join(",")
        );
        unit.defines.push(("TABLE", "1".to_string()));
    }
    unit
}

/// Bytes of a weight on the GPU; `None` if its shape does not fit its format.
pub(crate) fn weight_bytes(spec: &WeightSpec) -> Option<u64> {
    if spec.usage == Usage::Vector {
        return (u64::from(spec.n) * u64::from(spec.k))
            .checked_mul(4)?
            .checked_next_multiple_of(256);
    }
    bytes(spec.format, spec.n, spec.k)?.checked_next_multiple_of(256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte_table::Affine;

    #[test]
    fn planes_hold_what_blocks_hold() {
        for format in Format::ALL {
            let block = format.block() as u32;
            let bytes: u32 = planes(format)
                .iter()
                .map(|p| p.bytes * (block / p.elements).max(1))
                .sum();
            let wider = match format {
                // Scales are widened from 6 to 8 bits.
                Format::Q3_K => 4,
                Format::IQ4_XS => 2,
                // Numbers and signs in place of indices of entries.
                Format::IQ1_S => 24,
                Format::IQ1_M => 26,
                Format::IQ2_XXS => 40,
                Format::IQ2_XS => 32,
                Format::IQ2_S => 24,
                Format::IQ3_XXS => 40,
                Format::IQ3_S => 28,
                // Two bits for a number in base 3.
                Format::TQ1_0 => 12,
                _ => 0,
            };
            assert_eq!(bytes as usize, format.block_bytes() + wider, "{format:?}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(bytes(Format::Q4_0, 3, 32), Some(3 * 32));
        assert_eq!(bytes(Format::Q4_0, 3, 33), None);
        assert_eq!(bytes(Format::F16, 2, 5), Some(32));
        assert_eq!(bytes(Format::F32, u32::MAX, !3), None);
        assert!(is_plain(Format::BF16, 2560) && !is_plain(Format::BF16, 5));
    }

    #[test]
    fn kernels_have_the_same_planes_and_sides() {
        let list = |values: Vec<u32>| {
            let words: Vec<String> = values.iter().map(u32::to_string).collect();
            format!("{{{}}}", words.join(", "))
        };
        for (format, source) in [
            (Format::Q4_0, include_str!("../kernels/format/q4_0.cuh")),
            (Format::Q4_1, include_str!("../kernels/format/q4_1.cuh")),
            (Format::Q5_0, include_str!("../kernels/format/q5_0.cuh")),
            (Format::Q5_1, include_str!("../kernels/format/q5_1.cuh")),
            (Format::Q8_0, include_str!("../kernels/format/q8_0.cuh")),
            (Format::Q2_K, include_str!("../kernels/format/q2_k.cuh")),
            (Format::Q3_K, include_str!("../kernels/format/q3_k.cuh")),
            (Format::Q4_K, include_str!("../kernels/format/q4_k.cuh")),
            (Format::Q5_K, include_str!("../kernels/format/q5_k.cuh")),
            (Format::Q6_K, include_str!("../kernels/format/q6_k.cuh")),
            (Format::IQ4_NL, include_str!("../kernels/format/iq4_nl.cuh")),
            (Format::IQ4_XS, include_str!("../kernels/format/iq4_xs.cuh")),
            (Format::MXFP4, include_str!("../kernels/format/mxfp4.cuh")),
            (
                Format::F8_E4M3,
                include_str!("../kernels/format/f8_e4m3.cuh"),
            ),
            (Format::IQ1_S, include_str!("../kernels/format/iq1_s.cuh")),
            (Format::IQ1_M, include_str!("../kernels/format/iq1_m.cuh")),
            (
                Format::IQ2_XXS,
                include_str!("../kernels/format/iq2_xxs.cuh"),
            ),
            (Format::IQ2_XS, include_str!("../kernels/format/iq2_xs.cuh")),
            (Format::IQ2_S, include_str!("../kernels/format/iq2_s.cuh")),
            (
                Format::IQ3_XXS,
                include_str!("../kernels/format/iq3_xxs.cuh"),
            ),
            (Format::IQ3_S, include_str!("../kernels/format/iq3_s.cuh")),
            (Format::TQ1_0, include_str!("../kernels/format/tq1_0.cuh")),
            (Format::TQ2_0, include_str!("../kernels/format/tq2_0.cuh")),
            (Format::Q1_0, include_str!("../kernels/format/q1_0.cuh")),
            (Format::NVFP4, include_str!("../kernels/format/nvfp4.cuh")),
            (
                Format::NVFP4_F32,
                include_str!("../kernels/format/nvfp4_f32.cuh"),
            ),
        ] {
            let elements = list(planes(format).iter().map(|p| p.elements).collect());
            let bytes = list(planes(format).iter().map(|p| p.bytes).collect());
            assert!(
                source.contains(&elements) && source.contains(&bytes),
                "{format:?}"
            );
            let halves = source.contains("HALVES = true");
            assert_eq!(side_bytes(format) == 16, halves, "{format:?}");
        }
        let source = include_str!("../kernels/format/affine.cuh");
        for affine in Affine::ALL {
            let planes = planes(Format::Affine(affine));
            let (scales, quants) = planes.split_last().expect("there are planes");
            assert_eq!(scales.elements as usize, affine.group());
            let elements = ["32, "].repeat(quants.len()).concat();
            let bytes = list(planes.iter().map(|p| p.bytes).collect());
            assert!(
                source.contains(&format!("{{{elements}GROUP}}")),
                "{affine:?}"
            );
            assert!(source.contains(&bytes), "{affine:?}");
        }
    }
}
