//! The shelf: pages in pinned memory. They come there in the order of the context's stream, and go back on a stream of their own, beside
//! whatever the context does.
#![allow(unsafe_code)]

use super::CudaContext;
use super::shelf::PinnedShelf;
use std::ops::Range;
use welte_device::Error as DeviceError;

impl CudaContext {
    fn pinned(&mut self, place: u32) -> Result<&mut PinnedShelf, DeviceError> {
        let shelf = self.shelf.as_mut().filter(|shelf| place < shelf.places);
        shelf.ok_or_else(|| DeviceError::request(format!("place {place} of the shelf")))
    }

    /// The runs of a page of each cache: where they are on the GPU, and where in the shelf.
    fn shelf_runs(
        &mut self,
        place: u32,
        pages: &[u32],
    ) -> Result<Vec<(u64, Range<usize>)>, DeviceError> {
        let mut at = self.pinned(place)?.place * place as usize;
        let program = &self.loaded.program;
        let mut runs = Vec::new();
        for (cache, page) in pages.iter().enumerate() {
            let spec = self.checks.cache(program, cache, [*page])?;
            let start = self.block(spec.buffer)?.start();
            runs.extend(spec.page_ranges(program.page, *page).map(|range| {
                let first = at;
                at += range.len();
                (start + range.start as u64, first..at)
            }));
        }
        match pages.len() == program.caches.len() {
            true => Ok(runs),
            false => Err(DeviceError::request("a page of each cache is needed")),
        }
    }

    pub(super) fn put_on_shelf(&mut self, place: u32, pages: &[u32]) -> Result<(), DeviceError> {
        let runs = self.shelf_runs(place, pages)?;
        let gpu = self.gpu.clone();
        let shelf = self.pinned(place)?;
        // The place may still be read.
        let copied = gpu.current().and_then(|()| shelf.let_end()).and_then(|()| {
            let memory = shelf.memory.as_mut_slice();
            runs.into_iter().try_for_each(|(source, target)| {
                // SAFETY: both runs are inside their blocks. The memory is read after the stream has passed the copy only, and written
                // by later copies on the same stream.
                unsafe { gpu.download(source, &mut memory[target]) }
            })
        });
        self.done(copied)
    }

    pub(super) fn fetch_from_shelf(
        &mut self,
        place: u32,
        pages: &[u32],
    ) -> Result<(), DeviceError> {
        let runs = self.shelf_runs(place, pages)?;
        let shelf = self.pinned(place)?;
        shelf.pending = true;
        let copied = shelf.gpu.current().and_then(|()| {
            // Until then the place may be written, and the pages may be read.
            shelf.before.record()?;
            shelf.back.wait_for(&shelf.before)?;
            for (target, source) in runs {
                // SAFETY: both runs are inside their blocks. Nobody uses the pages before all copies have ended, and the place is written
                // after that only.
                unsafe {
                    shelf
                        .back
                        .upload(target, &shelf.memory.as_slice()[source])?
                };
            }
            shelf.after.record()
        });
        self.done(copied)
    }

    pub(super) fn shelf_has_fetched(&mut self, wait: bool) -> Result<bool, DeviceError> {
        let Some(shelf) = self.shelf.as_mut().filter(|shelf| shelf.pending) else {
            return Ok(true);
        };
        let ended = shelf.gpu.current().and_then(|()| {
            if wait {
                shelf.back.synchronise()?;
            }
            shelf.back.is_idle()
        });
        shelf.pending = !matches!(ended, Ok(true));
        self.done(ended)
    }

    pub(super) fn read_from_shelf(
        &mut self,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let ended = self.gpu.current().and_then(|()| self.gpu.synchronise());
        self.done(ended)?;
        let held = self.shelf.as_ref().and_then(|shelf| {
            let held = shelf.memory.as_slice().get(range.clone())?;
            (held.len() == bytes.len()).then_some(held)
        });
        let held =
            held.ok_or_else(|| DeviceError::request(format!("bytes {range:?} of the shelf")))?;
        bytes.copy_from_slice(held);
        Ok(())
    }
}
