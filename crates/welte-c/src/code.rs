//! Errors: codes, the text of each thread, and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use welte_bindings::{Kind, Problem};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum welte_code {
    /// As asked.
    Ok = 0,
    /// An argument or an option has a value that cannot be used.
    Argument = 1,
    /// The model cannot be loaded.
    Model = 2,
    /// The model does not fit into the memory.
    Memory = 3,
    /// The request cannot be answered as it is.
    Request = 4,
    /// Too many requests are waiting.
    Busy = 5,
    /// Cancelled by the caller.
    Cancelled = 6,
    /// A fault of the device or of ours.
    Internal = 7,
    /// The stream is over. This is not an error.
    End = 8,
}

impl From<Kind> for welte_code {
    fn from(kind: Kind) -> welte_code {
        match kind {
            Kind::Argument => welte_code::Argument,
            Kind::Model => welte_code::Model,
            Kind::Memory => welte_code::Memory,
            Kind::Request => welte_code::Request,
            Kind::Busy => welte_code::Busy,
            Kind::Cancelled => welte_code::Cancelled,
            Kind::Internal => welte_code::Internal,
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call. Its error or panic becomes a code and the thread's text.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Problem>) -> welte_code {
    guarded(|| call().map(|()| welte_code::Ok))
}

/// As [`guard`], for calls with more than one good end.
pub(crate) fn guarded(call: impl FnOnce() -> Result<welte_code, Problem>) -> welte_code {
    // A panic leaves the engine's own state valid: its locks ignore poison, and what the call held is dropped.
    let done = catch_unwind(AssertUnwindSafe(call));
    let problem = match done {
        Ok(Ok(code)) => return code,
        Ok(Err(problem)) => problem,
        Err(panic) => Problem::new(Kind::Internal, words(panic.as_ref())),
    };
    // A text with a zero byte ends there.
    let text = problem.message.split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is about to end has no place for it.
    let _ = LAST.try_with(|last| last.replace(text));
    problem.kind.into()
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "a panic".to_string());
    format!("a fault of the engine: {text}; please report this as a bug")
}

/// The text of this thread's last error; empty if there was none. It is valid until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn welte_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

/// The version, such as "0.1.0". It is static.
#[unsafe(no_mangle)]
pub extern "C" fn welte_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text is this thread's, which makes no other call meanwhile.
        let text = unsafe { CStr::from_ptr(welte_last_error()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn errors_and_panics_become_codes_and_texts_of_their_thread() {
        let busy = guard(|| Err(Problem::new(Kind::Busy, "full\0hidden")));
        assert_eq!((busy, last()), (welte_code::Busy, "full".to_string()));
        let elsewhere = std::thread::spawn(last).join().unwrap();
        assert_eq!(elsewhere, "");
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let fault = guard(|| panic!("a bug"));
        std::panic::set_hook(quiet);
        assert_eq!(fault, welte_code::Internal);
        assert!(last().contains("a bug"));
        assert_eq!(guard(|| Ok(())), welte_code::Ok);
    }
}
