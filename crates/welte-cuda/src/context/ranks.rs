//! A context of a rank: it knows the inboxes of all others, and whether one of them was waited for in vain.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::{DeviceBlock, Gpu, HostBlock, Reach};
use crate::launch::bytes_of;
use crate::ops::exchange::{BLOCKS_EACH, FEW_BLOCKS, Inbox, MOST_RANKS, Seats};
use crate::persistent::{RanksArgs, Recording};
use std::sync::Arc;
use welte_device::{Error as DeviceError, MaskBoard, Seat};
use welte_table::{Program, human};

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
    /// The persistent kernel's place among the ranks, or why they have none.
    pub(super) persistent: Result<RanksArgs, String>,
    // Their contexts hold the inboxes, unless these are in the host's memory.
    _peers: Vec<Gpu>,
    _inbox: Option<HostBlock>,
}

/// What the persistent kernels of all ranks need of each other.
#[derive(Clone, Copy)]
pub(super) struct Together {
    /// The kernel's own memory; 0 where there is no kernel.
    memory: u64,
    logits: u64,
    /// [`Recording::signature`]
    signature: u64,
}

impl Together {
    pub(super) const NONE: Together = Together {
        memory: 0,
        logits: 0,
        signature: 0,
    };

    pub(super) fn of(recording: &Recording, memory: u64, logits: u64) -> Together {
        Together {
            memory,
            logits,
            signature: recording.signature(),
        }
    }

    /// The place of rank `rank` among all. The error says why the persistent kernel cannot run.
    fn place(all: &[Together], rank: u32) -> Result<RanksArgs, String> {
        let own = all[rank as usize];
        if all.iter().any(|other| other.memory == 0) {
            return Err("one of the ranks has none".to_string());
        }
        if all.iter().any(|other| other.signature != own.signature) {
            return Err("the ranks have parts of different sizes".to_string());
        }
        let mut args = RanksArgs {
            rank,
            ..RanksArgs::default()
        };
        let others = (0..).zip(all).filter(|(other, _)| *other != rank);
        let places = args.away.iter_mut().zip(&mut args.logits);
        for ((away, logits), (_, other)) in places.zip(others) {
            *away = other.memory.wrapping_sub(own.memory);
            *logits = other.logits.wrapping_sub(own.logits);
        }
        Ok(args)
    }
}

impl Seated {
    /// Tells the other ranks this one's inbox and learns theirs. `block` is filled with zeros, like the memory of the persistent kernel.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        seat: Seat,
        program: &Program,
        inbox: Inbox,
        block: &DeviceBlock,
        masks: HostBlock,
        together: Together,
    ) -> Result<Seated, Error> {
        let address = masks.device();
        let board = || {
            MaskBoard::in_memory(
                program.slots as usize,
                program.vocab as usize,
                Box::new(masks),
            )
        };
        let on_host = (inbox.on_host() > 0)
            .then(|| {
                let bytes = inbox.on_host();
                let what = format!("pinning {} of host memory for exchanges", human(bytes));
                HostBlock::new(gpu, bytes as usize, &what)
            })
            .transpose()?;
        let own = (seat.rank() == 0).then(|| seat.masks(board));
        // Nobody may write before the zeros are there.
        gpu.synchronise()?;
        let all = seat.share(&[
            on_host.as_ref().map_or(block.start(), HostBlock::device),
            gpu.info.device.into(),
            address,
            together.memory,
            together.logits,
            together.signature,
        ]);
        let all = all.map_err(|error| Error::Rank(Box::new(error)))?;
        let board = own.unwrap_or_else(|| {
            seat.masks(|| MaskBoard::new(program.slots as usize, program.vocab as usize))
        });
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
            if on_host.is_none() {
                peers.extend(gpu.reach(words[1] as u32)?);
            }
        }
        let [counts, place, _] = inbox.layout();
        let fault = HostBlock::new(gpu, 8, "the fault of an exchange")?;
        seats.counts = block.start() + counts;
        seats.fault = fault.device();
        // SAFETY: the block has room for the seats there. The bytes are pageable.
        unsafe { gpu.upload(block.start() + place, bytes_of(&seats)) }?;
        gpu.synchronise()?;
        // All ranks must decide alike, so each looks at all.
        let devices: Vec<u32> = all.iter().map(|words| words[1] as u32).collect();
        let others = |at: usize| devices[at + 1..].iter();
        let mut places = 0..devices.len();
        let shares_gpu = places.any(|at| others(at).any(|other| *other == devices[at]));
        let kernels = all.iter().map(|words| Together {
            memory: words[3],
            logits: words[4],
            signature: words[5],
        });
        let kernels: Vec<Together> = kernels.collect();
        let persistent = if shares_gpu {
            Err("two ranks share a GPU".to_string())
        } else if on_host.is_some() {
            Err("the ranks exchange through the host's memory".to_string())
        } else if Reach::among(&devices)? < Reach::Count {
            Err("the GPUs cannot count in each other's memory".to_string())
        } else {
            Together::place(&kernels, seat.rank())
        };
        Ok(Seated {
            persistent,
            seat,
            fault,
            masks: all[0][2],
            board,
            blocks: if shares_gpu {
                FEW_BLOCKS
            } else {
                BLOCKS_EACH * gpu.info.sms
            },
            _peers: peers,
            _inbox: on_host,
        })
    }

    /// Why the ranks cannot replay by persistent kernels.
    pub(super) fn refused(&self) -> Option<String> {
        let why = self.persistent.as_ref().err()?;
        Some(format!("not the persistent kernel: {why}"))
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
