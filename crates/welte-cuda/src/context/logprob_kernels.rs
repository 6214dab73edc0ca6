//! The kernels that report probabilities, and where they write.
#![allow(unsafe_code)]

use super::ready::ReadyPass;
use crate::Error;
use crate::gpu::{HostBlock, Kernel};
use crate::loaded::LoadedProgram;
use crate::lower::{Lowering, MAILBOX_SLOTS};
use crate::ops::logprobs::{Answer, Args, ChainArgs, MOST_QUERIES};
use std::sync::atomic::{Ordering, fence};
use welte_device::Logprobs;

/// The kernels, and where they write their answers.
pub(super) struct LogprobKernels {
    /// Answers queries.
    pub(super) kernel: Kernel,
    /// Follows a step of a chain.
    pub(super) of_chain: Kernel,
    pub(super) chain: ChainArgs,
    /// Answers to queries.
    pub(super) answers: HostBlock,
    /// Answers about tokens of chains: a ring, like the mailbox.
    pub(super) ring: HostBlock,
}

impl LogprobKernels {
    pub(super) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        decode: &ReadyPass,
    ) -> Result<LogprobKernels, Error> {
        let block = |count: usize| {
            let bytes = count * size_of::<Answer>();
            HostBlock::new(&loaded.gpu, bytes, "answers about probabilities")
        };
        let (answers, ring) = (block(MOST_QUERIES)?, block(MAILBOX_SLOTS as usize)?);
        let chain = ChainArgs::new(cx, decode.result, decode.width, ring.device());
        Ok(LogprobKernels {
            kernel: loaded.kernel(&Args::launch())?,
            of_chain: loaded.kernel(&chain.launch())?,
            chain,
            answers,
            ring,
        })
    }

    /// Where answers about tokens of chains go.
    pub(super) fn ring(&self) -> u64 {
        self.ring.device()
    }

    /// The answer about the token of a number, if the device has written it.
    pub(super) fn of_token(&self, serial: u32) -> Option<Logprobs> {
        let at = (serial & (MAILBOX_SLOTS - 1)) as usize * Answer::WORDS;
        let word = |nth: usize| self.ring.word(at + nth);
        let is_there = (word(0) >> 32) as u32 == serial;
        // The device writes the first word last.
        fence(Ordering::Acquire);
        is_there.then(|| Answer::read(word))
    }
}
