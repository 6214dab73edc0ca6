//! Sessions: conversations that remember.

use crate::code::{guard, welte_code};
use crate::memory::{give_text, handle, optional, place, store, text};
use crate::model::{callback, welte_model, welte_text_fn};
use serde_json::Value;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use welte_bindings::Session;

/// A conversation.
pub struct welte_session {
    session: Mutex<Session>,
    cancelled: AtomicBool,
}

/// Begins a conversation, with a system message unless that is NULL. The options are the other fields of /v1/chat/completions, for
/// every answer. Free the session with welte_session_free.
///
/// # Safety
/// The model is valid; texts are NULL or end with a zero byte; `session` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_session_new(
    model: *const welte_model,
    system: *const c_char,
    options: *const c_char,
    session: *mut *mut welte_session,
) -> welte_code {
    guard(|| {
        let session = place("session", session)?;
        // SAFETY: models do not change while they are used; the texts live as long as the call.
        let (model, system, options) = unsafe {
            let options = optional("options", options)?;
            (
                handle("model", model)?,
                optional("system", system)?,
                options,
            )
        };
        let made = Session::new(&model.library, system, options.unwrap_or_default())?;
        let made = Box::into_raw(Box::new(welte_session {
            session: Mutex::new(made),
            cancelled: AtomicBool::new(false),
        }));
        // SAFETY: `session` is a place for a pointer.
        unsafe { store(session, || made) };
        Ok(())
    })
}

/// Says something. The text function may be NULL. `answer` may be NULL, else free it with welte_string_free. After an error the
/// conversation is as before.
///
/// # Safety
/// The session is valid; `said` is NULL or ends with a zero byte; `answer` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_session_say(
    session: *const welte_session,
    said: *const c_char,
    on_text: welte_text_fn,
    user: *mut c_void,
    answer: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        // SAFETY: sessions change only while their lock is held; the text lives as long as the call.
        let (session, said) = unsafe { (handle("session", session)?, text("said", said)?) };
        let mut held = session
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let cancelled = &session.cancelled;
        let mut on_text = callback(on_text, user);
        let mut alive = || !cancelled.load(Ordering::Relaxed);
        let text = held.say(said, &mut on_text, &mut alive);
        cancelled.store(false, Ordering::Relaxed);
        let text = text?;
        // SAFETY: `answer` is NULL or a place for a pointer.
        unsafe { store(answer, || give_text(&text)) };
        Ok(())
    })
}

/// The messages so far, as JSON. Free it with welte_string_free.
///
/// # Safety
/// The session is valid; `json` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_session_messages(
    session: *const welte_session,
    json: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let json = place("json", json)?;
        // SAFETY: sessions change only while their lock is held.
        let session = unsafe { handle("session", session) }?;
        let held = session
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let messages = Value::from(held.messages().to_vec()).to_string();
        // SAFETY: `json` is a place for a pointer.
        unsafe { store(json, || give_text(&messages)) };
        Ok(())
    })
}

/// Ends the answer at work, or the next one, with WELTE_CANCELLED. Any thread may call it.
///
/// # Safety
/// The session is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_session_cancel(session: *const welte_session) {
    // SAFETY: the flag is atomic, and the session is valid or NULL.
    if let Some(session) = unsafe { session.as_ref() } {
        session.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Frees a session. NULL is allowed.
///
/// # Safety
/// The session came from welte_session_new and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_session_free(session: *mut welte_session) {
    if !session.is_null() {
        guard(|| {
            // SAFETY: it came from `Box::into_raw`, and nobody else has it.
            drop(unsafe { Box::from_raw(session) });
            Ok(())
        });
    }
}
