//! The algorithms of cuBLASLt that an earlier process chose.

use crate::cublas::{self, Algorithm, Plan};
use crate::gpu::Gpu;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Rows of prompts after which the library is worth opening. Until then a process may be over.
const MANY_ROWS: usize = 512;

/// Choices of an earlier process, for the plans that are open now.
pub(super) struct Choices {
    pub(super) gpu: Arc<Gpu>,
    pub(super) plans: Vec<Arc<Plan>>,
    pub(super) kept: Kept,
    /// Where they were read from.
    pub(super) file: PathBuf,
}

/// Decides plans as an earlier process did, once that is worth opening the library.
#[derive(Default)]
pub(super) struct Recall {
    pub(super) choices: Option<Choices>,
    /// Rows of prompts so far.
    rows: usize,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Recall {
    pub(super) fn of(choices: Option<Choices>) -> Recall {
        Recall {
            choices,
            rows: 0,
            thread: None,
        }
    }

    /// Notes the rows of a step of a prompt. After [`MANY_ROWS`] in all the library is opened, on a thread of its own. Launches
    /// wait for that here and there, about 0.15 s in all.
    ///
    /// If the library is not the one of the choices, or does not have one of the algorithms, our kernels compute in this process, and
    /// the next one times the algorithms again.
    pub(super) fn note_rows(&mut self, rows: usize) {
        self.rows = self.rows.saturating_add(rows);
        let Some(choices) = self.choices.take_if(|_| self.rows >= MANY_ROWS) else {
            return;
        };
        self.thread = Some(std::thread::spawn(move || {
            if !choices.kept.decide(&choices.gpu, &choices.plans) {
                // If it cannot be removed, the next process finds the same.
                let _ = std::fs::remove_file(choices.file);
                choices.plans.iter().for_each(|plan| plan.choose(None));
            }
        }));
    }
}

impl Drop for Recall {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported, and our kernels computed.
            let _ = thread.join();
        }
    }
}

/// Choices as they are kept on disk.
#[derive(Debug, PartialEq)]
pub(super) struct Kept {
    /// Of the library.
    pub(super) version: u64,
    /// For each plan.
    pub(super) chosen: Vec<Option<Algorithm>>,
}

impl Kept {
    /// Decides plans. False, and nothing is decided, if the library is another one or lacks an algorithm.
    fn decide(&self, gpu: &Gpu, plans: &[Arc<Plan>]) -> bool {
        if cublas::version() != self.version || plans.len() != self.chosen.len() {
            return false;
        }
        let candidates = plans.iter().zip(&self.chosen);
        let candidates = candidates.map(|(plan, chosen)| match chosen {
            Some(algorithm) => plan.candidate_with(gpu, algorithm).map(Some),
            None => Some(None),
        });
        let Some(candidates) = candidates.collect::<Option<Vec<_>>>() else {
            return false;
        };
        let both = plans.iter().zip(candidates);
        both.for_each(|(plan, candidate)| plan.choose(candidate));
        true
    }
}

/// Bytes of an entry: whether there is an algorithm, and the algorithm.
const ENTRY: usize = 1 + size_of::<Algorithm>();

/// Choices by a version of the library as they are kept on disk.
pub(super) fn to_bytes(version: u64, chosen: &[Option<Algorithm>]) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    for one in chosen {
        bytes.push(u8::from(one.is_some()));
        let words = one.unwrap_or_default();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes
}

/// What [`to_bytes`] wrote; `None` if it did not.
pub(super) fn of_bytes(bytes: &[u8]) -> Option<Kept> {
    let (version, entries) = bytes.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<ENTRY>() else {
        return None;
    };
    let entry = |entry: &[u8; ENTRY]| {
        let (words, _) = entry[1..].as_chunks();
        let mut algorithm = Algorithm::default();
        for (to, from) in algorithm.iter_mut().zip(words) {
            *to = u64::from_le_bytes(*from);
        }
        match entry[0] {
            0 => Some(None),
            1 => Some(Some(algorithm)),
            _ => None,
        }
    };
    Some(Kept {
        version: u64::from_le_bytes(*version),
        chosen: entries.iter().map(entry).collect::<Option<_>>()?,
    })
}
