//! Constraints: what an answer must look like. A constraint is compiled before its request is accepted; what cannot be
//! enforced is refused.

mod closed;
mod compile;
mod form;
mod gbnf;
mod grammar;
mod kinds;
mod measure;
mod schema;
mod source;

pub(crate) use compile::{compile, spawn};
pub(crate) use grammar::{Grammars, Matching, Progress};
pub use kinds::Constraint;
