//! The eyes of a model: from the bytes of a picture to the features that rows read in its place.
//!
//! [`Vision::read`] decodes a picture and cuts it up as the model's family wants it. [`Vision::layout`] says what stands in the
//! prompt for the picture, and [`Vision::encode`] computes the features. The prompt's placeholder ([`Vision::placeholder`]) is what
//! the chat template writes for a picture; the layout takes its place.

use crate::{DeviceChoice, Error};
use std::path::Path;
use std::sync::Arc;

/// How to open a model's eyes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VisionOptions {
    /// Where the encoder runs. An automatic choice takes the first device that runs it.
    pub device: DeviceChoice,
    /// Threads of the CPU device, as in [`LoadOptions`](crate::LoadOptions).
    pub threads: Option<usize>,
    /// The processors that these threads are pinned to, as in [`LoadOptions`](crate::LoadOptions).
    pub cpus: Option<Vec<usize>>,
    /// The most pixels of a picture before it is resized.
    pub most_pixels: u64,
    /// The most features of a picture. Families that take pictures of any size scale larger ones down.
    pub most_features: u32,
}

impl Default for VisionOptions {
    fn default() -> Self {
        VisionOptions {
            device: DeviceChoice::Auto,
            threads: None,
            cpus: None,
            most_pixels: 64 << 20,
            most_features: 4096,
        }
    }
}

/// An encoder of pictures that is ready to run. It belongs to one language model, whose rows read what it yields.
#[derive(Debug)]
pub struct Vision {
    placeholder: &'static str,
    width: usize,
}

/// A picture that is decoded and cut up, but not encoded.
#[derive(Clone, Debug)]
pub struct Picture {
    hash: [u8; 32],
    size: [u32; 2],
    features: usize,
}

/// What an encoder makes of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// The picture's hash ([`Picture::hash`]).
    pub hash: [u8; 32],
    /// Floats of a feature: [`Vision::width`].
    pub width: usize,
    /// The features, one after the other.
    pub rows: Arc<[f32]>,
}

/// A part of what stands in the prompt for a picture.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text in which control tokens count as such.
    Text(String),
    /// Rows that read features.
    Features {
        /// The first feature.
        first: usize,
        /// The axes of each row (time, height, width), counted from the position axis at which the piece begins. Models without
        /// multimodal rotary positions have the row's number three times.
        axes: Vec<[u32; 3]>,
        /// What the axes of the text after the piece begin at, counted in the same way. The rows' number, unless the model has
        /// multimodal rotary positions.
        advance: u32,
        /// True if the rows attend to each other in both directions.
        both_ways: bool,
    },
}

impl Picture {
    /// The SHA-256 of the picture's bytes.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Width and height as the picture is shown.
    pub fn size(&self) -> [u32; 2] {
        self.size
    }

    /// How many features it becomes.
    pub fn features(&self) -> usize {
        self.features
    }
}

impl Vision {
    /// Opens the eyes of a model: of the `mmproj` file, or else those that a Hugging Face directory has beside its language
    /// model. `None` if the model has none.
    pub fn open(
        source: &str,
        mmproj: Option<&Path>,
        options: &VisionOptions,
    ) -> Result<Option<Vision>, Error> {
        let _ = (source, mmproj, options);
        Ok(None)
    }

    /// The text that the chat template writes for a picture, and that the picture's layout replaces.
    pub fn placeholder(&self) -> &str {
        self.placeholder
    }

    /// Floats of a feature. The embeddings of the language model are as long.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Decodes a picture and cuts it up. Needs no device.
    pub fn read(&self, bytes: &[u8]) -> Result<Picture, Error> {
        let _ = bytes;
        Err(self.unsupported())
    }

    /// What stands in the prompt for a picture.
    pub fn layout(&self, picture: &Picture) -> Vec<Piece> {
        let _ = picture;
        Vec::new()
    }

    /// Computes the features of a picture. One call runs at a time; others wait.
    pub fn encode(&self, picture: &Picture) -> Result<Features, Error> {
        let _ = picture;
        Err(self.unsupported())
    }

    fn unsupported(&self) -> Error {
        Error::File {
            path: "image".into(),
            problem: "pictures are not supported yet".into(),
        }
    }
}
