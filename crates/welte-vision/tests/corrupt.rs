//! Damaged and unusual files of pictures: an error or some picture, and never a panic. `WELTE_FUZZ=1000000` sets the number of
//! damaged files.

mod common;

use common::{LIMITS, count, files, mutants, rgb, turned, written};
use image::{DynamicImage, ImageFormat, RgbImage};
use welte_vision::{Error, Limits, decode};

/// The first and the last pixel of the CMYK file, as the Python imaging library has them.
const CMYK: [(usize, [u8; 3]); 2] = [(0, [255, 255, 155]), (19 * 13 - 1, [25, 33, 100])];

#[test]
fn damaged_files_are_refused_or_read() {
    let (all, mut read) = (count(100_000), 0);
    mutants(all, 1, |file, number, bytes| match decode(bytes, LIMITS) {
        Ok(pixels) => {
            read += 1;
            let count = u64::from(pixels.width) * u64::from(pixels.height);
            assert!(count <= LIMITS.pixels, "{} {number}", file.kind);
            assert_eq!(pixels.bytes.len() as u64, 3 * count, "{number}");
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 500, "{} {number}: {error}", file.kind);
        }
    });
    // Neither are all of them refused at once, nor does nothing happen to them.
    assert!(read > all / 20 && read < all * 19 / 20, "{read} of {all}");
}

#[test]
fn all_formats_are_read() {
    for file in files() {
        let kind = file.kind;
        let pixels = decode(&file.bytes, LIMITS).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let want = match kind {
            "transparent" => (8, 21),
            "turned" => (13, 19),
            _ => (19, 13),
        };
        assert_eq!((pixels.width, pixels.height), want, "{kind}");
        // The first frame counts, samples of 16 bits are rounded, and GIF has few colours.
        if matches!(kind, "16 bits" | "frames") {
            let far = |(a, b): (&u8, &u8)| a.abs_diff(*b) > 8;
            let all = rgb();
            let off = pixels.bytes.iter().zip(all.as_raw()).filter(|p| far(*p));
            assert!(off.count() < pixels.bytes.len() / 20, "{kind}");
        }
        if kind == "CMYK" {
            for (at, want) in CMYK {
                let own = &pixels.bytes[3 * at..][..3];
                let far = own.iter().zip(want).any(|(a, b)| a.abs_diff(b) > 6);
                assert!(!far, "pixel {at}: {own:?}, not {want:?}");
            }
        }
    }
}

/// Sides of no pixels, and one that is as long as it may be.
#[test]
fn sizes_are_checked() {
    let bmp = |width: u32, height: u32| {
        let image = DynamicImage::from(RgbImage::new(width.max(1), height.max(1)));
        let mut bytes = written(&image, ImageFormat::Bmp);
        bytes[18..22].copy_from_slice(&width.to_le_bytes());
        bytes[22..26].copy_from_slice(&height.to_le_bytes());
        bytes
    };
    for (width, height) in [(0, 5), (5, 0), (0, 0)] {
        let error = decode(&bmp(width, height), LIMITS).expect_err("no pixels");
        assert!(matches!(error, Error::Damaged(_)), "{error}");
    }
    for (width, height) in [(1, 10_000), (10_000, 1)] {
        let pixels = decode(&bmp(width, height), LIMITS).expect("a line");
        assert_eq!((pixels.width, pixels.height), (width, height));
    }
    let error = decode(&bmp(60_000, 2), LIMITS).expect_err("too long");
    assert!(matches!(error, Error::Pixels { .. }), "{error}");
}

#[test]
fn large_pictures_are_refused_before_they_are_decoded() {
    let image = DynamicImage::from(RgbImage::new(2000, 1500));
    let bytes = written(&image, ImageFormat::Png);
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
    assert!(matches!(decode(b"%PDF-1.7\n", LIMITS), Err(Error::Pdf)));
    for bytes in [&b""[..], b"hello", b"<svg></svg>"] {
        assert!(matches!(decode(bytes, LIMITS), Err(Error::Unknown)));
    }
}

#[test]
fn pictures_are_turned_as_their_metadata_says() {
    let jpeg = written(&DynamicImage::from(rgb()), ImageFormat::Jpeg);
    let turned = turned(&jpeg);
    let [before, after] = [&jpeg, &turned].map(|b| decode(b, LIMITS).expect("a picture"));
    assert_eq!((before.width, before.height), (19, 13));
    assert_eq!((after.width, after.height), (13, 19));
    // The first pixel of the last line becomes the first of all.
    let corner = &before.bytes[3 * 19 * 12..][..3];
    assert_eq!(&after.bytes[..3], corner);
}
