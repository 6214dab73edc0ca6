//! Kernels for many activation rows. The quants of a tile are unpacked to bytes and its scales to floats once, then every
//! group of rows is multiplied with them. Operations and their order are those of the kernels for few rows, so the bits
//! are the same.
//!
//! An unpacked chunk of 32 k is 8 vectors of 64 bytes (vector g: 16 rows x group g) and then its scales, one 64-byte
//! vector each: see [`scale_vectors`]. (F8_E4M3 has a form of its own: see `float8.rs`.)

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::MANY_ROWS;
#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::avx2_many;
use super::float8;
use super::layout::{CHUNK, F8_BLOCK, Layout, ROWS, Scales};
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{Isa, Matmul};
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

/// Bytes of an unpacked chunk.
pub(super) const fn chunk_bytes(layout: Layout) -> usize {
    QUANTS + 64 * scale_vectors(layout)
}

/// Bytes of an unpacked tile of k columns.
pub(super) const fn unpacked_bytes(format: Format, k: usize) -> usize {
    if matches!(format, Format::F8_E4M3) {
        return k / F8_BLOCK * float8::UNPACKED;
    }
    k / CHUNK * chunk_bytes(Layout::of(format))
}

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
            unpack: by_format!(format, wide::unpack_tile),
            run: by_format!(format, amx::blocks),
            from: FEWER_ROWS,
        }),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Amx => Some(Many {
            unpack: by_format!(format, wide::unpack_tile),
            run: by_format!(format, wide::blocks),
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

/// AVX-512 with VNNI.
#[cfg(target_arch = "x86_64")]
pub(super) mod wide {
    use super::super::Call;
    use super::super::avx512::{
        ChunkScales, Out, chunk, heads, load, minima, scales, store, unpack, walk,
    };
    use super::super::layout::{ACT, acts_bytes, layout_of};
    use super::*;
    use std::arch::x86_64::*;

    /// # Safety
    /// `tile` is one of k columns, `out` has room for its unpacked form, and the processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    pub(super) unsafe fn unpack_tile<const F: usize>(
        member: Format,
        tile: *const u8,
        k: usize,
        out: *mut u8,
    ) {
        let layout = layout_of::<F>(member);
        let mut out = out.cast::<__m512i>();
        // SAFETY: the blocks and chunks lie in the tile, and 8 vectors and the scales of each in the unpacked form.
        unsafe {
            for b in 0..k / CHUNK / layout.chunks {
                let d = heads::<F>(layout, tile.add(layout.head_at(b)));
                let dmin = if layout.has_minima() {
                    minima::<F>(layout, tile.add(layout.head_at(b)), d)
                } else {
                    d
                };
                let at = tile.add(layout.block_at(b));
                for c in 0..layout.chunks {
                    for group in unpack::<F>(at.add(layout.quants_at(c))) {
                        _mm512_storeu_si512(out, group);
                        out = out.add(1);
                    }
                    let s = scales::<F>(at.add(layout.sub_at(c)), d, dmin);
                    let bits = |v| _mm512_castps_si512(v);
                    let all = kept_scales!(layout, s, bits);
                    for v in &all[..const { scale_vectors(Layout::of(Format::ALL[F])) }] {
                        _mm512_storeu_si512(out, *v);
                        out = out.add(1);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`super::super::Kernel::matmul`] with unpacked tiles, on a processor with AVX-512 VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
    pub(in super::super) unsafe fn blocks<const F: usize>(call: &Call) {
        let format = call.format;
        // SAFETY: tiles, rows and outputs are walked as the caller promised them.
        unsafe {
            walk!(
                call,
                unpacked_bytes(format, call.k),
                acts_bytes(format, call.k, false),
                tile,
                F
            );
        }
    }

    /// M activation rows with one unpacked tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
    unsafe fn tile<const F: usize, const M: usize>(
        tile: *const u8,
        call: &Call,
        acts: *const u8,
        stride: usize,
    ) -> [__m512; M] {
        let layout = const { Layout::of(Format::ALL[F]) };
        let mut sums = [_mm512_setzero_ps(); M];
        // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
        unsafe {
            for c in 0..call.k / CHUNK {
                let at = tile.add(c * chunk_bytes(layout));
                let w: [__m512i; 8] = std::array::from_fn(|g| load(at.add(64 * g)));
                let scales = chunk_scales::<F>(at);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = chunk::<F>(&w, &scales, acts.add(r * stride + c * ACT), *sum);
                }
            }
        }
        sums
    }

    /// The scales of an unpacked chunk.
    ///
    /// # Safety
    /// `at` is an unpacked chunk of the format.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn chunk_scales<const F: usize>(at: *const u8) -> ChunkScales {
        // SAFETY: a chunk has the scale vectors of its layout.
        let scale = |i: usize| unsafe { load(at.add(QUANTS + 64 * i)) };
        let float = |i: usize| _mm512_castsi512_ps(scale(i));
        loaded_scales!(
            Layout::of(Format::ALL[F]),
            float,
            scale,
            _mm512_setzero_si512()
        )
    }
}
