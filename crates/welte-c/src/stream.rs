//! Streams: responses that the caller takes event by event.

use crate::code::{guard, guarded, welte_code};
use crate::memory::{give_text, handle, optional, place, store, text};
use crate::model::welte_model;
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use welte_bindings::{Events, Problem};

/// A response that is streamed.
pub struct welte_stream {
    events: Mutex<Events>,
    cancelled: AtomicBool,
}

/// Sends a request whose response is streamed: "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages" or another
/// endpoint that streams. Free the stream with welte_stream_free.
///
/// # Safety
/// The model is valid; texts are NULL or end with a zero byte; `stream` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_stream_open(
    model: *const welte_model,
    path: *const c_char,
    body: *const c_char,
    stream: *mut *mut welte_stream,
) -> welte_code {
    guard(|| {
        let stream = place("stream", stream)?;
        // SAFETY: models do not change while they are used; the texts live as long as the call.
        let (model, path, body) = unsafe {
            let body = optional("body", body)?;
            (handle("model", model)?, text("path", path)?, body)
        };
        let body = body.unwrap_or_default();
        let events = model.library.stream(path, body, &mut || true)?;
        let opened = Box::into_raw(Box::new(welte_stream {
            events: Mutex::new(events),
            cancelled: AtomicBool::new(false),
        }));
        // SAFETY: `stream` is a place for a pointer.
        unsafe { store(stream, || opened) };
        Ok(())
    })
}

/// Waits for the next event, which is JSON. WELTE_END: there are no more. Free the event with welte_string_free.
///
/// # Safety
/// The stream is valid; `event` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_stream_next(
    stream: *const welte_stream,
    event: *mut *mut c_char,
) -> welte_code {
    guarded(|| {
        let event = place("event", event)?;
        // SAFETY: streams change only while their lock is held.
        let stream = unsafe { handle("stream", stream) }?;
        let mut events = stream.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive = || !stream.cancelled.load(Ordering::Relaxed);
        if !alive() {
            return Err(Problem::cancelled());
        }
        Ok(match events.next(&mut alive)? {
            Some(next) => {
                // SAFETY: `event` is a place for a pointer.
                unsafe { store(event, || give_text(&next)) };
                welte_code::Ok
            }
            None => welte_code::End,
        })
    })
}

/// Makes welte_stream_next return WELTE_CANCELLED, now and later. Any thread may call it.
///
/// # Safety
/// The stream is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_stream_cancel(stream: *const welte_stream) {
    // SAFETY: the flag is atomic, and the stream is valid or NULL.
    if let Some(stream) = unsafe { stream.as_ref() } {
        stream.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Ends a request and frees its stream. NULL is allowed.
///
/// # Safety
/// The stream came from welte_stream_open and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_stream_free(stream: *mut welte_stream) {
    if !stream.is_null() {
        guard(|| {
            // SAFETY: it came from `Box::into_raw`, and nobody else has it.
            drop(unsafe { Box::from_raw(stream) });
            Ok(())
        });
    }
}
