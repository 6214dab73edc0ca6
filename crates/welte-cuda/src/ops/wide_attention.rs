//! Attention of heads of more than 256 elements: how the warps of a block divide the work (`wide.cuh`).

use super::kv::KvShape;
use crate::arithmetic::Arithmetic;
use crate::launch::Unit;

/// Head sizes that these kernels compute. The sums of a larger head do not fit the registers.
const SIZES: std::ops::RangeInclusive<u32> = 257..=640;
/// Warps and positions per step, with the most tiles of 16 rows of a team; the first that fits shared memory is used.
const DECODE: [(u32, u32, u32); 4] = [(8, 64, 4), (8, 64, 1), (4, 32, 2), (4, 32, 1)];
/// Prompt rows: warps and positions per step, two warps per team.
const PROMPT: [(u32, u32); 2] = [(8, 64), (8, 32)];
/// Heads per tile: the rows of a tile are heads and their rounding errors.
const HEADS: u32 = 8;
/// Static shared memory of the kernels.
const STATIC_SHARED: u32 = 3 << 10;

/// A variant of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    /// Warps per block.
    pub(super) warps: u32,
    /// Positions whose scores are computed together.
    pub(super) step: u32,
    /// Teams of warps, which work on the same rows.
    teams: u32,
    /// Tiles of 16 rows per team.
    tiles: u32,
}

impl Wide {
    /// The variant for generated rows, with `group` heads per head of keys. With several slots a job has a tile for every eight heads,
    /// if possible, and reads keys once. A single row has too few jobs to fill the GPU, so there a job has one tile.
    pub(super) fn decode(
        kv: &KvShape,
        group: u32,
        arithmetic: Arithmetic,
        room: u32,
    ) -> Option<Wide> {
        let needed = group.div_ceil(HEADS);
        let variants = DECODE.map(|(warps, step, most)| Wide {
            warps,
            step,
            teams: 1,
            tiles: match arithmetic {
                // Jobs of equal size.
                Arithmetic::Batched => needed.div_ceil(needed.div_ceil(most)),
                _ => 1,
            },
        });
        Wide::fitting(kv, &variants, room)
    }

    /// The variant for prompt rows.
    pub(super) fn prompt(kv: &KvShape, room: u32) -> Option<Wide> {
        let variants = PROMPT.map(|(warps, step)| Wide {
            warps,
            step,
            teams: warps / 2,
            tiles: 1,
        });
        Wide::fitting(kv, &variants, room)
    }

    fn fitting(kv: &KvShape, variants: &[Wide], room: u32) -> Option<Wide> {
        let computed = SIZES.contains(&kv.head_dim) && kv.head_dim.is_multiple_of(8);
        let fits = |wide: &&Wide| computed && wide.shared(kv) + STATIC_SHARED <= room;
        variants.iter().find(fits).copied()
    }

    /// Heads of a job of generated rows.
    pub(super) fn heads(&self) -> u32 {
        self.tiles * HEADS
    }

    /// Rows of a block of prompt rows.
    pub(super) fn rows(&self) -> u32 {
        self.teams * self.tiles * 16
    }

    /// Shared memory: queries, keys and values in f16, weights, and a number per row from each warp.
    pub(super) fn shared(&self, kv: &KvShape) -> u32 {
        let row = kv.head_dim.next_multiple_of(64) * 2;
        let reduced = self.warps * self.tiles * 16 * 4;
        (self.rows() + 2 * self.step) * row + self.rows() * 128 + reduced
    }

    /// A file of kernels for this variant.
    pub(super) fn unit(
        &self,
        file: &'static str,
        kv: &KvShape,
        more: &[(&'static str, u32)],
    ) -> Unit {
        let mut defines = kv.defines();
        let variant = [
            ("WARPS", self.warps),
            ("STEP", self.step),
            ("TEAMS", self.teams),
            ("TILES", self.tiles),
        ];
        let all = variant.iter().chain(more);
        defines.extend(all.map(|&(name, value)| (name, value.to_string())));
        Unit {
            file,
            generated: String::new(),
            defines,
        }
    }
}
