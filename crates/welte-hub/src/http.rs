//! HTTP requests to the hub: redirects, refusals and retries.

use crate::settings::{Settings, setting};
use crate::{Error, name};
use std::time::Duration;
use ureq::http::{Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

/// The time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(15);
/// The longest pause honoured when a server names one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 8;

/// A failed request: final, or worth another try (after the pause that the server named).
pub(crate) enum Failure {
    Final(Error),
    Again(Error, Option<Duration>),
}

impl Failure {
    /// The connection broke off, so another try may help.
    pub(crate) fn broken(what: &str, url: &str, problem: String) -> Failure {
        let uri: Uri = url.parse().unwrap_or_default();
        let error = Error::Unreachable {
            what: what.to_string(),
            host: host(&uri),
            problem,
        };
        Failure::Again(error, None)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Final(error) | Failure::Again(error, _) => error,
        }
    }
}

/// Connections to the hub and to the hosts it redirects to.
#[derive(Clone)]
pub(crate) struct Client {
    http: Agent,
    https: Agent,
    endpoint: Uri,
    token: Option<String>,
    token_file: String,
    retries: u32,
    pause: Duration,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Client, Error> {
        let endpoint = settings
            .endpoint
            .parse()
            .ok()
            .filter(|uri: &Uri| uri.host().is_some());
        let agent = |proxy: &Option<String>, variable| -> Result<Agent, Error> {
            let proxy = proxy
                .as_deref()
                .map(|text| self::proxy(text, &settings.proxies.except, variable));
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .proxy(proxy.transpose()?)
                .user_agent(concat!("welte/", env!("CARGO_PKG_VERSION")))
                .accept_encoding("identity")
                .timeout_connect(Some(CONNECT))
                .timeout_recv_response(Some(settings.silence))
                .timeout_per_read(Some(settings.silence))
                .max_idle_connections(64)
                .max_idle_connections_per_host(32)
                .tls_config(TlsConfig::builder().root_certs(roots(settings)?).build());
            Ok(config.build().into())
        };
        Ok(Client {
            http: agent(&settings.proxies.http, "HTTP_PROXY")?,
            https: agent(&settings.proxies.https, "HTTPS_PROXY")?,
            endpoint: endpoint.ok_or_else(|| setting("HF_ENDPOINT", "is not an address"))?,
            token: settings.token.clone(),
            token_file: settings.token_file.display().to_string(),
            retries: settings.retries,
            pause: settings.pause,
        })
    }

    /// The address of `path` on the hub.
    pub(crate) fn address(&self, path: &str) -> String {
        let endpoint = self.endpoint.to_string();
        format!("{}/{path}", endpoint.trim_end_matches('/'))
    }

    /// One request without following redirects. Errors name `what`.
    fn ask(
        &self,
        what: &str,
        head: bool,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Response<Body>, Failure> {
        let uri: Uri = url.parse().map_err(|_| {
            let problem = format!("redirects to {url}, which is not a URL");
            Failure::Final(self.bad_answer(what, problem))
        })?;
        let agent = match uri.scheme_str() {
            Some("https") => &self.https,
            _ => &self.http,
        };
        let mut request = if head {
            agent.head(url)
        } else {
            agent.get(url)
        };
        if let Some(token) = self.token.as_ref().filter(|_| self.is_home(&uri)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some((first, last)) = range {
            request = request.header("Range", format!("bytes={first}-{last}"));
        }
        let answer = request
            .call()
            .map_err(|error| self.unreachable(what, &uri, error))?;
        match answer.status().as_u16() {
            200..400 => Ok(answer),
            _ => Err(self.refusal(what, &uri, &answer)),
        }
    }

    /// The same, following redirects until the answer is none or `enough` accepts it.
    pub(crate) fn follow(
        &self,
        what: &str,
        head: bool,
        url: &str,
        range: Option<(u64, u64)>,
        enough: &dyn Fn(&Response<Body>) -> bool,
    ) -> Result<(String, Response<Body>), Failure> {
        let mut url = url.to_string();
        for _ in 0..=REDIRECTS {
            let answer = self.ask(what, head, &url, range)?;
            if !answer.status().is_redirection() || enough(&answer) {
                return Ok((url, answer));
            }
            url = location(&url, &answer).ok_or_else(|| {
                Failure::Final(
                    self.bad_answer(what, "redirects without a valid target".to_string()),
                )
            })?;
        }
        let problem = format!("redirects more than {REDIRECTS} times");
        Err(Failure::Final(self.bad_answer(what, problem)))
    }

    /// Retries with growing pauses.
    pub(crate) fn with_retries<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let mut retries = self.retries();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(failure) => retries.wait(failure)?,
            }
        }
    }

    pub(crate) fn retries(&self) -> Retries {
        Retries {
            left: self.retries,
            pause: self.pause,
        }
    }

    /// True for an address on the hub itself. Only the hub gets the token.
    pub(crate) fn is_home(&self, uri: &Uri) -> bool {
        uri.scheme() == self.endpoint.scheme() && uri.authority() == self.endpoint.authority()
    }

    fn unreachable(&self, what: &str, uri: &Uri, error: ureq::Error) -> Failure {
        let certificate = matches!(
            error,
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::TlsRequired
        );
        let problem = if certificate {
            format!("{error}; if a proxy intercepts TLS, set SSL_CERT_FILE to its certificate")
        } else {
            error.to_string()
        };
        let error = Error::Unreachable {
            what: what.to_string(),
            host: host(uri),
            problem,
        };
        if certificate {
            Failure::Final(error)
        } else {
            Failure::Again(error, None)
        }
    }

    /// An answer of the hub that cannot be used.
    pub(crate) fn bad_answer(&self, what: &str, problem: String) -> Error {
        Error::Answer {
            what: what.to_string(),
            host: host(&self.endpoint),
            problem,
        }
    }

    fn refusal(&self, what: &str, uri: &Uri, answer: &Response<Body>) -> Failure {
        let status = answer.status().as_u16();
        let header = |name| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let code = header("x-error-code").unwrap_or_default();
        let error = Error::Refused {
            what: what.to_string(),
            status,
            host: host(uri),
            remedy: if self.is_home(uri) || status == 429 || status >= 500 {
                self.remedy(what, status, code)
            } else {
                "the server that the hub redirects to refuses it; try again".to_string()
            },
        };
        let pause = header("retry-after").and_then(|s| s.trim().parse().ok());
        match status {
            408 | 425 | 429 | 500..600 => Failure::Again(error, pause.map(Duration::from_secs)),
            _ => Failure::Final(error),
        }
    }

    /// Explains a refusal and says what to do.
    fn remedy(&self, what: &str, status: u16, code: &str) -> String {
        let page = self.address(what.split([':', '@']).next().unwrap_or_default());
        match (status, code, self.token.is_some()) {
            (401 | 403, "GatedRepo", false) => format!(
                "access is restricted: accept the terms on its page ({page}), then set HF_TOKEN or store your token in {}",
                self.token_file
            ),
            (401 | 403, "GatedRepo", true) | (403, _, true) => format!(
                "your token has no access: accept the terms on its page ({page}) with the same account, or use a token with read access"
            ),
            (401 | 403, _, false) => format!(
                "it does not exist or is private: check the name, or set HF_TOKEN (or store your token in {})",
                self.token_file
            ),
            (401, _, true) => format!(
                "it does not exist, or your token is not valid: check the name and the token in HF_TOKEN or {}",
                self.token_file
            ),
            (404, "RevisionNotFound", _) => "no such revision; check the part after @".to_string(),
            (404, "EntryNotFound", _) => "the file is not in this revision".to_string(),
            (404, ..) => "not found; check the name and the revision".to_string(),
            (429, ..) => {
                "too many requests; wait some minutes, or use a token (HF_TOKEN)".to_string()
            }
            (500..600, ..) => {
                "the hub has an internal error; try again later, downloaded parts are kept"
                    .to_string()
            }
            _ => "the hub refuses".to_string(),
        }
    }
}

/// The retries that are left.
pub(crate) struct Retries {
    left: u32,
    pause: Duration,
}

impl Retries {
    /// Waits before the next try, or returns the error if no try is left.
    pub(crate) fn wait(&mut self, failure: Failure) -> Result<(), Error> {
        match failure {
            Failure::Final(error) => Err(error),
            Failure::Again(error, _) if self.left == 0 => Err(error),
            Failure::Again(_, asked) => {
                std::thread::sleep(asked.unwrap_or_default().max(self.pause).min(LONGEST_PAUSE));
                self.left -= 1;
                self.pause *= 2;
                Ok(())
            }
        }
    }
}

/// The target of a redirect.
pub(crate) fn location(url: &str, answer: &Response<Body>) -> Option<String> {
    target(url, answer.headers().get("location")?.to_str().ok()?)
}

/// Where a redirect from `url` to `to` leads: to the web, and never from https back to http.
fn target(url: &str, to: &str) -> Option<String> {
    let from: Uri = url.parse().ok()?;
    let plain = from.scheme_str() == Some("http");
    if to.starts_with("https://") || plain && to.starts_with("http://") {
        return Some(to.to_string());
    }
    let origin = format!("{}://{}", from.scheme_str()?, from.authority()?);
    match to.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') => Some(format!("{origin}/{rest}")),
        _ => None,
    }
}

/// Percent-encodes a path. Characters in `keep` stay.
pub(crate) fn quoted(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte as char {
            c if c.is_ascii_alphanumeric() || "-_.~".contains(c) || keep.contains(c) => out.push(c),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn host(uri: &Uri) -> String {
    uri.authority()
        .map_or_else(|| uri.to_string(), |a| a.host().to_string())
}

fn proxy(text: &str, except: &[String], variable: &'static str) -> Result<Proxy, Error> {
    let bad = || {
        let problem = "is not an address like http://host:port (other proxies are not supported)";
        setting(variable, problem)
    };
    let plain = Proxy::new(text).map_err(|_| bad())?;
    let mut builder = Proxy::builder(plain.protocol())
        .host(plain.host())
        .port(plain.port());
    if let Some(user) = plain.username() {
        builder = builder.username(user);
    }
    if let Some(password) = plain.password() {
        builder = builder.password(password);
    }
    for entry in except {
        builder = builder.no_proxy(entry);
    }
    builder.build().map_err(|_| bad())
}

fn roots(settings: &Settings) -> Result<RootCerts, Error> {
    let Some(path) = &settings.certificates else {
        return Ok(RootCerts::WebPki);
    };
    let pem = std::fs::read(path).map_err(Error::io(path))?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let problem = format!("{} contains no certificate in PEM form", path.display());
        return Err(setting("SSL_CERT_FILE", &problem));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// A tag without its quotes, if it can be a file name.
pub(crate) fn tag(header: &str) -> Option<String> {
    let text = header.trim().trim_start_matches("W/").trim_matches('"');
    (name::is_path(text) && !text.contains('/') && !text.starts_with('.')).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_the_web_and_never_back_to_plain_http() {
        let to = |from, to| target(from, to);
        let kept = Some("https://b/y".to_string());
        assert_eq!(to("https://a/x", "https://b/y"), kept);
        assert_eq!(to("http://a/x", "https://b/y"), kept);
        assert_eq!(
            to("http://a:1/x", "http://b/y").as_deref(),
            Some("http://b/y")
        );
        assert_eq!(to("https://a:1/x", "/y").as_deref(), Some("https://a:1/y"));
        for bad in ["http://b/y", "ftp://b/y", "file:///y", "//b/y", "y", ""] {
            assert_eq!(to("https://a/x", bad), None, "{bad}");
        }
    }

    #[test]
    fn the_token_belongs_to_one_scheme_host_and_port() {
        let settings = Settings {
            endpoint: "https://hub.example".to_string(),
            ..Settings::from_variables(&|name| (name == "HF_HOME").then(|| "x".into())).unwrap()
        };
        let client = Client::new(&settings).unwrap();
        let is_home = |url: &str| client.is_home(&url.parse().unwrap());
        assert!(is_home("https://hub.example/x"));
        for other in [
            "http://hub.example/x",
            "https://hub.example:444/x",
            "https://cdn.hub.example/x",
            "https://hub.example.org/x",
            "https://hub.example@other.org/x",
        ] {
            assert!(!is_home(other), "{other}");
        }
    }

    #[test]
    fn paths_are_quoted_and_tags_are_bare() {
        assert_eq!(quoted("refs/pr/1", ""), "refs%2Fpr%2F1");
        assert_eq!(quoted("a b/ü#.gguf", "/"), "a%20b/%C3%BC%23.gguf");
        assert_eq!(tag("W/\"abc\"").as_deref(), Some("abc"));
        assert_eq!(tag("\"../x\""), None);
        assert_eq!(tag("\"\""), None);
    }
}
