//! Decodes files of pictures within limits.

use crate::tiff;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader};
use std::io::Cursor;

/// The most characters of a decoder's message: some quote what the file says.
const MESSAGE: usize = 300;

/// Pixels of three bytes: red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// Line by line, three bytes a pixel.
    pub bytes: Vec<u8>,
}

/// The most that a picture may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Width times height.
    pub pixels: u64,
    /// Bytes that decoding may take in all.
    pub bytes: u64,
}

impl Limits {
    /// For pictures of `pixels` pixels: bytes for samples of 16 bits, a frame of four channels and the result.
    pub fn of_pixels(pixels: u64) -> Limits {
        Limits {
            pixels,
            bytes: pixels.saturating_mul(16).saturating_add(16 << 20),
        }
    }
}

/// Why a picture cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are of no known kind.
    #[error("the image is of no known kind; supported are PNG, JPEG, WebP, GIF, BMP and TIFF")]
    Unknown,
    /// A document.
    #[error("the file is a PDF: send its text, or its pages as images")]
    Pdf,
    /// The bytes are damaged, or use something unusual.
    #[error("the image cannot be decoded: {0}")]
    Damaged(String),
    /// The picture has too many pixels.
    #[error("the image has {width} x {height} pixels; at most {most} are allowed: make it smaller")]
    Pixels {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// Pixels that are allowed.
        most: u64,
    },
    /// Decoding would take too much memory.
    #[error("decoding the image would take more memory than the limit of {most} bytes")]
    Memory {
        /// Bytes that are allowed.
        most: u64,
    },
    /// The picture would become more features at once than there is memory for.
    #[error(
        "the image of {width} x {height} pixels would become {found} features; at most {most} are possible: make it less thin"
    )]
    Features {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// Features of a tile.
        found: u32,
        /// The most features of a tile.
        most: u32,
    },
    /// Frames of a video do not fit together.
    #[error("the frames of a video must have the same size")]
    Frames,
    /// The picture is too thin.
    #[error(
        "the image has {width} x {height} pixels; its longer side may be {most} times the other"
    )]
    Shape {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The largest ratio.
        most: u32,
    },
}

/// Bytes that decoding a picture may take, by its header.
pub fn decoding_memory(bytes: &[u8], limits: Limits) -> Result<u64, Error> {
    let (width, height) = begin(bytes, limits)?.dimensions();
    let own = Limits::of_pixels(u64::from(width) * u64::from(height));
    Ok(own.bytes.min(limits.bytes))
}

/// Reads a header.
fn begin(bytes: &[u8], limits: Limits) -> Result<impl ImageDecoder, Error> {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|e| Error::Damaged(e.to_string()))?;
    match reader.format() {
        None if bytes.starts_with(b"%PDF-") => return Err(Error::Pdf),
        None => return Err(Error::Unknown),
        Some(ImageFormat::Tiff) => tiff::check(bytes).map_err(damaged)?,
        Some(_) => {}
    }
    reader.limits(allocations(limits));
    let decoder = reader.into_decoder().map_err(|e| failed(e, limits))?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.pixels {
        let most = limits.pixels;
        return Err(Error::Pixels {
            width,
            height,
            most,
        });
    }
    if width == 0 || height == 0 {
        return Err(Error::Damaged("it has no pixels".into()));
    }
    let all = decoder.total_bytes();
    if all > limits.bytes {
        let most = limits.bytes;
        return Err(Error::Memory { most });
    }
    Ok(decoder)
}

fn allocations(limits: Limits) -> image::Limits {
    let mut most = image::Limits::default();
    most.max_alloc = Some(limits.bytes);
    most
}

/// Decodes the first picture of a file, turned as its metadata says. Transparency is dropped.
pub fn decode(bytes: &[u8], limits: Limits) -> Result<Pixels, Error> {
    let failed = |e| failed(e, limits);
    let mut decoder = begin(bytes, limits)?;
    decoder.set_limits(allocations(limits)).map_err(failed)?;
    // Damaged metadata does not make a picture unreadable.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    // Turning copies it, so it is made small first.
    let mut image = DynamicImage::ImageRgb8(image.into_rgb8());
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    Ok(Pixels {
        width: image.width(),
        height: image.height(),
        bytes: image.into_raw(),
    })
}

fn failed(error: ImageError, limits: Limits) -> Error {
    match error {
        ImageError::Limits(_) => Error::Memory { most: limits.bytes },
        ImageError::Unsupported(e) => damaged(&format!("not supported: {e}")),
        other => damaged(&other.to_string()),
    }
}

fn damaged(message: &str) -> Error {
    Error::Damaged(message.chars().take(MESSAGE).collect())
}
