//! A copy of a sequence's recurrent states, as they were before the last launch of the persistent kernel. The kernel decodes many tokens
//! in one launch. If the host takes fewer of them, or if the kernel gives up, the states have gone too far, and a state cannot be
//! computed backwards. Then they are restored, and the tokens that the host has taken are computed again.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::Gpu;
use crate::persistent::is_recurrent;
use welte_table::{PageRuns, Program};

/// The most tokens of a launch, and so the most steps that are repeated.
pub(super) const MOST_TURNS: usize = 32;

/// The states of the one sequence that such a program has.
pub(super) struct SavedStates {
    caches: Vec<SavedState>,
}

struct SavedState {
    /// Number of the cache, and the sequence's page.
    cache: usize,
    page: u32,
    /// Addresses of the cache and of the copy.
    start: u64,
    copy: u64,
    /// Page 0.
    runs: PageRuns,
}

impl SavedStates {
    /// `buffers` are the addresses of the program's buffers, and `copy` has room for [`saved_bytes`].
    pub(super) fn new(program: &Program, buffers: &[u64], mut copy: u64) -> SavedStates {
        let caches = program.caches.iter().enumerate();
        let recurrent = caches.filter(|(_, spec)| is_recurrent(spec));
        let saved = recurrent.filter_map(|(cache, spec)| {
            let saved = SavedState {
                cache,
                page: 0,
                start: *buffers.get(spec.buffer as usize)?,
                copy,
                runs: spec.page_runs(program.page, 0)?,
            };
            copy += spec.page_bytes(program.page)?;
            Some(saved)
        });
        SavedStates {
            caches: saved.collect(),
        }
    }

    /// Whether the program has no states.
    pub(super) fn is_empty(&self) -> bool {
        self.caches.is_empty()
    }

    /// Notes the page of the sequence in a cache.
    pub(super) fn set_page(&mut self, cache: usize, page: u32) {
        let saved = self.caches.iter_mut().find(|saved| saved.cache == cache);
        saved.into_iter().for_each(|saved| saved.page = page);
    }

    /// Enqueues a copy of all states.
    pub(super) fn save(&self, gpu: &Gpu) -> Result<(), Error> {
        self.copy(gpu, |state, copy| (copy, state))
    }

    /// Enqueues the way back.
    pub(super) fn restore(&self, gpu: &Gpu) -> Result<(), Error> {
        self.copy(gpu, |state, copy| (state, copy))
    }

    fn copy(&self, gpu: &Gpu, target_and_source: fn(u64, u64) -> (u64, u64)) -> Result<(), Error> {
        for saved in &self.caches {
            let runs = &saved.runs;
            for run in 0..runs.count {
                let state = saved.start + u64::from(saved.page) * runs.bytes + run * runs.stride;
                let (target, source) = target_and_source(state, saved.copy + run * runs.bytes);
                // SAFETY: the page is one of the cache's, as the page table was checked to have; the copy was made for these runs.
                unsafe { gpu.copy(target, source, runs.bytes)? };
            }
        }
        Ok(())
    }
}
