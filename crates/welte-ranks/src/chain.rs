//! Chains: every rank chooses its tokens by itself, and all choose the same. When a slot stops, rank 0 decides, since it talks
//! to the caller; the others follow its decisions, token by token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use welte_device::{Emitted, Seat};

/// Rank 0's decisions about the tokens of a chain, in order.
///
/// Rank 0 is at most a step ahead: the masks of older positions may be gone. Exchanges see to that, and where a program has
/// none, rank 0 waits.
#[derive(Clone)]
pub(crate) struct Follower {
    ring: Arc<[AtomicU64]>,
    /// By rank from 1 on: how many decisions it has followed.
    followed: Arc<[AtomicU64]>,
}

/// Number of a decision, token, and whether the slot goes on.
fn packed(nth: u64, token: u32, goes_on: bool) -> u64 {
    (nth + 1) << 33 | u64::from(token) << 1 | u64::from(goes_on)
}

/// Numbers begin again after so many tokens of a chain.
const NUMBERS: u64 = (1 << 31) - 1;

impl Follower {
    /// For chains of at most `slots` slots.
    pub(crate) fn new(ranks: u32, slots: usize) -> Follower {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Follower {
            ring: zeros(slots.max(1)),
            followed: zeros(ranks as usize - 1),
        }
    }

    /// Forgets the decisions of the last chain. No rank may be at work.
    pub(crate) fn clear(&self) {
        let all = self.ring.iter().chain(self.followed.iter());
        all.for_each(|word| word.store(0, Release));
    }

    fn place(&self, nth: u64) -> &AtomicU64 {
        &self.ring[(nth % self.ring.len() as u64) as usize]
    }

    /// The decisions of a chain of this many slots, as a rank makes or follows them.
    pub(crate) fn of<'a>(&'a self, seat: &'a Seat, slots: usize) -> Events<'a> {
        Events {
            follower: self,
            seat,
            slots: slots as u64,
            nth: 0,
        }
    }
}

/// Tokens of a chain, one after the other.
pub(crate) struct Events<'a> {
    follower: &'a Follower,
    seat: &'a Seat,
    slots: u64,
    nth: u64,
}

impl Events<'_> {
    /// Rank 0's decision.
    pub(crate) fn decide(&mut self, token: u32, goes_on: bool) {
        let has_followed = |word: &AtomicU64| word.load(Acquire) + self.slots > self.nth;
        let late = || {
            self.follower
                .followed
                .iter()
                .position(|word| !has_followed(word))
        };
        if let Some(rank) = late() {
            // An error shows when the chain ends.
            let _ = self.seat.wait(|| late().is_none(), rank as u32 + 1);
        }
        let word = packed(self.nth % NUMBERS, token, goes_on);
        self.follower.place(self.nth).store(word, Release);
        self.nth += 1;
    }

    /// Waits for rank 0's decision about a token of this rank.
    pub(crate) fn next(&mut self, emitted: Emitted) -> bool {
        let seat = self.seat;
        let place = self.follower.place(self.nth);
        let wanted = packed(self.nth % NUMBERS, 0, false) >> 33;
        self.nth += 1;
        if seat
            .wait(|| place.load(Acquire) >> 33 == wanted, 0)
            .is_err()
        {
            return false;
        }
        let decision = place.load(Acquire);
        self.follower.followed[seat.rank() as usize - 1].store(self.nth, Release);
        let token = (decision >> 1) as u32;
        if token != emitted.token {
            let (slot, position) = (emitted.slot, emitted.position);
            let own = emitted.token;
            seat.fail(format!(
                "it chose token {own} for position {position} of slot {slot}, rank 0 chose {token}"
            ));
            return false;
        }
        decision & 1 == 1
    }
}
