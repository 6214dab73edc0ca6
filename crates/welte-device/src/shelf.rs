//! Host memory for pages that left a context's caches.

use crate::{Context, Error};
use welte_table::Program;

/// Numbered places in host memory, each for a page of every cache of a context. The context keeps them itself
/// ([`Context::make_shelf`]), or else they are here.
pub struct Shelf {
    own: Option<Vec<u8>>,
    /// Where the page of each cache begins at a place, and where the last one ends.
    starts: Vec<usize>,
}

impl Shelf {
    /// Allocates `places` places for pages of this context.
    pub fn new(context: &mut dyn Context, places: u32) -> Result<Shelf, Error> {
        let starts = page_starts(context.program())
            .ok_or_else(|| Error::request("a shelf for pages that are too large"))?;
        if context.shelf_place().is_some() {
            context.make_shelf(places)?;
            return Ok(Shelf { own: None, starts });
        }
        let place = starts.last().copied().unwrap_or(0);
        let bytes = place.checked_mul(places as usize);
        // An allocation that fails would end the process.
        let room = bytes.filter(|bytes| Vec::<u8>::new().try_reserve_exact(*bytes).is_ok());
        let bytes = room.ok_or_else(|| {
            Error::request(format!("no memory for {places} places of {place} bytes"))
        })?;
        Ok(Shelf {
            own: Some(vec![0; bytes]),
            starts,
        })
    }

    /// Bytes of a place for pages of this context, wherever it is.
    pub fn place_of(context: &dyn Context) -> Option<u64> {
        let own = context.shelf_place();
        own.or_else(|| Shelf::place_bytes(context.program()))
    }

    /// Bytes of the pages at a place.
    pub fn place_bytes(program: &Program) -> Option<u64> {
        page_starts(program)?.last().map(|end| *end as u64)
    }

    /// Copies a page of each cache to a place. What the context does afterwards may overwrite the pages.
    pub fn put(
        &mut self,
        context: &mut dyn Context,
        place: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        let Some(bytes) = &mut self.own else {
            return context.shelve(place, pages);
        };
        let first = place as usize * self.starts[pages.len()];
        pages
            .iter()
            .zip(self.starts.windows(2))
            .enumerate()
            .try_for_each(|(cache, (page, ends))| {
                context.read_page(cache, *page, &mut bytes[first + ends[0]..first + ends[1]])
            })
    }

    /// Copies a place to a page of each cache. Nothing may read or write these pages until [`Shelf::has_fetched`] says so.
    pub fn fetch(
        &mut self,
        context: &mut dyn Context,
        place: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        let Some(bytes) = &self.own else {
            return context.fetch(place, pages);
        };
        let first = place as usize * self.starts[pages.len()];
        pages
            .iter()
            .zip(self.starts.windows(2))
            .enumerate()
            .try_for_each(|(cache, (page, ends))| {
                context.write_page(cache, *page, &bytes[first + ends[0]..first + ends[1]])
            })
    }

    /// Whether all that was asked for is in its pages. `wait`: waits until it is.
    pub fn has_fetched(&self, context: &mut dyn Context, wait: bool) -> Result<bool, Error> {
        match self.own {
            Some(_) => Ok(true),
            None => context.has_fetched(wait),
        }
    }

    /// Copies a cache's page at a place.
    pub fn read(
        &self,
        context: &mut dyn Context,
        place: u32,
        cache: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let first = place as usize * self.starts[self.starts.len() - 1];
        let range = first + self.starts[cache]..first + self.starts[cache + 1];
        match &self.own {
            Some(own) => {
                bytes.copy_from_slice(&own[range]);
                Ok(())
            }
            None => context.read_shelf(range, bytes),
        }
    }
}

/// Where the page of each cache begins among those of all, and where the last one ends.
fn page_starts(program: &Program) -> Option<Vec<usize>> {
    let mut starts = vec![0];
    let mut end = 0usize;
    for cache in &program.caches {
        end = end.checked_add(usize::try_from(cache.page_bytes(program.page)?).ok()?)?;
        starts.push(end);
    }
    Some(starts)
}
