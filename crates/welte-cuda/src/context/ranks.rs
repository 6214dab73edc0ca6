//! A context of a rank: it knows the inboxes of all others, and whether one of them was waited for in vain.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::{DeviceBlock, Gpu, HostBlock};
use crate::launch::bytes_of;
use crate::ops::exchange::{BLOCKS_EACH, FEW_BLOCKS, Inbox, MOST_RANKS, Seats};
use std::sync::Arc;
use welte_device::{Error as DeviceError, MaskBoard, Seat};
use welte_table::Program;

/// A context's place among the ranks.
pub(super) struct Seated {
    seat: Seat,
    /// 1 + the rank that was waited for in vain, which the kernel says.
    fault: HostBlock,
    /// The address of the masks, which are those of rank 0.
    pub(super) masks: u64,
    pub(super) board: Arc<MaskBoard>,
    /// The most blocks of an exchange.
    pub(super) blocks: u32,
    // Their contexts hold the inboxes.
    _peers: Vec<Gpu>,
}

impl Seated {
    /// Tells the other ranks this one's inbox and learns theirs. `block` is filled with zeros.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        seat: Seat,
        program: &Program,
        block: &DeviceBlock,
        masks: HostBlock,
    ) -> Result<Seated, Error> {
        let address = masks.device();
        let board = || {
            MaskBoard::in_memory(
                program.slots as usize,
                program.vocab as usize,
                Box::new(masks),
            )
        };
        let own = (seat.rank() == 0).then(|| seat.masks(board));
        // Nobody may write before the zeros are there.
        gpu.synchronise()?;
        let all = seat.share(&[block.start(), gpu.info.device.into(), address]);
        let all = all.map_err(|error| Error::Rank(Box::new(error)))?;
        let board = own.unwrap_or_else(|| {
            seat.masks(|| MaskBoard::new(program.slots as usize, program.vocab as usize))
        });
        let inbox = Inbox::of(program);
        let mut seats = Seats {
            inboxes: [0; MOST_RANKS],
            capacity: inbox.capacity,
            chunks: inbox.chunks(),
            counts: 0,
            fault: 0,
            failed: 0,
        };
        let mut peers = Vec::new();
        for (address, words) in seats.inboxes.iter_mut().zip(all.iter()) {
            *address = words[0];
            peers.extend(gpu.reach(words[1] as u32)?);
        }
        let [counts, place, _] = inbox.layout();
        let fault = HostBlock::new(gpu, 8, "the fault of an exchange")?;
        seats.counts = block.start() + counts;
        seats.fault = fault.device();
        // SAFETY: the block has room for the seats there. The bytes are pageable.
        unsafe { gpu.upload(block.start() + place, bytes_of(&seats)) }?;
        gpu.synchronise()?;
        Ok(Seated {
            seat,
            fault,
            masks: all[0][2],
            board,
            blocks: if peers.len() + 1 < all.len() {
                FEW_BLOCKS
            } else {
                BLOCKS_EACH * gpu.info.sms
            },
            _peers: peers,
        })
    }

    /// Whether an exchange has failed. Nothing that was computed since counts.
    pub(super) fn has_failed(&self) -> bool {
        self.fault.word(0) != 0
    }

    /// The error of a failed exchange.
    pub(super) fn fault(&self) -> Option<DeviceError> {
        let rank = (self.fault.word(0) as u32).checked_sub(1)?;
        let ranks = self.seat.ranks();
        // A rank that has said why is named in place of one that is only late.
        let late = || DeviceError::Rank {
            rank,
            ranks,
            why: "the others waited for it in vain".to_string(),
        };
        Some(self.seat.check().err().unwrap_or_else(late))
    }
}
