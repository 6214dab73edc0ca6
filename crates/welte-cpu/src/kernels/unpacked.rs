//! Unpacked tiles: an unpacked chunk of 32 k is 8 vectors of 64 bytes (vector g: 16 rows x group g) and then its scales, one
//! 64-byte vector each: see [`scale_vectors`]. (F8_E4M3 has a form of its own: see `float8.rs`.)

use super::layout::{CHUNK, F8_BLOCK, Layout, ROWS, Scales};
use welte_table::Format;

/// Bytes of the quants of an unpacked chunk.
pub(super) const QUANTS: usize = CHUNK * ROWS;

/// Vectors of scales of an unpacked chunk: `d`; `d, m`; `d, d` by half; `d, pairs`; or `d, m, pairs, pair minima`.
pub(super) const fn scale_vectors(layout: Layout) -> usize {
    match layout.scales {
        Scales::Plain | Scales::Powers | Scales::Super => 1,
        Scales::PlainMin | Scales::SuperMin | Scales::Halves | Scales::Floats | Scales::Pairs => 2,
        Scales::PairsMin => 4,
    }
}

/// The scales of one chunk in vectors of floats and of integers. Their meaning depends on the format: see how the
/// instruction sets add a chunk.
#[derive(Clone, Copy)]
pub(super) struct ChunkScales<V, I> {
    /// For the whole chunk or by half. They include the block's scale, unless `pairs` are used.
    pub(super) d: [V; 2],
    /// Minima, in the same way.
    pub(super) m: V,
    /// i16 pairs of sub-scales by row.
    pub(super) pairs: I,
    /// i16 pairs of sub-minima by row.
    pub(super) pair_minima: I,
}

/// The vectors of scales that an unpacked chunk keeps: the first [`scale_vectors`]. A closure gives the bits of floats.
macro_rules! kept_scales {
    ($layout:expr, $scales:expr, $bits:expr) => {{
        let s = $scales;
        match $layout.scales {
            Scales::Plain | Scales::Powers | Scales::Super => [$bits(s.d[0]); 4],
            Scales::Halves | Scales::Floats => [$bits(s.d[0]), $bits(s.d[1]), s.pairs, s.pairs],
            Scales::Pairs => [$bits(s.d[0]), s.pairs, s.pairs, s.pairs],
            _ => [$bits(s.d[0]), $bits(s.m), s.pairs, s.pair_minima],
        }
    }};
}

/// The [`ChunkScales`] of an unpacked chunk. Closures load a vector of floats and one of integers.
macro_rules! loaded_scales {
    ($layout:expr, $float:expr, $integers:expr, $none:expr) => {{
        let plain = ChunkScales {
            d: [$float(0); 2],
            m: $float(0),
            pairs: $none,
            pair_minima: $none,
        };
        match const { $layout.scales } {
            Scales::Plain | Scales::Powers | Scales::Super => plain,
            Scales::PlainMin | Scales::SuperMin => ChunkScales {
                m: $float(1),
                ..plain
            },
            Scales::Halves | Scales::Floats => ChunkScales {
                d: [$float(0), $float(1)],
                ..plain
            },
            Scales::Pairs => ChunkScales {
                pairs: $integers(1),
                ..plain
            },
            Scales::PairsMin => ChunkScales {
                m: $float(1),
                pairs: $integers(2),
                pair_minima: $integers(3),
                ..plain
            },
        }
    }};
}

pub(super) use {kept_scales, loaded_scales};

/// Bytes of an unpacked block of 16 rows of F8_E4M3.
pub(super) const F8_UNPACKED: usize = 4 * ROWS + 2 * F8_BLOCK * ROWS;

/// Bytes of an unpacked chunk.
pub(super) const fn chunk_bytes(layout: Layout) -> usize {
    QUANTS + 64 * scale_vectors(layout)
}

/// Bytes of an unpacked tile of k columns.
pub(super) const fn unpacked_bytes(format: Format, k: usize) -> usize {
    if matches!(format, Format::F8_E4M3) {
        return k / F8_BLOCK * F8_UNPACKED;
    }
    k / CHUNK * chunk_bytes(Layout::of(format))
}
