//! The shelf: pages in pinned memory. They come here in the order of the context's stream, and go back on a stream of their own, beside
//! whatever the context does.
#![allow(unsafe_code)]

use super::CudaContext;
use crate::Error;
use crate::gpu::{Event, Gpu, HostBlock};
use std::ops::Range;
use std::sync::Arc;
use welte_device::{Error as DeviceError, Shelf};
use welte_table::Program;

/// Pinned memory, and the order of copies.
pub(super) struct PinnedShelf {
    memory: HostBlock,
    places: u32,
    /// Bytes of a place.
    place: usize,
    /// The stream of copies to the GPU.
    back: Arc<Gpu>,
    /// The context has done what it was asked to before a copy back.
    before: Event,
    /// All copies back have ended.
    after: Event,
    /// Some may not have.
    pending: bool,
    gpu: Arc<Gpu>,
}

impl PinnedShelf {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        program: &Program,
        places: u32,
    ) -> Result<PinnedShelf, Error> {
        let place = Shelf::place_bytes(program).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = place.and_then(|place| place.checked_mul(places as usize));
        let (Some(place), Some(bytes)) = (place, bytes) else {
            return Err(Error::Unavailable(
                "a shelf of pages that are too large".to_string(),
            ));
        };
        let back = Arc::new(gpu.with_own_stream()?);
        Ok(PinnedShelf {
            memory: HostBlock::new(gpu, bytes, "taking pinned host memory for prefixes")?,
            places,
            place,
            before: Event::new(gpu)?,
            after: Event::new(&back)?,
            back,
            pending: false,
            gpu: gpu.clone(),
        })
    }

    /// The context's stream goes on after all copies back.
    fn let_end(&self) -> Result<(), Error> {
        match self.pending {
            true => self.gpu.wait_for(&self.after),
            false => Ok(()),
        }
    }
}

impl Drop for PinnedShelf {
    fn drop(&mut self) {
        // Copies in flight use the memory.
        let _ = self.gpu.synchronise();
        let _ = self.back.synchronise();
    }
}

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
