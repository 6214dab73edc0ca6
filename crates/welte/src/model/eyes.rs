//! A model's eyes and ears at load: where their encoders are found, and what the model lacks if there is none.

use crate::pictures::{MediaEncoder, Sense};
use crate::vision::{Vision, VisionOptions};
use crate::{DeviceChoice, Error, Hearing, Images, LoadOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use welte_device::{Device, DeviceId};
use welte_formats::checkpoint::Checkpoint;
use welte_models::ModelSpec;
use welte_table::{Program, human};
use welte_text::Tokenizer;

/// Rows of images that the device has room for, unless the options say otherwise.
const ROOM: u32 = 2560;

/// What a load knows about a model's eyes and ears.
#[derive(Default)]
pub(super) struct Found {
    /// The file, or the model's own directory.
    path: Option<PathBuf>,
    /// Why the model takes no images.
    pub(super) missing: Option<String>,
    /// The file or the model's own directory that has an encoder of sounds.
    ears: Option<PathBuf>,
    /// Why the model takes no sounds.
    pub(super) deaf: Option<String>,
    /// The token at which an answer in text ends, because the model would go on in sound.
    pub(super) speech: Option<u32>,
}

impl Images {
    /// Where the encoder of a model is.
    pub(super) fn find(&self, origin: &str) -> Found {
        let mut found = Found::default();
        found.path = match self {
            Images::Off => {
                found.missing = Some("images are switched off".into());
                found.deaf = Some("sounds are switched off".into());
                return found;
            }
            Images::File(path) => Some(path.clone()),
            Images::Beside => beside(Path::new(origin)),
        };
        if found.path.is_none() {
            let why = "no file mmproj*.gguf lies beside the model; see --mmproj";
            found.missing = Some(why.into());
            found.deaf = Some(why.into());
        }
        found
    }
}

impl Found {
    fn blind(&mut self, why: impl Into<String>) {
        self.path = None;
        self.missing = Some(why.into());
    }

    fn deafen(&mut self, why: impl Into<String>) {
        self.ears = None;
        self.deaf = Some(why.into());
    }

    /// A directory or a file may have only one of both encoders, and a directory none.
    pub(super) fn read(&mut self, images: &Images, checkpoint: &dyn Checkpoint) {
        if *images == Images::Off {
            return;
        }
        let own = Path::new(checkpoint.origin());
        if own.is_dir() {
            self.read_ears(own, checkpoint);
            if self.path.as_deref() == Some(own)
                && *images == Images::Beside
                && matches!(welte_models::vision_spec(checkpoint), Ok(None))
            {
                self.blind(crate::vision::unknown(checkpoint));
            }
        }
        let Some(path) = self.path.clone().filter(|path| path != own) else {
            return;
        };
        // What is wrong with the file is said when its eyes are opened.
        let file = match welte_formats::open(&path) {
            Ok(file) => file,
            Err(why) => return self.deafen(why.to_string()),
        };
        let of_directory = self.ears.clone();
        self.read_ears(&path, &*file);
        if self.ears.is_none() && of_directory.is_some() {
            (self.ears, self.deaf) = (of_directory, None);
        }
        // A file of ears alone.
        if welte_models::unknown_vision(&*file).is_none()
            && welte_models::unknown_hearing(&*file).is_some()
        {
            self.blind(crate::vision::unknown(&*file));
        }
    }

    fn read_ears(&mut self, path: &Path, checkpoint: &dyn Checkpoint) {
        match welte_models::hearing_spec(checkpoint) {
            Ok(None) => self.deafen(crate::hearing::unknown(checkpoint)),
            // What is wrong with it is said when it is opened.
            _ => (self.ears, self.deaf) = (Some(path.to_path_buf()), None),
        }
    }

    /// Load options with room for images and sounds, if there are eyes or ears, and with the adapter of a directory that is for sounds.
    pub(super) fn with_room(&self, origin: &str, options: &LoadOptions) -> LoadOptions {
        let mut options = options.clone();
        if (self.path.is_some() || self.ears.is_some()) && options.features == 0 {
            options.features = ROOM;
        }
        if self.ears.as_deref() == Some(Path::new(origin)) {
            options.adapters.extend(crate::hearing::own_adapter(origin));
        }
        options
    }

    /// What an inspection says of it; nothing if images are off.
    pub(super) fn in_words(
        &self,
        program: &Program,
        options: &LoadOptions,
        encoder: u64,
    ) -> Vec<(String, String)> {
        if options.images == Images::Off {
            return Vec::new();
        }
        let none = |why: &Option<String>| why.as_ref().map(|why| format!("none: {why}"));
        let images = match &self.path {
            None => none(&self.missing),
            Some(path) => {
                let path = path.display();
                Some(of_encoder(&format!("encoder {path}"), program, encoder))
            }
        };
        let hears = |path: &PathBuf| {
            let name = if path.is_dir() {
                "encoder in the directory".to_string()
            } else {
                format!("encoder {}", path.display())
            };
            of_encoder(&name, program, encoder)
        };
        let sounds = self.ears.as_ref().map(hears);
        let both = [("images", images), ("sounds", sounds)];
        let facts = both
            .into_iter()
            .filter_map(|(what, text)| Some((what.to_string(), text?)));
        facts.collect()
    }

    /// Bytes that the encoders take on the model's device, if they run there.
    pub(super) fn bytes(
        &self,
        origin: &str,
        options: &LoadOptions,
        spec: &ModelSpec,
        device: &dyn Device,
    ) -> u64 {
        let eyes = self.path.as_deref().and_then(|path| {
            let options = of_media(options, spec, device.info().id);
            Vision::bytes(origin, beside_directory(path, origin), &options, device)
        });
        let ears = self.ears.as_deref();
        let ears = ears.and_then(|path| Hearing::bytes(path, device));
        eyes.unwrap_or(0) + ears.unwrap_or(0)
    }

    /// Gives up: the device takes neither images nor sounds. Only a file that was asked for is an error.
    pub(super) fn give_up(&mut self, images: &Images, why: Error) -> Result<(), Error> {
        if *images != Images::Beside || !(self.path.is_some() || self.ears.is_some()) {
            return Err(why);
        }
        if self.path.is_some() {
            self.blind(why.to_string());
        }
        if self.ears.is_some() {
            self.deafen(why.to_string());
        }
        Ok(())
    }

    /// Opens the encoder of images for a model with this vocabulary and program, which runs on `near`.
    pub(super) fn open_eyes(
        &mut self,
        origin: &str,
        options: &LoadOptions,
        tokenizer: Option<&Arc<Tokenizer>>,
        model: Place<'_>,
    ) -> Result<Option<Sense>, Error> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let file = beside_directory(path, origin);
        let name = path.to_string_lossy();
        let opened = Vision::open(origin, file, &of_media(options, model.2, model.0));
        let sense = |vision: Vision| {
            if vision.is_apart() {
                if file.is_some()
                    || model.2.encoder.is_none()
                    || vision.width() != model.2.dim as usize
                {
                    return Err(Error::Sense {
                        origin: name.to_string(),
                        problem: "its vectors of images belong beside those of its own text model; load its directory as the model".into(),
                    });
                }
                let origin = origin.to_string();
                let tokenizer = tokenizer.ok_or(Error::NoTokenizer { origin })?.clone();
                return Ok(Sense::apart(Box::new(vision), tokenizer));
            }
            sense(Box::new(vision), &name, origin, tokenizer, model.1)
        };
        match opened.and_then(|vision| vision.map(sense).transpose()) {
            Ok(Some(eyes)) => Ok(Some(eyes)),
            Ok(None) => {
                self.blind("it has no encoder of images that is supported");
                Ok(None)
            }
            Err(why) if options.images == Images::Beside => {
                self.blind(why.to_string());
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// The same for sounds.
    pub(super) fn open_ears(
        &mut self,
        origin: &str,
        options: &LoadOptions,
        tokenizer: Option<&Arc<Tokenizer>>,
        model: Place<'_>,
    ) -> Result<Option<Sense>, Error> {
        let Some(path) = &self.ears else {
            return match (&options.images, &self.path, &self.deaf) {
                // What was asked for has neither eyes nor ears.
                (Images::File(path), None, Some(problem)) => Err(Error::File {
                    path: path.display().to_string(),
                    problem: problem.clone(),
                }),
                _ => Ok(None),
            };
        };
        let name = path.to_string_lossy().to_string();
        // A file that was asked for must fit.
        let is_asked = matches!(&options.images, Images::File(asked) if asked == path);
        let opened = Hearing::open(&name, &of_media(options, model.2, model.0));
        let heard = opened.as_ref().ok().and_then(Option::as_ref);
        let token = heard.and_then(Hearing::begins_speech);
        self.speech = tokenizer
            .zip(token)
            .and_then(|(all, token)| all.id_of(token));
        let sense = |hearing: Hearing| {
            let hearing = hearing
                .within(model.1.context as usize)
                .with_experts(model.2.experts.is_some());
            sense(Box::new(hearing), &name, origin, tokenizer, model.1)
        };
        match opened.and_then(|hearing| hearing.map(sense).transpose()) {
            Ok(Some(ears)) => Ok(Some(ears)),
            Ok(None) => {
                self.deafen("it has no encoder of sounds that is supported");
                Ok(None)
            }
            Err(why) if is_asked => Err(why),
            Err(why) => {
                self.deafen(why.to_string());
                Ok(None)
            }
        }
    }
}

/// A model's device, its program, and what it is.
type Place<'a> = (DeviceId, &'a Program, &'a ModelSpec);

fn sense(
    encoder: Box<dyn MediaEncoder>,
    name: &str,
    origin: &str,
    tokenizer: Option<&Arc<Tokenizer>>,
    program: &Program,
) -> Result<Sense, Error> {
    let origin = origin.to_string();
    let tokenizer = tokenizer.ok_or(Error::NoTokenizer { origin })?.clone();
    Sense::new(encoder, tokenizer, program.feature_width() as usize, name)
}

/// What an inspection says of an encoder that takes so many bytes.
fn of_encoder(name: &str, program: &Program, bytes: u64) -> String {
    let besides = match bytes {
        0 => String::new(),
        bytes => format!(" ({} besides the plan)", human(bytes)),
    };
    let (rows, width) = (program.feature_count(), program.feature_width());
    let room = match rows {
        // Images have vectors of their own.
        0 => String::new(),
        rows => format!(
            "; room for {rows} rows ({})",
            human(4 * u64::from(rows) * width)
        ),
    };
    format!("{name}{besides}{room}")
}

/// The encoder's file, unless it is the model's own directory.
fn beside_directory<'a>(path: &'a Path, origin: &str) -> Option<&'a Path> {
    (Path::new(origin) != path).then_some(path)
}

/// How to open the encoders of a model that runs on `near`.
fn of_media(options: &LoadOptions, spec: &ModelSpec, near: DeviceId) -> VisionOptions {
    VisionOptions {
        device: match options.device {
            DeviceChoice::Named(id) if matches!(id.kind, "cpu" | "reference") => options.device,
            _ => DeviceChoice::Auto,
        },
        near: Some(near).filter(|id| !matches!(id.kind, "cpu" | "reference")),
        scale: spec.feature_scale(),
        both_ways: spec.reaches_within_windows(),
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
    let window = windows.min().filter(|_| spec.reaches_within_windows());
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

/// Whether a model takes images and sounds, by the encoders in its directory or in an `mmproj` file.
pub(crate) fn media_of(checkpoint: &dyn Checkpoint, images: &Images) -> [bool; 2] {
    let mut found = images.find(checkpoint.origin());
    found.read(images, checkpoint);
    let opened = |path: Option<PathBuf>| welte_formats::open(&path?).ok();
    let sees = opened(found.path);
    let hears = opened(found.ears);
    [
        sees.is_some_and(|file| matches!(welte_models::vision_spec(&*file), Ok(Some(_)))),
        hears.is_some_and(|file| matches!(welte_models::hearing_spec(&*file), Ok(Some(_)))),
    ]
}

/// Whether a model has an encoder of sounds that is supported, in its directory or in an `mmproj` file. One whose description is wrong is
/// an error; what is wrong with the model itself is said by those who open it.
pub fn hears(source: &str, images: &Images) -> Result<bool, Error> {
    let path = Path::new(source);
    // Models of speech may lie beside others.
    let is_model = path.is_dir() || path.extension().is_some_and(|end| end == "gguf");
    let file = match images {
        _ if !is_model => return Ok(false),
        Images::Off => None,
        Images::Beside => beside(path),
        Images::File(file) => Some(file.clone()),
    };
    let own = path.is_dir().then(|| path.to_path_buf());
    for path in file.into_iter().chain(own) {
        if let Ok(checkpoint) = welte_formats::open(&path)
            && welte_models::hearing_spec(&*checkpoint)?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
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
