//! Loads that their caller may end: weights that can no longer be read, so that every device gives up.

use super::{Model, open};
use crate::{Error, LoadOptions};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use welte_device::Progress;
use welte_formats::checkpoint::Checkpoint;
use welte_formats::{Overlay, TensorInfo};

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

impl Overlay for Endable {
    fn base(&self) -> &dyn Checkpoint {
        &*self.inner
    }

    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(welte_formats::Error::Io {
                path: self.inner.origin().into(),
                source: std::io::Error::other("the load was ended"),
            });
        }
        self.inner.rows(tensor, first, rows)
    }
}
