//! What the bindings for C and Python share.
//!
//! A [`Library`] is a loaded model with the server's endpoints, called without a network. A request is therefore the same JSON,
//! has the same checks and gets the same error texts as one to `welte serve`. [`Events`] is a response that is streamed,
//! [`Session`] a conversation.

mod events;
mod library;
mod merge;
mod options;
mod problem;
mod session;
mod waiting;

pub use events::Events;
pub use library::{Library, plan};
pub use problem::{Kind, Problem};
pub use session::Session;
pub use waiting::{Alive, OnText};
