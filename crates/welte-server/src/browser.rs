//! The page that runs the engine in the browser (docs/browser): files of a folder, read once.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use std::path::Path;

/// Where the page lies.
pub(crate) const PREFIX: &str = "/browser/";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Every file with its type. `tools/browser` makes the folder.
const FILES: [(&str, &str); 9] = [
    ("index.html", "text/html; charset=utf-8"),
    ("page.css", "text/css; charset=utf-8"),
    ("page.js", SCRIPT),
    ("worker.js", SCRIPT),
    ("models.js", SCRIPT),
    ("suspend.js", SCRIPT),
    ("welte_browser.js", SCRIPT),
    ("welte_browser_bg.wasm", "application/wasm"),
    ("demo.gguf", "application/octet-stream"),
];

/// A page that runs the engine in the browser of whoever opens it.
#[derive(Clone, Debug)]
pub struct BrowserPage {
    /// In the order of `FILES`.
    contents: Vec<Bytes>,
}

impl BrowserPage {
    /// Reads the folder that `tools/browser` made. An error names the file.
    pub fn read(folder: &Path) -> std::io::Result<BrowserPage> {
        let read = |(name, _): &(&str, &str)| {
            let path = folder.join(name);
            std::fs::read(&path).map(Bytes::from).map_err(|error| {
                let hint = "tools/browser makes the page";
                let text = format!("{}: {error}; {hint}", path.display());
                std::io::Error::new(error.kind(), text)
            })
        };
        let contents: Result<Vec<Bytes>, _> = FILES.iter().map(read).collect();
        Ok(BrowserPage {
            contents: contents?,
        })
    }

    /// Paths with the answers to them.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (String, BrowserFile)> {
        let files = FILES.iter().zip(&self.contents);
        files.map(|((name, kind), content)| {
            let path = match *name {
                "index.html" => PREFIX.to_string(),
                name => format!("{PREFIX}{name}"),
            };
            let file = BrowserFile {
                kind,
                content: content.clone(),
            };
            (path, file)
        })
    }
}

#[derive(Clone)]
pub(crate) struct BrowserFile {
    kind: &'static str,
    content: Bytes,
}

impl BrowserFile {
    pub(crate) fn response(self) -> Response {
        let mut response = Response::new(Body::from(self.content));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    #[tokio::test]
    async fn every_file_has_its_path_and_its_type() {
        let folder = tempfile::tempdir().unwrap();
        for (name, _) in &FILES[1..] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let error = BrowserPage::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("index.html"), "{error}");
        std::fs::write(folder.path().join("index.html"), "index.html").unwrap();
        let page = BrowserPage::read(folder.path()).unwrap();
        for ((path, file), (name, kind)) in page.answers().zip(FILES) {
            let path = path.strip_prefix(PREFIX).unwrap();
            assert_eq!(path, if name == "index.html" { "" } else { name });
            let response = file.response();
            assert_eq!(response.headers()["content-type"], kind);
            assert_eq!(response.headers()["x-frame-options"], "DENY");
            let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            assert_eq!(bytes, name);
        }
    }
}
