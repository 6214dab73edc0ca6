//! Reads what a checkpoint's encoder of sound is.

use super::gguf;
use super::{HearingFamily, HearingSpec, MOST_CHANNELS, MOST_GROUP, Pieces, WINDOWS};
use crate::Error;
use crate::keys::Keys;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use crate::speech::{MOST_DIM, MOST_MELS, MOST_POSITIONS, SpeechLayers};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Dialect;

const MOST_FRAMES: u32 = 1 << 12;

/// The encoder of sound of a Hugging Face directory, or of an `mmproj` file; `None` if it has none, or one of an unknown family.
pub fn hearing_spec(checkpoint: &dyn Checkpoint) -> Result<Option<HearingSpec>, Error> {
    let keys = Keys::new(checkpoint, "");
    match checkpoint.dialect() {
        Dialect::Gguf => gguf::read(&keys),
        Dialect::HuggingFace => hugging_face(&keys),
    }
}

fn hugging_face(keys: &Keys<'_>) -> Result<Option<HearingSpec>, Error> {
    let said = keys.text("general.architecture").ok().flatten();
    let family = match said {
        Some("qwen2_audio") => HearingFamily::Qwen2Audio,
        Some("voxtral") => HearingFamily::Voxtral,
        Some("qwen3_asr") => HearingFamily::Qwen3Asr,
        Some("audioflamingo3") => HearingFamily::AudioFlamingo3,
        Some("gemma3n") => HearingFamily::Gemma3n,
        Some("gemma4") => HearingFamily::Gemma4,
        Some("granite_speech") => HearingFamily::GraniteSpeech,
        _ => return Ok(None),
    };
    if matches!(family, HearingFamily::Gemma3n | HearingFamily::Gemma4) {
        return super::conformer::read(keys, family);
    }
    if family == HearingFamily::GraniteSpeech {
        return super::granite::read(keys).map(Some);
    }
    // Some sizes have two names.
    let size = |names: &[&str], default: u32, most: u32| {
        let names = names.iter().map(|name| format!("audio_config.{name}"));
        let names: Vec<String> = names.collect();
        let known = names.iter().find(|name| keys.value(name).is_some());
        keys.size(known.unwrap_or(&names[0]), Some(default), most)
    };
    let large = family == HearingFamily::Qwen3Asr;
    let dim = size(
        &["d_model", "hidden_size"],
        if large { 1024 } else { 1280 },
        MOST_DIM,
    )?;
    let ffn = ["encoder_ffn_dim", "intermediate_size"];
    let heads = ["encoder_attention_heads", "num_attention_heads"];
    let layers = SpeechLayers {
        count: size(
            &["encoder_layers", "num_hidden_layers"],
            if large { 24 } else { 32 },
            MOST_LAYERS,
        )?,
        heads: size(&heads, if large { 16 } else { 20 }, MOST_HEADS)?,
        ffn: size(&ffn, if large { 4096 } else { 5120 }, MOST_FFN)?,
    };
    if !dim.is_multiple_of(layers.heads) {
        let problem = format!("{} heads of {dim} values", layers.heads);
        return Err(keys.error("audio_config", problem));
    }
    let mels = size(&["num_mel_bins"], 128, MOST_MELS)?;
    let positions = size(&["max_source_positions"], 1500, MOST_POSITIONS)?;
    let pieces = match family {
        HearingFamily::Qwen3Asr => {
            let frames = 2 * size(&["n_window"], 50, MOST_FRAMES / 2)?;
            let together = size(&["n_window_infer"], 800, MOST_FRAMES)?;
            if !together.is_multiple_of(frames) {
                let problem = format!("is {together}; must be a multiple of {frames}");
                return Err(keys.error("audio_config.n_window_infer", problem));
            }
            let pieces = Pieces {
                frames,
                channels: size(&["downsample_hidden_size"], 480, MOST_CHANNELS)?,
                together: together / frames,
            };
            let places = size(&["max_position_embeddings"], 13, MOST_FRAMES)?;
            if pieces.each() > places || dim < 4 || !dim.is_multiple_of(2) {
                let problem = format!(
                    "{places} places for {} states of {dim} values",
                    pieces.each()
                );
                return Err(keys.error("audio_config", problem));
            }
            Some(pieces)
        }
        _ => None,
    };
    // Qwen2-Audio may leave out the default of Qwen2.
    let default = (family == HearingFamily::Qwen2Audio).then_some(4096);
    let own = keys.size("hidden_size", default, MOST_DIM)?;
    let (group, width, activation) = match family {
        HearingFamily::Qwen2Audio => (2, own, "audio_config.activation_function"),
        HearingFamily::Voxtral => (layers.ffn / dim, own, "projector_hidden_act"),
        HearingFamily::Qwen3Asr => {
            let width = size(&["output_dim"], 3584, MOST_DIM)?;
            (1, width, "audio_config.activation_function")
        }
        _ => (2, own, "projector_hidden_act"),
    };
    let whole = family != HearingFamily::Voxtral || layers.ffn == group * dim;
    if !whole || !(1..=MOST_GROUP).contains(&group) || !positions.is_multiple_of(group) {
        let problem = format!(
            "{positions} states of {dim} values, joined to {}",
            layers.ffn
        );
        return Err(keys.error("audio_config", problem));
    }
    for key in [activation, "audio_config.activation_function"] {
        match keys.text(key)? {
            None | Some("gelu") => {}
            Some(other) => return Err(keys.error(key, format!("is '{other}'; supported is gelu"))),
        }
    }
    Ok(Some(HearingSpec {
        family,
        mels,
        dim,
        layers,
        positions: pieces.map_or(positions, |pieces| WINDOWS * pieces.window()),
        window: positions,
        places: positions,
        group,
        width,
        hidden: 0,
        pieces,
        conformer: None,
        granite: None,
    }))
}

/// The name of an encoder of sound of a family that is not supported; `None` if there is no encoder.
pub fn unknown_hearing(checkpoint: &dyn Checkpoint) -> Option<String> {
    let keys = Keys::new(checkpoint, "");
    let metadata = checkpoint.metadata();
    let mut parts = metadata.keys().map(|key| key.as_str());
    let has = match checkpoint.dialect() {
        Dialect::HuggingFace => parts.any(|key| key.contains("audio_config.")),
        Dialect::Gguf => gguf::is_there(&keys),
    };
    let text = |key: &str| keys.text(key).ok().flatten();
    let name = match checkpoint.dialect() {
        Dialect::HuggingFace => text("general.architecture"),
        Dialect::Gguf => gguf::projector(&keys),
    };
    // A hostile name must not fill the terminal.
    let name = name.filter(|_| has)?.chars().filter(|c| !c.is_control());
    Some(name.take(64).collect())
}
