//! What every request passes: its origin, its key, an id, the log.

use crate::app::App;
use crate::client::Client;
use crate::error::{Api, Failure, Refusal};
use crate::{ServerOptions, health};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, request::Parts};
use axum::middleware::Next;
use axum::response::Response;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer id of a request is replaced by one of ours.
const LONGEST_ID: usize = 128;

/// The address that a request came from.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Gives the request an id, and logs what became of it. Prompts are never logged.
pub(crate) async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let given = request.headers().get(&REQUEST_ID);
    let given = given.filter(|id| id.len() <= LONGEST_ID).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&app.id("req_")).ok());
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    if let Some(id) = id {
        let name = id.as_bytes().escape_ascii();
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let refusal = response.extensions().get::<Refusal>();
        let why = refusal.map_or(String::new(), |refusal| refusal.why());
        tracing::info!(request = %name, %method, path, status, ms, why, "answered");
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

/// The paths that need no key, as the router knows them.
pub(crate) type OpenPaths = Arc<Vec<Cow<'static, str>>>;

/// Refuses requests from foreign web pages, without a key, and while the server is about to end.
pub(crate) async fn check(
    State((app, open)): State<(Arc<App>, OpenPaths)>,
    request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let open = route.is_some_and(|route| open.iter().any(|path| path == route.as_str()));
    let (uri, headers) = (request.uri(), request.headers());
    if let Err(failure) = allow(&app, request.method(), uri, headers, open) {
        return failure.response(Api::of(uri.path()));
    }
    let peer = request.extensions().get::<Peer>();
    let program = headers.get(header::USER_AGENT);
    let client = app.hash(&(peer, key(headers), program));
    Client(client).scope(next.run(request)).await
}

fn allow(
    app: &App,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    open: bool,
) -> Result<(), Failure> {
    let host = host(uri, headers)?;
    if let Some(host) = host
        && !is_own_host(&app.options, host)
    {
        let message = format!("the server does not answer to the name {host:?}; see --allow-host");
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    if let Some(origin) = one(headers, header::ORIGIN)? {
        let same = host.is_some() && origin.split_once("://").map(|(_, rest)| rest) == host;
        if !same && !is_allowed_origin(&app.options, origin) {
            let message = format!("pages of {origin:?} may not use the server; see --cors");
            return Err(Failure::new(StatusCode::FORBIDDEN, message));
        }
    }
    if !open && !app.accepts_key(key(headers)) {
        let message = "the API key is missing or wrong; send it as Authorization: Bearer KEY";
        return Err(Failure::new(StatusCode::UNAUTHORIZED, message));
    }
    // Background responses can be read until the end.
    let reads_response = method == Method::GET && uri.path().starts_with("/v1/responses/");
    if app.is_draining() && uri.path() != health::PATH && !reads_response {
        let message = "the server is about to end";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    Ok(())
}

/// The host that a request is for, if it names one.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Option<&'a str>, Failure> {
    let host = one(headers, header::HOST)?;
    let authority = uri.authority().map(|authority| authority.as_str());
    match (host, authority) {
        (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            let message = format!("the header host ({host:?}) and the URL ({authority:?}) differ");
            Err(Failure::request(message))
        }
        _ => Ok(host.or(authority)),
    }
}

/// The value of a header that may be there once, in ASCII.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Failure> {
    let mut values = headers.get_all(&name).iter();
    let (value, more) = (values.next(), values.next());
    if more.is_some() {
        return Err(Failure::request(format!(
            "the header {name} is there twice"
        )));
    }
    let text = value.map(|value| value.to_str()).transpose();
    text.map_err(|_| Failure::request(format!("the header {name} may have ASCII letters only")))
}

/// How browsers name their key among the subprotocols of a websocket, for which they cannot set headers.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";

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
        None => text(HeaderName::from_static("x-api-key")).or_else(|| {
            let mut protocols = text(header::SEC_WEBSOCKET_PROTOCOL)?.split(',');
            protocols.find_map(|name| name.trim().strip_prefix(KEY_PROTOCOL))
        }),
    }
}

/// A page whose name resolves to this machine could read answers, so browsers may use known names only.
fn is_own_host(options: &ServerOptions, host: &str) -> bool {
    let name = without_port(host);
    let known = |h: &String| h == "*" || h.eq_ignore_ascii_case(name);
    is_local(name) || address(name).is_some() || options.hosts.iter().any(known)
}

/// The name in `name:port`.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// The address that a host's name is.
fn address(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => name.parse().ok().map(IpAddr::V4),
    }
}

fn is_local(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_label = |part: &str| {
        let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        !part.is_empty() && part.bytes().all(letter)
    };
    let before = name.strip_suffix(".localhost");
    name == "localhost" || before.is_some_and(|name| name.split('.').all(is_label))
}

fn is_allowed_origin(options: &ServerOptions, origin: &str) -> bool {
    let rest = origin.split_once("://").map_or("", |(_, rest)| rest);
    let name = without_port(rest);
    let known = |o: &String| o == "*" || o.eq_ignore_ascii_case(origin);
    is_local(name)
        || address(name).is_some_and(|address| address.is_loopback())
        || options.origins.iter().any(known)
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
        .expose_headers([REQUEST_ID, header::RETRY_AFTER, crate::ignored::HEADER])
        .max_age(Duration::from_secs(600))
}
