//! Gemma 1, 2 and 3: scaled embeddings, norms by `1 + w`, GELU. Gemma 2 and 3 also norm the output of each part and
//! alternate windows. Gemma 2 caps scores and logits. Gemma 3 norms queries and keys, and its windowed layers have a
//! rope base of their own.

use super::architecture::{Architecture, Usual, no_windows, ropes_by_window, windowed_but_every};
use crate::encoder;
use crate::keys::Keys;
use crate::spec::Encoder;
use crate::spec::{Act, LayerRope, Rope, Scaling};
use crate::{Error, ModelSpec, QkNorm, names};

pub(super) const GEMMA: Architecture = Architecture {
    name: "gemma",
    gguf: &["gemma"],
    hugging_face: &["gemma"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: no_windows,
    finish: common,
};

pub(super) const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    gguf: &["gemma2"],
    hugging_face: &["gemma2"],
    hugging_face_names: names::HUGGING_FACE_POST,
    windows: |keys, layers| windowed_but_every(keys, layers, 2),
    finish: |spec, keys| {
        common(spec, keys)?;
        spec.post_norm = true;
        // The largest model scales by `dim / heads` in place of the head size. Files do not say so.
        scale_scores(spec, keys, 46)?;
        let cap = |gguf, hf, default: f64| -> Result<f32, Error> {
            Ok(keys.f64(&keys.name(gguf, hf))?.unwrap_or(default) as f32)
        };
        spec.attention_softcap = cap("attn_logit_softcapping", "attn_logit_softcapping", 50.0)?;
        spec.logit_softcap = cap("final_logit_softcapping", "final_logit_softcapping", 30.0)?;
        Ok(())
    },
    ..GEMMA
};

/// VaultGemma: Gemma 2 without norms after parts.
pub(super) const VAULT_GEMMA: Architecture = Architecture {
    name: "vaultgemma",
    gguf: &["vaultgemma"],
    hugging_face: &["vaultgemma"],
    finish: |spec, keys| {
        (GEMMA2.finish)(spec, keys)?;
        spec.post_norm = false;
        Ok(())
    },
    ..GEMMA2
};

pub(super) const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    gguf: &["gemma3"],
    hugging_face: &["gemma3_text", "gemma3"],
    qk_norm: QkNorm::Head,
    windows: |keys, layers| windowed_but_every(keys, layers, 6),
    finish: |spec, keys| {
        common(spec, keys)?;
        spec.post_norm = true;
        scale_scores(spec, keys, 62)?;
        local_rope(spec, keys)?;
        if keys.bool("use_bidirectional_attention")? == Some(true) {
            bidirectional(spec, keys)?;
        }
        Ok(())
    },
    ..GEMMA2
};

/// EmbeddingGemma in GGUF. Hugging Face calls it Gemma 3.
pub(super) const EMBEDDING_GEMMA: Architecture = Architecture {
    name: "gemma-embedding",
    gguf: &["gemma-embedding"],
    hugging_face: &[],
    finish: |spec, keys| {
        (GEMMA3.finish)(spec, keys)?;
        bidirectional(spec, keys)
    },
    ..GEMMA3
};

/// Windowed layers have a rope of their own.
pub(super) fn local_rope(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let nested = "rope_parameters.sliding_attention.rope_theta";
    let key = match keys.value(nested) {
        Some(_) => nested.to_string(),
        None => keys.name("rope.freq_base_swa", "rope_local_base_freq"),
    };
    spec.local_rope = Some(Rope {
        theta: keys.positive(&key, Some(10000.0))? as f32,
        scaling: Scaling::None,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    Ok(())
}

/// Every row sees the whole text, or half the window to each side.
pub(super) fn bidirectional(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.windows.iter_mut().for_each(|window| *window /= 2);
    spec.encoder = Some(Encoder {
        final_norm: true,
        dense: encoder::dense(keys)?,
        ..Encoder::default()
    });
    Ok(())
}

fn common(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.act = Act::GeluTanh;
    scaled_embedding(spec);
    // GGUF converters have already added 1 to the weights.
    spec.norm_add = if keys.is_gguf() { 0.0 } else { 1.0 };
    spec.tied = true;
    Ok(())
}

pub(super) fn scaled_embedding(spec: &mut ModelSpec) {
    spec.embedding_scale = (spec.dim as f32).sqrt();
}

fn scale_scores(spec: &mut ModelSpec, keys: &Keys<'_>, largest: u32) -> Result<(), Error> {
    let each = if keys.is_gguf() && spec.layers == largest {
        spec.dim / spec.heads
    } else {
        spec.head_dim
    };
    let by = keys.positive(&keys.name("", "query_pre_attn_scalar"), Some(each.into()))?;
    spec.attention_scale = 1.0 / (by as f32).sqrt();
    Ok(())
}
