//! The tables of IQ1, IQ2 and IQ3. An entry of a table describes eight elements (IQ3: four): the numbers of their
//! magnitudes, of two bits each (IQ3: three), the first in the lowest bits. IQ1's numbers stand for -1, 0 and 1.
//!
//! The tables are facts of the formats. `tools/quant-fixtures/grids.py` writes `grids.bin` from the gguf package.

use welte_table::Format;

const FILE: &[u8; 9216] = include_bytes!("grids.bin");

const ALL: [u16; FILE.len() / 2] = {
    let mut all = [0; FILE.len() / 2];
    let mut i = 0;
    while i < all.len() {
        all[i] = u16::from_le_bytes([FILE[2 * i], FILE[2 * i + 1]]);
        i += 1;
    }
    all
};

static IQ1: [u16; 2048] = part(0);
static IQ2_XXS: [u16; 256] = part(2048);
static IQ2_XS: [u16; 512] = part(2304);
static IQ2_S: [u16; 1024] = part(2816);
static IQ3_XXS: [u16; 256] = part(3840);
static IQ3_S: [u16; 512] = part(4096);

const fn part<const N: usize>(first: usize) -> [u16; N] {
    let mut part = [0; N];
    let mut i = 0;
    while i < N {
        part[i] = ALL[first + i];
        i += 1;
    }
    part
}

/// The table of a format, if it has one.
pub fn table(format: Format) -> Option<&'static [u16]> {
    Some(match format {
        Format::IQ1_S | Format::IQ1_M => &IQ1,
        Format::IQ2_XXS => &IQ2_XXS,
        Format::IQ2_XS => &IQ2_XS,
        Format::IQ2_S => &IQ2_S,
        Format::IQ3_XXS => &IQ3_XXS,
        Format::IQ3_S => &IQ3_S,
        _ => return None,
    })
}

/// Writes eight codes: the entry's numbers, and 4 for each element with its bit in `signs`.
pub(super) fn eight(entry: u16, signs: u8, codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate().take(8) {
        *code = (entry >> (2 * i)) as u8 & 3 | (signs >> i & 1) << 2;
    }
}

/// Writes eight codes of two entries with four numbers each, and 8 for each element with its bit in `signs`.
pub(super) fn twice_four(entries: [u16; 2], signs: u8, codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate().take(8) {
        *code = (entries[i / 4] >> (3 * (i % 4))) as u8 & 7 | (signs >> i & 1) << 3;
    }
}

/// Eight signs from seven bits: the number of negative elements is even.
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

pub(super) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(super) fn half_word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub(super) fn iq1(index: u16) -> u16 {
    IQ1[usize::from(index)]
}
pub(super) fn iq2_xxs(index: u8) -> u16 {
    IQ2_XXS[usize::from(index)]
}
pub(super) fn iq2_xs(index: u16) -> u16 {
    IQ2_XS[usize::from(index & 511)]
}
pub(super) fn iq2_s(index: u16) -> u16 {
    IQ2_S[usize::from(index & 1023)]
}
pub(super) fn iq3_xxs(index: u8) -> u16 {
    IQ3_XXS[usize::from(index)]
}
pub(super) fn iq3_s(index: u16) -> u16 {
    IQ3_S[usize::from(index & 511)]
}
