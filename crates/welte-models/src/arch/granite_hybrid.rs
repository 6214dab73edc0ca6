//! Granite 4: layers with the state space model of Mamba-2 beside attention without rope, Granite's factors, and a shared
//! expert in every layer, which is the feed-forward part of models without other experts.

use super::architecture::{Architecture, kinds_by_heads, read_taps};
use super::{granite, llama};
use crate::keys::Keys;
use crate::spec::{LayerKind, LayerRope, MOST_FFN, MOST_HEAD_DIM, MOST_HEADS, Mamba, SharedExpert};
use crate::{Error, ModelSpec, names};

pub(super) const GRANITE_HYBRID: Architecture = Architecture {
    name: "granitehybrid",
    gguf: &["granitehybrid"],
    hugging_face: &["granitemoehybrid"],
    hugging_face_names: names::HUGGING_FACE_GRANITE_HYBRID,
    experts: true,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    granite::factors(spec, keys)?;
    let shared = keys.name(
        "expert_shared_feed_forward_length",
        "shared_intermediate_size",
    );
    let shared = keys.size(&shared, Some(spec.ffn), MOST_FFN)?;
    match &mut spec.experts {
        Some(experts) => {
            experts.shared = Some(SharedExpert {
                ffn: shared,
                gated: false,
            });
        }
        None => spec.ffn = shared,
    }
    let names: [&[&str]; 2] = [
        &["mamba", "linear_attention"],
        &["attention", "full_attention"],
    ];
    spec.layer_kinds = kinds_by_heads(keys, spec.layers, LayerKind::Mamba, names)?;
    let rope = if keys.is_gguf() {
        keys.bool(&keys.name("rope.scaling.finetuned", ""))?
            .unwrap_or(false)
    } else {
        keys.text("position_embedding_type")? == Some("rope")
    };
    if !rope {
        spec.layer_ropes.fill(LayerRope::None);
    }
    spec.mamba = Some(mamba(keys)?);
    Ok(())
}

fn mamba(keys: &Keys<'_>) -> Result<Mamba, Error> {
    let size = |gguf: &str, hf: &str, max| keys.size(&keys.name(gguf, hf), None, max);
    let heads_key = keys.name("ssm.time_step_rank", "mamba_n_heads");
    let heads = keys.size(&heads_key, None, MOST_HEADS)?;
    let values = if keys.is_gguf() {
        size("ssm.inner_size", "", MOST_HEADS * MOST_HEAD_DIM)?
    } else {
        size("", "hidden_size", MOST_HEADS * MOST_HEAD_DIM)?.saturating_mul(keys.size(
            "mamba_expand",
            Some(2),
            64,
        )?)
    };
    if !values.is_multiple_of(heads) || values / heads > MOST_HEAD_DIM {
        let problem = format!("is {heads}, which does not fit {values} values");
        return Err(keys.error(&heads_key, problem));
    }
    let groups_key = keys.name("ssm.group_count", "mamba_n_groups");
    let groups = keys.size(&groups_key, Some(1), heads)?;
    if groups != 1 {
        // The norm would have weights of its own for each group.
        return Err(keys.error(&groups_key, format!("is {groups}; only 1 is supported")));
    }
    let taps_key = keys.name("ssm.conv_kernel", "mamba_d_conv");
    let taps = read_taps(keys, &taps_key, 4)?;
    Ok(Mamba {
        groups,
        heads,
        key_dim: size("ssm.state_size", "mamba_d_state", MOST_HEAD_DIM)?,
        value_dim: values / heads,
        taps,
        bias: keys.bool("mamba_conv_bias")?.unwrap_or(true),
        norm: true,
        beside: false,
        selective: None,
    })
}
