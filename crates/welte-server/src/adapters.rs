//! Adapters: vLLM's endpoints that load and unload them, and llama.cpp's that says how strong each is.

use crate::app::App;
use crate::ask::Ask;
use crate::bodies;
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::models::Served;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use welte::{Adapter, AdapterSource};

/// What was asked for without the right to it.
fn closed() -> Failure {
    let message =
        "adapters are loaded by clients only if the server was started with --lora-updates";
    Failure::new(StatusCode::FORBIDDEN, message)
}

/// `POST /v1/load_lora_adapter`
pub(crate) async fn load(app: Arc<App>, mut fields: Fields) -> Outcome {
    if !app.options.lora_updates {
        return Err(closed());
    }
    let served = app.lease_of(&mut fields).await?;
    let name: String = fields.need("lora_name")?;
    let path: String = fields.need("lora_path")?;
    let scale: Option<f32> = fields.take("scale")?;
    let replace: bool = fields.take("load_inplace")?.unwrap_or(false);
    fields.finish()?;
    if app.models.find(Some(&name)).is_ok() {
        return Err(Failure::field("lora_name", "is the name of a model"));
    }
    let source = AdapterSource {
        name,
        path: path.into(),
        scale: scale.unwrap_or(1.0),
        for_all: false,
    };
    let said = format!(
        "Success: LoRA adapter '{}' added successfully.",
        source.name
    );
    let loaded = tokio::task::spawn_blocking(move || {
        if !replace {
            return served.engine.load_adapter(&source).map(drop);
        }
        served.engine.replace_adapter(&source)?;
        served.for_all.renew(&source.name, &served.engine);
        Ok(())
    });
    let loaded = loaded.await.map_err(|error| Failure::fault(&error))?;
    let wrong = |error: welte::Error| match error {
        welte::Error::Adapter { .. } => Failure::request(error.to_string()),
        error => Failure::field("lora_path", error),
    };
    loaded.map_err(wrong)?;
    Ok(said.into_response())
}

/// `POST /v1/unload_lora_adapter`
pub(crate) async fn unload(app: Arc<App>, mut fields: Fields) -> Outcome {
    if !app.options.lora_updates {
        return Err(closed());
    }
    let served = app.lease_of(&mut fields).await?;
    let name: String = fields.need("lora_name")?;
    fields.ignore(&["lora_int_id"]);
    fields.finish()?;
    if served.engine.unload_adapter(&name).is_err() {
        let message = format!("adapter '{name}' is not loaded");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    served.for_all.forget(&name);
    Ok(format!("Success: LoRA adapter '{name}' removed successfully.").into_response())
}

/// `GET /lora-adapters`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Query(asked): crate::engine::Asked,
) -> Response {
    match app.peek(asked.get("model").map(String::as_str)) {
        Ok(served) => ok(&listed(&app, &served)),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

fn listed(app: &App, served: &Served) -> Value {
    let for_all = served.for_all.get();
    let scale = |adapter: &Adapter| match &for_all {
        Some(other) if other.name() == adapter.name() => other.scale(),
        _ => 0.0,
    };
    let adapters = served.engine.adapters();
    let each = adapters.iter().enumerate().map(|(id, adapter)| {
        let path = shown_path(app, adapter.path());
        json!({ "id": id, "name": adapter.name(), "path": path, "scale": scale(adapter) })
    });
    each.collect()
}

/// A path as clients see it.
pub(crate) fn shown_path(app: &App, path: &Path) -> String {
    let name = path.file_name().filter(|_| !app.options.verbose);
    match name {
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.display().to_string(),
    }
}

/// `POST /lora-adapters`: a list of numbers and scales, for all requests that choose none.
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Query(asked): crate::engine::Asked,
    request: Request,
) -> Response {
    let done = async {
        let (body, _held) = bodies::value(&app.bodies, &app.options, request).await?;
        let served = app.peek(asked.get("model").map(String::as_str))?;
        served.for_all.set(|| chosen(&served, &body, "the body"))?;
        Ok::<Response, Failure>(ok(&json!({ "success": true })))
    };
    done.await
        .unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

/// The one adapter of a list of `id` and `scale` whose scale is not 0.
fn chosen(served: &Served, list: &Value, field: &str) -> Result<Option<Adapter>, Failure> {
    let wrong = |problem: String| Failure::field(field, problem);
    let list = list.as_array();
    let list = list.ok_or_else(|| wrong("must be a list of objects with id and scale".into()))?;
    let adapters = served.engine.adapters();
    let mut found: Option<Adapter> = None;
    for entry in list {
        let id = entry.get("id").and_then(Value::as_u64);
        let id = id.ok_or_else(|| wrong("an entry lacks its id, a number".into()))?;
        let scale = match entry.get("scale") {
            None | Some(Value::Null) => 0.0,
            Some(scale) => scale.as_f64().unwrap_or(f64::NAN),
        };
        let scale = scale as f32;
        if !scale.is_finite() {
            return Err(wrong("a scale is not a number".into()));
        }
        let adapter = usize::try_from(id).ok().and_then(|id| adapters.get(id));
        let adapter = adapter.ok_or_else(|| {
            let message = format!("{field}: {id} is no adapter; there are {}", adapters.len());
            Failure::new(StatusCode::NOT_FOUND, message)
        })?;
        if scale == 0.0 {
            continue;
        }
        if found.is_some() {
            return Err(wrong(
                "a request has one adapter; give the others a scale of 0".into(),
            ));
        }
        found = Some(adapter.scaled(scale));
    }
    Ok(found)
}

/// Takes llama.cpp's field `lora`.
pub(crate) fn take(fields: &mut Fields, ask: &mut Ask) -> Result<(), Failure> {
    if let Some(list) = fields.take::<Value>("lora")? {
        ask.options.adapter = chosen(&ask.served, &list, &fields.name("lora"))?;
    }
    Ok(())
}
