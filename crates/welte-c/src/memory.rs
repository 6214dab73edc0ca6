//! What crosses the border: texts and arrays, in and out.

use std::ffi::{CStr, CString, c_char};
use welte_bindings::Problem;

/// A text of the caller's; `None` for NULL.
///
/// # Safety
/// `text` is NULL or points to a text that ends with a zero byte and does not change while `'a` lasts.
pub(crate) unsafe fn optional<'a>(
    what: &str,
    text: *const c_char,
) -> Result<Option<&'a str>, Problem> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|error| Problem::argument(format!("{what} is not UTF-8: {error}")))
}

/// As [`optional`], but NULL is an error.
///
/// # Safety
/// As for [`optional`].
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Problem> {
    // SAFETY: the caller vouches for it.
    let text = unsafe { optional(what, text) }?;
    text.ok_or_else(|| null(what))
}

/// An array of the caller's. NULL stands for an empty one only.
///
/// # Safety
/// `array` is NULL or points to `count` values that do not change while `'a` lasts.
pub(crate) unsafe fn array<'a, T>(
    what: &str,
    array: *const T,
    count: usize,
) -> Result<&'a [T], Problem> {
    match (array.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: it is not NULL, and the caller vouches for the rest.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

/// What a handle points to.
///
/// # Safety
/// `handle` is NULL or came from this library, is not freed while `'a` lasts, and nobody changes it meanwhile.
pub(crate) unsafe fn handle<'a, T>(what: &str, handle: *const T) -> Result<&'a T, Problem> {
    // SAFETY: the caller vouches for it.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Stores a result, if the caller wants it.
///
/// # Safety
/// `to` is NULL or a place for a value.
pub(crate) unsafe fn store<T>(to: *mut T, value: impl FnOnce() -> T) {
    if !to.is_null() {
        // SAFETY: it is not NULL, and the caller vouches for the rest. The old value is not read.
        unsafe { to.write(value()) };
    }
}

/// A place for a result that the caller must want.
pub(crate) fn place<T>(what: &str, to: *mut T) -> Result<*mut T, Problem> {
    if to.is_null() {
        Err(null(what))
    } else {
        Ok(to)
    }
}

fn null(what: &str) -> Problem {
    Problem::argument(format!("{what} is NULL"))
}

/// A text as C has it. Models can write zero bytes, which end C's texts; they become U+FFFD.
pub(crate) fn as_c(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// A text for the caller, who frees it with [`welte_string_free`].
pub(crate) fn give_text(text: &str) -> *mut c_char {
    as_c(text).into_raw()
}

/// An array for the caller, and its length.
pub(crate) fn give_array<T>(values: Vec<T>) -> (*mut T, usize) {
    let count = values.len();
    let values = Box::into_raw(values.into_boxed_slice());
    (values.cast(), count)
}

/// Takes an array back.
///
/// # Safety
/// The array is NULL, or came from [`give_array`] with this length and was not taken back yet.
unsafe fn take_array<T>(values: *mut T, count: usize) {
    if !values.is_null() {
        let values = std::ptr::slice_from_raw_parts_mut(values, count);
        // SAFETY: the pointer and the length are those of the boxed slice, and nobody else has it.
        drop(unsafe { Box::from_raw(values) });
    }
}

/// Frees a text that a function returned. NULL is allowed.
///
/// # Safety
/// The text came from this library and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it came from `CString::into_raw`, and nobody else has it.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Frees tokens that a function returned, with their count. NULL is allowed.
///
/// # Safety
/// The tokens came from this library and are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_tokens_free(tokens: *mut u32, count: usize) {
    // SAFETY: the caller vouches for it.
    unsafe { take_array(tokens, count) };
}

/// Frees values that a function returned, with their count. NULL is allowed.
///
/// # Safety
/// The values came from this library and are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_values_free(values: *mut f32, count: usize) {
    // SAFETY: the caller vouches for it.
    unsafe { take_array(values, count) };
}
