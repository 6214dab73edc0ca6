//! Matrix kernels. Output rows lie in the lanes of a vector. Weights are packed once into tiles of 16 rows, activations are
//! prepared once per row, and one kernel serves any number of activation rows.
//!
//! The bits of a row's result do not depend on the other rows or tiles of the call.

#![allow(unsafe_code)]

/// `path::<FORMAT>` for a format known at run time; for a family, the FORMAT that stands for it.
macro_rules! by_format {
    ($format:expr, $($path:ident)::+) => {
        match $format {
            Format::F32 => $($path)::+::<{ Format::F32.index() }>,
            Format::F16 => $($path)::+::<{ Format::F16.index() }>,
            Format::BF16 => $($path)::+::<{ Format::BF16.index() }>,
            Format::Q4_0 => $($path)::+::<{ Format::Q4_0.index() }>,
            Format::Q4_1 => $($path)::+::<{ Format::Q4_1.index() }>,
            Format::Q5_0 => $($path)::+::<{ Format::Q5_0.index() }>,
            Format::Q5_1 => $($path)::+::<{ Format::Q5_1.index() }>,
            Format::Q8_0 => $($path)::+::<{ Format::Q8_0.index() }>,
            Format::Q2_K => $($path)::+::<{ Format::Q2_K.index() }>,
            Format::Q3_K => $($path)::+::<{ Format::Q3_K.index() }>,
            Format::Q4_K => $($path)::+::<{ Format::Q4_K.index() }>,
            Format::Q5_K => $($path)::+::<{ Format::Q5_K.index() }>,
            Format::Q6_K => $($path)::+::<{ Format::Q6_K.index() }>,
            Format::IQ4_NL => $($path)::+::<{ Format::IQ4_NL.index() }>,
            Format::IQ4_XS => $($path)::+::<{ Format::IQ4_XS.index() }>,
            Format::MXFP4 => $($path)::+::<{ Format::MXFP4.index() }>,
            Format::F8_E4M3 => $($path)::+::<{ Format::F8_E4M3.index() }>,
            Format::IQ1_S => $($path)::+::<{ Format::IQ1_S.index() }>,
            Format::IQ1_M => $($path)::+::<{ Format::IQ1_M.index() }>,
            Format::IQ2_XXS => $($path)::+::<{ Format::IQ2_XXS.index() }>,
            Format::IQ2_XS => $($path)::+::<{ Format::IQ2_XS.index() }>,
            Format::IQ2_S => $($path)::+::<{ Format::IQ2_S.index() }>,
            Format::IQ3_XXS => $($path)::+::<{ Format::IQ3_XXS.index() }>,
            Format::IQ3_S => $($path)::+::<{ Format::IQ3_S.index() }>,
            Format::TQ1_0 => $($path)::+::<{ Format::TQ1_0.index() }>,
            Format::TQ2_0 => $($path)::+::<{ Format::TQ2_0.index() }>,
            Format::Q1_0 => $($path)::+::<{ Format::Q1_0.index() }>,
            Format::NVFP4 => $($path)::+::<{ Format::NVFP4.index() }>,
            Format::NVFP4_F32 => $($path)::+::<{ Format::NVFP4_F32.index() }>,
            Format::Affine(member) => match member.bits() {
                2 => $($path)::+::<{ $crate::kernels::layout::affine(2) }>,
                3 => $($path)::+::<{ $crate::kernels::layout::affine(3) }>,
                4 => $($path)::+::<{ $crate::kernels::layout::affine(4) }>,
                5 => $($path)::+::<{ $crate::kernels::layout::affine(5) }>,
                6 => $($path)::+::<{ $crate::kernels::layout::affine(6) }>,
                _ => $($path)::+::<{ $crate::kernels::layout::affine(8) }>,
            },
            Format::Integers(member) => match (member.scale(), member.bits()) {
                (welte_table::GroupScale::F32, 4) => $($path)::+::<{ $crate::kernels::layout::integers(4) }>,
                (welte_table::GroupScale::F32, _) => $($path)::+::<{ $crate::kernels::layout::integers(8) }>,
                (_, 4) => $($path)::+::<{ $crate::kernels::layout::affine(4) }>,
                _ => $($path)::+::<{ $crate::kernels::layout::affine(8) }>,
            },
        }
    };
}

mod acts;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_many;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_many;
mod call;
mod float8;
mod isa;
mod layout;
mod lookup;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod prompt;
mod scalar;
mod unpacked;

pub use isa::Isa;

pub(crate) use call::MANY_ROWS;
#[cfg(target_arch = "x86_64")]
pub(crate) use call::fetch_ahead;
use call::{Call, Matmul};
use welte_table::Format;

/// The kernel of one weight format on one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The weights' format.
    pub format: Format,
    /// The instruction set in use. It is lower than requested if that one has no kernel or the processor lacks it.
    pub isa: Isa,
    /// Output rows of a tile.
    pub tile_rows: usize,
    /// The rows of a group, if there are many rows: their activations stay in the L1 cache.
    pub group_rows: usize,
    /// From this many rows on, tiles are unpacked once for all of them.
    pub(crate) many_rows: usize,
    run: Matmul,
    many: Option<prompt::Many>,
}

impl Kernel {
    /// The kernel for a format on an instruction set, or on the next lower one that has it (see [`Kernel::isa`]).
    pub fn for_format(format: Format, isa: Isa) -> Kernel {
        let (own, run) = Isa::ALL[..=isa as usize]
            .iter()
            .rev()
            .filter(|isa| isa.is_available())
            .find_map(|isa| Some((*isa, kernel(format, *isa)?)))
            .unwrap_or((Isa::Scalar, scalar_kernel(format)));
        let many = prompt::many(format, isa);
        Kernel {
            format,
            isa: own,
            tile_rows: layout::ROWS,
            group_rows: match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx | Isa::AmxBf16 => amx::GROUP,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::Avx2Vnni | Isa::Avx512 if many.is_some() => avx2_many::GROUP,
                _ => 8,
            },
            many_rows: many.map_or(MANY_ROWS, |many| many.from),
            run,
            many,
        }
    }

    /// The kernel for many rows of a prompt. As [`Kernel::for_format`], except that activations of BF16 and F8_E4M3 weights
    /// are rounded to BF16 if the processor multiplies BF16 and the best instruction set is in use.
    pub fn for_prompt(format: Format, isa: Isa) -> Kernel {
        match (format, isa) {
            (Format::BF16 | Format::F8_E4M3, Isa::Avx512Vnni) => {
                Kernel::for_format(format, Isa::Avx512Bf16)
            }
            (Format::BF16 | Format::F8_E4M3, Isa::Amx) => Kernel::for_format(format, Isa::AmxBf16),
            _ => Kernel::for_format(format, isa),
        }
    }

    /// Whether activations are rounded.
    pub fn rounds(&self) -> bool {
        self.format.rounds_activations() || self.rounds_acts()
    }

    fn rounds_acts(&self) -> bool {
        self.isa.rounds_floats() && matches!(self.format, Format::BF16 | Format::F8_E4M3)
    }

    /// Bytes of one tile of `k` columns; a multiple of 64.
    pub fn tile_bytes(&self, k: usize) -> usize {
        layout::tile_bytes(self.format, k)
    }

    /// Bytes of one prepared activation row of `k` elements; a multiple of 64.
    pub fn acts_bytes(&self, k: usize) -> usize {
        layout::acts_bytes(self.format, k, self.rounds_acts())
    }

    /// Bytes of one unpacked tile of `k` columns, a multiple of 64; `None` if tiles are not unpacked. Unpacking pays off
    /// for many rows: see [`Kernel::unpack`] and [`Kernel::matmul_unpacked`].
    pub fn unpacked_bytes(&self, k: usize) -> Option<usize> {
        self.many.map(|_| unpacked::unpacked_bytes(self.format, k))
    }

    /// Unpacks a tile.
    ///
    /// # Safety
    /// `tile` was made by [`Kernel::pack`] for `k` columns, and `out` has room for [`Kernel::unpacked_bytes`], which is not
    /// `None`.
    pub unsafe fn unpack(&self, tile: *const u8, k: usize, out: *mut u8) {
        if let Some(many) = &self.many {
            // SAFETY: the caller's promise, and `for_format` chose code that the processor has.
            unsafe { (many.unpack)(self.format, tile, k, out) }
        }
    }

    /// Unpacks `count` adjacent tiles.
    ///
    /// # Safety
    /// As [`Kernel::unpack`] for each.
    pub(crate) unsafe fn unpack_tiles(
        &self,
        tiles: *const u8,
        count: usize,
        k: usize,
        out: *mut u8,
    ) {
        let (packed, unpacked) = (self.tile_bytes(k), self.unpacked_bytes(k).unwrap_or(0));
        for t in 0..count {
            // SAFETY: the caller's.
            unsafe { self.unpack(tiles.add(t * packed), k, out.add(t * unpacked)) }
        }
    }

    /// Packs encoded rows of `k` elements (a multiple of the format's block) into a tile; missing rows become zero.
    ///
    /// # Panics
    /// If there are no rows or more than a tile holds, if a row or the tile has the wrong size, or if `k` is no multiple of
    /// the block. These are mistakes of the caller, never of a file.
    pub fn pack(&self, k: usize, rows: &[&[u8]], tile: &mut [u8]) {
        assert!(
            !rows.is_empty() && rows.len() <= self.tile_rows,
            "a tile takes 1 to {} rows",
            self.tile_rows
        );
        let bytes = self.format.bytes(k);
        assert!(
            rows.iter().all(|row| Some(row.len()) == bytes),
            "rows of {k} {} elements",
            self.format.name()
        );
        assert_eq!(tile.len(), self.tile_bytes(k), "bytes of a tile");
        // SAFETY: `packer` chose code that the processor can run.
        unsafe { packer(self.format)(self.format, k, rows, tile) }
    }

    /// Row `row` of a matrix of `out.len()` columns, read back from its tiles. The values are those of the encoded row.
    ///
    /// # Panics
    /// If the tiles have fewer rows.
    pub fn unpack_row(&self, tiles: &[u8], row: usize, out: &mut [f32]) {
        let bytes = self.tile_bytes(out.len());
        let tile = &tiles[row / self.tile_rows * bytes..][..bytes];
        let read: fn(Format, &[u8], usize, &mut [f32]) = by_format!(self.format, lookup::row);
        read(self.format, tile, row % self.tile_rows, out);
    }

    /// Prepares one activation row; `acts` has [`Kernel::acts_bytes`] of `x.len()`.
    ///
    /// # Panics
    /// If `acts` has another size.
    pub fn prepare(&self, x: &[f32], acts: &mut [u8]) {
        assert_eq!(
            acts.len(),
            self.acts_bytes(x.len()),
            "bytes of an activation row"
        );
        let rounds = self.rounds_acts();
        #[cfg(target_arch = "x86_64")]
        if self.isa >= Isa::Avx512 {
            // SAFETY: `for_format` saw that the processor has AVX-512.
            return unsafe { acts::avx512::prepare(self.format, rounds, x, acts) };
        }
        #[cfg(target_arch = "x86_64")]
        if self.isa >= Isa::Avx2 {
            // SAFETY: `for_format` saw that the processor has AVX2.
            return unsafe { avx2::prepare(self.format, rounds, x, acts) };
        }
        acts::prepare(self.format, rounds, x, acts);
    }

    /// `out[r * out_stride + i] (+)= weight row i · activation row r`, for `n` outputs and `rows` activation rows.
    ///
    /// # Safety
    /// `tiles` holds ceil(n / tile_rows) tiles of [`Kernel::tile_bytes`]`(k)` made by [`Kernel::pack`], aligned to 4;
    /// `acts` holds `rows` rows of [`Kernel::acts_bytes`]`(k)` made by [`Kernel::prepare`], aligned to 4; `out` can be
    /// written (and read, when accumulating) at every index above, and nobody else touches those meanwhile.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn matmul(
        &self,
        tiles: *const u8,
        n: usize,
        k: usize,
        acts: *const u8,
        rows: usize,
        out: *mut f32,
        out_stride: usize,
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise is the kernel's, and `for_format` chose one that the processor has.
        unsafe {
            (self.run)(&Call {
                format: self.format,
                tiles,
                n,
                k,
                acts,
                rows,
                out,
                out_stride,
                accumulate,
            })
        }
    }

    /// [`Kernel::matmul`] with adjacent tiles from [`Kernel::unpack`]; the bits are the same. A kernel that does not unpack
    /// tiles runs [`Kernel::matmul`].
    ///
    /// # Safety
    /// As [`Kernel::matmul`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn matmul_unpacked(
        &self,
        tiles: *const u8,
        n: usize,
        k: usize,
        acts: *const u8,
        rows: usize,
        out: *mut f32,
        out_stride: usize,
        accumulate: bool,
    ) {
        let run = self.many.map_or(self.run, |many| many.run);
        // SAFETY: as `matmul`.
        unsafe {
            run(&Call {
                format: self.format,
                tiles,
                n,
                k,
                acts,
                rows,
                out,
                out_stride,
                accumulate,
            })
        }
    }
}

type Pack = unsafe fn(Format, usize, &[&[u8]], &mut [u8]);

/// The fastest code that packs a format; the bytes are the same everywhere.
fn packer(format: Format) -> Pack {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2.is_available() {
        return by_format!(format, avx2::pack);
    }
    by_format!(format, plain_pack)
}

fn plain_pack<const F: usize>(format: Format, k: usize, rows: &[&[u8]], tile: &mut [u8]) {
    pack::pack::<F>(format, k, rows, tile, pack::transpose);
}

fn scalar_kernel(format: Format) -> Matmul {
    by_format!(format, scalar::matmul)
}

/// The kernel of a format on exactly this instruction set, if there is one.
fn kernel(format: Format, isa: Isa) -> Option<Matmul> {
    match isa {
        Isa::Scalar => Some(scalar_kernel(format)),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if format == Format::F8_E4M3 => Some(neon::float8),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if !format.is_quantised() => Some(by_format!(format, neon::floats)),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(by_format!(format, neon::plain::blocks)),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot if format.rounds_activations() => Some(by_format!(format, neon::dot::blocks)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if format == Format::F8_E4M3 => Some(float8::avx2),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if format == Format::F8_E4M3 => Some(float8::avx512),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if format.is_quantised() => Some(by_format!(format, avx2::blocks)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(by_format!(format, avx2::floats)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if !format.is_quantised() => Some(by_format!(format, avx512::floats)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni if format.rounds_activations() => Some(by_format!(format, avx512::blocks)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::BF16 => Some(avx512::rounded),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::F8_E4M3 => Some(float8::rounded),
        #[cfg(target_arch = "x86_64")]
        Isa::AmxBf16 if format == Format::BF16 => Some(amx::rounded),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
