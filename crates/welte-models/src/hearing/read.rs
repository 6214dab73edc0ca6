//! Reads what a checkpoint's encoder of sound is.

use super::gguf;
use super::{HearingFamily, HearingSpec, MOST_CHANNELS, MOST_GROUP, Pieces, WINDOWS};
use crate::Error;
use crate::keys::Keys;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use crate::speech::{MOST_DIM, MOST_MELS, MOST_POSITIONS, Rotation, SpeechLayers};
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
        Some("glmasr") => HearingFamily::GlmAsr,
        Some("granite_speech") => HearingFamily::GraniteSpeech,
        Some("lfm2_audio" | "lfm_audio") => HearingFamily::Lfm2Audio,
        _ => return Ok(None),
    };
    if matches!(family, HearingFamily::Gemma3n | HearingFamily::Gemma4) {
        return super::conformer::read(keys, family);
    }
    if family == HearingFamily::GraniteSpeech {
        return super::granite::read(keys).map(Some);
    }
    if family == HearingFamily::Lfm2Audio {
        return super::fast_conformer::read(keys).map(Some);
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
    let positions = match family {
        HearingFamily::GlmAsr => size(&["max_position_embeddings"], 1500, MOST_POSITIONS)?,
        _ => size(&["max_source_positions"], 1500, MOST_POSITIONS)?,
    };
    let rotation = match family {
        HearingFamily::GlmAsr => Some(rotation(keys, layers.heads, dim / layers.heads)?),
        _ => None,
    };
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
        HearingFamily::Voxtral | HearingFamily::GlmAsr => {
            (layers.ffn / dim, own, "projector_hidden_act")
        }
        HearingFamily::Qwen3Asr => {
            let width = size(&["output_dim"], 3584, MOST_DIM)?;
            (1, width, "audio_config.activation_function")
        }
        _ => (2, own, "projector_hidden_act"),
    };
    let whole = match family {
        HearingFamily::Voxtral => layers.ffn == group * dim,
        HearingFamily::GlmAsr => group == 4 && layers.ffn == group * dim,
        _ => true,
    };
    if !whole || !(1..=MOST_GROUP).contains(&group) || !positions.is_multiple_of(group) {
        let problem = format!(
            "{positions} states of {dim} values, joined to {}",
            layers.ffn
        );
        return Err(keys.error("audio_config", problem));
    }
    for key in [
        activation,
        "audio_config.activation_function",
        "audio_config.hidden_act",
    ] {
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
        rotation,
        pieces,
        conformer: None,
        granite: None,
        fast: None,
    }))
}

/// How queries and keys of GLM-ASR turn.
fn rotation(keys: &Keys<'_>, heads: u32, head_dim: u32) -> Result<Rotation, Error> {
    let key = "audio_config.num_key_value_heads";
    let shared = keys.u32(key)?.unwrap_or(heads);
    if shared != heads {
        return Err(keys.error(key, format!("is {shared}; must be {heads}")));
    }
    let of = |name: &str| format!("audio_config.rope_parameters.{name}");
    if let Some(other) = keys
        .text(&of("rope_type"))?
        .filter(|kind| *kind != "default")
    {
        return Err(keys.error(
            &of("rope_type"),
            format!("is '{other}'; supported is default"),
        ));
    }
    // Some configurations have it beside the others.
    let part = keys.f64("audio_config.partial_rotary_factor")?;
    let part = keys
        .f64(&of("partial_rotary_factor"))?
        .or(part)
        .unwrap_or(0.5);
    let values = (f64::from(head_dim) * part) as u32;
    if !(0.0..=1.0).contains(&part) || values < 2 || !values.is_multiple_of(2) {
        let problem = format!("is {part} for heads of {head_dim} values");
        return Err(keys.error(&of("partial_rotary_factor"), problem));
    }
    Ok(Rotation {
        values,
        base: keys.positive(&of("rope_theta"), Some(10_000.0))? as f32,
    })
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
