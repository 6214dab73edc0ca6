//! Which path leads where.

use crate::app::App;
use crate::error::{Api, Failure, Outcome};
use crate::fields::Fields;
#[cfg(feature = "hub")]
use crate::hub;
use crate::ignored;
use crate::models::Catalog;
use crate::{
    ServerOptions, adapters, anthropic, audio, bodies, embeddings, engine, health, llama, mcp,
    middleware, ollama, openai, openapi, page, realtime, rerank,
};
use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{self, MethodFilter, MethodRouter, on};
use std::borrow::Cow;
use std::sync::Arc;

/// All endpoints for a model or several.
pub fn router(models: impl Into<Catalog>, options: ServerOptions) -> Result<Router, welte::Error> {
    Ok(of_app(Arc::new(App::new(models.into(), options)?)))
}

/// A method, a path, and what answers.
type Route = (&'static str, &'static str, Endpoint);

/// What answers at a path, and for whom.
struct Endpoint {
    handler: MethodRouter<Arc<App>>,
    /// No key is needed.
    open: bool,
    /// It reads a body of at most [`ServerOptions::largest_body`]. Others ignore the body.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test walks the table"))]
    reads: bool,
}

impl Endpoint {
    fn new(handler: MethodRouter<Arc<App>>) -> Endpoint {
        Endpoint {
            handler,
            open: false,
            reads: false,
        }
    }

    fn open(self) -> Endpoint {
        Endpoint { open: true, ..self }
    }
}

fn get<H: Handler<T, Arc<App>>, T: 'static>(handler: H) -> Endpoint {
    Endpoint::new(routing::get(handler))
}

fn post<H: Handler<T, Arc<App>>, T: 'static>(handler: H) -> Endpoint {
    Endpoint::new(routing::post(handler))
}

fn delete<H: Handler<T, Arc<App>>, T: 'static>(handler: H) -> Endpoint {
    Endpoint::new(routing::delete(handler))
}

/// An endpoint that takes a form.
fn form<H: Handler<T, Arc<App>>, T: 'static>(handler: H) -> Endpoint {
    Endpoint {
        reads: true,
        ..post(handler)
    }
}

/// All endpoints of the APIs. `openapi/` describes each of them.
///
/// The same for all of them: the rules for hosts and origins, and the format of errors, which follows from the path
/// ([`Api::of`]).
fn routes() -> Vec<Route> {
    let routes = vec![
        ("get", health::PATH, get(health::health).open()),
        ("get", "/v1/models", get(openai::models)),
        ("get", "/v1/models/{*id}", get(openai::model)),
        ("post", "/v1/chat/completions", json(openai::chat)),
        (
            "post",
            "/v1/chat/completions/input_tokens",
            json(openai::chat_tokens),
        ),
        // llama.cpp has these without the version too.
        ("get", "/models", get(openai::models)),
        ("post", "/chat/completions", json(openai::chat)),
        (
            "post",
            "/chat/completions/input_tokens",
            json(openai::chat_tokens),
        ),
        ("post", "/responses", json(openai::responses)),
        ("get", "/v1/health", get(health::health).open()),
        ("post", "/v1/completions", json(openai::completions)),
        ("post", "/v1/responses", json(openai::responses)),
        (
            "post",
            "/v1/responses/input_tokens",
            json(openai::input_tokens),
        ),
        ("post", "/v1/responses/compact", json(openai::compact)),
        ("get", "/v1/responses/{id}", get(openai::retrieve)),
        ("delete", "/v1/responses/{id}", delete(openai::delete)),
        ("post", "/v1/responses/{id}/cancel", post(openai::cancel)),
        (
            "get",
            "/v1/responses/{id}/input_items",
            get(openai::input_items),
        ),
        ("post", "/v1/embeddings", json(embeddings::openai)),
        (
            "post",
            "/v1/audio/transcriptions",
            form(audio::transcriptions),
        ),
        ("post", "/v1/audio/translations", form(audio::translations)),
        ("get", "/v1/realtime", get(realtime::realtime)),
        ("post", "/embedding", json(embeddings::llama)),
        ("post", "/embeddings", json(embeddings::llama)),
        ("post", "/v1/rerank", json(rerank::rerank)),
        ("post", "/v1/reranking", json(rerank::rerank)),
        ("post", "/reranking", json(rerank::rerank)),
        ("post", "/rerank", json(rerank::rerank)),
        ("post", "/embed_sparse", json(embeddings::sparse)),
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
        ("post", "/completions", json(llama::completion)),
        ("post", "/infill", json(llama::infill)),
        ("post", "/tokenize", json(llama::tokenize)),
        ("post", "/detokenize", json(llama::detokenize)),
        ("post", "/apply-template", json(llama::apply_template)),
        ("post", "/v1/load_lora_adapter", json(adapters::load)),
        ("post", "/v1/unload_lora_adapter", json(adapters::unload)),
        ("get", "/lora-adapters", get(adapters::list)),
        ("post", "/lora-adapters", form(adapters::set)),
        ("get", "/props", get(llama::props)),
        ("get", "/tokenizer_info", get(llama::tokenizer_info)),
        ("get", "/slots", get(llama::slots)),
        ("get", "/metrics", get(llama::metrics)),
        ("get", "/welte/state", get(engine::state)),
        ("get", "/welte/table", get(engine::table)),
        ("get", "/welte/tools", get(mcp::endpoints::servers)),
        ("get", "/welte/tools/{id}", get(mcp::endpoints::list)),
        ("post", "/welte/tools", json(mcp::endpoints::call)),
        ("get", "/openapi.json", get(openapi::openapi)),
    ];
    #[cfg(feature = "hub")]
    let routes = {
        let delete = json_on(MethodFilter::DELETE, hub::delete);
        let pull: Route = ("post", "/api/pull", json(hub::pull));
        let create: Route = ("post", "/api/create", json(hub::create));
        let remove: Route = ("delete", "/api/delete", delete);
        routes.into_iter().chain([pull, create, remove]).collect()
    };
    routes
}

/// All that a server with these options answers: the APIs and the pages.
fn table(options: &ServerOptions) -> Vec<(&'static str, Cow<'static, str>, Endpoint)> {
    let apis = routes().into_iter();
    let apis = apis.map(|(method, path, endpoint)| (method, Cow::from(path), endpoint));
    let pages = page::FILES.iter().filter(|_| options.page).map(|file| {
        let endpoint = get(move || async move { page::response(file) });
        ("get", Cow::from(file.path), endpoint.open())
    });
    let browser = options.browser.iter().flat_map(|page| page.answers());
    let browser = browser.map(|(path, file)| {
        let endpoint = get(move || async move { file.response() });
        ("get", Cow::from(path), endpoint.open())
    });
    apis.chain(pages).chain(browser).collect()
}

pub(crate) fn of_app(app: Arc<App>) -> Router {
    let mut router = Router::new();
    let mut open = Vec::new();
    for (_, path, endpoint) in table(&app.options) {
        router = router.route(&path, endpoint.handler);
        if endpoint.open {
            open.push(path);
        }
    }
    let check = (app.clone(), Arc::new(open));
    let naming = Arc::new(ignored::Naming::new(app.options.strict));
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(middleware::format_errors))
        .layer(from_fn_with_state(naming, ignored::name))
        .layer(from_fn_with_state(check, middleware::check))
        .layer(middleware::cors(&app.options))
        .layer(from_fn_with_state(app.clone(), middleware::log))
        .with_state(app)
}

/// An endpoint that takes a JSON object.
fn json<F, R>(handler: F) -> Endpoint
where
    F: Fn(Arc<App>, Fields) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send,
{
    json_on(MethodFilter::POST, handler)
}

/// As [`json`], for another method.
fn json_on<F, R>(method: MethodFilter, handler: F) -> Endpoint
where
    F: Fn(Arc<App>, Fields) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send,
{
    let handler = on(
        method,
        move |State(app): State<Arc<App>>, uri: Uri, request: Request| async move {
            let done = async {
                let (fields, _held) = bodies::fields(&app.bodies, &app.options, request).await?;
                handler(app.clone(), fields)
                    .await
                    .map_err(|failure| app.without_folders(failure))
            };
            done.await
                .unwrap_or_else(|failure| failure.response(Api::of(uri.path())))
        },
    );
    Endpoint {
        reads: true,
        ..Endpoint::new(handler)
    }
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
mod tests;
