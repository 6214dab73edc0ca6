//! Masks: which tokens a slot may choose next. Another thread writes them while the device computes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use web_time::{Duration, Instant};

/// In place of a token: the mask allows no token that could be chosen.
pub const NO_TOKEN: u32 = u32::MAX;
/// In place of a token: the mask of this position did not come in time. The step may be repeated.
pub const NO_MASK: u32 = u32::MAX - 1;
/// In place of a token: a guess before it was wrong, so the choice was skipped ([`Choice::draft`](crate::Choice::draft)).
pub const SKIPPED: u32 = u32::MAX - 2;

/// True for a token, false for [`NO_TOKEN`], [`NO_MASK`] and [`SKIPPED`].
pub fn is_token(token: u32) -> bool {
    token < SKIPPED
}

/// The memory of a [`MaskBoard`]. A device may own it, so that its kernels can read masks where they are written.
pub type MaskMemory = Box<dyn AsRef<[AtomicU32]> + Send + Sync>;

/// The masks of a context. A mask is valid for one position of a slot; whoever chooses the token of that position waits for
/// it, at most [`MaskBoard::PATIENCE`]. A slot has masks for [`MaskBoard::DEPTH`] consecutive positions at a time, so that
/// guesses can be verified.
///
/// A mask has [`MaskBoard::stride`] words: its position, then, from word [`MaskBoard::HEAD`] on, a bit per token, lowest
/// first. The words of the mask are written before its position. Mask `position % DEPTH` of the slot's masks is the one of
/// a position.
pub struct MaskBoard {
    memory: MaskMemory,
    slots: usize,
    vocab: usize,
    agreed: Option<Agreed>,
}

/// Whether masks came in time, as all ranks that choose by them see it. A mask may come while the patience of one of them
/// ends and that of another does not.
struct Agreed {
    round: AtomicU32,
    /// By slot and mask: round, position, and whether it came.
    verdicts: Box<[AtomicU64]>,
}

impl Agreed {
    /// Whether the mask of a position came: as the first rank that asks has seen it.
    fn settle(&self, place: usize, position: u32, came: bool) -> bool {
        let round = u64::from(self.round.load(Ordering::Acquire));
        let key = round << 33 | u64::from(position) << 1;
        let word = &self.verdicts[place];
        let mut seen = word.load(Ordering::Acquire);
        while seen & !1 != key {
            let own = key | u64::from(came);
            match word.compare_exchange(seen, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return came,
                Err(other) => seen = other,
            }
        }
        seen & 1 == 1
    }
}

impl std::fmt::Debug for MaskBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MaskBoard({} x {})", self.slots, self.vocab)
    }
}

/// The position of no mask.
const NOWHERE: u32 = u32::MAX;

impl MaskBoard {
    /// Words before the bits of a mask.
    pub const HEAD: usize = 4;
    /// Masks of a slot.
    pub const DEPTH: usize = 8;
    /// How long a choice waits for its mask.
    pub const PATIENCE: Duration = Duration::from_millis(20);

    /// Words of a mask and its position.
    pub fn stride(vocab: usize) -> usize {
        MaskBoard::HEAD + vocab.div_ceil(32).next_multiple_of(4)
    }

    /// Words of all slots.
    pub fn words(slots: usize, vocab: usize) -> usize {
        slots * MaskBoard::DEPTH * MaskBoard::stride(vocab)
    }

    /// A board in the host's memory.
    pub fn new(slots: usize, vocab: usize) -> MaskBoard {
        let words = (0..MaskBoard::words(slots, vocab)).map(|_| AtomicU32::new(0));
        let words: Box<[AtomicU32]> = words.collect();
        MaskBoard::in_memory(slots, vocab, Box::new(words))
    }

    /// A board in a device's memory, which has at least [`MaskBoard::words`] words.
    pub fn in_memory(slots: usize, vocab: usize, memory: MaskMemory) -> MaskBoard {
        assert!((*memory).as_ref().len() >= MaskBoard::words(slots, vocab));
        let board = MaskBoard {
            memory,
            slots,
            vocab,
            agreed: None,
        };
        (0..slots as u32).for_each(|slot| board.clear(slot));
        board
    }

    /// For several ranks, which choose the same tokens by the same masks.
    pub fn agreeing(self) -> MaskBoard {
        // No verdict is of round 0.
        let verdicts = (0..self.slots * MaskBoard::DEPTH).map(|_| AtomicU64::new(0));
        let agreed = Some(Agreed {
            round: AtomicU32::new(1),
            verdicts: verdicts.collect(),
        });
        MaskBoard { agreed, ..self }
    }

    /// Forgets which masks came in time. No rank may be at work.
    pub fn begin_round(&self) {
        if let Some(agreed) = &self.agreed {
            let next = agreed.round.load(Ordering::Relaxed) % ((1 << 31) - 1) + 1;
            agreed.round.store(next, Ordering::Release);
        }
    }

    /// Words of a mask.
    pub fn mask_words(&self) -> usize {
        self.vocab.div_ceil(32)
    }

    /// The masks of a slot.
    fn slot(&self, slot: u32) -> std::slice::ChunksExact<'_, AtomicU32> {
        let stride = MaskBoard::stride(self.vocab);
        let words = stride * MaskBoard::DEPTH;
        (*self.memory).as_ref()[slot as usize * words..][..words].chunks_exact(stride)
    }

    /// The words of the mask of a position.
    fn place(&self, slot: u32, position: u32) -> &[AtomicU32] {
        let nth = position as usize % MaskBoard::DEPTH;
        let mut masks = self.slot(slot);
        masks.nth(nth).unwrap_or_default()
    }

    /// Allows the tokens whose bits are set as the token at a position of a slot. The mask may be shorter than the
    /// vocabulary; further tokens are not allowed then. It replaces the slot's mask of [`MaskBoard::DEPTH`] positions before,
    /// whose token must have been chosen.
    pub fn allow(&self, slot: u32, position: u32, mask: &[u32]) {
        let mask = mask.iter().copied().chain(std::iter::repeat(0));
        self.write(slot, position, mask);
    }

    /// As [`MaskBoard::allow`], for a single token.
    pub fn allow_only(&self, slot: u32, position: u32, token: u32) {
        let of_token = |word: u32| u32::from(word == token / 32) << (token % 32);
        self.write(slot, position, (0..).map(of_token));
    }

    fn write(&self, slot: u32, position: u32, mask: impl Iterator<Item = u32>) {
        let words = self.place(slot, position);
        words[0].store(NOWHERE, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bits) in words[MaskBoard::HEAD..].iter().zip(mask) {
            word.store(bits, Ordering::Relaxed);
        }
        words[0].store(position, Ordering::Release);
    }

    /// Takes a slot's masks away.
    pub fn clear(&self, slot: u32) {
        for words in self.slot(slot) {
            words[0].store(NOWHERE, Ordering::Release);
        }
    }

    /// Waits for the mask of a position. `None` if it does not come in time. For devices.
    pub fn wait(&self, slot: u32, position: u32) -> Option<&[AtomicU32]> {
        let words = self.place(slot, position);
        let mut begun = None;
        let has_come = || words[0].load(Ordering::Acquire) == position;
        let mut came = has_come();
        while !came {
            let now = Instant::now();
            if now - *begun.get_or_insert(now) > MaskBoard::PATIENCE {
                break;
            }
            std::thread::yield_now();
            came = has_come();
        }
        if let Some(agreed) = &self.agreed {
            let place = slot as usize * MaskBoard::DEPTH + position as usize % MaskBoard::DEPTH;
            came = agreed.settle(place, position, came);
        }
        came.then_some(&words[MaskBoard::HEAD..])
    }

    /// Gives all tokens that a mask does not allow the logit minus infinity. For devices.
    pub fn apply(mask: &[AtomicU32], logits: &mut [f32]) {
        for (logits, word) in logits.chunks_mut(32).zip(mask) {
            let bits = word.load(Ordering::Relaxed);
            if bits == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if bits >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_on_what_came_in_time() {
        let board = MaskBoard::new(2, 8).agreeing();
        assert!(board.wait(1, 5).is_none());
        board.allow_only(1, 5, 3);
        // It has come by now, but a rank has gone on without it.
        assert!(board.wait(1, 5).is_none());
        board.begin_round();
        assert!(board.wait(1, 5).is_some());
        // The place of position 5 holds another mask, and verdicts of both stand apart.
        board.allow_only(1, 13, 3);
        assert!(board.wait(1, 13).is_some() && board.wait(0, 13).is_none());
    }
}
