//! A program as several, one for each rank: rows of every matrix are dealt, and heads with their keys and values. Every
//! dot product stays whole, so a rank computes the very bits that a single device would. Where a command needs what other
//! ranks have computed, an exchange stands before it.
//!
//! A value is dealt only as far as it is known how. Everything else is computed whole, by every rank.

mod banks;
mod forms;
mod layout;
mod part;
mod rank;
mod webs;

use crate::verify::MOST_RANKS;
use crate::{Deal, Op, Program};
use layout::Layout;
pub use part::{BankPart, Kept, Shard};

/// A program for each rank.
#[derive(Clone, Debug)]
pub struct Shards {
    /// By rank.
    pub ranks: Vec<Shard>,
    /// By cache: how its heads are dealt; `None`: every rank has all of it.
    pub caches: Vec<Option<Deal>>,
}

/// Deals a program of fine ops to ranks. Matrices of less than `least` bytes are left whole where dealing them costs an
/// exchange. The error says what cannot be dealt.
pub fn shard(program: &Program, ranks: u32, least: u64) -> Result<Shards, String> {
    if !(2..=MOST_RANKS).contains(&ranks) {
        return Err(format!(
            "{ranks} ranks; from 2 to {MOST_RANKS} are possible"
        ));
    }
    let commands = || program.passes.iter().flat_map(|pass| &pass.commands);
    if commands().any(|c| c.op == Op::Exchange) {
        return Err("it is the program of a rank already".to_string());
    }
    let layout = Layout::of(program, ranks);
    let all: Result<Vec<Shard>, String> = (0..ranks)
        .map(|rank| rank::shard(program, &layout, rank, least))
        .collect();
    Ok(Shards {
        ranks: all?,
        caches: layout.caches,
    })
}
