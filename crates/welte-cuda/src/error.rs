//! Errors of the CUDA device.

use std::path::PathBuf;
use welte_device::DeviceId;

/// What can go wrong on the CUDA device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No GPU can be used.
    #[error("{0}")]
    Unavailable(String),
    /// The driver returned an error.
    #[error("{what}: {text} ({name})")]
    Driver {
        /// The attempted action.
        what: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's description.
        text: String,
    },
    /// The GPU has too little memory left.
    #[error("no memory for {what}: {bytes} bytes were requested, {free} are free")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes requested.
        bytes: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The run-time compiler rejected a kernel.
    #[error("the run-time compiler rejected {unit} for {arch}:\n{log}")]
    Compile {
        /// The file and its macros.
        unit: String,
        /// The architecture.
        arch: String,
        /// The compiler's messages, by file and line.
        log: String,
    },
    /// The run-time compiler or its headers are missing.
    #[error("CUDA kernels cannot be compiled: {0}")]
    NoCompiler(String),
    /// A ready kernel could not be written.
    #[error("writing {}: {why}", path.display())]
    Ready {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: std::io::Error,
    },
    /// cuBLASLt returned an error.
    #[error("cuBLASLt: {0}")]
    Library(String),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The program needs something that this device cannot do.
    #[error("{0}")]
    Program(String),
    /// Another rank has failed, or did not come.
    #[error(transparent)]
    Rank(Box<welte_device::Error>),
    /// A kernel broke its protocol: it ended without a result, or gave up.
    #[error("{0}")]
    Kernel(String),
}

impl Error {
    /// The same with the weight that was being uploaded, where the error does not name it.
    pub(crate) fn about(self, weight: &str) -> Error {
        match self {
            Error::Driver { what, name, text } => Error::Driver {
                what: format!("{weight}: {what}"),
                name,
                text,
            },
            other => other,
        }
    }

    /// The error as the device contract has it.
    pub(crate) fn on(self, device: DeviceId) -> welte_device::Error {
        use welte_device::Error as Contract;
        match self {
            Error::Unavailable(why) => Contract::Unavailable { device, why },
            Error::OutOfMemory { what, bytes, free } => Contract::OutOfMemory {
                device,
                what,
                bytes,
                free: Some(free),
            },
            Error::Checkpoint(error) => Contract::Checkpoint(error),
            Error::Program(why) => Contract::Program { device, why },
            Error::Rank(error) => *error,
            other => Contract::Failed {
                device,
                source: Box::new(other),
            },
        }
    }
}
