//! A file that the browser holds: read piece by piece, so that it never lies in WebAssembly's memory as a whole.

use js_sys::Uint8Array;
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use wasm_bindgen_futures::JsFuture;
use web_sys::Blob;
use welte_formats::Source;

thread_local! {
    static HELD: RefCell<Option<Blob>> = RefCell::default();
}

/// The file at hand. Values of JavaScript belong to their thread, so they do not lie in it.
#[derive(Debug)]
pub(crate) struct HeldFile {
    size: u64,
}

impl HeldFile {
    /// Holds a file in place of the last one.
    pub(crate) fn hold(file: Blob) -> HeldFile {
        let size = file.size() as u64;
        HELD.with_borrow_mut(|held| *held = Some(file));
        HeldFile { size }
    }
}

impl Source for HeldFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<usize>) -> io::Result<Cow<'_, [u8]>> {
        if range.end as u64 > self.size || range.start > range.end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let failed = |what: &str| io::Error::other(format!("the browser cannot read it: {what}"));
        let file = HELD.with_borrow(|held| held.clone());
        let file = file.ok_or_else(|| failed("it was closed"))?;
        let part = file.slice_with_f64_and_f64(range.start as f64, range.end as f64);
        let part = part.map_err(|error| failed(&format!("{error:?}")))?;
        let bytes = welte_wgpu::block_on(JsFuture::from(part.array_buffer()));
        match bytes {
            Some(Ok(buffer)) => Ok(Cow::Owned(Uint8Array::new(&buffer).to_vec())),
            Some(Err(error)) => Err(failed(&format!("{error:?}"))),
            None => Err(failed("it did not answer")),
        }
    }
}
