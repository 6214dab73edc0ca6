//! What ranks and their callers know of a program that is dealt.

use std::sync::Arc;
use web_time::Duration;
use welte_table::{BankPart, Deal, Kept, Program};

/// How the numbers of a rank's program belong to those of the whole one.
pub(crate) struct Numbers {
    /// By pass and command of the rank: the last command of the whole program that it belongs to.
    pub(crate) commands: Vec<Vec<usize>>,
    /// By buffer of the whole program: the rank's, and what that holds, if its rows lie alike.
    pub(crate) buffers: Vec<Option<(u32, Kept)>>,
    /// The rank's parts of banks.
    pub(crate) banks: Vec<BankPart>,
}

/// What ranks and their callers know of the program.
pub(crate) struct Dealt {
    pub(crate) program: Arc<Program>,
    /// By cache: how its heads are dealt.
    pub(crate) caches: Vec<Option<Deal>>,
    /// By rank.
    pub(crate) numbers: Vec<Numbers>,
    pub(crate) patience: Duration,
    pub(crate) takes_features: bool,
}
