//! Which path leads where.

use crate::app::App;
use crate::error::{Api, Failure};
use crate::fields::Fields;
#[cfg(feature = "hub")]
use crate::hub;
use crate::models::Catalog;
use crate::{
    ServerOptions, anthropic, doors, embeddings, engine, health, llama, ollama, openai, openapi,
    page, rerank,
};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, delete, get, on, post};
use std::sync::Arc;

/// All endpoints for a model or several.
pub fn router(models: impl Into<Catalog>, options: ServerOptions) -> Result<Router, welte::Error> {
    Ok(of_app(Arc::new(App::new(models.into(), options)?)))
}

pub(crate) type Outcome = Result<Response, Failure>;

/// A method, a path, and what answers.
type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

/// All endpoints. `openapi/` describes each of them.
fn routes() -> Vec<Route> {
    let routes = vec![
        ("get", "/health", get(health::health)),
        ("get", "/v1/models", get(openai::models)),
        ("get", "/v1/models/{*id}", get(openai::model)),
        ("post", "/v1/chat/completions", json(openai::chat)),
        ("post", "/v1/completions", json(openai::completions)),
        ("post", "/v1/responses", json(openai::responses)),
        (
            "post",
            "/v1/responses/input_tokens",
            json(openai::input_tokens),
        ),
        ("get", "/v1/responses/{id}", get(openai::retrieve)),
        ("delete", "/v1/responses/{id}", delete(openai::delete)),
        ("post", "/v1/responses/{id}/cancel", post(openai::cancel)),
        (
            "get",
            "/v1/responses/{id}/input_items",
            get(openai::input_items),
        ),
        ("post", "/v1/embeddings", json(embeddings::openai)),
        ("post", "/v1/rerank", json(rerank::rerank)),
        ("post", "/rerank", json(rerank::rerank)),
        ("post", "/v1/messages", json(anthropic::messages)),
        (
            "post",
            "/v1/messages/count_tokens",
            json(anthropic::count_tokens),
        ),
        ("post", "/api/chat", json(ollama::chat)),
        ("post", "/api/generate", json(ollama::generate)),
        ("post", "/api/embed", json(embeddings::ollama)),
        ("post", "/api/embeddings", json(embeddings::ollama_one)),
        ("get", "/api/tags", get(ollama::tags)),
        ("get", "/api/ps", get(ollama::ps)),
        ("get", "/api/version", get(ollama::version)),
        ("post", "/api/show", json(ollama::show)),
        ("post", "/completion", json(llama::completion)),
        ("post", "/infill", json(llama::infill)),
        ("post", "/tokenize", json(llama::tokenize)),
        ("post", "/detokenize", json(llama::detokenize)),
        ("post", "/apply-template", json(llama::apply_template)),
        ("get", "/props", get(llama::props)),
        ("get", "/slots", get(llama::slots)),
        ("get", METRICS, get(llama::metrics)),
        ("get", "/welte/state", get(engine::state)),
        ("get", "/welte/table", get(engine::table)),
        ("get", "/openapi.json", get(openapi::openapi)),
    ];
    #[cfg(feature = "hub")]
    let routes = {
        let delete = json_on(MethodFilter::DELETE, hub::delete);
        let pull: Route = ("post", "/api/pull", json(hub::pull));
        [routes, vec![pull, ("delete", "/api/delete", delete)]].concat()
    };
    routes
}

/// It can be switched off.
const METRICS: &str = "/metrics";

pub(crate) fn of_app(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (_, path, route) in routes() {
        if path != METRICS || app.options.metrics {
            router = router.route(path, route);
        }
    }
    for file in page::FILES {
        router = router.route(file.path, get(move || async move { page::response(file) }));
    }
    if let Some(page) = &app.options.browser {
        for (path, file) in page.answers() {
            router = router.route(&path, get(move || async move { file.response() }));
        }
    }
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(doors::format_errors))
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
    json_on(MethodFilter::POST, handler)
}

/// As [`json`], for another method.
fn json_on<F, R>(method: MethodFilter, handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Arc<App>, Fields) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send,
{
    on(
        method,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described() {
        let routes = routes();
        let routed = routes
            .iter()
            .map(|(method, path, _)| (*method, path.replace("{*", "{")));
        let described = openapi::endpoints().map(|(method, path)| (method, path.to_string()));
        let (routed, described): (BTreeSet<_>, BTreeSet<_>) =
            (routed.collect(), described.collect());
        assert_eq!(routed, described);
        assert_eq!(routed.len(), routes.len());
        let manual = include_str!("../../../docs/server.md");
        for (_, path) in &described {
            assert!(
                manual.contains(&format!("`{path}`")),
                "docs/server.md lacks {path}"
            );
        }
    }
}
