//! Models: loading, generating, chatting, embedding.

use crate::code::{guard, welte_code};
use crate::memory::{array, as_c, give_array, give_text, handle, optional, place, store, text};
use serde_json::Value;
use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;
use welte_bindings::{Library, Problem, plan};

/// A loaded model.
pub struct welte_model {
    pub(crate) library: Arc<Library>,
}

/// Gets the bytes of the weights that are read, and those in all. Anything but 0 ends the load.
pub type welte_progress_fn =
    Option<unsafe extern "C" fn(done: u64, total: u64, user: *mut c_void) -> i32>;

/// Gets each piece of text as soon as it is final: whole characters. Anything but 0 ends the generation.
pub type welte_text_fn =
    Option<unsafe extern "C" fn(text: *const c_char, user: *mut c_void) -> i32>;

/// Calls the caller's function for each piece of text.
pub(crate) fn callback(
    on_text: welte_text_fn,
    user: *mut c_void,
) -> impl FnMut(&str) -> ControlFlow<()> {
    move |piece| {
        let Some(on_text) = on_text else {
            return ControlFlow::Continue(());
        };
        let piece = as_c(piece);
        // SAFETY: the caller of the function that got it says what it may be called with: a text and its own pointer.
        match unsafe { on_text(piece.as_ptr(), user) } {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

/// Loads a model from a GGUF file or a Hugging Face directory. The options are a JSON object with any of "activations",
/// "cache_host", "cache_positions", "chat_template", "checkpoints", "context", "cpu_experts", "cpus", "device", "embeddings", "ignore_memory",
/// "instructions", "kv_format", "lora", "lora_updates", "max_adapters", "max_rank", "mmproj", "pooling", "prefix_cache", "prefix_cache_bytes", "prompt_rows", "replay", "reranking",
/// "slots", "speculation", "steps" and "threads" (docs/library.md). The progress function may be NULL. Free the model with welte_model_free.
///
/// # Safety
/// Texts are NULL or end with a zero byte; `model` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_model_load(
    source: *const c_char,
    options: *const c_char,
    progress: welte_progress_fn,
    user: *mut c_void,
    model: *mut *mut welte_model,
) -> welte_code {
    guard(|| {
        let model = place("model", model)?;
        // SAFETY: the texts live as long as the call.
        let (source, options) = unsafe { (text("source", source)?, optional("options", options)?) };
        let mut report = |done, total| match progress {
            // SAFETY: the caller gave the function for these arguments.
            Some(progress) if unsafe { progress(done, total, user) } != 0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let library = Library::load(source, options.unwrap_or_default(), &mut report)?;
        let loaded = Box::into_raw(Box::new(welte_model { library }));
        // SAFETY: `model` is a place for a pointer.
        unsafe { store(model, || loaded) };
        Ok(())
    })
}

/// The memory that a model would take with these options, as JSON, read from its headers. Free it with welte_string_free.
///
/// # Safety
/// Texts are NULL or end with a zero byte; `json` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_model_plan(
    source: *const c_char,
    options: *const c_char,
    json: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let json = place("json", json)?;
        // SAFETY: the texts live as long as the call.
        let (source, options) = unsafe { (text("source", source)?, optional("options", options)?) };
        let planned = plan(source, options.unwrap_or_default())?;
        // SAFETY: `json` is a place for a pointer.
        unsafe { store(json, || give_text(&planned.to_string())) };
        Ok(())
    })
}

/// Frees a model. NULL is allowed.
///
/// # Safety
/// The model came from welte_model_load and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_model_free(model: *mut welte_model) {
    if !model.is_null() {
        guard(|| {
            // SAFETY: it came from `Box::into_raw`, and nobody else has it.
            drop(unsafe { Box::from_raw(model) });
            Ok(())
        });
    }
}

/// Facts about a model, as JSON: its name, device, context, vocabulary, memory and more. Free it with welte_string_free.
///
/// # Safety
/// The model is valid; `json` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_model_info(
    model: *const welte_model,
    json: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let json = place("json", json)?;
        // SAFETY: models do not change while they are used.
        let model = unsafe { handle("model", model) }?;
        // SAFETY: `json` is a place for a pointer.
        unsafe { store(json, || give_text(&model.library.info().to_string())) };
        Ok(())
    })
}

/// Continues a text. The options are the other fields of /v1/completions: "max_tokens", "temperature", "seed", "stop", "grammar",
/// "json_schema", "logprobs" and so on. The text function may be NULL. The response is JSON as that of /v1/completions; an answer
/// that the text function ended has the "finish_reason" "cancelled". `response` may be NULL, else free it with welte_string_free.
///
/// # Safety
/// The model is valid; texts are NULL or end with a zero byte; `response` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_generate(
    model: *const welte_model,
    prompt: *const c_char,
    options: *const c_char,
    on_text: welte_text_fn,
    user: *mut c_void,
    response: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        // SAFETY: models do not change while they are used; the texts live as long as the call.
        let (model, prompt, options) = unsafe {
            let options = optional("options", options)?;
            (handle("model", model)?, text("prompt", prompt)?, options)
        };
        let whole = generate(model, prompt.into(), options, on_text, user)?;
        // SAFETY: `response` is NULL or a place for a pointer.
        unsafe { store(response, || give_text(&whole.to_string())) };
        Ok(())
    })
}

/// As welte_generate, for a prompt of tokens.
///
/// # Safety
/// As for welte_generate; `tokens` points to `count` tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_generate_tokens(
    model: *const welte_model,
    tokens: *const u32,
    count: usize,
    options: *const c_char,
    on_text: welte_text_fn,
    user: *mut c_void,
    response: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        // SAFETY: models do not change while they are used; texts and arrays live as long as the call.
        let (model, prompt, options) = unsafe {
            let options = optional("options", options)?;
            (
                handle("model", model)?,
                array("tokens", tokens, count)?,
                options,
            )
        };
        let whole = generate(model, prompt.into(), options, on_text, user)?;
        // SAFETY: `response` is NULL or a place for a pointer.
        unsafe { store(response, || give_text(&whole.to_string())) };
        Ok(())
    })
}

fn generate(
    model: &welte_model,
    prompt: Value,
    options: Option<&str>,
    on_text: welte_text_fn,
    user: *mut c_void,
) -> Result<Value, Problem> {
    let options = options.unwrap_or_default();
    let mut on_text = callback(on_text, user);
    model
        .library
        .generate(prompt, options, &mut on_text, &mut || true)
}

/// Answers a conversation. The request is that of /v1/chat/completions: "messages", "tools", "response_format", "logprobs" and so
/// on. The text function may be NULL; it gets the text of the answer only, while the response has the calls of tools, too. It is
/// JSON as that of /v1/chat/completions. `response` may be NULL, else free it with welte_string_free.
///
/// # Safety
/// The model is valid; `request` is NULL or ends with a zero byte; `response` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_chat(
    model: *const welte_model,
    request: *const c_char,
    on_text: welte_text_fn,
    user: *mut c_void,
    response: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        // SAFETY: models do not change while they are used; the text lives as long as the call.
        let (model, request) = unsafe { (handle("model", model)?, text("request", request)?) };
        let mut on_text = callback(on_text, user);
        let whole = model.library.chat(request, &mut on_text, &mut || true)?;
        // SAFETY: `response` is NULL or a place for a pointer.
        unsafe { store(response, || give_text(&whole.to_string())) };
        Ok(())
    })
}

/// The vectors of texts, one after the other. The options are the other fields of /v1/embeddings, such as "dimensions". Free the
/// values with welte_values_free and count * size.
///
/// # Safety
/// The model is valid; `texts` points to `count` texts; `values` and `size` are places for results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_embed(
    model: *const welte_model,
    texts: *const *const c_char,
    count: usize,
    options: *const c_char,
    values: *mut *mut f32,
    size: *mut usize,
) -> welte_code {
    guard(|| {
        let (values, size) = (place("values", values)?, place("size", size)?);
        // SAFETY: models do not change while they are used; texts and arrays live as long as the call.
        let (model, texts, options) = unsafe {
            let texts = array("texts", texts, count)?.iter();
            let texts = texts.map(|one| Ok(text("one of the texts", *one)?.to_string()));
            let texts = texts.collect::<Result<Vec<String>, Problem>>()?;
            (
                handle("model", model)?,
                texts,
                optional("options", options)?,
            )
        };
        let options = options.unwrap_or_default();
        let (vectors, width) = model.library.embed(&texts, options, &mut || true)?;
        let (vectors, _) = give_array(vectors);
        // SAFETY: both are places for results.
        unsafe {
            store(values, || vectors);
            store(size, || width);
        }
        Ok(())
    })
}

/// Sends a request to any endpoint of the server, such as "POST" "/v1/rerank", without a network. The body may be NULL. Free
/// the response with welte_string_free.
///
/// # Safety
/// The model is valid; texts are NULL or end with a zero byte; `response` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn welte_request(
    model: *const welte_model,
    method: *const c_char,
    path: *const c_char,
    body: *const c_char,
    response: *mut *mut c_char,
) -> welte_code {
    guard(|| {
        let response = place("response", response)?;
        // SAFETY: models do not change while they are used; the texts live as long as the call.
        let (model, method, path, body) = unsafe {
            let body = optional("body", body)?;
            (
                handle("model", model)?,
                text("method", method)?,
                text("path", path)?,
                body,
            )
        };
        let body = body.unwrap_or_default();
        let answer = model.library.request(method, path, body, &mut || true)?;
        // SAFETY: `response` is a place for a pointer.
        unsafe { store(response, || give_text(&answer)) };
        Ok(())
    })
}
