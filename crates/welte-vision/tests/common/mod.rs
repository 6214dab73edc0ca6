//! Files of pictures of every kind, and damage to them.
#![allow(dead_code, unreachable_pub)]

use image::codecs::gif::GifEncoder;
use image::{DynamicImage, Frame, ImageFormat, Rgb, RgbImage, RgbaImage};
use std::io::Cursor;
use std::path::Path;
use welte_vision::Limits;

pub const FORMATS: [ImageFormat; 6] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::WebP,
    ImageFormat::Gif,
    ImageFormat::Bmp,
    ImageFormat::Tiff,
];
pub const LIMITS: Limits = Limits {
    pixels: 1 << 16,
    bytes: 4 << 20,
};

/// A file of 19 x 13 pixels, unless it is turned, or of 8 x 21.
pub struct File {
    pub kind: &'static str,
    pub bytes: Vec<u8>,
}

fn value(x: u32, y: u32) -> u8 {
    ((x * 37 + y * 11) % 256) as u8
}

pub fn rgb() -> RgbImage {
    RgbImage::from_fn(19, 13, |x, y| [value(x, y), value(y, x), 200].into())
}

pub fn written(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = image.write_to(&mut Cursor::new(&mut bytes), format);
    written.expect("a file");
    bytes
}

/// Files of all formats, with and without transparency, and of their less common kinds.
pub fn files() -> Vec<File> {
    let rgba = RgbaImage::from_fn(8, 21, |x, y| [9, value(x, y), 3, value(y, x)].into());
    let images = [DynamicImage::from(rgb()), DynamicImage::from(rgba)];
    let mut files = Vec::new();
    for format in FORMATS {
        for (image, kind) in images.iter().zip(["plain", "transparent"]) {
            let image = match format {
                ImageFormat::Jpeg => &DynamicImage::from(image.to_rgb8()),
                _ => image,
            };
            let bytes = written(image, format);
            files.push(File { kind, bytes });
        }
    }
    let deep = image::ImageBuffer::from_fn(19, 13, |x, y| {
        Rgb([value(x, y), value(y, x), 200].map(|v| u16::from(v) << 8 | 7))
    });
    let cmyk = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cmyk.jpg");
    for (kind, bytes) in [
        (
            "16 bits",
            written(&DynamicImage::ImageRgb16(deep), ImageFormat::Png),
        ),
        ("turned", turned(&files[2].bytes)),
        ("CMYK", std::fs::read(cmyk).expect("a file")),
        ("frames", animated_gif()),
        ("frames", animated_webp(&files[4].bytes)),
    ] {
        files.push(File { kind, bytes });
    }
    files
}

/// A JPEG whose EXIF says that it lies on its side.
pub fn turned(jpeg: &[u8]) -> Vec<u8> {
    let exif = [
        &b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01"[..],
        &[0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0],
        &[0; 4],
    ]
    .concat();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat()
}

/// The picture, then a black one.
fn animated_gif() -> Vec<u8> {
    let mut bytes = Vec::new();
    let first = DynamicImage::from(rgb()).to_rgba8();
    let frames = [first, RgbaImage::new(19, 13)].map(Frame::new);
    let mut encoder = GifEncoder::new(&mut bytes);
    encoder.encode_frames(frames).expect("frames");
    drop(encoder);
    bytes
}

/// A still WebP of 19 x 13 pixels as both frames of an animation.
fn animated_webp(still: &[u8]) -> Vec<u8> {
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let length = (data.len() as u32).to_le_bytes();
        let padding = &[0][..data.len() % 2];
        [name, &length, data, padding].concat()
    };
    let [width, height] = [18, 12];
    let size = [width, 0, 0, height, 0, 0];
    let frame = [&[0; 6][..], &size, &[100, 0, 0, 0], &still[12..]].concat();
    let body = [
        b"WEBP".to_vec(),
        chunk(b"VP8X", &[&[2, 0, 0, 0][..], &size].concat()),
        chunk(b"ANIM", &[0; 6]),
        chunk(b"ANMF", &frame),
        chunk(b"ANMF", &frame),
    ]
    .concat();
    chunk(b"RIFF", &body)
}

/// The next random number (splitmix64).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A few changes: bytes, bits, large numbers, cuts, repetitions.
pub fn damage(bytes: &mut Vec<u8>, state: &mut u64) {
    for _ in 0..1 + next(state) % 4 {
        if bytes.is_empty() {
            return;
        }
        // Headers have most of what can go wrong.
        let span = match next(state) % 2 {
            0 => bytes.len().min(64),
            _ => bytes.len(),
        };
        let at = next(state) as usize % span;
        match next(state) % 6 {
            0 => bytes[at] = next(state) as u8,
            1 => bytes[at] ^= 1 << (next(state) % 8),
            2 => {
                let end = bytes.len().min(at + 4);
                bytes[at..end].fill([0, 0x7f, 0xff][next(state) as usize % 3]);
            }
            3 => bytes.truncate(at),
            4 => {
                let part = bytes[at..].to_vec();
                bytes.extend_from_slice(&part);
            }
            _ => drop(bytes.remove(at)),
        }
    }
}

/// Decodes damaged files, `count` in all.
pub fn mutants(count: u64, seed: u64, mut check: impl FnMut(&File, u64, &[u8])) {
    let files = files();
    let mut state = seed;
    for number in 0..count {
        let file = &files[number as usize % files.len()];
        let mut bytes = file.bytes.clone();
        damage(&mut bytes, &mut state);
        check(file, number, &bytes);
    }
}

/// The number of damaged files: `WELTE_FUZZ`, or what is quick.
pub fn count(quick: u64) -> u64 {
    let set = std::env::var("WELTE_FUZZ").ok();
    set.map_or(quick, |count| count.parse().expect("a number"))
}
