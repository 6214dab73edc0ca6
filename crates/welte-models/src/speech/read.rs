//! Reads what a model of speech is.

use super::{ARCHITECTURE, SpeechLayers, SpeechSpec};
use crate::Error;
use crate::keys::Keys;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Dialect;

pub(crate) const MOST_DIM: u32 = 1 << 13;
pub(crate) const MOST_MELS: u32 = 256;
pub(crate) const MOST_POSITIONS: u32 = 1 << 13;
const MOST_TOKENS: u32 = 1 << 13;
const MOST_VOCAB: u32 = 1 << 20;

/// The model of speech in a checkpoint; `None` if it has none.
pub fn speech_spec(checkpoint: &dyn Checkpoint) -> Result<Option<SpeechSpec>, Error> {
    let keys = Keys::new(checkpoint, "");
    let architecture = keys.text("general.architecture").ok().flatten();
    if checkpoint.dialect() != Dialect::HuggingFace || architecture != Some(ARCHITECTURE) {
        return Ok(None);
    }
    let layers = |part: &str| {
        let size = |key: &str, max| keys.size(key, None, max);
        Ok::<_, Error>(SpeechLayers {
            count: size(&format!("{part}_layers"), MOST_LAYERS)?,
            heads: size(&format!("{part}_attention_heads"), MOST_HEADS)?,
            ffn: size(&format!("{part}_ffn_dim"), MOST_FFN)?,
        })
    };
    let spec = SpeechSpec {
        mels: keys.size("num_mel_bins", Some(80), MOST_MELS)?,
        positions: keys.size("max_source_positions", Some(1500), MOST_POSITIONS)?,
        tokens: keys.size("max_target_positions", Some(448), MOST_TOKENS)?,
        dim: keys.size("d_model", None, MOST_DIM)?,
        vocab: keys.size("vocab_size", None, MOST_VOCAB)?,
        scaled: keys.bool("scale_embedding")?.unwrap_or(false),
        encoder: layers("encoder")?,
        decoder: layers("decoder")?,
    };
    for (key, heads) in [
        ("encoder_attention_heads", spec.encoder.heads),
        ("decoder_attention_heads", spec.decoder.heads),
    ] {
        if !spec.dim.is_multiple_of(heads) {
            let problem = format!("is {heads}; must divide d_model, which is {}", spec.dim);
            return Err(keys.error(key, problem));
        }
    }
    match keys.text("activation_function")? {
        None | Some("gelu") => Ok(Some(spec)),
        Some(other) => Err(keys.error(
            "activation_function",
            format!("is '{other}'; supported is gelu"),
        )),
    }
}
