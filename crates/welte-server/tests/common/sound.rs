//! Files of sound, and forms with them.

use super::Reply;
use axum::Router;
use axum::http::Method;

/// A sound of 16 bits per sample.
pub(crate) fn wav(rate: u32, channels: u16, seconds: f32) -> Vec<u8> {
    let count = (rate as f32 * seconds) as usize * usize::from(channels);
    let mut bytes = Vec::new();
    bytes.extend(b"RIFF");
    bytes.extend((36 + 2 * count as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    bytes.extend(channels.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend((rate * 2 * u32::from(channels)).to_le_bytes());
    bytes.extend((2 * channels).to_le_bytes());
    bytes.extend(16u16.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend((2 * count as u32).to_le_bytes());
    for at in 0..count {
        let time = (at / usize::from(channels)) as f32 / rate as f32;
        let sample = (time * 2000.0).sin() * 8000.0;
        bytes.extend((sample as i16).to_le_bytes());
    }
    bytes
}

/// A form with these fields and perhaps a file.
pub(crate) async fn form(
    server: &Router,
    path: &str,
    file: Option<&[u8]>,
    fields: &[(&str, &str)],
) -> Reply {
    let mut body = Vec::new();
    let mut part = |head: String, content: &[u8]| {
        body.extend(format!("--line\r\nContent-Disposition: form-data; {head}\r\n\r\n").bytes());
        body.extend_from_slice(content);
        body.extend(b"\r\n");
    };
    for (name, value) in fields {
        part(format!("name=\"{name}\""), value.as_bytes());
    }
    if let Some(file) = file {
        part("name=\"file\"; filename=\"a.wav\"".to_string(), file);
    }
    body.extend(b"--line--\r\n");
    let kind = ("content-type", "multipart/form-data; boundary=line");
    super::send(server, Method::POST, path, &[kind], body).await
}
