//! A model's eyes at load: where the encoder of images is found, and what the model lacks if there is none.

use crate::pictures::Eyes;
use crate::vision::{Vision, VisionOptions};
use crate::{DeviceChoice, Error, Images, LoadOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use welte_device::{Device, DeviceId};
use welte_formats::checkpoint::Checkpoint;
use welte_models::ModelSpec;
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
            *self = Found::without(crate::vision::unknown(checkpoint));
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
    pub(super) fn in_words(
        &self,
        program: &Program,
        options: &LoadOptions,
        encoder: u64,
    ) -> Option<String> {
        if options.images == Images::Off {
            return None;
        }
        let Some(path) = &self.path else {
            return self.missing.as_ref().map(|why| format!("none: {why}"));
        };
        let (rows, width) = (program.feature_count(), program.feature_width());
        let bytes = 4 * u64::from(rows) * width;
        let path = path.display();
        let room = match rows {
            // Images have vectors of their own.
            0 => String::new(),
            rows => format!("; room for {rows} rows ({})", human(bytes)),
        };
        let besides = match encoder {
            0 => String::new(),
            bytes => format!(" ({} besides the plan)", human(bytes)),
        };
        Some(format!("encoder {path}{besides}{room}"))
    }

    /// Bytes that the encoder takes on the model's device, if it runs there.
    pub(super) fn bytes(
        &self,
        origin: &str,
        options: &LoadOptions,
        spec: &ModelSpec,
        device: &dyn Device,
    ) -> u64 {
        let bytes = self.path.as_deref().and_then(|path| {
            let options = of_vision(options, spec, device.info().id);
            Vision::bytes(origin, beside_directory(path, origin), &options, device)
        });
        bytes.unwrap_or(0)
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

    /// Opens the encoder for a model with this vocabulary and program, which runs on `near`.
    pub(super) fn open(
        &mut self,
        origin: &str,
        options: &LoadOptions,
        tokenizer: Option<&Arc<Tokenizer>>,
        (near, program, spec): (DeviceId, &Program, &ModelSpec),
    ) -> Result<Option<Eyes>, Error> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let width = program.feature_width() as usize;
        let eyes = |vision: Vision| {
            let origin = origin.to_string();
            let tokenizer = tokenizer.ok_or(Error::NoTokenizer { origin })?.clone();
            if vision.is_apart() {
                return Ok(Eyes::apart(Box::new(vision), tokenizer));
            }
            Eyes::new(
                Box::new(vision),
                tokenizer,
                width,
                path.to_string_lossy().as_ref(),
            )
        };
        let file = beside_directory(path, origin);
        let opened = Vision::open(origin, file, &of_vision(options, spec, near));
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

/// The encoder's file, unless it is the model's own directory.
fn beside_directory<'a>(path: &'a Path, origin: &str) -> Option<&'a Path> {
    (Path::new(origin) != path).then_some(path)
}

/// How to open the encoder of a model that runs on `near`.
fn of_vision(options: &LoadOptions, spec: &ModelSpec, near: DeviceId) -> VisionOptions {
    VisionOptions {
        device: match options.device {
            DeviceChoice::Named(id) if matches!(id.kind, "cpu" | "reference") => options.device,
            _ => DeviceChoice::Auto,
        },
        near: Some(near).filter(|id| !matches!(id.kind, "cpu" | "reference")),
        scale: spec.feature_scale(),
        both_ways: spec.reach_within_windows,
        threads: options.threads,
        cpus: options.cpus.clone(),
        most_features: most_features(options, spec),
        ..VisionOptions::default()
    }
}

/// The most features of a picture. Those that attend to each other fit the smallest window.
fn most_features(options: &LoadOptions, spec: &ModelSpec) -> u32 {
    let most = options.features.min(VisionOptions::default().most_features);
    let windows = spec.windows.iter().copied().filter(|window| *window > 0);
    let window = windows.min().filter(|_| spec.reach_within_windows);
    window.map_or(most, |window| most.min(window))
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
    // A repository of the hub has its encoder beside the folders of its files.
    let is_snapshot = |folder: &&Path| {
        let above = folder.parent().and_then(Path::file_name);
        above.is_some_and(|name| name == "snapshots")
    };
    let above = folder.ancestors().skip(1).find(is_snapshot);
    [Some(folder), above]
        .into_iter()
        .flatten()
        .find_map(encoder)
}

/// The encoder's file in a folder. Of several the one in F16, which every device computes, or the next best.
fn encoder(folder: &Path) -> Option<PathBuf> {
    let rank = |name: &str| {
        let name = name.to_lowercase();
        ["bf16", "f16", "q8_0"]
            .iter()
            .position(|format| name.contains(format))
            .map_or(3, |at| [1, 0, 2][at])
    };
    let names = std::fs::read_dir(folder).ok()?;
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let encoders = names.filter(|name| name.contains("mmproj") && name.ends_with(".gguf"));
    let best = encoders.min_by_key(|name| (rank(name), name.clone()))?;
    Some(folder.join(best))
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
        // A file of a hub's repository may lie in a folder of its own.
        let inner = at("snapshots/0a/Q8_0");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(at("snapshots/0a/mmproj-Q8_0.gguf"), "").unwrap();
        std::fs::write(inner.join("model.gguf"), "").unwrap();
        let found = Images::Beside.find(inner.join("model.gguf").to_str().unwrap());
        assert_eq!(found.path, Some(at("snapshots/0a/mmproj-Q8_0.gguf")));
        // A model that is not a file has nothing beside it.
        assert!(Images::Beside.find("synthetic:tiny:q8_0").path.is_none());
    }
}
