//! The bytes of images and videos: in data addresses, or on other servers.

#[cfg(feature = "hub")]
use super::remote;
use std::sync::Arc;

/// What is between the type and the bytes of a data address.
pub(super) const BASE64: &str = ";base64,";

/// What images a request may have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImageRules {
    /// Images of a request.
    pub max_images: usize,
    /// Bytes of an image's file.
    pub largest: usize,
    /// Hosts from which images are fetched, or `*` for all; `None`: requests bring their images along.
    pub remote: Option<Vec<String>>,
    /// Files of videos are given to ffmpeg.
    pub videos: bool,
}

impl Default for ImageRules {
    fn default() -> Self {
        ImageRules {
            max_images: 16,
            largest: 20 << 20,
            remote: None,
            videos: false,
        }
    }
}

/// The bytes of base64, with or without padding, in either alphabet, in one line or several.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end().trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // A single letter at the end is not a byte.
    (count < 6).then_some(bytes)
}

/// The file at an address, if the rules allow that.
pub(super) fn bytes_at(rules: &ImageRules, url: &str) -> Result<Arc<[u8]>, String> {
    if let Some((_, text)) = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(BASE64))
    {
        return decoded(text).map(Arc::from).ok_or("is not base64".into());
    }
    let Some(hosts) = &rules.remote else {
        let problem = "images are not fetched from other servers; send them as a data address, or see --allow-remote-images";
        return Err(problem.into());
    };
    #[cfg(feature = "hub")]
    return remote::fetch(hosts, rules.largest, url).map(Arc::from);
    #[cfg(not(feature = "hub"))]
    {
        let _ = (hosts, url);
        Err("this build cannot fetch images".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_in_its_common_forms() {
        for (text, want) in [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zg", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9v\nYmFy\n", Some("foobar")),
            ("Z", None),
            ("Zm9v!", None),
            ("Zm=v", None),
        ] {
            assert_eq!(
                decoded(text).as_deref(),
                want.map(str::as_bytes),
                "{text:?}"
            );
        }
        assert_eq!(decoded("-_+/"), Some(vec![0xfb, 0xff, 0xbf]));
    }
}
