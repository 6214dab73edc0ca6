//! Where a running server is: flags, then `WELTE_HOST`, then `OLLAMA_HOST`, then our default.

use anyhow::{Context, bail};

const HOST: &str = "127.0.0.1";
const PORT: u16 = 8080;
/// Ollama's default port, for an `OLLAMA_HOST` without one.
const OLLAMA_PORT: u16 = 11434;

/// Where a server listens.
#[derive(clap::Args)]
pub(crate) struct AddressArgs {
    /// Address of the server [default: that of WELTE_HOST or OLLAMA_HOST, else 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) host: Option<String>,
    /// Port of the server [default: that of WELTE_HOST or OLLAMA_HOST, else 8080]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
    /// API key of the server
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

impl AddressArgs {
    /// Host and port to connect to.
    pub(crate) fn place(&self) -> anyhow::Result<(String, u16)> {
        self.place_with(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn place_with(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<(String, u16)> {
        let (host, port) = match (variable("WELTE_HOST"), variable("OLLAMA_HOST")) {
            (Some(value), _) => parse("WELTE_HOST", &value, PORT)?,
            (None, Some(value)) => parse("OLLAMA_HOST", &value, OLLAMA_PORT)?,
            (None, None) => (HOST.to_string(), PORT),
        };
        let host = self.host.clone().unwrap_or(host);
        let host = host.trim_matches(['[', ']']).to_string();
        Ok((host, self.port.unwrap_or(port)))
    }

    /// The address of the server as clients write it.
    pub(crate) fn url(&self) -> anyhow::Result<String> {
        let (host, port) = self.place()?;
        Ok(format!("http://{}", authority(&host, port)))
    }
}

/// Host and port as URLs and requests have them.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Reads `[http://]HOST[:PORT]`. A server that listens everywhere is reached on this machine.
fn parse(name: &str, value: &str, port: u16) -> anyhow::Result<(String, u16)> {
    let value = value.trim().trim_end_matches('/');
    if value.starts_with("https://") {
        bail!("{name}={value}: only http is supported");
    }
    let (place, port) = match value.strip_prefix("http://") {
        // Ollama's own clients take the port of the scheme then.
        Some(place) if name == "OLLAMA_HOST" => (place, 80),
        Some(place) => (place, port),
        None => (value, port),
    };
    let (host, port) = match place.rsplit_once(':') {
        // The colons of an address without brackets are its own.
        Some((host, digits)) if !host.contains(':') || host.ends_with(']') => {
            let port = digits.parse();
            (
                host,
                port.with_context(|| format!("{name}={value}: {digits:?} is not a port"))?,
            )
        }
        _ => (place, port),
    };
    Ok(match host {
        "" | "0.0.0.0" => (HOST.to_string(), port),
        "[::]" | "::" => ("::1".to_string(), port),
        host => (host.to_string(), port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(flags: (Option<&str>, Option<u16>), welte: &str, ollama: &str) -> (String, u16) {
        let args = AddressArgs {
            host: flags.0.map(str::to_string),
            port: flags.1,
            api_key: None,
        };
        let known = |name: &str| {
            let value = if name == "WELTE_HOST" { welte } else { ollama };
            Some(value.to_string()).filter(|value| !value.is_empty())
        };
        args.place_with(known).unwrap()
    }

    #[test]
    fn flags_come_before_variables() {
        let none = (None, None);
        for (found, host, port) in [
            (place(none, "", ""), "127.0.0.1", 8080),
            (place(none, "", "0.0.0.0"), "127.0.0.1", 11434),
            (place(none, "", "http://box:9/"), "box", 9),
            (place(none, "", "http://box"), "box", 80),
            (place(none, "http://box", ""), "box", 8080),
            (place(none, "other:7", "box:9"), "other", 7),
            (place(none, "[::1]:7", ""), "::1", 7),
            (place(none, "::", ""), "::1", 8080),
            (place((Some("[::2]"), None), "other:7", ""), "::2", 7),
            (place((None, Some(1)), "other:7", ""), "other", 1),
        ] {
            assert_eq!(found, (host.to_string(), port));
        }
        for wrong in ["https://box", "box:port", "box:70000"] {
            assert!(
                parse("WELTE_HOST", wrong, 1)
                    .unwrap_err()
                    .to_string()
                    .contains(wrong)
            );
        }
    }
}
