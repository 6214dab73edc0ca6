//! GGUF, versions 2 and 3: reader and writer.
//!
//! A file consists of magic, version, number of tensors, number of keys, the keys with typed values, the tensors'
//! names, dimensions, types and offsets, and the aligned data.

mod reader;
mod writer;

pub use reader::Gguf;
pub use writer::Writer;

use std::collections::BTreeMap;
use welte_table::Format;

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The default alignment of data.
pub const ALIGNMENT: u64 = 32;

/// The key of another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Arrays nested deeper than this are refused.
const MAX_DEPTH: u32 = 8;

/// The stored type of a metadata value. [`crate::Value`] does not preserve it.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
    /// An array of values of one kind.
    Array(Box<Kind>),
    /// An array of arrays, each with its own kind.
    Arrays(Vec<Kind>),
}

/// The stored types of metadata values by key. A key that is absent is written with the usual type (see
/// [`Writer::create`]).
pub type Kinds = BTreeMap<String, Kind>;

/// The type id of arrays.
const ARRAY: u32 = 9;

impl Kind {
    /// The type id.
    fn id(&self) -> u32 {
        match self {
            Kind::U8 => 0,
            Kind::I8 => 1,
            Kind::U16 => 2,
            Kind::I16 => 3,
            Kind::U32 => 4,
            Kind::I32 => 5,
            Kind::F32 => 6,
            Kind::Bool => 7,
            Kind::String => 8,
            Kind::Array(_) | Kind::Arrays(_) => ARRAY,
            Kind::U64 => 10,
            Kind::I64 => 11,
            Kind::F64 => 12,
        }
    }

    /// The kind of a type id, except arrays.
    fn plain(id: u32) -> Option<Kind> {
        Some(match id {
            0 => Kind::U8,
            1 => Kind::I8,
            2 => Kind::U16,
            3 => Kind::I16,
            4 => Kind::U32,
            5 => Kind::I32,
            6 => Kind::F32,
            7 => Kind::Bool,
            8 => Kind::String,
            10 => Kind::U64,
            11 => Kind::I64,
            12 => Kind::F64,
            _ => return None,
        })
    }

    /// The fewest bytes that a value takes.
    fn least_bytes(id: u32) -> u64 {
        match id {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            ARRAY => 12,
            _ => 8,
        }
    }
}

/// The type id of a format, if GGUF has one.
pub fn type_id(format: Format) -> Option<u32> {
    Some(match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q5_0 => 6,
        Format::Q5_1 => 7,
        Format::Q8_0 => 8,
        Format::Q2_K => 10,
        Format::Q3_K => 11,
        Format::Q4_K => 12,
        Format::Q5_K => 13,
        Format::Q6_K => 14,
        Format::BF16 => 30,
        Format::IQ4_NL => 20,
        Format::IQ4_XS => 23,
        Format::MXFP4 => 39,
        Format::IQ2_XXS => 16,
        Format::IQ2_XS => 17,
        Format::IQ3_XXS => 18,
        Format::IQ1_S => 19,
        Format::IQ3_S => 21,
        Format::IQ2_S => 22,
        Format::IQ1_M => 29,
        Format::TQ1_0 => 34,
        Format::TQ2_0 => 35,
        Format::NVFP4 => 40,
        Format::Q1_0 => 41,
        Format::F8_E4M3 | Format::NVFP4_F32 | Format::Affine(_) | Format::Integers(_) => {
            return None;
        }
    })
}

/// The format of a type id, if supported.
pub fn format_of(id: u32) -> Option<Format> {
    Format::ALL.into_iter().find(|f| type_id(*f) == Some(id))
}

/// The name of an unsupported tensor type.
fn foreign_type(id: u32) -> String {
    let name = match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        _ => return format!("number {id}"),
    };
    name.to_string()
}

/// The text before `-00001-of-00003.gguf` at the end of a name, the part number and the number of parts.
pub fn split_name(file_name: &str) -> Option<(&str, u32, u32)> {
    let stem = file_name.strip_suffix(".gguf")?;
    let at = stem.len().checked_sub("-00001-of-00003".len())?;
    let (prefix, tail) = (stem.get(..at)?, stem.get(at..)?);
    let (part, parts) = tail.strip_prefix('-')?.split_once("-of-")?;
    let number = |s: &str| {
        (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok())?
    };
    let (part, parts) = (number(part)?, number(parts)?);
    (1..=parts).contains(&part).then_some((prefix, part, parts))
}
