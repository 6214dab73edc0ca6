//! What can go wrong on the CUDA device.

/// What can go wrong on the CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no GPU that could be used.
    #[error("no CUDA device: {0}")]
    Absent(String),
    /// The driver refused.
    #[error("CUDA: {what}: {text} ({name}); {remedy}")]
    Driver {
        /// What was tried.
        what: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's text.
        text: String,
        /// What may help.
        remedy: &'static str,
    },
    /// The GPU has too little memory left.
    #[error(
        "no GPU memory for {what}: {bytes} bytes were asked for, {free} are free; a smaller context (-c) or model needs less"
    )]
    OutOfMemory {
        /// What it was meant for.
        what: String,
        /// How much.
        bytes: u64,
        /// How much there was.
        free: u64,
    },
    /// A kernel was not accepted by the run-time compiler.
    #[error("the run-time compiler refused {unit} for {arch}:\n{log}")]
    Compile {
        /// The file and its macros.
        unit: String,
        /// The architecture.
        arch: String,
        /// What it said, by file and line.
        log: String,
    },
    /// The run-time compiler or its headers are missing.
    #[error("CUDA kernels cannot be compiled: {0}")]
    NoCompiler(String),
    /// A product by cuBLASLt failed.
    #[error("cuBLASLt: {0}")]
    Library(String),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The program asks for something that this device cannot do.
    #[error("the program does not fit the CUDA device: {0}")]
    Program(String),
    /// A step was asked for with rows it cannot have.
    #[error("{0}")]
    Step(String),
}
