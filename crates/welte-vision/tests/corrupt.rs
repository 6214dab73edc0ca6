//! Damaged files of pictures: an error or some picture, and never a panic.

use image::{DynamicImage, ImageFormat, RgbImage, RgbaImage};
use std::io::Cursor;
use welte_vision::{Error, Limits, decode};

const FORMATS: [ImageFormat; 6] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::WebP,
    ImageFormat::Gif,
    ImageFormat::Bmp,
    ImageFormat::Tiff,
];
const LIMITS: Limits = Limits {
    pixels: 1 << 16,
    bytes: 4 << 20,
};

/// Files of all formats, with and without transparency.
fn files() -> Vec<(ImageFormat, Vec<u8>)> {
    let value = |x: u32, y: u32| ((x * 37 + y * 11) % 256) as u8;
    let rgb = RgbImage::from_fn(19, 13, |x, y| [value(x, y), value(y, x), 200].into());
    let rgba = RgbaImage::from_fn(8, 21, |x, y| [9, value(x, y), 3, value(y, x)].into());
    let images = [DynamicImage::from(rgb), DynamicImage::from(rgba)];
    let mut files = Vec::new();
    for format in FORMATS {
        for image in &images {
            let mut bytes = Vec::new();
            let image = match format {
                ImageFormat::Jpeg => &DynamicImage::from(image.to_rgb8()),
                _ => image,
            };
            let written = image.write_to(&mut Cursor::new(&mut bytes), format);
            written.expect("a file");
            files.push((format, bytes));
        }
    }
    files
}

/// The next random number (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A few changes: bytes, bits, large numbers, cuts, repetitions.
fn damage(bytes: &mut Vec<u8>, state: &mut u64) {
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

fn mutants(count: u64, seed: u64) {
    let files = files();
    let (mut read, mut state) = (0, seed);
    for number in 0..count {
        let (format, file) = &files[number as usize % files.len()];
        let mut bytes = file.clone();
        damage(&mut bytes, &mut state);
        match decode(&bytes, LIMITS) {
            Ok(pixels) => {
                read += 1;
                let count = u64::from(pixels.width) * u64::from(pixels.height);
                assert!(count <= LIMITS.pixels, "{format:?} {number}");
                assert_eq!(pixels.bytes.len() as u64, 3 * count, "{format:?} {number}");
            }
            Err(error) => assert!(
                error.to_string().len() < 500,
                "{format:?} {number}: {error}"
            ),
        }
    }
    // Neither are all of them refused at once, nor does nothing happen to them.
    assert!(
        read > count / 20 && read < count * 19 / 20,
        "{read} of {count}"
    );
}

#[test]
fn damaged_files_are_refused_or_read() {
    mutants(100_000, 1);
}

#[test]
fn all_formats_are_read() {
    for (format, bytes) in files() {
        let pixels = decode(&bytes, LIMITS).unwrap_or_else(|e| panic!("{format:?}: {e}"));
        let size = (pixels.width, pixels.height);
        assert!(size == (19, 13) || size == (8, 21), "{format:?}: {size:?}");
    }
}

#[test]
fn large_pictures_are_refused_before_they_are_decoded() {
    let mut bytes = Vec::new();
    let image = RgbImage::new(2000, 1500);
    let written = image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png);
    written.expect("a file");
    assert!(bytes.len() < 100_000, "a bomb is small");
    let error = decode(&bytes, LIMITS).expect_err("too large");
    assert!(
        matches!(
            error,
            Error::Pixels {
                width: 2000,
                height: 1500,
                ..
            }
        ),
        "{error}"
    );
    let limits = Limits {
        bytes: 1000,
        ..Limits::of_pixels(1 << 24)
    };
    let error = decode(&bytes, limits).expect_err("too large");
    assert!(matches!(error, Error::Memory { most: 1000 }), "{error}");
    for bytes in [&b""[..], b"hello", b"<svg></svg>"] {
        assert!(matches!(decode(bytes, LIMITS), Err(Error::Unknown)));
    }
}

#[test]
fn pictures_are_turned_as_their_metadata_says() {
    // A JPEG of 19 x 13 pixels whose EXIF says that it lies on its side.
    let (_, jpeg) = files().swap_remove(2);
    let exif = [
        &b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01"[..],
        &[0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0],
        &[0; 4],
    ]
    .concat();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    let turned = [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat();
    let [before, after] = [&jpeg, &turned].map(|b| decode(b, LIMITS).expect("a picture"));
    assert_eq!((before.width, before.height), (19, 13));
    assert_eq!((after.width, after.height), (13, 19));
    // The first pixel of the last line becomes the first of all.
    let corner = &before.bytes[3 * 19 * 12..][..3];
    assert_eq!(&after.bytes[..3], corner);
}
