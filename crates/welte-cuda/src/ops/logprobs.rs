//! Probabilities of tokens: the kernels and their structs.

use super::sample::{fraction_bits, region_bytes};
use crate::launch::{ByRows, Launch, Listed, Unit, args};
use crate::lower::{Lowering, MAILBOX_SLOTS};
use crate::mirror::mirrored;
use welte_device::{LogprobQuery, Logprobs};

/// The most queries of a launch.
pub(crate) const MOST_QUERIES: usize = 32;
const THREADS: u32 = 1024;

mirrored! {
    /// What `logprobs` (`logprobs.cu`) needs.
    pub(crate) struct Args = "LogprobArgs" {
        logits: u64,
        answers: u64,
        n: u32,
        stride: u32,
        shift: u32,
        count: u32,
        queries: [[u32; 3]; MOST_QUERIES],
    }
}

mirrored! {
    /// What `chain_logprobs` (`logprobs.cu`) needs.
    pub(crate) struct ChainArgs = "ChainLogprobArgs" {
        logits: u64,
        answers: u64,
        step: u64,
        states: u64,
        samplers: u64,
        sampler_bytes: u64,
        n: u32,
        stride: u32,
        shift: u32,
        slots: u32,
    }
}

mirrored! {
    /// An answer of the kernels.
    pub(crate) struct Answer = "LogprobAnswer" {
        head: u64,
        token: u64,
        top: [u64; Logprobs::MOST],
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
            shift: fraction_bits(n),
            count: queries.len() as u32,
            queries: words,
        }
    }

    /// Any launch of the kernel.
    pub(crate) fn launch() -> Launch {
        launch("logprobs", args(&Args::new(0, 0, 0, 0, &[])))
    }
}

impl ChainArgs {
    /// For rows of a decode pass's step. Answers go to a ring at an address.
    pub(crate) fn new(cx: &Lowering<'_>, logits: u64, stride: u32, answers: u64) -> ChainArgs {
        let n = cx.program.vocab;
        ChainArgs {
            logits,
            answers,
            step: cx.places.step,
            states: cx.places.states,
            samplers: cx.places.samplers,
            sampler_bytes: region_bytes(cx.program),
            n,
            stride,
            shift: fraction_bits(n),
            slots: MAILBOX_SLOTS,
        }
    }

    /// Any launch of the kernel.
    pub(crate) fn launch(&self) -> Launch {
        launch("chain_logprobs", args(self))
    }
}

fn launch(function: &'static str, args: Vec<u8>) -> Launch {
    Launch {
        unit: logprobs_unit(),
        function,
        grid: [MOST_QUERIES as u32, 1, 1],
        by_rows: ByRows::Fixed,
        block: THREADS,
        shared: 0,
        args,
    }
}

impl Answer {
    /// Words of an answer.
    pub(crate) const WORDS: usize = size_of::<Answer>() / 8;

    /// An answer in the contract's words. `word` reads its words.
    pub(crate) fn read(word: impl Fn(usize) -> u64) -> Logprobs {
        let pair = |word: u64| ((word >> 32) as u32, f32::from_bits(word as u32));
        let count = (word(0) as u32 as usize).min(Logprobs::MOST);
        let (token, logprob) = pair(word(1));
        let mut answer = Logprobs::new(token, logprob);
        for nth in 0..count {
            let (token, logprob) = pair(word(2 + nth));
            answer.push(token, logprob);
        }
        answer
    }
}

/// The unit of the kernels.
pub(crate) fn logprobs_unit() -> Unit {
    let layouts = [Answer::LAYOUT, Args::LAYOUT, ChainArgs::LAYOUT];
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
