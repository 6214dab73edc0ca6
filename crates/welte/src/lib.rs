//! Welte: the engine that people link.
//!
//! A [`Model`] is loaded once; [`Session`]s of it turn prompts into text.
//!
//! ```
//! # fn main() -> Result<(), welte::Error> {
//! use std::ops::ControlFlow;
//! let options = welte::LoadOptions { context: 128, ..Default::default() };
//! let model = welte::Model::load("synthetic:tiny:q4_0", &options, &mut |_done, _total| ())?;
//! let mut session = model.session()?;
//! let options = welte::GenerateOptions { max_tokens: 16, ..Default::default() };
//! let outcome = session.generate(&[1, 2, 3], &options, &mut |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! println!("{} tokens, ended by {:?}", outcome.tokens.len(), outcome.stop);
//! # Ok(()) }
//! ```

mod device;
mod divergence;
mod error;
mod generate;
pub mod memory;
mod model;
mod perplexity;
pub mod policy;
mod session;
mod text;

pub use device::{Device, DeviceChoice, DeviceSession, gpu_free_memory, gpu_info, read_bandwidth};
pub use divergence::{Divergence, divergence};
pub use error::Error;
pub use generate::{GenerateOptions, Outcome, Pieces, StopReason, Timings};
pub use model::{DEFAULT_CONTEXT, Inspection, LoadOptions, Model, open};
pub use perplexity::{Perplexity, perplexity};
pub use session::{CancelHandle, Session};
pub use text::tokenizer;
pub use welte_cpu::{CpuInfo, Isa, Profile, cpu_info};
pub use welte_cuda::{
    GpuInfo, Replay, Session as CudaSession, Tools as CudaTools, h200 as assumed_gpu, replays,
    tools as cuda_tools,
};
pub use welte_table::{Format, Sampling};
pub use welte_text::{Channels, ChatTemplate, FINAL, Message, Said, Tokenizer};
