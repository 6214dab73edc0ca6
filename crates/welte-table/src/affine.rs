//! The family of formats that MLX quantises to.

/// Groups of a row with a scale and a bias of their own, `w = scale q + bias`. A block is one group: its scale and its
/// bias, two bytes each, then its unsigned integers as a stream of bits, the lowest first. Scale and bias stay the 16-bit
/// floats that they are in the checkpoint: neither kind holds all values of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    /// Its place in `ALL`: a byte, so that commands stay as small as they are.
    number: u8,
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

    /// All of them: by bits, then by group, then BF16 before F16.
    pub const ALL: [Affine; 36] = {
        let mut all = [Affine { number: 0 }; 36];
        let mut i = 0;
        while i < 36 {
            all[i].number = i as u8;
            i += 1;
        }
        all
    };

    /// The one with `bits` bits in groups of `group`, with scales in BF16 or else in F16.
    pub const fn new(bits: usize, group: usize, bf16: bool) -> Option<Affine> {
        let mut i = 0;
        while i < 36 {
            let one = Affine::ALL[i];
            if one.bits() == bits && one.group() == group && one.bf16() == bf16 {
                return Some(one);
            }
            i += 1;
        }
        None
    }

    /// Bits of an integer.
    pub const fn bits(self) -> usize {
        Affine::BITS[self.index() / 6]
    }

    /// Elements of a group.
    pub const fn group(self) -> usize {
        Affine::GROUPS[self.index() / 2 % 3]
    }

    /// True if scales and biases are BF16, false if they are F16.
    pub const fn bf16(self) -> bool {
        self.index().is_multiple_of(2)
    }

    /// Its place in `ALL`.
    pub(crate) const fn index(self) -> usize {
        self.number as usize
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
