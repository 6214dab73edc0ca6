//! Probabilities of tokens, from logits that are in device memory.
#![allow(unsafe_code)]

use super::CudaContext;
use crate::Error;
use crate::gpu::{Gpu, HostBlock, Kernel};
use crate::launch::bytes_of;
use crate::load::LoadedProgram;
use crate::ops::logprobs::{Answer, Args, MOST_QUERIES};
use std::sync::Arc;
use welte_device::{LogprobQuery, Logprobs};

/// The kernel, and where it writes its answers.
pub(super) struct LogprobKernel {
    kernel: Kernel,
    answers: HostBlock,
}

impl LogprobKernel {
    pub(super) fn new(loaded: &LoadedProgram, gpu: &Arc<Gpu>) -> Result<LogprobKernel, Error> {
        let bytes = MOST_QUERIES * size_of::<Answer>();
        Ok(LogprobKernel {
            kernel: loaded.kernel(&Args::launch())?,
            answers: HostBlock::new(gpu, bytes, "answers about probabilities")?,
        })
    }

    fn answer(&self, nth: usize) -> Answer {
        let bytes = &self.answers.as_slice()[nth * size_of::<Answer>()..][..size_of::<Answer>()];
        // SAFETY: the slice has the struct's bytes, any of which are valid numbers.
        unsafe { bytes.as_ptr().cast::<Answer>().read_unaligned() }
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
            for (nth, (query, answer)) in queries.iter().zip(answers).enumerate() {
                *answer = logprobs.answer(nth).to_logprobs(query);
            }
        }
        Ok(())
    }
}
