//! Kernels for many activation rows. The quants of a tile are unpacked to bytes and its scales to floats once, then every
//! group of rows is multiplied with them. Operations and their order are those of the kernels for few rows, so the bits
//! are the same.
//!
//! `unpacked.rs` has the layout.

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::avx2_many;
#[cfg(target_arch = "x86_64")]
use super::avx512_many;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::call::MANY_ROWS;
use super::call::Matmul;
#[cfg(target_arch = "x86_64")]
use super::float8;
use super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::layout::Layout;
#[cfg(target_arch = "aarch64")]
use super::neon;
use welte_table::Format;

/// Turns a tile of k columns into its unpacked form.
pub(super) type Unpack = unsafe fn(Format, *const u8, usize, *mut u8);

/// The functions of an instruction set for many rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    pub(super) unpack: Unpack,
    /// As a kernel's `run`, but the tiles are unpacked.
    pub(super) run: Matmul,
    /// The fewest rows for which this takes less time than `run` of the packed tiles.
    pub(super) from: usize,
}

/// Where unpacking pays earlier. AMX multiplies 16 rows at once, so a step takes about as long with nine rows as AVX-512 needs for them.
/// AVX-VNNI unpacks bytes quickly, and packed ones have no kernel for it.
#[cfg(target_arch = "x86_64")]
const FEWER_ROWS: usize = 9;

/// The code for many rows of exactly this instruction set.
pub(super) fn many(format: Format, isa: Isa) -> Option<Many> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::AmxBf16
            if format == Format::F8_E4M3 && Isa::Avx512Bf16.is_available() =>
        {
            Some(Many {
                unpack: float8::unpack,
                run: float8::rounded_unpacked,
                from: MANY_ROWS,
            })
        }
        _ if !format.rounds_activations() => None,
        // Halves of a chunk would need twice the instructions of AMX: no gain.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if isa.is_available() && !Layout::of(format).by_halves() => Some(Many {
            unpack: by_format!(format, avx512_many::unpack_tile),
            run: by_format!(format, amx::blocks),
            from: FEWER_ROWS,
        }),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Amx => Some(Many {
            unpack: by_format!(format, avx512_many::unpack_tile),
            run: by_format!(format, avx512_many::blocks),
            from: MANY_ROWS,
        }),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 if isa.is_available() && avx2_many::pays_off(format) => {
            Some(Many {
                unpack: by_format!(format, avx2_many::unpack_tile),
                run: by_format!(format, avx2_many::plain::blocks),
                from: MANY_ROWS,
            })
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Vnni if isa.is_available() => Some(Many {
            unpack: by_format!(format, avx2_many::unpack_tile),
            run: by_format!(format, avx2_many::vnni::blocks),
            from: match format {
                Format::Q8_0 => FEWER_ROWS,
                _ => MANY_ROWS,
            },
        }),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(Many {
            unpack: by_format!(format, neon::unpack),
            run: by_format!(format, neon::plain::unpacked),
            from: MANY_ROWS,
        }),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot if isa.is_available() => Some(Many {
            unpack: by_format!(format, neon::unpack),
            run: by_format!(format, neon::dot::unpacked),
            from: MANY_ROWS,
        }),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm if isa.is_available() => Some(Many {
            unpack: by_format!(format, neon::unpack_pairs),
            run: by_format!(format, neon::unpacked_pairs),
            from: MANY_ROWS,
        }),
        _ => None,
    }
}
