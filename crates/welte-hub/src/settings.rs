//! Settings from the usual environment variables.

use crate::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";

/// Addresses, paths and limits. There is no `Debug`, because the settings contain the token.
#[derive(Clone)]
pub struct Settings {
    /// The hub or a mirror, without a trailing slash (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The cache (`HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`).
    pub cache: PathBuf,
    /// The models that were created from others: `welte-models` beside the cache, or inside one that `HF_HUB_CACHE` names, whose
    /// surroundings are not ours.
    pub created: PathBuf,
    /// The access token (`HF_TOKEN`, or the file named by `HF_TOKEN_PATH`).
    pub token: Option<String>,
    /// The file that holds the token.
    pub token_file: PathBuf,
    /// Never ask the hub (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Bring the encoder of images along that lies beside a GGUF file.
    pub encoders: bool,
    /// Link snapshots to blobs instead of moving blobs (off with `HF_HUB_DISABLE_SYMLINKS`).
    pub links: bool,
    /// Proxies (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    pub proxies: Proxies,
    /// Certificates to trust in place of Mozilla's (`SSL_CERT_FILE`).
    pub certificates: Option<PathBuf>,
    /// Connections per large file.
    pub connections: usize,
    /// Part size in bytes. Downloads resume at whole parts.
    pub part: u64,
    /// How often a failed request is repeated.
    pub retries: u32,
    /// The first pause before a retry. It doubles each time.
    pub pause: Duration,
    /// How long a server may send nothing before the connection is given up.
    pub silence: Duration,
}

/// Proxies by URL scheme.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// For `http://`.
    pub http: Option<String>,
    /// For `https://`.
    pub https: Option<String>,
    /// Hosts that are reached directly.
    pub except: Vec<String>,
}

impl Settings {
    /// From the environment of this process.
    pub fn from_env() -> Result<Settings, Error> {
        Settings::from_variables(&|name| std::env::var_os(name))
    }

    /// From the variables that `get` looks up.
    pub fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings, Error> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &'static str| match get(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text.trim().to_string()).filter(|t| !t.is_empty())),
            Some(Err(_)) => Err(setting(name, "is not UTF-8 text")),
        };
        let home = get("HOME")
            .or_else(|| get("USERPROFILE"))
            .map(PathBuf::from);
        let path = |name: &str| {
            let path = PathBuf::from(get(name)?);
            Some(match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => home.join(rest),
                _ => path,
            })
        };
        let hf_home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(home.as_ref()?.join(".cache/huggingface")))
            .ok_or_else(|| {
                setting(
                    "HF_HOME",
                    "is not set, and neither is HOME; set one of them to say where models are kept",
                )
            })?;
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let token = match text("HF_TOKEN")?.or(text("HUGGING_FACE_HUB_TOKEN")?) {
            Some(token) => Some(token),
            None => std::fs::read_to_string(&token_file)
                .ok()
                .map(|t| t.trim().to_string())
                .filter(|t| !t.is_empty()),
        };
        if token
            .as_deref()
            .is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(setting(
                "HF_TOKEN",
                "(or the token file) contains characters other than visible ASCII",
            ));
        }
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.to_string());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(setting(
                "HF_ENDPOINT",
                &format!("{endpoint} is not an address that begins with https://"),
            ));
        }
        let own_cache = hf_home.join("hub");
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.unwrap_or_else(|| own_cache.clone());
        let around = if cache == own_cache { &hf_home } else { &cache };
        let created = around.join("welte-models");
        let either = |a, b| Ok::<_, Error>(text(a)?.or(text(b)?));
        let all = either("ALL_PROXY", "all_proxy")?;
        let yes = |name| Ok::<_, Error>(text(name)?.is_some_and(|v| is_true(&v)));
        Ok(Settings {
            endpoint: endpoint.trim_end_matches('/').to_string(),
            cache,
            created,
            token,
            token_file,
            offline: yes("HF_HUB_OFFLINE")? || yes("TRANSFORMERS_OFFLINE")?,
            encoders: true,
            links: !yes("HF_HUB_DISABLE_SYMLINKS")?,
            proxies: Proxies {
                http: either("http_proxy", "HTTP_PROXY")?.or_else(|| all.clone()),
                https: either("https_proxy", "HTTPS_PROXY")?.or(all),
                except: either("no_proxy", "NO_PROXY")?
                    .unwrap_or_default()
                    .split(',')
                    .map(|host| host.trim().to_string())
                    .filter(|host| !host.is_empty())
                    .collect(),
            },
            certificates: path("SSL_CERT_FILE"),
            connections: 8,
            part: 4 << 20,
            retries: 4,
            pause: Duration::from_millis(500),
            silence: Duration::from_secs(30),
        })
    }
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())
}

pub(crate) fn setting(variable: &'static str, problem: &str) -> Error {
    Error::Setting {
        variable,
        problem: problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        Settings::from_variables(&|name| find(name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn the_cache_is_where_other_programs_look() {
        for (variables, cache, around) in [
            (
                &[("HOME", "/h")][..],
                "/h/.cache/huggingface/hub",
                "/h/.cache/huggingface",
            ),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
                "/x/huggingface",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "~/m")], "/h/m/hub", "/h/m"),
            (&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")], "/c", "/c"),
            (
                &[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/m/hub")],
                "/m/hub",
                "/m",
            ),
            (
                &[
                    ("HF_HOME", "/m"),
                    ("HUGGINGFACE_HUB_CACHE", "/old"),
                    ("HF_HUB_CACHE", ""),
                ],
                "/old",
                "/old",
            ),
        ] {
            let found = settings(variables).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(found.cache, Path::new(cache), "{variables:?}");
            let created = Path::new(around).join("welte-models");
            assert_eq!(found.created, created, "{variables:?}");
        }
        assert!(settings(&[]).is_err());
    }

    #[test]
    fn a_token_comes_from_its_variable_or_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), "from-file\n").unwrap();
        std::fs::write(folder.path().join("other"), "from-other\n").unwrap();
        let other = folder.path().join("other");
        let token = |more: &[(&str, &str)]| {
            settings(&[&[("HF_HOME", home)], more].concat()).map(|s| s.token.unwrap_or_default())
        };
        assert_eq!(token(&[]).unwrap(), "from-file");
        assert_eq!(token(&[("HF_TOKEN", " abc ")]).unwrap(), "abc");
        assert_eq!(
            token(&[("HF_TOKEN_PATH", other.to_str().unwrap())]).unwrap(),
            "from-other"
        );
        assert!(token(&[("HF_TOKEN", "a\nb")]).is_err());
    }

    #[test]
    fn mirror_offline_and_proxies() {
        let home = ("HOME", "/h");
        let s = settings(&[
            home,
            ("HF_ENDPOINT", "https://mirror.example/"),
            ("HF_HUB_OFFLINE", "true"),
            ("ALL_PROXY", "http://all:1"),
            ("https_proxy", "http://tls:2"),
            ("NO_PROXY", "localhost, .example"),
        ])
        .unwrap();
        assert_eq!(s.endpoint, "https://mirror.example");
        assert!(s.offline && s.links);
        assert_eq!(s.proxies.http.as_deref(), Some("http://all:1"));
        assert_eq!(s.proxies.https.as_deref(), Some("http://tls:2"));
        assert_eq!(s.proxies.except, ["localhost", ".example"]);
        let plain = settings(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap();
        assert!(!plain.offline && plain.endpoint == "https://huggingface.co");
        assert!(settings(&[home, ("HF_ENDPOINT", "mirror.example")]).is_err());
    }
}
