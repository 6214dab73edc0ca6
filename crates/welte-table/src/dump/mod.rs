//! The program as something to look at: text, JSON, dot, an HTML page; and lines that can be read back.

pub(crate) mod fold;
mod lines;
mod page;
pub(crate) mod views;

pub use fold::{Fold, fold};
pub use lines::{from_lines, to_lines};
pub use page::html;
pub use views::{dot, human, json, text};

use crate::MemoryPlan;

/// What a view shows besides the program itself.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The model's name or path.
    pub title: String,
    /// Facts about it, in order: what the spec says.
    pub facts: Vec<(String, String)>,
    /// The memory plan.
    pub plan: MemoryPlan,
    /// Memory the machine has, if known.
    pub available: Option<u64>,
}
