//! Walks the table of endpoints: keys, methods, bodies, hosts, origins and the end of the server, for each of them.

use super::*;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, Method};
use serde_json::Value;
use std::collections::BTreeSet;
use tower::ServiceExt;

const KEY: &str = "Secret-1";
const LARGEST: usize = 1000;

#[test]
fn every_route_is_described() {
    let routes = routes();
    let routed = routes
        .iter()
        .map(|(method, path, _)| (*method, path.replace("{*", "{")));
    let described = openapi::endpoints().map(|(method, path)| (method, path.to_string()));
    let (routed, described): (BTreeSet<_>, BTreeSet<_>) = (routed.collect(), described.collect());
    assert_eq!(routed, described);
    assert_eq!(routed.len(), routes.len());
    let manual = include_str!("../../../../docs/server.md");
    for (_, path) in &described {
        assert!(
            manual.contains(&format!("`{path}`")),
            "docs/server.md lacks {path}"
        );
    }
}

/// A server without models.
struct Walk {
    app: Arc<App>,
    router: Router,
    options: ServerOptions,
}

fn walk(change: impl FnOnce(&mut ServerOptions)) -> Walk {
    let mut options = ServerOptions {
        api_keys: vec![KEY.to_string()],
        hosts: vec!["llm.example.org".to_string()],
        origins: vec!["https://app.example.org".to_string()],
        largest_body: LARGEST,
        ..ServerOptions::default()
    };
    change(&mut options);
    let app = Arc::new(App::new(Catalog::default(), options.clone()).unwrap());
    Walk {
        router: of_app(app.clone()),
        app,
        options,
    }
}

/// A line of the table.
struct Row {
    method: Method,
    path: String,
    open: bool,
    reads: bool,
}

impl Walk {
    fn rows(&self) -> Vec<Row> {
        let row = |(method, path, endpoint): (&str, Cow<'_, str>, Endpoint)| Row {
            method: method.to_uppercase().parse().unwrap(),
            path: path.replace("{id}", "x").replace("{*id}", "x"),
            open: endpoint.open,
            reads: endpoint.reads,
        };
        let rows: Vec<Row> = table(&self.options).into_iter().map(row).collect();
        assert!(rows.len() > 40);
        rows
    }

    async fn ask(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&'static str, &[u8])],
        body: Body,
    ) -> (StatusCode, String) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let request = request.body(body).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a request that is refused, and checks that the error has the format of its API.
    async fn refused(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&'static str, &[u8])],
        body: Body,
    ) -> StatusCode {
        let (status, text) = self.ask(method, path, headers, body).await;
        assert!(
            status.is_client_error() || status.is_server_error(),
            "{method} {path}: {status}"
        );
        if *method != Method::HEAD {
            let given: Value = serde_json::from_str(&text).expect(path);
            let message = ["/error/message", "/error"]
                .iter()
                .find_map(|at| given.pointer(at)?.as_str())
                .unwrap_or_else(|| panic!("{method} {path}: {text}"));
            let expected = Failure::new(status, message).body(Api::of(path));
            assert_eq!(given, expected, "{method} {path}");
        }
        status
    }
}

fn bearer() -> (&'static str, &'static [u8]) {
    ("authorization", b"Bearer Secret-1")
}

#[tokio::test]
async fn a_key_is_needed_except_where_the_table_says_so() {
    let walk = walk(|_| ());
    let wrong: &[&[(&str, &[u8])]] = &[
        &[],
        &[("authorization", b"Bearer ")],
        &[("authorization", b"Bearer Secret-")],
        &[("authorization", b"Bearer Secret-12")],
        &[("authorization", b"Bearer secret-1")],
        &[("authorization", b"Bearer Secret%2d1")],
        &[("authorization", b"Secret-1")],
        &[("authorization", b"Basic Secret-1")],
        &[("authorization", b"Bearer Secret-1\xff")],
        &[("x-api-key", b"Secret-12")],
        // The first one counts.
        &[("authorization", b"Bearer x"), ("x-api-key", b"Secret-1")],
    ];
    let right: &[(&str, &[u8])] = &[
        bearer(),
        ("authorization", b"bearer  Secret-1 "),
        ("x-api-key", b"Secret-1"),
    ];
    let mut open = Vec::new();
    for row in walk.rows() {
        for headers in wrong {
            let body = Body::from("{}");
            if row.open {
                let (status, _) = walk.ask(&row.method, &row.path, headers, body).await;
                assert_eq!(status, StatusCode::OK, "{}", row.path);
            } else {
                let status = walk.refused(&row.method, &row.path, headers, body).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{} {headers:?}", row.path);
            }
        }
        for header in right {
            let body = Body::from("{}");
            let (status, text) = walk.ask(&row.method, &row.path, &[*header], body).await;
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{}: {text}", row.path);
        }
        open.extend(row.open.then_some(row.path));
    }
    let pages = page::FILES.iter().map(|file| file.path);
    let expected: Vec<&str> = [health::PATH, "/v1/health"]
        .into_iter()
        .chain(pages)
        .collect();
    assert_eq!(open, expected);
    // Paths that look like open ones.
    for path in [
        "/health/",
        "/health%20",
        "/Health",
        "//health",
        "/engine/x",
        "/page.js.map",
        "/x",
    ] {
        let status = walk.refused(&Method::GET, path, &[], Body::empty()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        let status = walk
            .refused(&Method::GET, path, &[bearer()], Body::empty())
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn other_methods_are_refused() {
    let walk = walk(|_| ());
    let rows = walk.rows();
    for row in &rows {
        for name in [
            "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW",
        ] {
            let method: Method = name.parse().unwrap();
            let of_get = if name == "HEAD" { "GET" } else { name };
            let known = |other: &&Row| other.path == row.path && other.method == of_get;
            if rows.iter().any(|other| known(&other)) {
                continue;
            }
            // A path with a placeholder covers others too.
            let covered = row.path.starts_with("/v1/responses/input_tokens");
            let status = walk
                .refused(&method, &row.path, &[bearer()], Body::empty())
                .await;
            assert!(
                status == StatusCode::METHOD_NOT_ALLOWED || covered,
                "{method} {}: {status}",
                row.path
            );
        }
    }
}

#[tokio::test]
async fn bodies_have_a_limit_where_they_are_read() {
    let walk = walk(|_| ());
    let json = |bytes: usize| format!("{{\"x\":\"{}\"}}", "a".repeat(bytes - 8));
    for row in walk.rows() {
        for (bytes, large) in [(LARGEST, false), (LARGEST + 1, true)] {
            let text = json(bytes);
            assert_eq!(text.len(), bytes);
            // With its length announced, and in pieces.
            let pieces = in_pieces(text.clone());
            for body in [Body::from(text), Body::from_stream(pieces)] {
                let (status, text) = walk.ask(&row.method, &row.path, &[bearer()], body).await;
                let refused = status == StatusCode::PAYLOAD_TOO_LARGE;
                assert_eq!(refused, large && row.reads, "{}: {text}", row.path);
            }
        }
    }
}

/// The bytes one by one, without their number.
fn in_pieces(
    text: String,
) -> impl futures_core::Stream<Item = Result<Bytes, std::convert::Infallible>> {
    struct Pieces(std::vec::IntoIter<u8>);
    impl futures_core::Stream for Pieces {
        type Item = Result<Bytes, std::convert::Infallible>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            let byte = self.0.next();
            std::task::Poll::Ready(byte.map(|byte| Ok(Bytes::from(vec![byte]))))
        }
    }
    Pieces(text.into_bytes().into_iter())
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_everywhere() {
    let walk = walk(|_| ());
    for row in walk.rows() {
        for (foreign, expected) in [
            (("host", &b"evil.example"[..]), StatusCode::FORBIDDEN),
            (("origin", b"https://evil.example"), StatusCode::FORBIDDEN),
            (("host", "löcalhost".as_bytes()), StatusCode::BAD_REQUEST),
        ] {
            let headers = [bearer(), foreign];
            let status = walk
                .refused(&row.method, &row.path, &headers, Body::from("{}"))
                .await;
            assert_eq!(status, expected, "{} {foreign:?}", row.path);
        }
    }
}

#[tokio::test]
async fn hosts_are_compared_whole() {
    let walk = walk(|_| ());
    let cases: &[(u16, &[&[u8]])] = &[
        (
            200,
            &[
                b"localhost",
                b"LOCALHOST:8080",
                b"a.b-c.localhost:1",
                b"127.0.0.1",
                b"10.0.0.7:80",
                b"[::1]",
                b"[2001:db8::1]:443",
                b"llm.example.org",
                b"LLM.Example.org:8443",
                b"llm.example.org:",
            ],
        ),
        (
            403,
            &[
                b"",
                b":80",
                b"example.org",
                b"xllm.example.org",
                b"evil.llm.example.org",
                b"llm.example.orgx",
                b"llm.example.org.evil.com",
                b"llm.example.org.",
                b"llm%2eexample.org",
                b"llm.example.org:80:80",
                b"llm.example.org@evil.com",
                b"evil.com#llm.example.org",
                b"llm.example.org/",
                b"localhost.evil.com",
                b"evillocalhost",
                b".localhost",
                b"a/.localhost",
                b"a@b.localhost",
                b"127.0.0.1.evil.com",
                b"127.1",
                b"2130706433",
                b"0x7f.0.0.1",
                b"[::1",
                b"::1]",
                b"[::1]evil",
                b"[127.0.0.1]",
                b"*",
            ],
        ),
        (
            400,
            &[
                "llm.exámple.org".as_bytes(),
                "ⅼocalhost".as_bytes(),
                b"\xff",
                b"localhost\xa0",
            ],
        ),
    ];
    for (expected, hosts) in cases {
        for host in *hosts {
            let headers = [("host", *host)];
            let (status, text) = walk
                .ask(&Method::GET, health::PATH, &headers, Body::empty())
                .await;
            assert_eq!(status, *expected, "{}: {text}", host.escape_ascii());
        }
    }
    for (headers, expected) in [
        (
            &[("host", &b"localhost"[..]), ("host", b"localhost")][..],
            400,
        ),
        (
            &[
                ("origin", b"http://localhost"),
                ("origin", b"http://localhost"),
            ],
            400,
        ),
    ] {
        let (status, _) = walk
            .ask(&Method::GET, health::PATH, headers, Body::empty())
            .await;
        assert_eq!(status, expected, "{headers:?}");
    }
    // A URL with a host must agree with the header.
    for (url, expected) in [
        ("http://localhost/health", 200),
        ("http://evil.example/health", 400),
    ] {
        let headers = [("host", &b"localhost"[..])];
        let (status, _) = walk.ask(&Method::GET, url, &headers, Body::empty()).await;
        assert_eq!(status, expected, "{url}");
    }
    let (status, _) = walk
        .ask(
            &Method::GET,
            "http://evil.example/health",
            &[],
            Body::empty(),
        )
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn origins_are_compared_whole() {
    let walk = walk(|_| ());
    let cases: &[(u16, &[&[u8]])] = &[
        (
            200,
            &[
                b"https://app.example.org",
                b"HTTPS://App.example.org",
                b"http://localhost:3000",
                b"tauri://localhost",
                b"https://127.0.0.1:5",
                b"http://[::1]:5",
                // The page that the server itself serves.
                b"http://llm.example.org:80",
            ],
        ),
        (
            403,
            &[
                b"",
                b"null",
                b"https://example.org",
                b"http://app.example.org",
                b"https://app.example.org:8443",
                b"https://app.example.org/",
                b"https://app.example.org.evil.com",
                b"https://evil.app.example.org",
                b"https://xapp.example.org",
                b"https://app%2eexample.org",
                b"app.example.org",
                b"//localhost",
                b"localhost",
                b"http://localhost.evil",
                b"http://localhost@evil.com",
                b"http://evil.com#.localhost",
                b"http://evil.com/.localhost",
                b"http://10.0.0.7",
                b"http://127.0.0.1.evil.com",
                b"http://llm.example.org",
                b"http://llm.example.org:81",
                b"*",
            ],
        ),
        (400, &["http://lócalhost".as_bytes(), b"\xff"]),
    ];
    for (expected, origins) in cases {
        for origin in *origins {
            let headers = [("host", &b"llm.example.org:80"[..]), ("origin", origin)];
            let (status, text) = walk
                .ask(&Method::GET, health::PATH, &headers, Body::empty())
                .await;
            assert_eq!(status, *expected, "{}: {text}", origin.escape_ascii());
        }
    }
    // Without a host no origin is the server's own.
    let (status, _) = walk
        .ask(
            &Method::GET,
            health::PATH,
            &[("origin", b"null")],
            Body::empty(),
        )
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn stars_allow_every_name() {
    let walk = walk(|options| {
        options.hosts = vec!["*".to_string()];
        options.origins = vec!["*".to_string()];
    });
    let headers = [
        ("host", &b"any.example"[..]),
        ("origin", b"https://other.example"),
    ];
    let (status, _) = walk
        .ask(&Method::GET, health::PATH, &headers, Body::empty())
        .await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_server_about_to_end_refuses_everything() {
    let walk = walk(|_| ());
    walk.app
        .draining
        .store(true, std::sync::atomic::Ordering::Relaxed);
    for row in walk.rows() {
        let status = walk
            .refused(&row.method, &row.path, &[bearer()], Body::from("{}"))
            .await;
        // Background responses can be read until the end; here there is none.
        let expected = if row.method == Method::GET && row.path.starts_with("/v1/responses/") {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        assert_eq!(status, expected, "{}", row.path);
    }
}
