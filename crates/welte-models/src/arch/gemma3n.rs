//! Gemma 3n: several streams of hidden states (AltUp), a second path of low rank around attention (Laurel), sparse activations
//! in the first layers, and Gemma 4's embeddings per layer and shared keys and values.

use super::architecture::Architecture;
use super::gemma::{self, GEMMA3};
use super::gemma4;
use crate::keys::Keys;
use crate::spec::{Act, AltUp, LayerShape, MOST_FFN};
use crate::{Error, ModelSpec, names};
use welte_formats::checkpoint::Value;

pub(super) const GEMMA3N: Architecture = Architecture {
    name: "gemma3n",
    gguf: &["gemma3n"],
    hugging_face: &["gemma3n", "gemma3n_text"],
    lists: true,
    windows: gemma4::windows,
    finish,
    ..GEMMA3
};

/// The layers that are sparse unless the checkpoint says otherwise, and their share of zeros.
const SPARSE: (u32, f64) = (10, 0.95);

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    gemma::scaled_embedding(spec);
    spec.act = Act::GeluTanh;
    spec.tied = true;
    spec.post_norm = true;
    spec.value_norm = true;
    spec.attention_scale = 1.0;
    let cap = keys.name("final_logit_softcapping", "final_logit_softcapping");
    spec.logit_softcap = keys.f64(&cap)?.unwrap_or(30.0) as f32;
    spec.per_layer_width = gemma4::per_layer_width(keys)?;
    if spec.per_layer_width == 0 {
        let key = keys.name(
            "embedding_length_per_layer_input",
            "hidden_size_per_layer_input",
        );
        return Err(keys.error(&key, "is missing or 0"));
    }
    gemma4::share(spec, keys)?;
    gemma::local_rope(spec, keys)?;
    let widths = keys.name("feed_forward_length", "intermediate_size");
    if let Some(widths) = keys.each(&widths, spec.layers, MOST_FFN)? {
        let shape = |ffn| LayerShape {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            ffn,
        };
        spec.layer_shapes = widths.into_iter().map(shape).collect();
    }
    spec.cutoffs = cutoffs(keys, spec.layers)?;
    spec.altup = Some(altup(keys)?);
    Ok(())
}

fn altup(keys: &Keys<'_>) -> Result<AltUp, Error> {
    let active = keys.name("altup.active_idx", "altup_active_idx");
    let number = keys.u32(&active)?.unwrap_or(0);
    if number != 0 {
        return Err(keys.error(&active, format!("is {number}; supported is 0")));
    }
    let scaled = "altup_correct_scale";
    if keys.bool(scaled)? == Some(false) {
        return Err(keys.error(scaled, "is false, which is not supported"));
    }
    let streams = keys.name("altup.num_inputs", "altup_num_inputs");
    let count = keys.size(&streams, Some(4), 8)?;
    if count < 2 {
        return Err(keys.error(&streams, "is 1; must be at least 2"));
    }
    // GGUF files do not contain the rank.
    let left = names::weight("blk.{}.laurel_l", 0);
    let stored = keys.checkpoint.tensor(&left).map(|info| info.n);
    let stored = stored.and_then(|n| u32::try_from(n).ok());
    let rank = keys.size(&keys.name("", "laurel_rank"), stored.or(Some(64)), MOST_FFN)?;
    Ok(AltUp {
        streams: count,
        rank,
    })
}

/// Activations of a sparse layer are cut off this many standard deviations above their mean.
fn cutoffs(keys: &Keys<'_>, layers: u32) -> Result<Vec<Option<f32>>, Error> {
    let key = keys.name("activation_sparsity_scale", "activation_sparsity_pattern");
    let list = match keys.value(&key) {
        None => {
            let (sparse, share) = SPARSE;
            let sparse = if layers > sparse { sparse } else { 0 };
            let each = |layer| (layer < sparse).then(|| deviations(share) as f32);
            return Ok((0..layers).map(each).collect());
        }
        Some(Value::Array(list)) => list,
        Some(_) => return Err(keys.error(&key, "is not a list")),
    };
    if list.len() != layers as usize {
        let problem = format!("has {} entries for {layers} layers", list.len());
        return Err(keys.error(&key, problem));
    }
    let each = |value: &Value| {
        let number = match value {
            Value::F64(v) => *v,
            Value::U64(v) => *v as f64,
            _ => f64::NAN,
        };
        // Numbers of deviations in GGUF files, and shares of the distribution elsewhere.
        let (nothing, cut) = if keys.is_gguf() {
            (f64::NEG_INFINITY, number.is_finite().then_some(number))
        } else {
            let is_share = number > 0.0 && number < 1.0;
            (0.0, is_share.then(|| deviations(number)))
        };
        match cut {
            _ if number == nothing => Ok(None),
            Some(cut) => Ok(Some(cut as f32)),
            None => Err(keys.error(&key, "has an entry out of range")),
        }
    };
    list.iter().map(each).collect()
}

/// The number of standard deviations below which this share of a normal distribution lies (by bisection).
fn deviations(share: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if below(middle) < share {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// The share of a normal distribution below `x` standard deviations, by Simpson's rule.
fn below(x: f64) -> f64 {
    const INTERVALS: u32 = 2000;
    let width = x / f64::from(INTERVALS);
    let density = |i: u32| (-(f64::from(i) * width).powi(2) / 2.0).exp();
    let inner = (1..INTERVALS).map(|i| density(i) * if i % 2 == 1 { 4.0 } else { 2.0 });
    let integral = width / 3.0 * (density(0) + inner.sum::<f64>() + density(INTERVALS));
    0.5 + integral / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    #[test]
    fn deviations_match_tables() {
        for (share, want) in [(0.95, 1.644_853_627), (0.5, 0.0), (0.1, -1.281_551_566)] {
            assert!((super::deviations(share) - want).abs() < 1e-8, "{share}");
        }
    }
}
