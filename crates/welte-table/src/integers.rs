//! The family of formats that AWQ, GPTQ and compressed-tensors quantise to.

/// How a group's scale and zero point are stored, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupScale {
    /// An f32 scale. The zero point is half of the integers' range.
    F32,
    /// A scale and a zero point, both BF16.
    BF16,
    /// A scale and a zero point, both F16.
    F16,
}

/// Groups of a row with a scale and a zero point of their own, `w = scale (q - zero)`. A block is one group: four bytes of
/// [`GroupScale`], then its unsigned integers, the first in the lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Integers {
    /// Its place in `ALL`: a byte, so that commands stay as small as they are.
    number: u8,
}

/// One name per member, in the order of `Integers::ALL`.
macro_rules! names {
    ($($bits:literal)*) => {
        [$(
            concat!("INT", $bits, "_32"), concat!("UINT", $bits, "_32"), concat!("UINT", $bits, "_32_F16"),
            concat!("INT", $bits, "_64"), concat!("UINT", $bits, "_64"), concat!("UINT", $bits, "_64_F16"),
            concat!("INT", $bits, "_128"), concat!("UINT", $bits, "_128"), concat!("UINT", $bits, "_128_F16"),
        )*]
    };
}

const NAMES: [&str; 18] = names!(4 8);

impl Integers {
    /// Bits of an integer.
    pub const BITS: [usize; 2] = [4, 8];
    /// Elements of a group.
    pub const GROUPS: [usize; 3] = [32, 64, 128];
    /// Kinds of scales.
    pub const SCALES: [GroupScale; 3] = [GroupScale::F32, GroupScale::BF16, GroupScale::F16];

    /// All of them: by bits, then by group, then by scale.
    pub const ALL: [Integers; 18] = {
        let mut all = [Integers { number: 0 }; 18];
        let mut i = 0;
        while i < 18 {
            all[i].number = i as u8;
            i += 1;
        }
        all
    };

    /// The one with `bits` bits in groups of `group`, with this kind of scale.
    pub const fn new(bits: usize, group: usize, scale: GroupScale) -> Option<Integers> {
        let mut i = 0;
        while i < 18 {
            let one = Integers::ALL[i];
            if one.bits() == bits && one.group() == group && one.scale() as u8 == scale as u8 {
                return Some(one);
            }
            i += 1;
        }
        None
    }

    /// Bits of an integer.
    pub const fn bits(self) -> usize {
        Integers::BITS[self.index() / 9]
    }

    /// Elements of a group.
    pub const fn group(self) -> usize {
        Integers::GROUPS[self.index() / 3 % 3]
    }

    /// The kind of scale.
    pub const fn scale(self) -> GroupScale {
        Integers::SCALES[self.index() % 3]
    }

    /// The zero point of groups that store none.
    pub const fn middle(self) -> usize {
        1 << (self.bits() - 1)
    }

    /// Its place in `ALL`.
    pub(crate) const fn index(self) -> usize {
        self.number as usize
    }

    pub(crate) const fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}
