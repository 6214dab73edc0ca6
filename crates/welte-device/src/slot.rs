//! Slots: what a caller sets, and what chains take and emit.

use crate::{Choice, Logprobs};
use std::sync::atomic::{AtomicBool, Ordering};
use welte_table::{BufferId, Program, Row, Sampling};

/// How a slot's tokens are chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotState<'a> {
    /// Temperature, filters, penalties, seed.
    pub sampling: Sampling,
    /// Added to the logits of these tokens.
    pub bias: &'a [(u32, f32)],
    /// The sequence so far; penalties look at its end. Devices keep as many tokens as the context has positions.
    pub history: &'a [u32],
    /// Tokens that end a chain of this slot.
    pub ends: &'a [u32],
    /// Only tokens that the slot's mask allows are chosen ([`Context::masks`](crate::Context::masks)). All others count as
    /// tokens with the logit minus infinity, before biases, penalties and filters.
    pub masked: bool,
    /// Tokens at which a repeated run ends, for DRY: bit `token % 32` of word `token / 32`. It may be shorter than the
    /// vocabulary.
    pub breakers: &'a [u32],
    /// Chains report the probability of each token of this slot, and those of this many likeliest tokens: at most
    /// [`Logprobs::MOST`].
    pub logprobs: Option<u32>,
    /// What is added to the products of its rows ([`Program::adapters`](welte_table::Program::adapters)).
    pub adapter: Option<SlotAdapter>,
}

/// The adapter of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotAdapter {
    /// Its place in every bank.
    pub place: u32,
    /// What it adds is multiplied by this.
    pub scale: f32,
}

impl SlotAdapter {
    /// What a device notes of a slot's adapter in the program's table: the buffer, the first byte, and two words: a place
    /// (`u32::MAX`: none) and a scale. `None`: the program has no adapters.
    pub fn entry(
        program: &Program,
        slot: u32,
        adapter: Option<SlotAdapter>,
    ) -> Option<(BufferId, u64, [u8; 8])> {
        let table = program.adapters.as_ref()?.slots;
        let none = SlotAdapter {
            place: u32::MAX,
            scale: 0.0,
        };
        let SlotAdapter { place, scale } = adapter.unwrap_or(none);
        let words = u64::from(place) | u64::from(scale.to_bits()) << 32;
        Some((table, 8 * u64::from(slot), words.to_le_bytes()))
    }
}

impl SlotState<'_> {
    /// The most biases of a slot. Every context has memory for as many.
    pub const MOST_BIASES: usize = 1024;
    /// The most end tokens of a slot.
    pub const MOST_ENDS: usize = 256;
}

/// Where a slot begins a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainStart {
    /// Which slot.
    pub slot: u32,
    /// The token to read first.
    pub token: u32,
    /// Its position.
    pub position: u32,
    /// Tokens to make at most.
    pub steps: u32,
    /// What its axes are ahead of its position, and those of the tokens after it ([`Row::shifted`]).
    pub shift: i32,
}

impl ChainStart {
    /// The row of the step that reads its token.
    pub fn row(&self) -> Row {
        Row::new(self.token, self.position, self.slot).shifted(self.shift)
    }

    /// The choice of the token after it, from an output row of that step.
    pub fn choice(&self, output: u32) -> Choice {
        Choice {
            output,
            slot: self.slot,
            position: self.position + 1,
            draft: None,
        }
    }
}

/// A token that a chain has made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emitted {
    /// Whose token.
    pub slot: u32,
    /// Its position.
    pub position: u32,
    /// The token, or [`NO_TOKEN`](crate::NO_TOKEN) or [`NO_MASK`](crate::NO_MASK).
    pub token: u32,
    /// Its probability, if there is a token and the slot reports them ([`SlotState::logprobs`]): the bits that
    /// [`Context::logprobs`](crate::Context::logprobs) gives.
    pub logprobs: Option<Logprobs>,
}

/// Ends a chain from another thread.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
}

impl Control {
    /// Asks the chain to end within one token.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Takes the request back.
    pub fn clear(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// True after [`Control::stop`], until [`Control::clear`].
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
