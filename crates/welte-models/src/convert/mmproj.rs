//! The encoders of images and sounds of a Hugging Face directory as an `mmproj` file. What is written is read again, and a spec that
//! differs from the original's is an error.

use super::translated::{Tensors, Translated};
use super::{differing, names};
use crate::hearing::write as ears;
use crate::vision::write as eyes;
use crate::{
    Error, HearingSpec, VisionSpec, hearing_spec, unknown_hearing, unknown_vision, vision_spec,
};
use std::fmt::Debug;
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, Value};

/// Reads the encoders of a Hugging Face directory as an `mmproj` file. `extra` has the keys of how pictures are prepared. An encoder beside
/// the one that is written may be of a family that such files do not have; the second value says which is left out. `line_end` is the token
/// after each line of a picture, for families whose files have its embedding (Pixtral, Mistral 3).
pub fn as_mmproj(
    from: Box<dyn Checkpoint>,
    extra: Metadata,
    line_end: Option<u32>,
) -> Result<(Translated, Option<String>), Error> {
    let origin = from.origin().to_string();
    if from.dialect() != Dialect::HuggingFace {
        return Err(none(
            &origin,
            "is a file; encoders are taken out of directories",
        ));
    }
    let (vision, hearing) = (vision_spec(&*from)?, hearing_spec(&*from)?);
    let mut tensors = Tensors::default();
    let mut metadata = Metadata::new();
    let mut left_out: Vec<Error> = Vec::new();
    if let Some(spec) = &vision
        && eyes::write(&*from, spec, line_end, &mut tensors, &mut metadata).is_none()
    {
        left_out.push(eyes::refused(&origin, spec));
    }
    if let Some(spec) = &hearing
        && ears::write(&*from, spec, &mut tensors, &mut metadata).is_none()
    {
        left_out.push(ears::refused(&origin, spec));
    }
    let unknown = [
        (
            "vision_config",
            "images",
            unknown_vision(&*from).filter(|_| vision.is_none()),
        ),
        (
            "audio_config",
            "sounds",
            unknown_hearing(&*from).filter(|_| hearing.is_none()),
        ),
    ];
    for (key, what, name) in unknown {
        left_out.extend(name.map(|name| Error::Key {
            origin: origin.clone(),
            key: key.into(),
            problem: format!("its encoder of {what} ({name}) is not supported"),
        }));
    }
    if tensors.infos.is_empty() {
        let problem = "has no encoder of images or sounds";
        return Err(left_out
            .into_iter()
            .next()
            .unwrap_or(none(&origin, problem)));
    }
    refuse_others(&*from, vision.as_ref(), hearing.as_ref(), &tensors)?;
    one_projector(&mut metadata);
    let set = |key: &str, value: &str| (key.to_string(), Value::String(value.into()));
    metadata.extend([
        set("general.architecture", "clip"),
        set("general.type", "mmproj"),
    ]);
    metadata.extend(extra);
    metadata.values_mut().for_each(sign);
    let file = Translated::new(from, Dialect::Gguf, metadata, tensors);
    if let Some(spec) = vision.filter(|_| says(&file, "clip.has_vision_encoder")) {
        let read_back = vision_spec(&file)?;
        let expected = read_back
            .as_ref()
            .map(|read_back| eyes::expected(&spec, read_back));
        same(&origin, "vision_config", expected, read_back)?;
    }
    if let Some(spec) = hearing.filter(|_| says(&file, "clip.has_audio_encoder")) {
        let read_back = hearing_spec(&file)?;
        let expected = read_back
            .as_ref()
            .map(|read_back| ears::expected(&spec, read_back));
        same(&origin, "audio_config", expected, read_back)?;
    }
    let left_out = left_out.into_iter().next().map(|error| error.to_string());
    Ok((file, left_out))
}

/// Readers want signed integers in lists.
fn sign(value: &mut Value) {
    let Value::Array(values) = value else {
        return;
    };
    for one in values {
        if let Value::U64(number) = *one
            && let Ok(number) = i64::try_from(number)
        {
            *one = Value::I64(number);
        }
    }
}

fn none(origin: &str, problem: &str) -> Error {
    Error::Key {
        origin: origin.into(),
        key: "config.json".into(),
        problem: problem.into(),
    }
}

fn says(file: &Translated, key: &str) -> bool {
    file.metadata.get(key) == Some(&Value::Bool(true))
}

/// A file of one encoder says its projector for the whole file, as readers of older files expect.
fn one_projector(metadata: &mut Metadata) {
    let keys = ["clip.vision.projector_type", "clip.audio.projector_type"];
    if keys.iter().all(|key| metadata.contains_key(*key)) {
        return;
    }
    for key in keys {
        if let Some(name) = metadata.remove(key) {
            metadata.insert("clip.projector_type".into(), name);
        }
    }
}

fn same<S: Debug + PartialEq>(
    origin: &str,
    key: &str,
    expected: Option<S>,
    read_back: Option<S>,
) -> Result<(), Error> {
    if expected == read_back && expected.is_some() {
        return Ok(());
    }
    let (ours, theirs) = differing(&expected, &read_back);
    Err(Error::Key {
        origin: origin.into(),
        key: key.into(),
        problem: format!("cannot be written as GGUF: '{ours}' would be read as '{theirs}'"),
    })
}

/// A tensor of an encoder without a name in files is part of it, unless nothing reads it.
fn refuse_others(
    from: &dyn Checkpoint,
    vision: Option<&VisionSpec>,
    hearing: Option<&HearingSpec>,
    written: &Tensors,
) -> Result<(), Error> {
    let written_ears =
        hearing.is_some() && written.infos.iter().any(|info| info.name.starts_with("a."));
    let written_eyes =
        vision.filter(|_| written.infos.iter().any(|info| info.name.starts_with("v.")));
    let is_missing = |name: &str| {
        let sounds = name.contains("audio") || ears::is_part(name);
        match written_eyes {
            _ if sounds => written_ears,
            Some(spec) => names::is_of_other_modality(name) && !eyes::is_unread(name, spec),
            None => false,
        }
    };
    let mut all = from.tensors().iter().map(|info| &info.name);
    match all.find(|name| !written.used.contains(*name) && is_missing(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Tensor {
            origin: from.origin().into(),
            name: name.clone(),
            problem:
                "cannot be written: its encoder has a tensor without a known name in `mmproj` files"
                    .into(),
        }),
    }
}
