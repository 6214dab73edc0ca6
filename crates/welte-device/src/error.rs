//! What can go wrong on a device, in words that name the model and the request.

use crate::DeviceId;

/// An error of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be used here.
    #[error("{device}: {why}")]
    Unavailable {
        /// Which device.
        device: DeviceId,
        /// What is missing.
        why: String,
    },
    /// The device has too little memory left.
    #[error("{device}: no memory for {what}: {bytes} bytes were requested{}", .free.map_or(String::new(), |f| format!(", {f} are free")))]
    OutOfMemory {
        /// Which device.
        device: DeviceId,
        /// What the memory was for.
        what: String,
        /// How much was requested.
        bytes: u64,
        /// How much is free, if known.
        free: Option<u64>,
    },
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The program asks for something that the device cannot do.
    #[error("{device}: cannot run the program: {why}")]
    Program {
        /// Which device.
        device: DeviceId,
        /// What it cannot do.
        why: String,
    },
    /// A rank failed, so the others could not go on.
    #[error("rank {rank} of {ranks}: {why}")]
    Rank {
        /// Which one.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// What happened to it.
        why: String,
    },
    /// A request that breaks the contract: rows, pages or slots out of range.
    #[error("invalid request: {0}")]
    Request(String),
    /// The device failed while it worked: a refused launch, a stuck kernel, a panic.
    #[error("{device}: {source}")]
    Failed {
        /// Which device.
        device: DeviceId,
        /// The device's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// A request that breaks the contract.
    pub fn request(why: impl Into<String>) -> Error {
        Error::Request(why.into())
    }
}
