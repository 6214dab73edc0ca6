//! The tiles of our own matrix products: the kernel and the tile size. They decide speed only: every tile gives the same bits.

use crate::GpuInfo;
use crate::launch::Unit;
use crate::layout::{format_defines, planes};
use welte_table::Format;

/// Matrix rows per block: of most tiles, and where those are too few to fill the GPU.
const MANY_N: u32 = 128;
const FEW_N: u32 = 32;
/// The most rows of activations per tile.
pub(crate) const MOST_TILE_ROWS: u32 = 256;
/// Elements of k per panel of activations (`tile.cuh`).
pub(crate) const PANEL: u32 = 64;

/// Runs of 32 weights that a block widens at once: one per thread of `gemm.cu`.
const UNITS: u32 = 256;
/// Bytes of them.
const WIDENED: u32 = UNITS * 32 * 2;
/// The most shared memory of a block: of `gemm_wide.cu`, and of one of two resident blocks of `gemm.cu`.
const WIDE_SHARED: u32 = 224 << 10;
const NARROW_SHARED: u32 = 115 << 10;
/// The most static shared memory of a tile kernel.
const STATIC_SHARED: u32 = 1 << 10;

/// Bytes of one chunk of encoded weights in shared memory (`dequant.cuh`). Every entry takes at least four bytes.
fn raw_bytes(format: Format) -> u32 {
    let planes = planes(format).iter();
    if format.is_quantised() {
        UNITS * planes.map(|plane| plane.bytes.max(4)).sum::<u32>()
    } else {
        UNITS * 32 * planes.map(|plane| plane.bytes).sum::<u32>()
    }
}

/// Whether an architecture has the instructions of a unit. Only sm_90a has products of warp groups.
pub(crate) fn is_for(unit: &Unit, arch: &str) -> bool {
    match unit.file {
        WIDE_FILE | "columns_wide.cu" | "eighths.cu" => arch == "sm_90a",
        "persistent.cu" | "persistent_rows.cu" => !matches!(arch, "sm_80" | "sm_89"),
        _ => true,
    }
}

const WIDE_FILE: &str = "gemm_wide.cu";

/// A tile of our own kernels: `gemm.cu` for any GPU with tensor cores, or `gemm_wide.cu` for sm_90a.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) wide: bool,
    /// Matrix rows.
    pub(crate) n: u32,
    /// Rows of activations.
    pub(crate) rows: u32,
    /// The most shared memory of a block on this GPU.
    pub(crate) room: u32,
    /// There are too few tiles for two resident blocks of `gemm.cu`, so one may use all the shared memory.
    pub(crate) alone: bool,
}

impl Tile {
    /// The tile for up to `most` rows and a matrix of `n` rows.
    pub(crate) fn of(gpu: &GpuInfo, n: u32, most: u32) -> Tile {
        let wide = gpu.arch == 90 && most > 64;
        let least = if wide { 64 } else { 16 };
        // Small tiles have long rows of activations, which need much shared memory.
        let most_few = if gpu.shared_per_block > 160 << 10 {
            64
        } else {
            32
        };
        let few = most <= most_few && n.div_ceil(MANY_N) < 2 * gpu.sms;
        Tile {
            wide,
            n: if few { FEW_N } else { MANY_N },
            rows: most.next_power_of_two().clamp(least, 128),
            room: gpu.shared_per_block,
            alone: few && n.div_ceil(FEW_N) <= gpu.sms,
        }
    }

    /// The tile for `rows` entries of an expert.
    pub(crate) fn of_entries(gpu: &GpuInfo, rows: u32) -> Tile {
        Tile {
            wide: false,
            n: MANY_N,
            rows: rows.next_power_of_two().clamp(32, 128),
            room: gpu.shared_per_block,
            alone: false,
        }
    }

    /// Bytes of one chunk of activations.
    fn x_bytes(self) -> u32 {
        self.rows * (UNITS * 32 / self.n) * 2
    }

    /// Chunks of activations and of encoded weights in flight: as many as fit beside the widened weights.
    fn stages(self, format: Format) -> (u32, u32) {
        let (x, raw) = (self.x_bytes(), raw_bytes(format));
        if self.wide {
            let stages = match self.rows {
                ..=64 => 5,
                65..=128 => 4,
                _ => 3,
            };
            let left = WIDE_SHARED - stages * (WIDENED + x);
            (stages, (left / raw).clamp(2, 6))
        } else {
            // Two resident blocks may have to share the memory, but three stages come first.
            let fit = |bytes: u32| bytes.saturating_sub(2 * WIDENED) / (x + raw);
            let most = fit(self.room.saturating_sub(STATIC_SHARED)).max(2);
            let shared = if self.alone { most } else { fit(NARROW_SHARED) };
            let stages = shared.clamp(3, 6).min(most);
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
        let (x, raw) = (self.x_bytes(), raw_bytes(format));
        let (stages, ring) = self.stages(format);
        if self.wide {
            // The tiles are aligned to 1024 bytes.
            stages * (WIDENED + x) + ring * raw + 1024
        } else {
            2 * WIDENED + stages * (x + raw)
        }
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
            defines.push(("TILE_N", self.n.to_string()));
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
        for (arch, shared) in [(80, 163), (89, 99), (90, 227)] {
            let gpu = GpuInfo {
                shared_per_block: shared << 10,
                ..gpu(arch, 132)
            };
            for most in [1, 16, 17, 32, 33, 64, 65, 128, 129, 4096] {
                for n in [1, 2560, 152_064] {
                    let tile = Tile::of(&gpu, n, most);
                    assert!(tile.rows >= most.min(128) && (arch == 90 || !tile.wide));
                    assert!(tile.n == 128 || most <= 64);
                    for format in Format::ALL.into_iter().filter(|f| *f != Format::F32) {
                        assert!(tile.shared(format) + STATIC_SHARED <= shared << 10);
                    }
                }
            }
        }
    }

    #[test]
    fn few_rows_of_a_small_matrix_are_cut_into_small_tiles() {
        let n = |n, most| Tile::of(&gpu(90, 132), n, most).n;
        assert_eq!((n(2560, 1), n(2560, 64), n(2560, 65)), (32, 32, 128));
        assert_eq!(n(151_936, 1), 128);
    }
}
