//! `/props`, `/tokenizer_info`, `/slots` and `/metrics`

use super::settings;
use crate::app::App;
use crate::engine::Asked;
use crate::error::{Api, Failure, ok};
use crate::metrics;
use crate::models::Served;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// `GET /props`
pub(crate) async fn props(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    let name = asked.get("model").map(String::as_str);
    let entry = match app.models.find(name) {
        Ok(entry) => entry,
        Err(failure) => return failure.response(Api::LlamaCpp),
    };
    let mut params = settings::sampling(&app.options.defaults.sampling);
    if let Some(seed) = app.options.seed {
        params.insert("seed".into(), seed.into());
    }
    let mut props = json!({
        "model_alias": entry.id, "is_sleeping": true,
        "default_generation_settings": { "params": params },
        "build_info": concat!("welte ", env!("CARGO_PKG_VERSION")),
    });
    // It is loaded at its next request.
    let Some(served) = entry.loaded() else {
        return ok(&props);
    };
    let (begin, end) = borders(&served);
    props["is_sleeping"] = false.into();
    props["default_generation_settings"]["n_ctx"] = served.model.context().into();
    props["total_slots"] = served.model.program().slots.into();
    let path = served.model.origin();
    let name = Path::new(path).file_name().filter(|_| !app.options.verbose);
    props["model_path"] = name.map_or(path.into(), OsStr::to_string_lossy).into();
    props["chat_template"] = served.template_source.as_deref().into();
    let (vision, audio) = (served.model.eyes(), served.model.ears());
    props["modalities"] = json!({ "vision": vision.is_some(), "audio": audio.is_some() });
    props["media_marker"] = crate::prompts::MEDIUM.into();
    (props["bos_token"], props["eos_token"]) = (begin.into(), end.into());
    ok(&props)
}

/// The tokens that begin and end a text.
fn borders(served: &Served) -> (Option<String>, Option<String>) {
    let Ok(tokenizer) = served.model.tokenizer() else {
        return (None, None);
    };
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_string());
    (text(tokenizer.bos()), text(tokenizer.eos()))
}

/// `GET /tokenizer_info`: vLLM's, for clients that have no copy of the vocabulary.
pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    let name = asked.get("model").map(String::as_str);
    let served = match app.lease(name).await {
        Ok(served) => served,
        Err(failure) => return failure.response(Api::OpenAi),
    };
    let (begin, end) = borders(&served);
    ok(&json!({
        "tokenizer_class": "welte", "model_max_length": served.model.context(),
        "bos_token": begin, "eos_token": end, "chat_template": served.template_source.as_deref(),
    }))
}

/// Something that the server was told not to offer.
fn is_off(flag: &str) -> Response {
    let message = format!("it is switched off; see {flag} of welte serve");
    Failure::new(StatusCode::NOT_IMPLEMENTED, message).response(Api::LlamaCpp)
}

/// `GET /slots`: as many as the engine has. Requests that wait have none.
pub(crate) async fn slots(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    if !app.options.slots {
        return is_off("--no-slots");
    }
    let served = match app.peek(asked.get("model").map(String::as_str)) {
        Ok(served) => served,
        Err(failure) => return failure.response(Api::LlamaCpp),
    };
    served.settle().await;
    let busy = served.engine.status().running;
    let slot = |id: u32| json!({ "id": id, "n_ctx": served.model.context(), "is_processing": (id as usize) < busy });
    let slots: Vec<Value> = (0..served.model.program().slots).map(slot).collect();
    ok(&Value::from(slots))
}

/// When the server began, in seconds since 1970.
const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    if !app.options.metrics {
        return is_off("--metrics");
    }
    for served in app.models.loaded() {
        served.settle().await;
    }
    let mut response = Response::new(Body::from(metrics::text::of(&app.models)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    let since = crate::times::since_1970().saturating_sub(app.started.elapsed());
    headers.insert(PROCESS_START, since.as_secs().into());
    response
}
