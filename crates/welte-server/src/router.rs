//! Which path leads where.

use crate::app::App;
use crate::error::{Api, Failure};
use crate::fields::Fields;
use crate::models::Catalog;
use crate::{ServerOptions, anthropic, doors, engine, health, llama, ollama, openai, page};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use std::sync::Arc;

/// All endpoints for a model or several.
pub fn router(models: impl Into<Catalog>, options: ServerOptions) -> Result<Router, welte::Error> {
    Ok(of_app(Arc::new(App::new(models.into(), options)?)))
}

pub(crate) type Outcome = Result<Response, Failure>;

pub(crate) fn of_app(app: Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/health", get(health::health))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*id}", get(openai::model))
        .route("/v1/chat/completions", json(openai::chat))
        .route("/v1/completions", json(openai::completions))
        .route("/v1/responses", json(openai::responses))
        .route("/v1/responses/input_tokens", json(openai::input_tokens))
        .route(
            "/v1/responses/{id}",
            get(openai::retrieve).delete(openai::delete),
        )
        .route("/v1/responses/{id}/cancel", post(openai::cancel))
        .route("/v1/responses/{id}/input_items", get(openai::input_items))
        .route("/v1/messages", json(anthropic::messages))
        .route("/v1/messages/count_tokens", json(anthropic::count_tokens))
        .route("/api/chat", json(ollama::chat))
        .route("/api/generate", json(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version))
        .route("/api/show", json(ollama::show))
        .route("/completion", json(llama::completion))
        .route("/tokenize", json(llama::tokenize))
        .route("/detokenize", json(llama::detokenize))
        .route("/apply-template", json(llama::apply_template))
        .route("/props", get(llama::props))
        .route("/slots", get(llama::slots))
        .route("/welte/state", get(engine::state))
        .route("/welte/table", get(engine::table));
    if app.options.metrics {
        router = router.route("/metrics", get(llama::metrics));
    }
    for file in page::FILES {
        router = router.route(file.path, get(move || async move { page::response(file) }));
    }
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), doors::check))
        .layer(doors::cors(&app.options))
        .layer(from_fn_with_state(app.clone(), doors::log))
        .with_state(app)
}

/// An endpoint that takes a JSON object.
fn json<F, R>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Arc<App>, Fields) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send,
{
    post(
        move |State(app): State<Arc<App>>, uri: Uri, request: Request| async move {
            let done = async {
                let fields = Fields::parse(&body(&app, request).await?)?;
                handler(app, fields).await
            };
            done.await
                .unwrap_or_else(|failure| failure.response(Api::of(uri.path())))
        },
    )
}

async fn body(app: &App, request: Request) -> Result<Bytes, Failure> {
    let most = app.options.largest_body;
    let too_large = || {
        let message = format!("the body is larger than {most} bytes");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let body = request.into_body();
    let announced = axum::body::HttpBody::size_hint(&body).lower();
    if announced > most as u64 {
        return Err(too_large());
    }
    let read = tokio::time::timeout(app.options.body_timeout, axum::body::to_bytes(body, most));
    match read.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(Failure::request(format!(
            "the body cannot be read: {error}"
        ))),
        Err(_) => Err(Failure::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
        )),
    }
}

/// Whether reading ended because the body is too large.
fn is_limit(error: &axum::Error) -> bool {
    error.to_string().contains("length limit exceeded")
}

async fn unknown(uri: Uri) -> Response {
    let path = uri.path();
    let failure = Failure::new(
        StatusCode::NOT_FOUND,
        format!("there is no endpoint {path}"),
    );
    failure.response(Api::of(path))
}

async fn wrong_method(uri: Uri, request: Request) -> Response {
    let (path, method) = (uri.path(), request.method());
    let message = format!("{path} does not support {method}");
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, message).response(Api::of(path))
}
