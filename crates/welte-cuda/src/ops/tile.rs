//! The tiles of our own matrix products: the kernel, the tile size, and how k is split among blocks.

use crate::GpuInfo;
use crate::launch::Unit;
use crate::layout::{format_defines, planes};
use welte_table::Format;

/// Matrix rows per block of `gemm.cu`.
pub(crate) const TILE_N: u32 = 128;
/// The most rows of activations per tile.
pub(crate) const MOST_TILE_ROWS: u32 = 256;
/// Elements of k per step.
pub(crate) const CHUNK: u32 = 64;

/// Bytes of one chunk of widened weights.
const WIDENED: u32 = TILE_N * CHUNK * 2;
/// The most shared memory of a block: of `gemm_wide.cu`, and of one of two resident blocks of `gemm.cu`.
const WIDE_SHARED: u32 = 224 << 10;
const NARROW_SHARED: u32 = 115 << 10;

/// Bytes of one chunk of encoded weights in shared memory (`dequant.cuh`). Every entry takes at least four bytes.
fn raw_bytes(format: Format) -> u32 {
    let units = TILE_N * CHUNK / 32;
    let planes = planes(format).iter();
    if format.is_quantised() {
        units * planes.map(|plane| plane.bytes.max(4)).sum::<u32>()
    } else {
        units * 32 * planes.map(|plane| plane.bytes).sum::<u32>()
    }
}

/// Whether an architecture has the instructions of a unit. Only sm_90a has those of the wide tiles.
pub(crate) fn is_for(unit: &Unit, arch: &str) -> bool {
    match unit.file {
        WIDE_FILE => arch == "sm_90a",
        "persistent.cu" | "persistent_rows.cu" => !matches!(arch, "sm_80" | "sm_89"),
        _ => true,
    }
}

const WIDE_FILE: &str = "gemm_wide.cu";

/// A tile of our own kernels: `gemm.cu` for any GPU with tensor cores, or `gemm_wide.cu` for sm_90a.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) wide: bool,
    /// Rows of activations.
    pub(crate) rows: u32,
}

impl Tile {
    /// The tile for up to `most` rows.
    pub(crate) fn of(gpu: &GpuInfo, most: u32) -> Tile {
        let wide = gpu.arch == 90 && most > 64;
        let (least, largest) = if wide { (64, 128) } else { (32, 128) };
        Tile {
            wide,
            rows: most.next_power_of_two().clamp(least, largest),
        }
    }

    /// Chunks of activations and of encoded weights in flight: as many as fit beside the widened weights.
    fn stages(self, format: Format) -> (u32, u32) {
        let (x, raw) = (self.rows * CHUNK * 2, raw_bytes(format));
        if self.wide {
            let stages = match self.rows {
                ..=64 => 5,
                65..=128 => 4,
                _ => 3,
            };
            let left = WIDE_SHARED - stages * (WIDENED + x);
            (stages, (left / raw).clamp(2, 6))
        } else {
            // Sized for two resident blocks, but at least three stages.
            let stages = ((NARROW_SHARED - 2 * WIDENED) / (x + raw)).clamp(3, 6);
            (stages, stages)
        }
    }

    pub(crate) fn threads(self) -> u32 {
        match (self.wide, self.rows) {
            (false, _) => 256,
            (true, ..=128) => 512,
            (true, _) => 384,
        }
    }

    pub(crate) fn shared(self, format: Format) -> u32 {
        let (x, raw) = (self.rows * CHUNK * 2, raw_bytes(format));
        let (stages, ring) = self.stages(format);
        if self.wide {
            // The tiles are aligned to 1024 bytes.
            stages * (WIDENED + x) + ring * raw + 1024
        } else {
            2 * WIDENED + stages * (x + raw)
        }
    }

    /// Blocks that are resident at once.
    pub(crate) fn blocks(self, gpu: &GpuInfo) -> u32 {
        gpu.sms.max(1) * if self.wide { 1 } else { 2 }
    }

    /// The number of blocks that share k. Chosen to leave the fewest blocks idle in the last wave, with at least four chunks each.
    pub(crate) fn splits(self, gpu: &GpuInfo, tiles: u64, chunks: u32) -> u32 {
        let at_once = u64::from(self.blocks(gpu));
        let rounds = |splits: u32| (tiles * u64::from(splits)).div_ceil(at_once) as f32;
        // Each split costs a round trip of its sums through memory.
        let cost = |splits: u32| rounds(splits) / splits as f32 + 0.01 * splits as f32;
        let most = (2 * at_once / tiles.max(1))
            .min(u64::from(chunks / 4))
            .max(1) as u32;
        (1..=most)
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
            .unwrap_or(1)
    }

    /// The most bytes of partial sums, where k is split.
    pub(crate) fn parts(self, gpu: &GpuInfo) -> u64 {
        2 * u64::from(self.blocks(gpu)) * u64::from(TILE_N * self.rows) * 4
    }

    pub(crate) fn unit(self, format: Format) -> Unit {
        let mut defines = format_defines(format);
        defines.push(("BFLOAT", flag(format == Format::BF16)));
        defines.push(("TILE_ROWS", self.rows.to_string()));
        let (stages, ring) = self.stages(format);
        defines.push(("STAGES", stages.to_string()));
        if self.wide {
            defines.push(("RING", ring.to_string()));
        } else {
            defines.push(("EXPERTS", flag(false)));
        }
        Unit {
            file: if self.wide { WIDE_FILE } else { "gemm.cu" },
            generated: String::new(),
            defines,
        }
    }

    /// The unit for rows that are grouped by expert.
    pub(crate) fn experts_unit(self, format: Format) -> Unit {
        let mut unit = self.unit(format);
        unit.defines.retain(|(key, _)| *key != "EXPERTS");
        unit.defines.push(("EXPERTS", flag(true)));
        unit
    }
}

pub(crate) fn flag(value: bool) -> String {
    u32::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(arch: u32, sms: u32) -> GpuInfo {
        GpuInfo {
            device: 0,
            devices: 1,
            name: "test".to_string(),
            arch,
            sms,
            memory: 80 << 30,
            shared_per_block: 227 << 10,
            shared_per_sm: 228 << 10,
            l2_bytes: 50 << 20,
            driver: 13000,
            clock_khz: 0,
            bandwidth: 0,
        }
    }

    #[test]
    fn tiles_fit_into_shared_memory() {
        for arch in [80, 90] {
            for most in [17, 32, 33, 64, 65, 128, 129, 4096] {
                let tile = Tile::of(&gpu(arch, 132), most);
                assert!(tile.rows >= most.min(128) && (arch == 90 || !tile.wide));
                for format in Format::ALL {
                    // The kernels also have static shared memory.
                    assert!(tile.shared(format) <= (227 << 10) - 1024);
                }
            }
        }
    }

    #[test]
    fn splits_stay_within_their_memory() {
        for sms in [1, 46, 132] {
            let gpu = gpu(90, sms);
            for most in [32, 64, 128] {
                let tile = Tile::of(&gpu, most);
                for tiles in [1, 20, 48, 152, 5000] {
                    for chunks in [1, 5, 64, 152] {
                        let splits = tile.splits(&gpu, tiles, chunks);
                        assert!(splits >= 1 && (splits == 1 || splits <= chunks / 4));
                        let parts = tiles * u64::from(splits) * u64::from(TILE_N * tile.rows) * 4;
                        assert!(splits == 1 || parts <= tile.parts(&gpu));
                    }
                }
            }
        }
    }
}
