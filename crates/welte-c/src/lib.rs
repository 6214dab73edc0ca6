//! The C interface. `include/welte.h` is made from this crate and has its rules; `tests/header.rs` compares them.
//!
//! Every function checks its arguments, runs in `guard` so that no panic leaves it, and reports errors through a code and a text
//! of the calling thread.

#![allow(
    unsafe_code,
    reason = "C passes pointers; each function says what they must be"
)]
#![allow(
    non_camel_case_types,
    reason = "the header has these names, in the style of C"
)]

mod code;
mod memory;
mod model;
mod session;
mod stream;
mod text;

pub use code::{welte_code, welte_last_error, welte_version};
pub use memory::{welte_string_free, welte_tokens_free, welte_values_free};
pub use model::{
    welte_chat, welte_embed, welte_generate, welte_generate_tokens, welte_model, welte_model_free,
    welte_model_info, welte_model_load, welte_model_plan, welte_progress_fn, welte_request,
    welte_text_fn,
};
pub use session::{
    welte_session, welte_session_cancel, welte_session_free, welte_session_messages,
    welte_session_new, welte_session_say,
};
pub use stream::{
    welte_stream, welte_stream_cancel, welte_stream_free, welte_stream_next, welte_stream_open,
};
pub use text::{welte_detokenize, welte_render_chat, welte_tokenize};
