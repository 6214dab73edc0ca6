//! Tokens and chat templates.

use crate::code::{guard, welte_code};
use crate::memory::{array, give_array, give_text, handle, place, store, text};
use crate::model::welte_model;
use std::ffi::c_char;
use welte_bindings::Problem;

/// Encodes a text. `special`: add the tokens that the model expects around a text, and recognise control tokens. Free the tokens with
/// welte_tokens_free and their count.
///
/// # Safety
/// The model is valid; `said` is NULL or ends with a zero byte; `tokens` and `count` are places for results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_tokenize(
    model: *const welte_model,
    said: *const c_char,
    special: bool,
    tokens: *mut *mut u32,
    count: *mut usize,
) -> welte_code {
    guard(|| {
        let (tokens, count) = (place("tokens", tokens)?, place("count", count)?);
        // SAFETY: models do not change while they are used; the text lives as long as the call.
        let (model, said) = unsafe { (handle("model", model)?, text("said", said)?) };
        let (encoded, number) = give_array(model.library.encode(said, special)?);
        // SAFETY: both are places for results.
        unsafe {
            store(tokens, || encoded);
            store(count, || number);
        }
        Ok(())
    })
}

/// The text of tokens. Free it with welte_string_free.
///
/// # Safety
/// The model is valid; `tokens` points to `count` tokens; `said` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_detokenize(
    model: *const welte_model,
    tokens: *const u32,
    count: usize,
    said: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let said = place("said", said)?;
        // SAFETY: models do not change while they are used; the array lives as long as the call.
        let (model, tokens) = unsafe { (handle("model", model)?, array("tokens", tokens, count)?) };
        let decoded = model.library.decode(tokens)?;
        // SAFETY: `said` is a place for a pointer.
        unsafe { store(said, || give_text(&decoded)) };
        Ok(())
    })
}

/// The text that the model's chat template makes of messages, a JSON array. Free it with welte_string_free.
///
/// # Safety
/// The model is valid; `messages` is NULL or ends with a zero byte; `said` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_render_chat(
    model: *const welte_model,
    messages: *const c_char,
    said: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let said = place("said", said)?;
        // SAFETY: models do not change while they are used; the text lives as long as the call.
        let (model, messages) = unsafe { (handle("model", model)?, text("messages", messages)?) };
        let messages = serde_json::from_str(messages)
            .map_err(|error| Problem::argument(format!("messages: not JSON: {error}")))?;
        let rendered = model.library.render(messages, &mut || true)?;
        // SAFETY: `said` is a place for a pointer.
        unsafe { store(said, || give_text(&rendered)) };
        Ok(())
    })
}
