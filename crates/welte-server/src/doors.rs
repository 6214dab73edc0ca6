//! What every request passes: its origin, its key, an id, the log.

use crate::ServerOptions;
use crate::app::App;
use crate::error::{Api, Failure};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, request::Parts};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives the request an id, and logs what became of it. Prompts are never logged.
pub(crate) async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let given = request.headers().get(&REQUEST_ID);
    let given = given.filter(|id| id.len() <= 128).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&app.id("req_")).ok());
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    if let Some(id) = id {
        let name = id.to_str().unwrap_or_default();
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!(request = name, %method, path, status, ms, "answered");
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static("request-id"), id.clone());
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// Errors that axum finds in a path or a query are plain text: they get the format of the API.
pub(crate) async fn format_errors(request: Request, next: Next) -> Response {
    let api = Api::of(request.uri().path());
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !is_text || !response.status().is_client_error() {
        return response;
    }
    let status = response.status();
    let message = axum::body::to_bytes(response.into_body(), 4096).await;
    let message = String::from_utf8_lossy(&message.unwrap_or_default()).into_owned();
    Failure::new(status, message).response(api)
}

/// Refuses requests from foreign web pages, without a key, and while the server is about to end.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match allow(&app, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.response(Api::of(request.uri().path())),
    }
}

fn allow(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.or(uri.authority().map(|a| a.as_str()));
    if let Some(host) = host
        && !is_own_host(&app.options, host)
    {
        let message = format!("the server does not answer to the name {host:?}; see --allow-host");
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let same = origin.split_once("://").map(|(_, rest)| rest) == host;
        if !same && !is_allowed_origin(&app.options, origin) {
            let message = format!("pages of {origin:?} may not use the server; see --cors");
            return Err(Failure::new(StatusCode::FORBIDDEN, message));
        }
    }
    let path = uri.path();
    let is_page = crate::page::is_page(path) || path.starts_with(crate::browser::PREFIX);
    let open = path == "/health" || is_page;
    if !open && !app.accepts_key(key(headers)) {
        let message = "the API key is missing or wrong; send it as Authorization: Bearer KEY";
        return Err(Failure::new(StatusCode::UNAUTHORIZED, message));
    }
    if app.is_draining() && path != "/health" {
        let message = "the server is about to end";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    Ok(())
}

/// The key of a request, where OpenAI's or Anthropic's clients put it.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let bearer = text(header::AUTHORIZATION)
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match bearer {
        Some((_, key)) => Some(key.trim()),
        None => text(HeaderName::from_static("x-api-key")),
    }
}

/// A page whose name resolves to this machine could read answers, so browsers may use known names only.
fn is_own_host(options: &ServerOptions, host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    is_local(name)
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || options
            .hosts
            .iter()
            .any(|h| h == "*" || h.eq_ignore_ascii_case(name))
}

fn is_local(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

fn is_allowed_origin(options: &ServerOptions, origin: &str) -> bool {
    let rest = origin.split_once("://").map_or("", |(_, rest)| rest);
    let name = match rest.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => rest,
    };
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
    is_local(name)
        || address.is_ok_and(|address| address.is_loopback())
        || options
            .origins
            .iter()
            .any(|o| o == "*" || o.eq_ignore_ascii_case(origin))
}

pub(crate) fn cors(options: &ServerOptions) -> CorsLayer {
    let options = options.clone();
    let allowed = move |origin: &HeaderValue, _: &Parts| {
        origin
            .to_str()
            .is_ok_and(|origin| is_allowed_origin(&options, origin))
    };
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, header::RETRY_AFTER])
        .max_age(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_of_this_machine_are_known() {
        let mut options = ServerOptions::default();
        for host in [
            "localhost:8080",
            "127.0.0.1",
            "[::1]:80",
            "10.0.0.7:80",
            "a.localhost",
        ] {
            assert!(is_own_host(&options, host), "{host}");
        }
        for host in ["example.org", "localhost.example.org:8080", ""] {
            assert!(!is_own_host(&options, host), "{host}");
        }
        for origin in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://[::1]:5",
        ] {
            assert!(is_allowed_origin(&options, origin), "{origin}");
        }
        for origin in [
            "http://example.org",
            "http://10.0.0.7",
            "null",
            "http://localhost.evil",
        ] {
            assert!(!is_allowed_origin(&options, origin), "{origin}");
        }
        options.hosts = vec!["llm.example.org".into()];
        options.origins = vec!["https://example.org".into()];
        assert!(is_own_host(&options, "LLM.example.org:443"));
        assert!(is_allowed_origin(&options, "https://example.org"));
        assert!(!is_allowed_origin(&options, "https://www.example.org"));
    }
}
