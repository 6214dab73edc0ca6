//! What a device says of itself, whether or not it can be used.

use crate::{DeviceId, Replay};

/// A device as a person sees it. A kind of device that cannot be used here has one report that says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Kind and number.
    pub id: DeviceId,
    /// The product's name; empty if it is not known.
    pub name: String,
    /// Bytes of its memory.
    pub memory_total: Option<u64>,
    /// Bytes that can be allocated now.
    pub memory_available: Option<u64>,
    /// Further facts in words, in order: instruction sets, driver, libraries.
    pub facts: Vec<(String, String)>,
    /// The ways in which it can replay chains, if it has several.
    pub replays: Vec<Replay>,
    /// Why it cannot be used; `None` if it can.
    pub missing: Option<String>,
}
