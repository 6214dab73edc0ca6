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
mod float8;
mod layout;
mod lookup;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod prompt;
mod scalar;

use welte_table::Format;

/// How far ahead of the bytes that they read kernels fetch the same stream's bytes. By itself a core fetches too few lines
/// ahead to read as fast as it could, and none beyond the page: with this, one core of a Xeon reads 1.2 to 1.5 times as much.
/// On a Xeon and on an EPYC this distance was the best of those from 0.5 to 3 KB.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 3072;

/// Fetches the line that a stream reads `AHEAD` bytes after this one. There need not be one: a fetch of any address is
/// harmless.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn fetch_ahead(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: it reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
}

/// From this many rows on, work is cut for many rows: a matrix's tiles are unpacked once for all of them. The bits are the
/// same. (Some begin earlier: see [`Kernel::many_rows`].)
pub(crate) const MANY_ROWS: usize = 17;

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain code, on every processor.
    Scalar,
    /// NEON of 64-bit ARM.
    Neon,
    /// NEON with the dot products of bytes.
    NeonDot,
    /// NEON with dot products and, for many rows of block formats, products of small matrices of bytes.
    NeonI8mm,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with the VEX-coded VNNI.
    Avx2Vnni,
    /// AVX-512 F, BW, VL.
    Avx512,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// AVX-512 with VNNI and, for many rows of block formats, the matrix tiles of AMX.
    Amx,
    /// AVX-512 with VNNI and BF16. Activations of BF16 and F8_E4M3 weights are always rounded to bf16. It is less exact and
    /// therefore used only on request; see [`Kernel::for_prompt`].
    Avx512Bf16,
    /// As [`Isa::Avx512Bf16`], with the matrix tiles of AMX for BF16.
    AmxBf16,
}

impl Isa {
    /// Every instruction set, the simplest first.
    pub const ALL: [Isa; 11] = [
        Isa::Scalar,
        Isa::Neon,
        Isa::NeonDot,
        Isa::NeonI8mm,
        Isa::Avx2,
        Isa::Avx2Vnni,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Amx,
        Isa::Avx512Bf16,
        Isa::AmxBf16,
    ];

    /// The best one of this processor that keeps the activations of float weights exact.
    pub fn best() -> Isa {
        Isa::available()
            .into_iter()
            .rev()
            .find(|isa| !isa.rounds_floats())
            .unwrap_or(Isa::Scalar)
    }

    /// Those that this processor has, the simplest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The name, as options spell it.
    pub fn name(self) -> &'static str {
        [
            "scalar",
            "neon",
            "neon-dot",
            "neon-i8mm",
            "avx2",
            "avx2-vnni",
            "avx512",
            "avx512-vnni",
            "amx",
            "avx512-bf16",
            "amx-bf16",
        ][self as usize]
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// Whether the activations of BF16 and F8_E4M3 weights are rounded to bf16.
    fn rounds_floats(self) -> bool {
        matches!(self, Isa::Avx512Bf16 | Isa::AmxBf16)
    }

    /// True if this processor has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vl");
            match self {
                Isa::Scalar => true,
                Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => false,
                Isa::Avx2 => avx2,
                Isa::Avx2Vnni => avx2 && has!("avxvnni"),
                Isa::Avx512 => avx512,
                Isa::Avx512Vnni => avx512 && has!("avx512vnni"),
                Isa::Amx => Isa::Avx512Vnni.is_available() && amx::is_available(),
                Isa::Avx512Bf16 => avx512 && has!("avx512vnni") && has!("avx512bf16"),
                Isa::AmxBf16 => Isa::Avx512Bf16.is_available() && amx::is_available(),
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            match self {
                Isa::Scalar | Isa::Neon => true,
                Isa::NeonDot => has!("dotprod"),
                Isa::NeonI8mm => has!("dotprod") && has!("i8mm"),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Scalar
        }
    }
}

/// One call of a kernel; see [`Kernel::matmul`].
struct Call {
    format: Format,
    tiles: *const u8,
    n: usize,
    k: usize,
    acts: *const u8,
    rows: usize,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
}

impl Call {
    /// The call for the rows from `row` on, whose activations are `stride` bytes apart.
    ///
    /// # Safety
    /// There are that many rows.
    #[cfg(target_arch = "x86_64")]
    unsafe fn rest(&self, row: usize, stride: usize) -> Call {
        // SAFETY: both stay within the buffers of the call.
        let (acts, out) = unsafe {
            (
                self.acts.add(row * stride),
                self.out.add(row * self.out_stride),
            )
        };
        Call {
            acts,
            out,
            rows: self.rows - row,
            ..*self
        }
    }
}

type Matmul = unsafe fn(&Call);

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
        self.many.map(|_| prompt::unpacked_bytes(self.format, k))
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
