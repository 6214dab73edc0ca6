//! DeepSeek V2 and V3, GLM-4.7 Flash, Mistral 4, Youtu: attention over latent keys and values, and experts in groups beside a
//! shared one. The first layers have no experts, those of Youtu none at all. In DeepSeek V3.2 and GLM-5 an indexer chooses the positions
//! that a row sees; some layers of GLM-5.2 see what an earlier one chose.

use super::architecture::{
    Architecture, has, has_choice_bias, leave_out_drafts, no_windows, of_layers,
};
use super::{llama, ministral3};
use crate::keys::Keys;
use crate::names::{self, Names, weight};
use crate::rope::yarn_magnitude;
use crate::spec::{
    Groups, MOST_FFN, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, Scaling, Scoring, SharedExpert,
};
use crate::{Error, Indexer, Latent, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    gguf: &["deepseek2", "mistral4"],
    hugging_face: &[
        "deepseek_v2",
        "deepseek_v3",
        "kimi_k2",
        "glm4_moe_lite",
        "mistral4",
        "youtu",
    ],
    hugging_face_names: HUGGING_FACE,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

pub(super) const DEEPSEEK32: Architecture = Architecture {
    name: "deepseek32",
    gguf: &["deepseek32", "glm-dsa"],
    hugging_face: &["deepseek_v32", "glm_moe_dsa"],
    finish: |spec, keys| {
        finish(spec, keys)?;
        spec.indexer = Some(indexer(spec, keys)?);
        Ok(())
    },
    ..DEEPSEEK2
};

/// Whether an architecture has an indexer.
pub(crate) fn has_indexer(architecture: &str) -> bool {
    architecture == DEEPSEEK32.name
}

fn indexer(spec: &ModelSpec, keys: &Keys<'_>) -> Result<Indexer, Error> {
    let said = keys.text("general.architecture")?.unwrap_or("");
    let is_glm = matches!(said, "glm-dsa" | "glm_moe_dsa");
    let size =
        |gguf: &str, hf: &str, default, most| keys.size(&keys.name(gguf, hf), Some(default), most);
    let heads = if is_glm { 32 } else { 64 };
    let key = keys.name("attention.indexer.key_length", "index_head_dim");
    let found = Indexer {
        used: size("attention.indexer.top_k", "index_topk", 2048, 1 << 20)?,
        heads: size(
            "attention.indexer.head_count",
            "index_n_heads",
            heads,
            MOST_HEADS,
        )?,
        head_dim: keys.size(&key, Some(128), MOST_HEAD_DIM)?,
        interleaved: is_glm,
        chooses: chooses(spec, keys, is_glm)?,
    };
    let (dim, rotated) = (found.head_dim, spec.rope.rot);
    if dim < rotated || !dim.is_multiple_of(2) {
        let problem = format!("is {dim}; must be even and at least the {rotated} rotated elements");
        return Err(keys.error(&key, problem));
    }
    if spec.latent.is_none_or(|l| l.query_rank.is_none()) {
        let key = keys.name("attention.q_lora_rank", "q_lora_rank");
        return Err(keys.error(&key, "is missing; the indexer needs it"));
    }
    Ok(found)
}

/// The layers whose indexer chooses; GLM-5.2 says so in one of several ways.
fn chooses(spec: &ModelSpec, keys: &Keys<'_>, is_glm: bool) -> Result<Vec<bool>, Error> {
    let layers = spec.layers;
    if !is_glm {
        return Ok(vec![true; layers as usize]);
    }
    let lists = [
        keys.name("attention.indexer.types", "indexer_types"),
        "index_topk_pattern".to_string(),
    ];
    let mut chooses = None;
    for key in lists {
        let letters: Vec<Value>;
        let list = match keys.value(&key) {
            Some(Value::Array(list)) => list,
            Some(Value::String(pattern)) => {
                let each = pattern.chars().map(|c| Value::String(c.into()));
                letters = each.collect();
                &letters
            }
            _ => continue,
        };
        let each = |kind: &Value| match kind {
            Value::Bool(full) => Ok(*full),
            Value::U64(full @ (0 | 1)) => Ok(*full == 1),
            Value::I64(full @ (0 | 1)) => Ok(*full == 1),
            Value::String(kind) if matches!(kind.as_str(), "full" | "F") => Ok(true),
            Value::String(kind) if matches!(kind.as_str(), "shared" | "S") => Ok(false),
            _ => Err(keys.error(&key, "has an entry that is neither full nor shared")),
        };
        let list = of_layers(keys, &key, list, layers)?;
        let all: Vec<bool> = list.iter().map(each).collect::<Result<_, _>>()?;
        if all.first() != Some(&true) {
            return Err(keys.error(&key, "must begin with a layer that chooses (full)"));
        }
        chooses = Some(all);
        break;
    }
    if let Some(chooses) = chooses {
        return Ok(chooses);
    }
    // Files of GLM-5.2 may lack the list. The context tells them from those of GLM-5 and 5.1.
    let (freq, offset) = if !keys.is_gguf() {
        let freq = keys.u32("index_topk_freq")?.unwrap_or(1).max(1);
        (freq, keys.u32("index_skip_topk_offset")?.unwrap_or(2))
    } else if spec.context >= 1 << 20 {
        (4, 3)
    } else {
        (1, 2)
    };
    let place = |i: u32| (i + 1).saturating_sub(offset);
    let all: Vec<bool> = (0..layers).map(|i| place(i).is_multiple_of(freq)).collect();
    if all.first() == Some(&false) {
        let problem =
            format!("is {offset}; with index_topk_freq {freq} the first layer would not choose");
        return Err(keys.error("index_skip_topk_offset", problem));
    }
    Ok(all)
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    latents(spec, keys)?;
    experts(spec, keys)?;
    // Older GGUF files do not count the draft layer.
    let last = format!("blk.{}.nextn.eh_proj.weight", spec.layers - 1);
    if keys.checkpoint.tensor(&last).is_some() {
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
    }
    ministral3::position_scale(spec, keys)
}

/// Reads attention over latents.
pub(super) fn latents(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let l = latent(keys, spec)?;
    spec.latent = Some(l);
    // Each position has one key, which all heads share.
    spec.kv_heads = 1;
    spec.head_dim = l.width();
    spec.rope.rot = l.rope;
    spec.rope.interleaved = keys.bool("rope_interleave")?.unwrap_or(true);
    spec.attention_scale = attention_scale(spec, keys, l)?;
    Ok(())
}

/// Names with shared experts.
pub(super) const HUGGING_FACE: Names = Names {
    shared_expert: [
        "model.layers.{}.mlp.shared_experts.gate_proj",
        "model.layers.{}.mlp.shared_experts.up_proj",
        "model.layers.{}.mlp.shared_experts.down_proj",
    ],
    ..names::HUGGING_FACE
};

fn latent(keys: &Keys<'_>, spec: &ModelSpec) -> Result<Latent, Error> {
    let size = |gguf: &str, hf: &str| keys.size(&keys.name(gguf, hf), None, 1 << 14);
    let either = |new: &str, old: &str, hf: &str, default| {
        let known = keys.value(&keys.name(new, hf)).is_some();
        let key = keys.name(if known { new } else { old }, hf);
        keys.size(&key, default, 1 << 14)
    };
    // Files of MiniCPM3, and its published configuration, lack the size of a value.
    let own = (spec.architecture == "minicpm3").then_some(spec.dim / spec.heads);
    let rope = size("rope.dimension_count", "qk_rope_head_dim")?;
    let rank = size("attention.kv_lora_rank", "kv_lora_rank")?;
    let key = keys.name("attention.key_length_mla", "qk_nope_head_dim");
    let plain = either(
        "attention.key_length_mla",
        "attention.key_length",
        "qk_nope_head_dim",
        None,
    )?;
    let plain = if keys.is_gguf() {
        plain.checked_sub(rope).filter(|plain| *plain > 0)
    } else {
        Some(plain)
    };
    let plain =
        plain.ok_or_else(|| keys.error(&key, format!("is not above the {rope} rotated")))?;
    let query_rank = keys.u32(&keys.name("attention.q_lora_rank", "q_lora_rank"))?;
    let l = Latent {
        query_rank: query_rank.filter(|rank| *rank > 0),
        rank,
        rope,
        plain,
        value: either(
            "attention.value_length_mla",
            "attention.value_length",
            "v_head_dim",
            own,
        )?,
    };
    let widest = spec
        .heads
        .checked_mul(l.width().max(l.query()).max(l.value));
    if l.width() > 1024 || !rope.is_multiple_of(2) || widest.is_none_or(|w| w > 1 << 20) {
        let key = keys.name("attention.kv_lora_rank", "kv_lora_rank");
        let problem = format!(
            "is {rank}; with {rope} rotated elements (an even number) at most 1024 are supported"
        );
        return Err(keys.error(&key, problem));
    }
    Ok(l)
}

/// Scores are divided by the square root of a query's size. YaRN makes them larger.
fn attention_scale(spec: &mut ModelSpec, keys: &Keys<'_>, l: Latent) -> Result<f32, Error> {
    let plain = 1.0 / f64::from(l.query()).sqrt();
    let Scaling::Yarn {
        factor, magnitude, ..
    } = &mut spec.rope.scaling
    else {
        return Ok(plain as f32);
    };
    let nested = ["rope_parameters", "rope_scaling"].map(|s| format!("{s}.mscale_all_dim"));
    let weight = if keys.is_gguf() {
        let key = keys.name("rope.scaling.yarn_log_multiplier", "");
        let weight = keys.f64(&key)?.unwrap_or(0.0);
        if weight != 0.0 {
            // Converters assume that both weights of YaRN's magnitude are equal.
            *magnitude = 1.0;
        }
        // Converters write a tenth of DeepSeek's weight.
        match keys.text("general.architecture")? {
            Some("mistral4") => weight,
            _ => 10.0 * weight,
        }
    } else {
        let known = nested.iter().find(|key| keys.value(key).is_some());
        keys.f64(known.unwrap_or(&nested[0]))?.unwrap_or(0.0)
    };
    let stretch = yarn_magnitude((*factor).into(), weight);
    Ok((plain * stretch * stretch) as f32)
}

/// Architectures whose GGUF files may leave out that scores are sigmoids.
const SIGMOID_BY_DEFAULT: [&str; 13] = [
    "glm4moe",
    "nemotron_h_moe",
    "afmoe",
    "bailingmoe2",
    "cohere2moe",
    "dots1",
    "exaone-moe",
    "glm-dsa",
    "hy_v3",
    "laguna",
    "mimo2",
    "minimax-m2",
    "step35",
];

/// Reads which layers have experts where configurations list it.
pub(super) fn listed_experts(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "mlp_layer_types";
    if let Some(Value::Array(kinds)) = keys.value(key) {
        let kinds = of_layers(keys, key, kinds, spec.layers)?;
        let sparse = |kind: &Value| match kind {
            Value::String(s) if s == "sparse" => Ok(true),
            Value::String(s) if s == "dense" => Ok(false),
            _ => Err(keys.error(key, "has an entry that is neither dense nor sparse")),
        };
        spec.expert_layers = kinds.iter().map(sparse).collect::<Result<_, _>>()?;
    }
    Ok(())
}

/// Reads how experts are chosen where no key says which layers have them: those with a router.
pub(super) fn experts_where_routed(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    experts(spec, keys)?;
    let mixed = |layer| has(spec, keys, |names| weight(names.router, layer));
    spec.expert_layers = (0..spec.layers).map(mixed).collect();
    let biased = has_choice_bias(spec, keys);
    if let Some(e) = &mut spec.experts {
        e.choice_bias = biased;
    }
    Ok(())
}

/// The shared expert of files that say its width and not the number of experts that it stands for.
pub(super) fn shared_width(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name("expert_shared_feed_forward_length", "");
    if let Some(e) = &mut spec.experts
        && keys.is_gguf()
    {
        e.shared = Some(SharedExpert {
            ffn: keys.size(&key, Some(e.ffn), MOST_FFN)?,
            gated: false,
        });
    }
    Ok(())
}

/// Reads how experts are chosen, the shared expert, and which layers have experts.
pub(super) fn experts(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let Some(e) = &mut spec.experts else {
        return Ok(());
    };
    let number = |gguf: &str, hf: &[&str]| keys.u32(&keys.first_name(gguf, hf));
    let said = keys.text("general.architecture")?.unwrap_or("");
    let by_softmax = matches!(
        said,
        "deepseek" | "deepseek_v2" | "deepseek_vl_v2" | "deepseek_ocr2" | "mistral4"
    ) || spec.architecture == "bailingmoe";
    let sigmoid = if keys.is_gguf() {
        match number("expert_gating_func", &[])? {
            None | Some(0) => SIGMOID_BY_DEFAULT.contains(&said),
            Some(1) => matches!(said, "glm4moe" | "nemotron_h_moe"),
            Some(2) => true,
            Some(other) => {
                let key = keys.name("expert_gating_func", "");
                let problem = format!("is {other}; supported are 1 (softmax) and 2 (sigmoid)");
                return Err(keys.error(&key, problem));
            }
        }
    } else {
        !by_softmax
    };
    e.scoring = if sigmoid {
        Scoring::Sigmoid
    } else {
        Scoring::Softmax
    };
    let scale = keys.first_name(
        "expert_weights_scale",
        &[
            "routed_scaling_factor",
            "route_scale",
            "moe_routed_scaling_factor",
            "moe_router_scaling_factor",
            "router_scaling_factor",
        ],
    );
    let usual = Architecture::by_name(&spec.architecture).filter(|_| !keys.is_gguf());
    let usual = usual.map_or(1.0, |arch| arch.usual.experts_scale);
    e.scale = keys.f64(&scale)?.unwrap_or(usual) as f32;
    let norm = keys.first_name(
        "expert_weights_norm",
        &[
            "norm_topk_prob",
            "route_norm",
            "norm_expert_weight",
            "moe_renormalize",
        ],
    );
    e.renormalise = keys.bool(&norm)?.unwrap_or(sigmoid || said == "mistral4");
    let plain_layers = number(
        "leading_dense_block_count",
        &[
            "first_k_dense_replace",
            "first_last_k_dense_replace",
            "num_dense_layers",
        ],
    )?;
    let plain_layers = plain_layers.unwrap_or(0).min(spec.layers);
    spec.expert_layers = (0..spec.layers).map(|i| i >= plain_layers).collect();
    let count = number("expert_group_count", &["n_group", "num_expert_group"])?.unwrap_or(1);
    let limited = match keys.text("topk_method")? {
        Some("greedy") => false,
        _ => count > 1,
    };
    if limited {
        let key = keys.name("expert_group_used_count", "topk_group");
        let used = keys.size(&key, None, count)?;
        let size = e.count / count;
        if count > 64 || !e.count.is_multiple_of(count) || size < 2 || e.used > used * size {
            let key = keys.name("expert_group_count", "n_group");
            let problem = format!("is {count}, which does not fit {} experts", e.count);
            return Err(keys.error(&key, problem));
        }
        // DeepSeek V2 rates a group by its best expert.
        let top = if sigmoid || said == "mistral4" { 2 } else { 1 };
        e.groups = Some(Groups { count, used, top });
    }
    let key = keys.first_name(
        "expert_shared_count",
        &["n_shared_experts", "num_shared_experts"],
    );
    let shared = keys.u32(&key)?.unwrap_or(0);
    if shared > 0 {
        let ffn = shared.checked_mul(e.ffn).filter(|ffn| *ffn <= MOST_FFN);
        e.shared = Some(SharedExpert {
            ffn: ffn.ok_or_else(|| keys.error(&key, "makes the shared expert too wide"))?,
            gated: false,
        });
    }
    let drafts = number("nextn_predict_layers", &["num_nextn_predict_layers"])?.unwrap_or(0);
    spec.draft_layers = drafts.min(MOST_LAYERS);
    listed_experts(spec, keys)?;
    let biased = has_choice_bias(spec, keys);
    if let Some(e) = &mut spec.experts {
        e.choice_bias = biased;
    }
    Ok(())
}
