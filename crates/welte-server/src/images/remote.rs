//! Images from other servers: only from hosts that the operator has named, and never from addresses that only this machine or
//! its network can reach.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Uri, header};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// For the whole way to an image, all redirects included.
const TIME: Duration = Duration::from_secs(20);
const REDIRECTS: usize = 4;

/// Finds addresses of names, and keeps to public ones. The connection is made to what it returns, so a name cannot change its
/// address in between.
#[derive(Debug)]
struct PublicOnly(DefaultResolver);

impl Resolver for PublicOnly {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        let mut public = self.empty();
        for address in found.iter().filter(|address| is_public(address.ip())) {
            public.push(*address);
        }
        if public.is_empty() {
            Err(ureq::Error::HostNotFound)
        } else {
            Ok(public)
        }
    }
}

/// The file at an address.
pub(super) fn fetch(hosts: &[String], largest: usize, url: &str) -> Result<Vec<u8>, String> {
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("welte/", env!("CARGO_PKG_VERSION")))
        .build();
    let resolver = PublicOnly(DefaultResolver::default());
    let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
    let end = Instant::now() + TIME;
    let mut url = url.to_string();
    for _ in 0..=REDIRECTS {
        let uri = allowed(hosts, &url)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("cannot be fetched in time".into());
        }
        let request = agent.get(&uri).config().timeout_global(Some(left)).build();
        let response = request.call();
        let mut response = response.map_err(|error| match error {
            ureq::Error::HostNotFound => "the host has no public address".to_string(),
            error => format!("cannot be fetched: {error}"),
        })?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION);
            let to = to.and_then(|to| to.to_str().ok());
            url = beside(&uri, to.ok_or("a redirect leads nowhere")?)?;
            continue;
        }
        if !status.is_success() {
            return Err(format!("the server answers {status}"));
        }
        let body = response.body_mut().with_config().limit(largest as u64);
        let read = body.read_to_vec();
        return read.map_err(|error| format!("cannot be fetched: {error}"));
    }
    Err("has too many redirects".into())
}

/// The address that a redirect names, which may lack what it has in common with that of the request.
fn beside(uri: &Uri, to: &str) -> Result<String, String> {
    let scheme = uri.scheme_str().unwrap_or_default();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    Ok(match to {
        to if to.contains("://") => to.to_string(),
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        _ => return Err("a redirect is relative to its own path".into()),
    })
}

/// Checks the address of an image, or of a redirect.
fn allowed(hosts: &[String], url: &str) -> Result<Uri, String> {
    const WHOLE: &str = "an image's address must be a whole one, with http or https";
    let uri: Uri = url.parse().map_err(|_| WHOLE)?;
    let scheme = uri.scheme_str().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    if !matches!(scheme, "http" | "https") || host.is_empty() {
        return Err(WHOLE.into());
    }
    let is = |known: &String| known == "*" || known.eq_ignore_ascii_case(host);
    if !hosts.iter().any(is) {
        let known = hosts.join(", ");
        return Err(format!(
            "images and sounds are not fetched from {host}; the hosts that are allowed: {known}"
        ));
    }
    // Names are checked once they have addresses.
    let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    match literal {
        Some(address) if !is_public(address) => Err(format!("{host} is not a public address")),
        _ => Ok(uri),
    }
}

/// True for addresses that everybody on the internet reaches in the same way.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let special = v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_documentation()
                || a == 0
                || (a == 100 && (64..128).contains(&b))
                || (a, b, c) == (192, 0, 0)
                || (a, b, c) == (192, 88, 99)
                || (a == 198 && (b == 18 || b == 19))
                || a >= 224;
            !special
        }
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    // Only 2000::/3 is in use. Parts of it carry other addresses, or are for examples.
    let global = s[0] & 0xe000 == 0x2000;
    let carries = matches!((s[0], s[1]), (0x2001, 0) | (0x2002, _));
    let example = matches!((s[0], s[1]), (0x2001, 0xdb8));
    global && !carries && !example
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_not_public() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn only_named_hosts_are_asked() {
        let hosts = ["example.org".to_string()];
        let why = |url: &str| allowed(&hosts, url).err().unwrap_or_default();
        assert_eq!(why("https://Example.org/a.png"), "");
        assert!(why("https://example.org.evil.net/a.png").contains("not fetched from"));
        assert!(why("https://example.org@evil.net/a.png").contains("not fetched from evil.net"));
        assert!(why("file:///etc/passwd").contains("http or https"));
        assert!(why("/a.png").contains("http or https"));
        let all = ["*".to_string()];
        let said = allowed(&all, "http://127.0.0.1:8080/").unwrap_err();
        assert!(said.contains("not a public address"), "{said}");
        let said = allowed(&all, "http://[::1]/").unwrap_err();
        assert!(said.contains("not a public address"), "{said}");
    }

    #[test]
    fn redirects_may_lack_scheme_and_host() {
        let uri = "https://a.org:7/b/c?d".parse().unwrap();
        let to = |to: &str| beside(&uri, to).unwrap_or_default();
        assert_eq!(to("http://e.org/f"), "http://e.org/f");
        assert_eq!(to("//e.org/f"), "https://e.org/f");
        assert_eq!(to("/f"), "https://a.org:7/f");
        assert_eq!(to("f"), "");
    }

    /// A name that leads to this machine does not, whatever the rules say.
    #[test]
    fn names_of_private_addresses_are_refused() {
        let said = fetch(&["localhost".to_string()], 100, "http://localhost:1/a.png");
        assert_eq!(said.unwrap_err(), "the host has no public address");
    }
}
