//! Probabilities of tokens: the kernel and its structs.

use crate::launch::{ByRows, Launch, Listed, Unit, args};
use crate::mirror::mirrored;
use welte_device::{LogprobQuery, Logprobs};

/// The most queries of a launch.
pub(crate) const MOST_QUERIES: usize = 32;
const THREADS: u32 = 1024;

mirrored! {
    /// What `logprobs.cu` needs.
    pub(crate) struct Args = "LogprobArgs" {
        logits: u64,
        answers: u64,
        n: u32,
        stride: u32,
        queries: [[u32; 3]; MOST_QUERIES],
    }
}

mirrored! {
    /// An answer of the kernel.
    pub(crate) struct Answer = "LogprobAnswer" {
        logprob: f32,
        count: u32,
        tokens: [u32; Logprobs::MOST],
        logprobs: [f32; Logprobs::MOST],
    }
}

impl Args {
    /// For queries about rows of `n` logits, `stride` apart, whose answers go to an address.
    pub(crate) fn new(
        logits: u64,
        answers: u64,
        n: u32,
        stride: u32,
        queries: &[LogprobQuery],
    ) -> Args {
        let mut words = [[0; 3]; MOST_QUERIES];
        for (words, query) in words.iter_mut().zip(queries) {
            *words = [query.output, query.token, query.top];
        }
        Args {
            logits,
            answers,
            n,
            stride,
            queries: words,
        }
    }

    /// Any launch of the kernel.
    pub(crate) fn launch() -> Launch {
        Launch {
            unit: logprobs_unit(),
            function: "logprobs",
            grid: [MOST_QUERIES as u32, 1, 1],
            by_rows: ByRows::Fixed,
            block: THREADS,
            shared: 0,
            args: args(&Args::new(0, 0, 0, 0, &[])),
        }
    }
}

impl Answer {
    /// The answer in the contract's words.
    pub(crate) fn to_logprobs(self, query: &LogprobQuery) -> Logprobs {
        let mut answer = Logprobs::new(query.token, self.logprob);
        let top = self.tokens.into_iter().zip(self.logprobs);
        for (token, logprob) in top.take(self.count as usize) {
            answer.push(token, logprob);
        }
        answer
    }
}

/// The unit of the kernel.
pub(crate) fn logprobs_unit() -> Unit {
    let layouts = [Answer::LAYOUT, Args::LAYOUT];
    Unit {
        file: "logprobs.cu",
        generated: layouts.map(|layout| layout.static_assert()).concat(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: logprobs_unit(),
        hot: false,
    }]
}
