//! The family of formats that MLX quantises to.

/// Groups of a row with a scale and a bias of their own, `w = scale q + bias`. A block is one group: its scale and its
/// bias, two bytes each, then its unsigned integers as a stream of bits, the lowest first. Scale and bias stay the 16-bit
/// floats that they are in the checkpoint: neither kind holds all values of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    bits: u8,
    group: u8,
    bf16: bool,
}

/// One name per member, in the order of `Affine::ALL`.
macro_rules! names {
    ($($bits:literal)*) => {
        [$(
            concat!("MLX", $bits, "_32"), concat!("MLX", $bits, "_32_F16"),
            concat!("MLX", $bits, "_64"), concat!("MLX", $bits, "_64_F16"),
            concat!("MLX", $bits, "_128"), concat!("MLX", $bits, "_128_F16"),
        )*]
    };
}

const NAMES: [&str; 36] = names!(2 3 4 5 6 8);

impl Affine {
    /// Bits of an integer.
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
    /// Elements of a group.
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// All of them.
    pub const ALL: [Affine; 36] = {
        let first = Affine {
            bits: 2,
            group: 32,
            bf16: true,
        };
        let mut all = [first; 36];
        let mut i = 0;
        while i < 36 {
            all[i] = Affine {
                bits: Affine::BITS[i / 6] as u8,
                group: Affine::GROUPS[i / 2 % 3] as u8,
                bf16: i % 2 == 0,
            };
            i += 1;
        }
        all
    };

    /// The one with so many bits in groups so large, with scales in BF16 or else in F16.
    pub const fn new(bits: usize, group: usize, bf16: bool) -> Option<Affine> {
        let mut i = 0;
        while i < 36 {
            let one = Affine::ALL[i];
            if one.bits() == bits && one.group() == group && one.bf16 == bf16 {
                return Some(one);
            }
            i += 1;
        }
        None
    }

    /// Bits of an integer.
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Elements of a group.
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// True if scales and biases are BF16, false if they are F16.
    pub const fn bf16(self) -> bool {
        self.bf16
    }

    /// Its place in `ALL`.
    pub(crate) const fn index(self) -> usize {
        let bits = match self.bits {
            8 => 5,
            bits => bits as usize - 2,
        };
        let group = match self.group {
            32 => 0,
            64 => 1,
            _ => 2,
        };
        bits * 6 + group * 2 + !self.bf16 as usize
    }

    pub(crate) const fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}

#[cfg(test)]
mod tests {
    use crate::{Affine, Format};

    #[test]
    fn all_are_told_apart() {
        for (i, format) in Format::ALL.into_iter().enumerate() {
            assert_eq!(format.index(), i);
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
        let one = Format::from_name("mlx3_128_f16").expect("a format");
        assert_eq!(Affine::new(3, 128, false).map(Format::Affine), Some(one));
        assert_eq!(one.block(), 128);
        assert_eq!(one.block_bytes(), 52);
        assert_eq!(Affine::new(7, 64, true), None);
        assert_eq!(Affine::new(4, 48, true), None);
    }
}
