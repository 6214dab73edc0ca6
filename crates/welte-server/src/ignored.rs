//! Fields of requests that the server does not know. Clients depend on servers that ignore them, so they change nothing; a header
//! of the response names them, and the log names them once per client. With `--strict` they are refused.

use crate::client::Client;
use axum::extract::{Request, State};
use axum::http::header::USER_AGENT;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names the ignored fields of a request.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-welte-ignored");

/// The most names of a request, and the longest name in bytes. Further ones are only counted.
const MOST_NAMES: usize = 32;
const LONGEST_NAME: usize = 100;
/// The most pairs of client and field that the log remembers.
const MOST_PAIRS: usize = 4096;

/// The unknown fields of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignored {
    strict: bool,
    names: Arc<Mutex<Names>>,
}

#[derive(Debug, Default)]
struct Names {
    named: BTreeSet<String>,
    more: bool,
}

impl Ignored {
    pub(crate) fn new(strict: bool) -> Ignored {
        Ignored {
            strict,
            ..Ignored::default()
        }
    }

    /// Whether unknown fields are refused.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Notes a field, such as `messages[2].colour`. Fields of all items of a list count as one.
    pub(crate) fn add(&self, name: &str) {
        let mut names = lock(&self.names);
        let name = printable(name);
        if names.named.len() < MOST_NAMES || names.named.contains(&name) {
            names.named.insert(name);
        } else {
            names.more = true;
        }
    }

    fn take(&self) -> Names {
        std::mem::take(&mut lock(&self.names))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name without the numbers of items, as a header may have it.
fn printable(name: &str) -> String {
    let mut text = String::new();
    let mut in_brackets = false;
    for c in name.chars() {
        match c {
            _ if text.len() >= LONGEST_NAME => {
                text.push_str("...");
                break;
            }
            '0'..='9' if in_brackets => {}
            // A comma separates names.
            '!'..='~' if c != ',' => text.push(c),
            _ => text.push('?'),
        }
        in_brackets = c == '[' || in_brackets && c.is_ascii_digit();
    }
    text
}

/// How the ignored fields of all requests are named.
#[derive(Debug)]
pub(crate) struct Naming {
    strict: bool,
    logged: Logged,
}

impl Naming {
    pub(crate) fn new(strict: bool) -> Naming {
        Naming {
            strict,
            logged: Logged::default(),
        }
    }
}

/// What the log has named, by client.
#[derive(Debug, Default)]
struct Logged(Mutex<BTreeSet<(Client, String)>>);

impl Logged {
    /// The names that are new for this client.
    fn add(&self, client: Client, names: BTreeSet<String>) -> Vec<String> {
        let mut known = lock(&self.0);
        if known.len() >= MOST_PAIRS {
            known.clear();
        }
        let is_new = |name: &String| known.insert((client, name.clone()));
        names.into_iter().filter(is_new).collect()
    }
}

/// Gives a request its list of unknown fields, and names them in the response and in the log.
pub(crate) async fn name(
    State(naming): State<Arc<Naming>>,
    mut request: Request,
    next: Next,
) -> Response {
    let ignored = Ignored::new(naming.strict);
    let program = request.headers().get(USER_AGENT).cloned();
    request.extensions_mut().insert(ignored.clone());
    let mut response = next.run(request).await;
    let names = ignored.take();
    if names.named.is_empty() {
        return response;
    }
    let mut list: Vec<&str> = names.named.iter().map(String::as_str).collect();
    if names.more {
        list.push("...");
    }
    if let Ok(value) = HeaderValue::from_str(&list.join(", ")) {
        response.headers_mut().insert(HEADER, value);
    }
    let program: String = program.map_or_else(String::new, |name| {
        let name = String::from_utf8_lossy(name.as_bytes());
        name.chars().take(LONGEST_NAME).collect()
    });
    let fields = naming.logged.add(Client::current(), names.named);
    if !fields.is_empty() {
        let fields = fields.join(", ");
        tracing::warn!(
            program,
            fields,
            "ignored fields that the server does not know; --strict refuses them"
        );
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_header() {
        assert_eq!(printable("messages[12].a[3]1"), "messages[].a[]1");
        assert_eq!(printable("a b\u{e9},\n9"), "a?b???9");
        assert_eq!(printable(&"x".repeat(500)).len(), LONGEST_NAME + 3);
        let ignored = Ignored::new(false);
        for i in 0..100 {
            ignored.add(&format!("list[{i}].a"));
            ignored.add(&format!("b{i}"));
        }
        let names = ignored.take();
        assert_eq!((names.named.len(), names.more), (MOST_NAMES, true));
        assert!(names.named.contains("list[].a"));
    }

    #[test]
    fn the_log_names_a_field_once_per_client() {
        let logged = Logged::default();
        let names = |all: &[&str]| all.iter().map(|name| name.to_string()).collect();
        let (a, b) = (Client(1), Client(2));
        assert_eq!(logged.add(a, names(&["x", "y"])), ["x", "y"]);
        assert_eq!(logged.add(a, names(&["x", "z"])), ["z"]);
        assert_eq!(logged.add(b, names(&["x"])), ["x"]);
    }
}
