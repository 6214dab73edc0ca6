//! The table at Welte's heart: ops, commands, buffers and formats as plain data, and the passes over them.

mod format;
mod op;
mod table;

pub use format::Format;
pub use op::{Op, Params, Word, params};
pub use table::*;
