//! The bytes of images, videos and sounds: in data addresses, or on other servers.

#[cfg(feature = "hub")]
use super::remote;
use std::sync::Arc;
use welte_text::from_base64;

/// What is between the type and the bytes of a data address.
pub(super) const BASE64: &str = ";base64,";

/// What images and sounds a request may have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImageRules {
    /// Images and sounds of a request.
    pub max_images: usize,
    /// Bytes of the file of an image or a sound.
    pub largest: usize,
    /// Hosts from which images and sounds are fetched, or `*` for all; `None`: requests bring them along.
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

/// Brands of MP4 files that may have sound. Images have others (`avif`, `heic`, `mif1`).
const BRANDS: [&[u8]; 7] = [b"M4A", b"M4B", b"mp41", b"mp42", b"iso", b"dash", b"3gp"];

/// Whether base64 is a file of sound, by its first bytes.
pub(super) fn is_sound(text: &str) -> bool {
    let end = text.floor_char_boundary(24);
    let bytes = from_base64(&text[..end]).unwrap_or_default();
    let begins =
        |at: usize, with: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(with));
    let is_mp3 =
        begins(0, b"ID3") || begins(0, &[0xff]) && bytes.get(1).is_some_and(|b| b & 0xe0 == 0xe0);
    begins(0, b"RIFF") && begins(8, b"WAVE")
        || begins(0, b"FORM") && begins(8, b"AIF")
        || begins(0, b"fLaC")
        || begins(0, b"OggS")
        // Matroska and WebM.
        || begins(0, &[0x1a, 0x45, 0xdf, 0xa3])
        || begins(4, b"ftyp") && BRANDS.iter().any(|brand| begins(8, brand))
        || is_mp3
}

/// The file at an address, if the rules allow that.
pub(super) fn bytes_at(rules: &ImageRules, url: &str) -> Result<Arc<[u8]>, String> {
    if let Some((_, text)) = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(BASE64))
    {
        return from_base64(text)
            .map(Arc::from)
            .ok_or("is not base64".into());
    }
    let Some(hosts) = &rules.remote else {
        let problem = "images and sounds are not fetched from other servers; send them as a data address, or see --allow-remote-images";
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
    fn files_of_sound_are_told_by_their_beginning() {
        // RIFF....WAVEfmt, fLaC, OggS, ID3, a frame of MP3, EBML, ....ftyp with M4A, mp42, isom and iso5; RIFF....WEBP, PNG, JPEG,
        // ....ftyp with avif, heic and mif1, and a text.
        for sound in [
            "UklGRiQAAABXQVZFZm10IBAAAAA",
            "ZkxhQw==",
            "T2dnUwAC",
            "SUQzBAAA",
            "//uQZAAP",
            "GkXfo59ChoEB",
            "AAAAHGZ0eXBNNEEg",
            "AAAAHGZ0eXBtcDQy",
            "AAAAHGZ0eXBpc29t",
            "AAAAHGZ0eXBpc281",
        ] {
            assert!(is_sound(sound), "{sound}");
        }
        for other in [
            "UklGRiQAAABXRUJQVlA4",
            "iVBORw0KGgo",
            "/9j/4AAQSkZJRg",
            "AAAAHGZ0eXBhdmlm",
            "AAAAHGZ0eXBoZWlj",
            "AAAAHGZ0eXBtaWYx",
            "c2VlbiBpdA",
            "",
            "é",
        ] {
            assert!(!is_sound(other), "{other}");
        }
    }
}
