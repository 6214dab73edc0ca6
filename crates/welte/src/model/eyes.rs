//! A model's eyes at load: where the encoder of images is found, and what the model lacks if there is none.

use crate::pictures::Eyes;
use crate::vision::{Vision, VisionOptions};
use crate::{DeviceChoice, Error, Images, LoadOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use welte_formats::checkpoint::Checkpoint;
use welte_table::{Program, human};
use welte_text::Tokenizer;

/// Rows of images that the device has room for, unless the options say otherwise.
const ROOM: u32 = 2560;

/// What a load knows about a model's eyes.
#[derive(Default)]
pub(super) struct Found {
    /// The file, or the model's own directory.
    path: Option<PathBuf>,
    /// Why the model takes no images.
    pub(super) missing: Option<String>,
}

impl Images {
    /// Where the encoder of a model is.
    pub(super) fn find(&self, origin: &str) -> Found {
        let path = match self {
            Images::Off => return Found::without("images are switched off"),
            Images::File(path) => Some(path.clone()),
            Images::Beside => beside(Path::new(origin)),
        };
        match path {
            None => Found::without("no file mmproj*.gguf lies beside the model; see --mmproj"),
            path => Found {
                path,
                missing: None,
            },
        }
    }
}

impl Found {
    fn without(why: impl Into<String>) -> Found {
        Found {
            path: None,
            missing: Some(why.into()),
        }
    }

    /// A directory that has only a language model has no eyes.
    pub(super) fn forget_directory_without_encoder(
        &mut self,
        images: &Images,
        checkpoint: &dyn Checkpoint,
    ) {
        let own = self.path.as_deref() == Some(Path::new(checkpoint.origin()));
        if own
            && *images == Images::Beside
            && matches!(welte_models::vision_spec(checkpoint), Ok(None))
        {
            *self = Found::without("it has no encoder of images that is supported");
        }
    }

    /// Load options with room for images, if there are eyes.
    pub(super) fn with_room(&self, options: &LoadOptions) -> LoadOptions {
        let mut options = options.clone();
        if self.path.is_some() && options.features == 0 {
            options.features = ROOM;
        }
        options
    }

    /// What an inspection says of it; nothing if images are off.
    pub(super) fn in_words(&self, program: &Program, options: &LoadOptions) -> Option<String> {
        if options.images == Images::Off {
            return None;
        }
        let Some(path) = &self.path else {
            return self.missing.as_ref().map(|why| format!("none: {why}"));
        };
        let (rows, width) = (program.feature_count(), program.feature_width());
        let bytes = 4 * u64::from(rows) * width;
        let path = path.display();
        Some(format!(
            "encoder {path}; room for {rows} rows ({})",
            human(bytes)
        ))
    }

    /// Gives up: the device takes no images. Only a file that was asked for is an error.
    pub(super) fn give_up(&mut self, images: &Images, why: Error) -> Result<(), Error> {
        match (images, self.path.take()) {
            (Images::Beside, Some(_)) => {
                self.missing = Some(why.to_string());
                Ok(())
            }
            _ => Err(why),
        }
    }

    /// Opens the encoder for a model with this vocabulary and features of `width` values.
    pub(super) fn open(
        &mut self,
        origin: &str,
        options: &LoadOptions,
        tokenizer: Option<&Arc<Tokenizer>>,
        width: usize,
    ) -> Result<Option<Eyes>, Error> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let of_vision = VisionOptions {
            device: match options.device {
                DeviceChoice::Named(id) if matches!(id.kind, "cpu" | "reference") => options.device,
                _ => DeviceChoice::Auto,
            },
            threads: options.threads,
            cpus: options.cpus.clone(),
            most_features: options.features.min(VisionOptions::default().most_features),
            ..VisionOptions::default()
        };
        let own = Path::new(origin) == path;
        let file = Some(path.as_path()).filter(|_| !own);
        let eyes = |vision: Vision| {
            let origin = origin.to_string();
            let tokenizer = tokenizer.ok_or(Error::NoTokenizer { origin })?.clone();
            Eyes::new(
                Box::new(vision),
                tokenizer,
                width,
                path.to_string_lossy().as_ref(),
            )
        };
        let opened = Vision::open(origin, file, &of_vision);
        match opened.and_then(|vision| vision.map(eyes).transpose()) {
            Ok(Some(eyes)) => Ok(Some(eyes)),
            Ok(None) => {
                *self = Found::without("it has no encoder of images that is supported");
                Ok(None)
            }
            Err(why) => self.give_up(&options.images, why).map(|()| None),
        }
    }
}

/// The encoder's file beside a model's file, or the model's directory.
fn beside(model: &Path) -> Option<PathBuf> {
    if model.is_dir() {
        return Some(model.to_path_buf());
    }
    let folder = model.parent().filter(|_| model.is_file())?;
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let is_encoder = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.contains("mmproj") && name.ends_with(".gguf"))
    };
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_encoder)
        .collect();
    // Of several the one in F16, which every device computes.
    let is_f16 = |path: &PathBuf| {
        let name = path.to_string_lossy().to_lowercase();
        name.contains("f16") && !name.contains("bf16")
    };
    all.sort_by_key(|path| (!is_f16(path), path.clone()));
    all.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_is_found_beside_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let model = at("model.gguf");
        std::fs::write(&model, "").unwrap();
        let origin = model.to_str().unwrap();
        let found = || Images::Beside.find(origin);
        assert!(found().path.is_none());
        assert!(found().missing.is_some_and(|why| why.contains("--mmproj")));
        for name in ["mmproj-model-Q8_0.gguf", "mmproj.txt", "other.gguf"] {
            std::fs::write(at(name), "").unwrap();
        }
        assert_eq!(found().path, Some(at("mmproj-model-Q8_0.gguf")));
        for name in ["mmproj-model-bf16.gguf", "mmproj-model-f16.gguf"] {
            std::fs::write(at(name), "").unwrap();
        }
        assert_eq!(found().path, Some(at("mmproj-model-f16.gguf")));
        assert!(Images::Off.find(origin).path.is_none());
        // A model that is not a file has nothing beside it.
        assert!(Images::Beside.find("synthetic:tiny:q8_0").path.is_none());
    }
}
