//! Instruction sets, and which of them this processor has.

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
    /// therefore used only on request; see `Kernel::for_prompt`.
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
    pub(super) fn rounds_floats(self) -> bool {
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
                Isa::Amx => Isa::Avx512Vnni.is_available() && has_matrix_tiles(),
                Isa::Avx512Bf16 => avx512 && has!("avx512vnni") && has!("avx512bf16"),
                Isa::AmxBf16 => Isa::Avx512Bf16.is_available() && has_matrix_tiles(),
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

/// Whether the processor has AMX for bytes and BF16, and the system lets this process use it.
#[cfg(target_arch = "x86_64")]
fn has_matrix_tiles() -> bool {
    use std::sync::OnceLock;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_tiles() && system_allows())
}

#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8
}

/// Asks Linux for the matrix tiles' registers. All threads of the process have them from then on.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn system_allows() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but what threads may save.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn system_allows() -> bool {
    false
}
