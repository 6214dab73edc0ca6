//! Pages of one cache, with reference counts.

/// The pages of one cache. A page is free, or it has as many references as sequences and prefix trees use it. Whoever
/// holds the only reference may write the page; a page with several is copied first.
#[derive(Debug)]
pub(crate) struct PagePool {
    references: Vec<u32>,
    /// Free pages; the last one is taken first.
    free: Vec<u32>,
}

impl PagePool {
    /// A pool of free pages `0..pages`.
    pub(crate) fn new(pages: u32) -> PagePool {
        PagePool {
            references: vec![0; pages as usize],
            free: (0..pages).rev().collect(),
        }
    }

    /// Takes a free page. The caller holds its only reference.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    /// Adds a reference to a page that is in use.
    pub(crate) fn share(&mut self, page: u32) {
        let references = &mut self.references[page as usize];
        assert!(*references > 0, "page {page} is free and cannot be shared");
        *references += 1;
    }

    /// Gives a reference back. True if it was the last one, so that the page is free now.
    pub(crate) fn release(&mut self, page: u32) -> bool {
        let references = &mut self.references[page as usize];
        assert!(*references > 0, "page {page} is free already");
        *references -= 1;
        let freed = *references == 0;
        if freed {
            self.free.push(page);
        }
        freed
    }

    /// References of a page; 0 if it is free.
    pub(crate) fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    /// Free pages.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub(crate) fn pages(&self) -> usize {
        self.references.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_again_after_its_last_reference() {
        let mut pool = PagePool::new(2);
        assert_eq!((pool.pages(), pool.free()), (2, 2));
        let a = pool.take().unwrap();
        let b = pool.take().unwrap();
        assert_ne!(a, b);
        assert_eq!(pool.take(), None);
        pool.share(a);
        assert_eq!((pool.references(a), pool.references(b)), (2, 1));
        assert!(!pool.release(a));
        assert_eq!(pool.free(), 0);
        assert!(pool.release(a));
        assert_eq!((pool.references(a), pool.free()), (0, 1));
        assert_eq!(pool.take(), Some(a));
    }

    #[test]
    #[should_panic(expected = "is free already")]
    fn a_free_page_cannot_be_released() {
        PagePool::new(1).release(0);
    }

    #[test]
    #[should_panic(expected = "cannot be shared")]
    fn a_free_page_cannot_be_shared() {
        PagePool::new(1).share(0);
    }
}
