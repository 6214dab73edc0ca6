//! Probabilities of tokens, from logits that are in device memory.
#![allow(unsafe_code)]

use super::CudaContext;
use super::ready::ReadyPass;
use crate::Error;
use crate::gpu::{HostBlock, Kernel};
use crate::launch::bytes_of;
use crate::load::LoadedProgram;
use crate::lower::{Lowering, MAILBOX_SLOTS};
use crate::ops::logprobs::{Answer, Args, ChainArgs, MOST_QUERIES};
use std::sync::atomic::{Ordering, fence};
use welte_device::{LogprobQuery, Logprobs, is_token};
use welte_table::Row;

/// The kernels, and where they write their answers.
pub(super) struct LogprobKernels {
    /// Answers queries.
    kernel: Kernel,
    /// Follows a step of a chain.
    of_chain: Kernel,
    chain: ChainArgs,
    /// Answers to queries.
    answers: HostBlock,
    /// Answers about tokens of chains: a ring, like the mailbox.
    ring: HostBlock,
}

impl LogprobKernels {
    pub(super) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        decode: &ReadyPass,
    ) -> Result<LogprobKernels, Error> {
        let block = |count: usize| {
            let bytes = count * size_of::<Answer>();
            HostBlock::new(cx.device, bytes, "answers about probabilities")
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
    fn of_token(&self, serial: u32) -> Option<Logprobs> {
        let at = (serial & (MAILBOX_SLOTS - 1)) as usize * Answer::WORDS;
        let word = |nth: usize| self.ring.word(at + nth);
        let is_there = (word(0) >> 32) as u32 == serial;
        // The device writes the first word last.
        fence(Ordering::Acquire);
        is_there.then(|| Answer::read(word))
    }
}

impl CudaContext {
    /// Answers checked queries about the output rows of the last step.
    pub(super) fn ask_logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        let Some(logprobs) = &self.logprobs else {
            return Err(Error::Program("it generates no text".to_string()));
        };
        self.gpu.current()?;
        let ready = &self.passes[self.last.0];
        let vocab = self.loaded.program.vocab;
        for (queries, answers) in queries
            .chunks(MOST_QUERIES)
            .zip(answers.chunks_mut(MOST_QUERIES))
        {
            let args = Args::new(
                ready.result,
                logprobs.answers.device(),
                vocab,
                ready.width,
                queries,
            );
            // SAFETY: the arguments are those of the kernel. The outputs and the tokens were checked, and the context owns the
            // logits and the memory of the answers.
            unsafe {
                let grid = [queries.len() as u32, 1, 1];
                self.gpu.launch(&logprobs.kernel, grid, bytes_of(&args))?;
            }
            self.gpu.synchronise()?;
            for (nth, answer) in answers.iter_mut().enumerate() {
                *answer = Answer::read(|word| logprobs.answers.word(nth * Answer::WORDS + word));
            }
        }
        Ok(())
    }

    /// Enqueues the probabilities of the tokens that a step of a chain chooses for these rows, if a slot reports them.
    pub(super) fn launch_chain_logprobs(&self, rows: &[Row]) -> Result<(), Error> {
        let reports = |row: &Row| self.slots[row.slot as usize].reports_logprobs();
        let Some(logprobs) = self.logprobs.as_ref().filter(|_| rows.iter().any(reports)) else {
            return Ok(());
        };
        // SAFETY: the arguments are those of the kernel, and the context owns everything that they point to. The step has these
        // rows.
        unsafe {
            let grid = [rows.len() as u32, 1, 1];
            self.gpu
                .launch(&logprobs.of_chain, grid, bytes_of(&logprobs.chain))
        }
    }

    /// The token of a number with its probability, if the slot reports it, once the device has made both.
    pub(super) fn reported(&self, slot: u32, serial: u32) -> Option<(u32, Option<Logprobs>)> {
        let token = self.token(serial)?;
        match &self.logprobs {
            Some(logprobs) if is_token(token) && self.slots[slot as usize].reports_logprobs() => {
                Some((token, Some(logprobs.of_token(serial)?)))
            }
            _ => Some((token, None)),
        }
    }
}
