//! Bytes as letters.

/// The bytes of base64, with or without padding, in either alphabet, in one line or several.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
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
                from_base64(text).as_deref(),
                want.map(str::as_bytes),
                "{text:?}"
            );
        }
        assert_eq!(from_base64("-_+/"), Some(vec![0xfb, 0xff, 0xbf]));
    }
}
