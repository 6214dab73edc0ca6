//! Which device, and what it is.

use std::fmt;

/// A device by kind and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// `cpu`, `cuda`, `reference`, …
    pub kind: &'static str,
    /// Its number among devices of this kind.
    pub ordinal: u32,
    /// Whether there can be several of this kind, so that the number is part of the name.
    pub numbered: bool,
}

impl DeviceId {
    /// The only device of its kind.
    pub const fn only(kind: &'static str) -> DeviceId {
        DeviceId {
            kind,
            ordinal: 0,
            numbered: false,
        }
    }

    /// One of several devices of its kind.
    pub const fn numbered(kind: &'static str, ordinal: u32) -> DeviceId {
        DeviceId {
            kind,
            ordinal,
            numbered: true,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.numbered {
            write!(f, "{}:{}", self.kind, self.ordinal)
        } else {
            f.write_str(self.kind)
        }
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Kind and number.
    pub id: DeviceId,
    /// The product's name.
    pub name: String,
    /// Rows of a prompt that it computes together by default: enough to keep it busy.
    pub prompt_rows: u32,
    /// Bytes of its last-level cache, 0 if unknown. A model that fits is not limited by memory bandwidth.
    pub cache_bytes: u64,
}
