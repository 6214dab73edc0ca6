//! Reads what an `mmproj` file's encoder of sound is.

use super::{HearingFamily, HearingSpec, MOST_CHANNELS, MOST_GROUP, Pieces, WINDOWS};
use crate::Error;
use crate::keys::Keys;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use crate::speech::{MOST_DIM, MOST_MELS, MOST_POSITIONS, SpeechLayers};

/// A family in `mmproj` files.
struct Row {
    /// What `clip.audio.projector_type` or `clip.projector_type` says.
    projector: &'static str,
    family: HearingFamily,
    /// States that become a feature; `None`: a key says that.
    group: Option<u32>,
    /// The projector's last matrix, which has the width of a feature.
    last: &'static str,
}

const ROWS: [Row; 7] = [
    Row {
        projector: "qwen2a",
        family: HearingFamily::Qwen2Audio,
        group: Some(2),
        last: "mm.a.fc.weight",
    },
    Row {
        projector: "voxtral",
        family: HearingFamily::Voxtral,
        group: None,
        last: "mm.a.mlp.2.weight",
    },
    Row {
        projector: "qwen3a",
        family: HearingFamily::Qwen3Asr,
        group: Some(1),
        last: "mm.a.mlp.2.weight",
    },
    Row {
        projector: "qwen2.5o",
        family: HearingFamily::Qwen2_5Omni,
        group: Some(2),
        last: "mm.a.fc.weight",
    },
    // Audio Flamingo 3 alone. llama.cpp's converter knows no Music Flamingo, which turns states by their times.
    Row {
        projector: "musicflamingo",
        family: HearingFamily::AudioFlamingo3,
        group: Some(2),
        last: "mm.a.mlp.2.weight",
    },
    Row {
        projector: "ultravox",
        family: HearingFamily::Ultravox,
        group: None,
        last: "mm.a.mlp.2.weight",
    },
    Row {
        projector: "lfm2a",
        family: HearingFamily::Lfm2Audio,
        group: Some(1),
        last: "mm.a.mlp.3.weight",
    },
];

/// States of a window of Qwen2.5-Omni. Files do not say it.
const OMNI_WINDOW: u32 = 100;
/// Frames of a piece of Qwen3-ASR, and pieces whose states see each other. Files do not say it.
const ASR_PIECE: u32 = 100;
const ASR_TOGETHER: u32 = 8;
/// Of Whisper's norms.
const EPS: f64 = 1e-5;

/// What files call the projector of a family, and whether they say how many states become a feature.
pub(super) fn projector_of(family: HearingFamily) -> Option<(&'static str, bool)> {
    let row = ROWS.iter().find(|row| row.family == family)?;
    Some((row.projector, row.group.is_none()))
}

/// Whether the file has an encoder of sound.
pub(super) fn is_there(keys: &Keys<'_>) -> bool {
    let says = |key: &str| keys.bool(key).ok().flatten() == Some(true);
    let mut names = keys.checkpoint.metadata().keys();
    keys.text("general.architecture").ok().flatten() == Some("clip")
        && (says("clip.has_audio_encoder") || names.any(|key| key.starts_with("clip.audio.")))
}

/// What the file says of the encoder's projector.
pub(super) fn projector<'a>(keys: &Keys<'a>) -> Option<&'a str> {
    // A file of eyes and ears says it for each of them.
    let names = ["clip.audio.projector_type", "clip.projector_type"];
    names
        .into_iter()
        .find_map(|key| keys.text(key).ok().flatten())
}

/// The encoder of a file; `None` if it has none, or one of an unknown family.
pub(super) fn read(keys: &Keys<'_>) -> Result<Option<HearingSpec>, Error> {
    let said = projector(keys).filter(|_| is_there(keys));
    let Some(row) = ROWS.iter().find(|row| Some(row.projector) == said) else {
        return Ok(None);
    };
    let family = row.family;
    let size = |key: &str, most: u32| keys.size(&format!("clip.audio.{key}"), None, most);
    let dim = size("embedding_length", MOST_DIM)?;
    let layers = SpeechLayers {
        count: size("block_count", MOST_LAYERS)?,
        heads: size("attention.head_count", MOST_HEADS)?,
        ffn: size("feed_forward_length", MOST_FFN)?,
    };
    if !dim.is_multiple_of(layers.heads) {
        let problem = format!("{} heads of {dim} values", layers.heads);
        return Err(keys.error("clip.audio.attention.head_count", problem));
    }
    let eps = "clip.audio.attention.layer_norm_epsilon";
    let said_eps = keys.positive(eps, Some(EPS))?;
    if (said_eps / EPS - 1.0).abs() > 1e-3 {
        return Err(keys.error(eps, format!("is {said_eps}; supported is {EPS}")));
    }
    let group = match row.group {
        Some(group) => group,
        None => size("projector.stack_factor", MOST_GROUP)?,
    };
    let rows_of = |name: &str| {
        let info = keys.checkpoint.tensor(name);
        let info = info.ok_or_else(|| keys.error(name, "is missing"))?;
        let rows = u32::try_from(info.n).ok();
        let rows = rows.filter(|rows| (1..=MOST_DIM).contains(rows));
        rows.ok_or_else(|| keys.error(name, format!("has {} rows", info.n)))
    };
    let width = rows_of(row.last)?;
    let hidden = match family {
        HearingFamily::Ultravox => rows_of("mm.a.mlp.1.weight")?,
        _ => 0,
    };
    let mels = size("num_mel_bins", MOST_MELS)?;
    if family == HearingFamily::Lfm2Audio {
        return super::fast_conformer::read_gguf(keys, [mels, dim, width], layers).map(Some);
    }
    let spec = HearingSpec {
        family,
        mels,
        dim,
        layers,
        positions: 0,
        window: 0,
        places: 0,
        group,
        width,
        hidden,
        rotation: None,
        pieces: None,
        conformer: None,
        granite: None,
        fast: None,
    };
    if family == HearingFamily::Qwen3Asr {
        let channels = rows_of("a.conv2d.1.weight")?;
        if channels > MOST_CHANNELS || dim < 4 || !dim.is_multiple_of(2) {
            let problem = format!("{channels} channels for states of {dim} values");
            return Err(keys.error("a.conv2d.1.weight", problem));
        }
        let pieces = Pieces {
            frames: ASR_PIECE,
            channels,
            together: ASR_TOGETHER,
        };
        return Ok(Some(HearingSpec {
            positions: WINDOWS * pieces.window(),
            pieces: Some(pieces),
            ..spec
        }));
    }
    let table = "a.position_embd.weight";
    let places = rows_of(table)?;
    let window = match family {
        HearingFamily::Qwen2_5Omni => OMNI_WINDOW,
        _ => places,
    };
    let whole = family == HearingFamily::Ultravox || window.is_multiple_of(group);
    if places > MOST_POSITIONS || places < window || !whole {
        let problem = format!("has {places} places for {window} states, {group} to a feature");
        return Err(keys.error(table, problem));
    }
    Ok(Some(HearingSpec {
        positions: window.next_multiple_of(group),
        window,
        places,
        ..spec
    }))
}
