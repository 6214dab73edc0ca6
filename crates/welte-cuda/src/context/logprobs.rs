//! Probabilities of tokens, from logits that are in device memory.
#![allow(unsafe_code)]

use super::CudaContext;
use crate::Error;
use crate::launch::bytes_of;
use crate::ops::logprobs::{Answer, Args, MOST_QUERIES};
use welte_device::{LogprobQuery, Logprobs};
use welte_table::Row;

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
}
