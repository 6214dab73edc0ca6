//! Loads that their caller may end: weights that can no longer be read, so that every device gives up.

use super::{Model, open};
use crate::{Error, LoadOptions};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use welte_device::Progress;
use welte_formats::checkpoint::Checkpoint;
use welte_formats::{Dialect, Metadata, TensorInfo, TextFiles};

impl Model {
    /// As [`Model::load`], but `progress` may end the load, which then returns [`Error::LoadEnded`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// let mut give_up = |_| ControlFlow::Break(());
    /// let options = welte::LoadOptions::default();
    /// let loaded = welte::Model::load_while("synthetic:tiny:q4_0", &options, &mut give_up);
    /// assert!(matches!(loaded, Err(welte::Error::LoadEnded)));
    /// ```
    pub fn load_while(
        source: &str,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Model, Error> {
        let ended = Arc::new(AtomicBool::new(false));
        let checkpoint = Box::new(Endable {
            inner: open(source)?,
            ended: ended.clone(),
        });
        let loaded = Model::from_checkpoint(checkpoint, options, &mut |at| {
            if !ended.load(Ordering::Relaxed) && progress(at).is_break() {
                ended.store(true, Ordering::Relaxed);
            }
        });
        if ended.load(Ordering::Relaxed) {
            return Err(Error::LoadEnded);
        }
        loaded
    }
}

struct Endable {
    inner: Box<dyn Checkpoint>,
    ended: Arc<AtomicBool>,
}

impl Checkpoint for Endable {
    fn origin(&self) -> &str {
        self.inner.origin()
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.inner.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.inner.tensor(name)
    }

    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(welte_formats::Error::Io {
                path: self.origin().into(),
                source: std::io::Error::other("the load was ended"),
            });
        }
        self.inner.rows(tensor, first, rows)
    }

    fn release(&self) {
        self.inner.release();
    }

    fn text_files(&self) -> TextFiles {
        self.inner.text_files()
    }
}
