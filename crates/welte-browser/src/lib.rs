//! Welte in a browser: the engine as WebAssembly, with WebGPU as its device.
//!
//! A worker loads a model from a file that the browser holds, then answers one prompt after the other. `load` and `generate`
//! wait for the GPU, so JavaScript must call the WebAssembly exports of these names as promises
//! (`WebAssembly.promising`), one at a time. Everything they report goes to the function given to `listen`.
#![cfg(target_arch = "wasm32")]

mod file;

use file::HeldFile;
use futures_core::Stream as _;
use js_sys::Function;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::Blob;
use welte::{
    CancelHandle, Driver, Engine, EngineOptions, LoadOptions, Message, Model, Progress, Request,
    StopReason,
};
use welte_formats::gguf::Gguf;

/// The most positions of a conversation, where the page does not say.
const CONTEXT: u32 = 2048;
/// Tokens that are made before their text is shown.
const CHAIN: usize = 8;

thread_local! {
    static TAB: RefCell<Tab> = RefCell::default();
}

/// What this worker holds. It is not borrowed while the engine waits.
#[derive(Default)]
struct Tab {
    listener: Option<Function>,
    file: Option<Opened>,
    engine: Option<(Engine, Driver)>,
    asked: Option<Asked>,
    cancel: Option<CancelHandle>,
}

/// A file, and how to load it.
struct Opened {
    name: String,
    file: Blob,
    context: u32,
}

/// A conversation, and how to answer it.
struct Asked {
    messages: Vec<Message>,
    max_tokens: usize,
    temperature: f32,
    seed: u64,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("no file was opened")]
    NoFile,
    #[error("no model is loaded")]
    NoModel,
    #[error("nothing was asked")]
    NothingAsked,
    #[error(transparent)]
    File(#[from] welte_formats::Error),
    #[error(transparent)]
    Engine(#[from] welte::Error),
}

/// Sets the function that gets every report, as an object with the field `event`.
#[wasm_bindgen]
pub fn listen(listener: Function) {
    std::panic::set_hook(Box::new(|panic| problem(&panic.to_string())));
    TAB.with_borrow_mut(|tab| tab.listener = Some(listener));
}

/// Chooses the GGUF file that [`load`] reads, and the most positions of a conversation (0: 2048).
#[wasm_bindgen]
pub fn open(name: String, file: Blob, context: u32) {
    let context = if context > 0 { context } else { CONTEXT };
    let opened = Opened {
        name,
        file,
        context,
    };
    TAB.with_borrow_mut(|tab| tab.file = Some(opened));
}

/// Loads the file. Reports `progress`, then `model`, or `problem`.
#[wasm_bindgen]
pub fn load() {
    if let Err(error) = load_model() {
        problem(&error.to_string());
    }
}

/// Chooses the conversation that [`generate`] answers: JSON of a list of objects with `role` and `content`.
#[wasm_bindgen]
pub fn ask(messages: &str, max_tokens: usize, temperature: f32, seed: u32) {
    let messages: Vec<Value> = serde_json::from_str(messages).unwrap_or_default();
    let message = |one: &Value| {
        let text = |key: &str| one[key].as_str().unwrap_or_default().to_string();
        Message::new(text("role"), text("content"))
    };
    let asked = Asked {
        messages: messages.iter().map(message).collect(),
        max_tokens,
        temperature,
        seed: seed.into(),
    };
    TAB.with_borrow_mut(|tab| tab.asked = Some(asked));
}

/// Answers the prompt. Reports `text` as it is made, then `end`, or `problem`.
#[wasm_bindgen]
pub fn generate() {
    let Some((engine, mut driver)) = TAB.with_borrow_mut(|tab| tab.engine.take()) else {
        return problem(&Problem::NoModel.to_string());
    };
    if let Err(error) = answer(&engine, &mut driver) {
        problem(&error.to_string());
    }
    TAB.with_borrow_mut(|tab| {
        tab.cancel = None;
        tab.engine = Some((engine, driver));
    });
}

/// Ends the answer at hand.
#[wasm_bindgen]
pub fn stop() {
    if let Some(cancel) = TAB.with_borrow(|tab| tab.cancel.clone()) {
        cancel.cancel();
    }
}

fn load_model() -> Result<(), Problem> {
    let file = TAB.with_borrow_mut(|tab| {
        // The GPU may not have the memory for two models.
        tab.engine = None;
        tab.file.take()
    });
    let opened = file.ok_or(Problem::NoFile)?;
    let checkpoint = Gguf::from_source(&opened.name, Box::new(HeldFile::hold(opened.file)))?;
    let mut options = LoadOptions::default();
    options.device = "gpu".parse()?;
    options.context = opened.context;
    let model = Model::from_checkpoint(Box::new(checkpoint), &options, &mut |progress| {
        if let Progress::Weights { done, total } = progress {
            report(json!({"event": "progress", "done": done, "total": total}));
        }
    })?;
    let made = Engine::without_thread(&model, &EngineOptions::default(), Box::new(|made| made))?;
    TAB.with_borrow_mut(|tab| tab.engine = Some(made));
    let commands = model.program().passes.first();
    let commands = commands.map_or(0, |pass| pass.commands.len());
    report(json!({
        "event": "model",
        "name": model.origin(),
        "device": model.device().name,
        "bytes": model.plan().total(),
        "commands": commands,
        "table": table(&model),
    }));
    Ok(())
}

/// The compiled passes as a page.
fn table(model: &Model) -> String {
    let header = welte_report::Header {
        title: model.origin().to_string(),
        facts: model.spec().facts(),
        plan: model.plan().clone(),
        available: None,
    };
    welte_report::html(model.program(), &header)
}

fn answer(engine: &Engine, driver: &mut Driver) -> Result<(), Problem> {
    let asked = TAB.with_borrow_mut(|tab| tab.asked.take());
    let asked = asked.ok_or(Problem::NothingAsked)?;
    let model = engine.model();
    let prompt = if model.has_chat_template() {
        model.encode_chat(&model.chat_template()?, &asked.messages)?
    } else {
        // Without a template the messages are concatenated.
        let texts = asked.messages.iter().map(|message| &*message.content);
        model.encode_rendered(&texts.collect::<String>().into())?
    };
    let mut request = Request::new(prompt);
    request.options.max_tokens = asked.max_tokens;
    request.options.chain = Some(CHAIN);
    request.options.sampling.temperature = asked.temperature;
    request.options.sampling.seed = asked.seed;
    let mut stream = engine.submit(request)?;
    TAB.with_borrow_mut(|tab| tab.cancel = Some(stream.cancel_handle()));
    loop {
        driver.turn()?;
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(piece) = Pin::new(&mut stream).poll_next(&mut context) {
            match piece {
                Some(piece) => report(json!({"event": "text", "text": piece?})),
                None => {
                    ended(&stream);
                    return Ok(());
                }
            }
        }
    }
}

fn ended(stream: &welte::Stream) {
    let Some(outcome) = stream.outcome() else {
        return;
    };
    let stop = match &outcome.stop {
        StopReason::End(_) | StopReason::StopString(_) => "end",
        StopReason::Length => "length",
        StopReason::ContextFull => "context",
        _ => "stopped",
    };
    let timings = &outcome.timings;
    report(json!({
        "event": "end",
        "stop": stop,
        "prompt_tokens": outcome.prompt_tokens - outcome.cached_tokens,
        "cached_tokens": outcome.cached_tokens,
        "prompt_ms": timings.prompt.as_secs_f64() * 1e3,
        "tokens": outcome.tokens.len(),
        "decoded": timings.decoded,
        "generation_ms": timings.generation.as_secs_f64() * 1e3,
    }));
}

fn problem(message: &str) {
    report(json!({"event": "problem", "message": message}));
}

fn report(event: Value) {
    let listener = TAB.with_borrow(|tab| tab.listener.clone());
    if let Some(listener) = listener {
        // A listener that throws has nobody to tell.
        let _ = listener.call1(&JsValue::NULL, &JsValue::from_str(&event.to_string()));
    }
}
