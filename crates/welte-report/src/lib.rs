//! Pictures and pages: a program as text, JSON, dot or HTML.

mod fold;
mod page;
mod views;

pub use fold::{Fold, fold};
pub use page::html;
pub use views::{dot, human, json, text};

use welte_table::MemoryPlan;

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
