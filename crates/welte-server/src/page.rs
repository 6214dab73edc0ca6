//! The chat page and the engine page, built by `page/` and embedded.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;

pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    content: &'static str,
}

const INDEX: &str = include_str!("../page/dist/index.html");

/// Every file with its path.
pub(crate) static FILES: &[File] = &[
    file("/", "text/html; charset=utf-8", INDEX),
    file("/engine", "text/html; charset=utf-8", INDEX),
    file(
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/dist/page.js"),
    ),
    file(
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("../page/dist/page.css"),
    ),
    file(
        "/icon.svg",
        "image/svg+xml",
        include_str!("../page/dist/icon.svg"),
    ),
    file(
        "/licenses.md",
        "text/plain; charset=utf-8",
        include_str!("../page/dist/licenses.md"),
    ),
];

const fn file(path: &'static str, kind: &'static str, content: &'static str) -> File {
    File {
        path,
        kind,
        content,
    }
}

pub(crate) fn response(file: &'static File) -> Response {
    let mut response = Response::new(Body::from(Bytes::from_static(file.content.as_bytes())));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}
