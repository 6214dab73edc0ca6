//! What the scheduler asks the device about probabilities. Everything is allocated once.

use welte_device::{Context, Error, LogprobQuery, Logprobs};

/// The questions about one step and their answers.
pub(crate) struct LogprobQueries {
    queries: Vec<LogprobQuery>,
    answers: Vec<Logprobs>,
}

impl LogprobQueries {
    /// With room for `count` questions.
    pub(crate) fn with_room(count: usize) -> LogprobQueries {
        LogprobQueries {
            queries: Vec::with_capacity(count),
            answers: Vec::with_capacity(count),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.queries.clear();
        self.answers.clear();
    }

    /// Asks for the probability of a token and of the `top` likeliest by an output row.
    pub(crate) fn ask(&mut self, output: usize, token: u32, top: u32) {
        self.queries.push(LogprobQuery {
            output: output as u32,
            token,
            top,
        });
    }

    /// Gets the answers in the order of the questions. The device is not called if there are none.
    pub(crate) fn fetch(&mut self, context: &mut dyn Context) -> Result<&[Logprobs], Error> {
        if !self.queries.is_empty() {
            self.answers.resize(self.queries.len(), Logprobs::default());
            context.logprobs(&self.queries, &mut self.answers)?;
        }
        Ok(&self.answers)
    }

    /// The answers that were fetched last.
    pub(crate) fn answers(&self) -> &[Logprobs] {
        &self.answers
    }
}
