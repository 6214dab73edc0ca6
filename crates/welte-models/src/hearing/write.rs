//! Writes an encoder of sound as an `mmproj` file has it: the tables that readers use, read the other way.

use super::{HearingFamily, HearingSpec, gguf, names};
use crate::Error;
use crate::convert::translated::Tensors;
use welte_formats::checkpoint::{Checkpoint, Metadata, Value};

/// What the names of directories begin with.
const PREFIXES: [&str; 2] = ["model.", "thinker."];
/// Names of Qwen3-ASR's authors, and those of transformers.
const AUTHORS: [(&str, &str); 2] = [
    ("audio_tower.proj1.", "multi_modal_projector.linear_1."),
    ("audio_tower.proj2.", "multi_modal_projector.linear_2."),
];

/// The name of a tensor in an `mmproj` file.
fn own_name(name: &str) -> Option<String> {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let name = rest.unwrap_or(name);
    let other = AUTHORS.iter().find_map(|(own, like)| {
        let end = name.strip_prefix(own)?;
        Some(format!("{like}{end}"))
    });
    names::in_gguf(other.as_deref().unwrap_or(name))
}

/// Whether a tensor belongs to an encoder of sound that files have.
pub(crate) fn is_part(name: &str) -> bool {
    own_name(name).is_some()
}

/// The tensors and keys of an encoder. `None`: no `mmproj` file of this family is written. Most have none; in those of LFM2-Audio
/// convolutions have other shapes.
pub(crate) fn write(
    from: &dyn Checkpoint,
    spec: &HearingSpec,
    tensors: &mut Tensors,
    metadata: &mut Metadata,
) -> Option<()> {
    let (projector, stacked) = gguf::projector_of(spec.family).filter(|_| spec.fast.is_none())?;
    for info in from.tensors() {
        let Some(own) = own_name(&info.name) else {
            continue;
        };
        tensors.copy(from, &info.name, &own);
        if own.starts_with("a.conv1d.") && own.ends_with(".bias") {
            // A value for each line of what the convolution makes.
            tensors.dimensions.insert(own, vec![1, info.k]);
        } else if own.starts_with("a.conv2d.") && info.n > 1 {
            let dimensions = vec![3, 3, info.k / 9, info.n];
            tensors.dimensions.insert(own, dimensions);
        }
    }
    metadata.insert("clip.has_audio_encoder".into(), Value::Bool(true));
    let name = Value::String(projector.into());
    metadata.insert("clip.audio.projector_type".into(), name);
    let mut set = |key: &str, value: Value| metadata.insert(format!("clip.audio.{key}"), value);
    let number = |value: u32| Value::U64(value.into());
    set("embedding_length", number(spec.dim));
    set("feed_forward_length", number(spec.layers.ffn));
    set("block_count", number(spec.layers.count));
    set("attention.head_count", number(spec.layers.heads));
    set("attention.layer_norm_epsilon", Value::F64(1e-5));
    set("num_mel_bins", number(spec.mels));
    set("projection_dim", number(spec.width));
    if stacked {
        set("projector.stack_factor", number(spec.group));
    }
    Some(())
}

/// The spec that is read back: files say nothing of Whisper's windows where an encoder has others.
pub(crate) fn expected(spec: &HearingSpec, read_back: &HearingSpec) -> HearingSpec {
    let mut expected = spec.clone();
    if spec.pieces.is_some() {
        (expected.window, expected.places) = (read_back.window, read_back.places);
    }
    expected
}

/// An error that names a family that cannot be written.
pub(crate) fn refused(origin: &str, spec: &HearingSpec) -> Error {
    let names = HearingFamily::ALL.into_iter();
    let title = names.filter(|(family, _)| *family == spec.family);
    let title = title.map(|(_, title)| title).next().unwrap_or_default();
    Error::Key {
        origin: origin.into(),
        key: "audio_config".into(),
        problem: format!("{title}: its encoder of sounds cannot be written as an `mmproj` file"),
    }
}
