//! The memory of the shelf, and the streams of its copies.
use crate::Error;
use crate::gpu::{Event, Gpu, HostBlock};
use std::sync::Arc;
use welte_device::Shelf;
use welte_table::Program;

/// Pinned memory, and the order of copies.
pub(super) struct PinnedShelf {
    pub(super) memory: HostBlock,
    pub(super) places: u32,
    /// Bytes of a place.
    pub(super) place: usize,
    /// The stream of copies to the GPU.
    pub(super) back: Arc<Gpu>,
    /// The context has done what it was asked to before a copy back.
    pub(super) before: Event,
    /// All copies back have ended.
    pub(super) after: Event,
    /// Some may not have.
    pub(super) pending: bool,
    pub(super) gpu: Arc<Gpu>,
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
    pub(super) fn let_end(&self) -> Result<(), Error> {
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
