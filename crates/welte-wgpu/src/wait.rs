//! Waiting for what a GPU or a browser does.
//!
//! A native adapter's futures are complete when they are made. In a browser they complete after its event loop has run, so the
//! whole stack of WebAssembly is suspended meanwhile. This takes an engine with JavaScript Promise Integration, and a caller that
//! waits for a promise.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The value of a future. `None`: a native one is not complete.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[cfg(target_arch = "wasm32")]
pub use browser::block_on;

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code)]
mod browser {
    use super::{Arc, Context, Poll, Waker};
    use std::task::Wake;

    // SAFETY: neither function takes or returns anything. While `suspend` waits, callbacks of the browser run on the same stack
    // in memory. They end before `suspend` returns, so the stack is then as it was.
    #[link(wasm_import_module = "./suspend.js")]
    unsafe extern "C" {
        /// Returns after `resume` was called, once for any number of calls since the last return.
        safe fn suspend();
        safe fn resume();
    }

    struct Resume;

    impl Wake for Resume {
        fn wake(self: Arc<Self>) {
            resume();
        }
    }

    /// The value of a future. One caller at a time may wait.
    pub fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(Arc::new(Resume));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return Some(value),
                Poll::Pending => suspend(),
            }
        }
    }
}

/// A value that a callback gives and a future awaits.
pub(crate) struct Signal<T>(Arc<Mutex<Given<T>>>);

struct Given<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Signal<T> {
    pub(crate) fn new() -> Signal<T> {
        let (value, waker) = (None, None);
        Signal(Arc::new(Mutex::new(Given { value, waker })))
    }

    /// The callback.
    pub(crate) fn giver(&self) -> impl FnOnce(T) + Send + 'static {
        let given = self.0.clone();
        move |value| {
            let mut given = lock(&given);
            given.value = Some(value);
            if let Some(waker) = given.waker.take() {
                waker.wake();
            }
        }
    }
}

impl<T> Future for Signal<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut given = lock(&self.0);
        match given.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                given.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
