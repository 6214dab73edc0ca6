//! Step 3.5 and the language model of Step 3.7: a sigmoid gates the output of each head, and experts chosen by sigmoid with a bias are
//! beside a shared one. Layers with a window have other heads and a rope of their own. The last layers limit their activations.

use super::architecture::{
    Architecture, has, has_choice_bias, leave_out_drafts, numbers, ropes_by_window, window_pattern,
    windows_by_type,
};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, Names, weight};
use crate::spec::{
    LayerRope, LayerShape, Limits, MOST_FFN, MOST_HEADS, OutputGate, Rope, Scaling, SharedExpert,
};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;

pub(super) const STEP35: Architecture = Architecture {
    name: "step35",
    gguf: &["step35"],
    hugging_face: &["step3p5", "step3p7"],
    hugging_face_names: Names {
        attn_gate: "model.layers.{}.self_attn.g_proj",
        router: "model.layers.{}.moe.gate",
        choice_bias: "model.layers.{}.moe.router_bias",
        experts: [
            "model.layers.{}.moe.gate_proj",
            "model.layers.{}.moe.up_proj",
            "model.layers.{}.moe.down_proj",
        ],
        shared_expert: [
            "model.layers.{}.share_expert.gate_proj",
            "model.layers.{}.share_expert.up_proj",
            "model.layers.{}.share_expert.down_proj",
        ],
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    lists: true,
    windows,
    finish,
    ..llama::LLAMA
};

fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.u32(&key)?.unwrap_or(0);
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    windows_by_type(keys, layers, window)
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
    if !keys.is_gguf() {
        spec.norm_add = 1.0;
    }
    shapes(spec, keys)?;
    ropes(spec, keys)?;
    if has(spec, keys, |names| weight(names.attn_gate, 0)) {
        spec.attention_gate = Some(OutputGate {
            per_head: true,
            softplus: false,
        });
    }
    let listed = expert_layers(spec, keys)?;
    deepseek2::experts(spec, keys)?;
    if let Some(e) = &mut spec.experts {
        let key = keys.name("expert_shared_feed_forward_length", "share_expert_dim");
        e.shared = Some(SharedExpert {
            ffn: keys.size(&key, Some(e.ffn), MOST_FFN)?,
            gated: false,
        });
    }
    if let Some(listed) = listed {
        spec.expert_layers = listed;
    }
    let biased = has_choice_bias(spec, keys);
    if let Some(e) = &mut spec.experts {
        e.choice_bias = biased;
    }
    limits(spec, keys)
}

/// The one number of the layers without a window and of those with one. `None` if the key is missing or there is no such layer.
fn by_window(
    spec: &ModelSpec,
    keys: &Keys<'_>,
    key: &str,
) -> Result<Option<[Option<f64>; 2]>, Error> {
    let Some(list) = numbers(spec, keys, key)? else {
        return Ok(None);
    };
    let of_kind = |windowed: bool| {
        let layers = spec.windows.iter().zip(&list);
        let mut own = layers.filter(|(window, _)| (**window > 0) == windowed);
        let first = own.next().map(|(_, number)| *number);
        match own.all(|(_, number)| Some(*number) == first) {
            true => Ok(first),
            false => {
                let problem = "differs among layers of one attention type, which is not supported";
                Err(keys.error(key, problem))
            }
        }
    };
    Ok(Some([of_kind(false)?, of_kind(true)?]))
}

/// Reads the heads of each layer.
fn shapes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let own = |key: &str, or: u32| keys.size(key, Some(or), MOST_HEADS);
    let (heads, kv_heads) = if keys.is_gguf() {
        let list = |key: &str| -> Result<Vec<u32>, Error> {
            let key = keys.name(key, "");
            let list = numbers(spec, keys, &key)?;
            let list = list.ok_or_else(|| keys.error(&key, "is missing"))?;
            let known = |number: &f64| (1.0..=f64::from(MOST_HEADS)).contains(number);
            match list.iter().find(|number| !known(number)) {
                Some(number) => {
                    let problem = format!("has {number}; must be from 1 to {MOST_HEADS}");
                    Err(keys.error(&key, problem))
                }
                None => Ok(list.into_iter().map(|number| number as u32).collect()),
            }
        };
        (
            list("attention.head_count")?,
            list("attention.head_count_kv")?,
        )
    } else {
        let legacy = "attention_other_setting";
        let head_dim = format!("{legacy}.head_dim");
        if own(&head_dim, spec.head_dim)? != spec.head_dim {
            let problem = format!("differs from {}, which is not supported", spec.head_dim);
            return Err(keys.error(&head_dim, problem));
        }
        let windowed = own(&format!("{legacy}.num_attention_heads"), spec.heads)?;
        let windowed = own("num_sliding_attention_heads", windowed)?;
        let kv = own(&format!("{legacy}.num_attention_groups"), spec.kv_heads)?;
        let each = |[full, windowed]: [u32; 2]| -> Vec<u32> {
            let windows = spec.windows.iter();
            let one = |window: &u32| if *window > 0 { windowed } else { full };
            windows.map(one).collect()
        };
        (each([spec.heads, windowed]), each([spec.kv_heads, kv]))
    };
    let both = || heads.iter().zip(&kv_heads);
    if let Some((heads, kv)) = both().find(|(heads, kv)| !heads.is_multiple_of(**kv)) {
        let key = keys.name("attention.head_count", "num_attention_heads");
        let problem = format!("is {heads} in a layer with {kv} heads of keys and values");
        return Err(keys.error(&key, problem));
    }
    let shape = |(heads, kv_heads): (&u32, &u32)| LayerShape {
        heads: *heads,
        kv_heads: *kv_heads,
        head_dim: spec.head_dim,
        ffn: spec.ffn,
    };
    let shapes: Vec<LayerShape> = both().map(shape).collect();
    let most = |list: &[u32]| list.iter().copied().max().unwrap_or(1);
    (spec.heads, spec.kv_heads) = (most(&heads), most(&kv_heads));
    if shapes.iter().any(|shape| *shape != shapes[0]) {
        spec.layer_shapes = shapes;
    }
    Ok(())
}

/// Layers without a window rotate a part of each head and may be scaled. Files say how much the others rotate, and half of it is meant.
fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let head = spec.head_dim;
    let (rots, thetas, key) = if keys.is_gguf() {
        let key = keys.name("rope.dimension_count", "");
        let windowed = keys.name("rope.dimension_count_swa", "");
        let windowed = keys.size(&windowed, Some(spec.rope.rot), head)?;
        let theta = keys.name("rope.freq_base_swa", "");
        let theta = keys.positive(&theta, Some(spec.rope.theta.into()))?;
        let rots = [spec.rope.rot / 2, windowed];
        (rots, [f64::from(spec.rope.theta), theta], key)
    } else {
        let of = |list: &str, one: &str, or: f64| -> Result<[f64; 2], Error> {
            if let Some(numbers) = by_window(spec, keys, list)? {
                return Ok(numbers.map(|number| number.unwrap_or(or)));
            }
            let nested = |kind: &str| format!("rope_parameters.{kind}_attention.{one}");
            Ok([
                keys.positive(&nested("full"), Some(or))?,
                keys.positive(&nested("sliding"), Some(or))?,
            ])
        };
        let key = "partial_rotary_factors";
        let parts = of(key, "partial_rotary_factor", 1.0)?;
        let rots = parts.map(|part| (part * f64::from(head)) as u32);
        (rots, of("rope_theta", "rope_theta", 10000.0)?, key.into())
    };
    for rot in rots {
        if rot == 0 || rot > head || !rot.is_multiple_of(2) {
            let problem = format!("rotates {rot} of {head} elements; must be an even number");
            return Err(keys.error(&key, problem));
        }
    }
    let known = |theta: &f64| *theta >= 1.0 && (*theta as f32).is_finite();
    if let Some(theta) = thetas.iter().find(|theta| !known(theta)) {
        let key = keys.name("rope.freq_base", "rope_theta");
        let problem = format!("has {theta}; must be from 1 to {:e}", f32::MAX);
        return Err(keys.error(&key, problem));
    }
    (spec.rope.rot, spec.rope.theta) = (rots[0], thetas[0] as f32);
    if spec.windows.iter().any(|window| *window > 0) {
        spec.local_rope = Some(Rope {
            theta: thetas[1] as f32,
            rot: rots[1],
            scaling: Scaling::None,
            ..spec.rope
        });
        ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    }
    Ok(())
}

/// The layers with experts as published configurations list them: numbers between commas. Without a list they are all from the fourth on.
fn expert_layers(spec: &ModelSpec, keys: &Keys<'_>) -> Result<Option<Vec<bool>>, Error> {
    if keys.is_gguf() || keys.value("mlp_layer_types").is_some() {
        return Ok(None);
    }
    let key = "moe_layers_enum";
    let wrong = || keys.error(key, "is not a list of the numbers of layers");
    let listed: Vec<u32> = match keys.value(key) {
        None => (3..spec.layers).collect(),
        Some(Value::String(text)) => {
            let parts = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            let numbers: Result<Vec<u32>, _> = parts.map(str::parse).collect();
            numbers.map_err(|_| wrong())?
        }
        Some(Value::Array(list)) => {
            let number = |value: &Value| match value {
                Value::U64(v) => u32::try_from(*v).ok(),
                _ => None,
            };
            let numbers: Option<Vec<u32>> = list.iter().map(number).collect();
            numbers.ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    Ok(Some(
        (0..spec.layers).map(|i| listed.contains(&i)).collect(),
    ))
}

/// Reads the limits of activations; 0 is none.
fn limits(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let names = [
        ("swiglu_clamp_exp", "swiglu_limits"),
        ("swiglu_clamp_shexp", "swiglu_limits_shared"),
    ];
    let mut lists = Vec::new();
    for (gguf, hf) in names {
        let key = keys.name(gguf, hf);
        let list = numbers(spec, keys, &key)?;
        let list = list.unwrap_or_else(|| vec![0.0; spec.layers as usize]);
        if list.iter().any(|limit| *limit < 0.0 || *limit > 1e30) {
            return Err(keys.error(&key, "has a limit that is not from 0 to 1e30"));
        }
        // llama.cpp ignores smaller ones.
        let some = |limit: f64| (limit > 1e-6).then_some(limit as f32);
        lists.push(list.into_iter().map(some).collect::<Vec<_>>());
    }
    let both = lists[0].iter().zip(&lists[1]);
    let limits: Vec<Limits> = both
        .map(|(experts, plain)| Limits {
            experts: *experts,
            plain: *plain,
        })
        .collect();
    if limits.iter().any(|l| *l != Limits::default()) {
        spec.limits = limits;
    }
    Ok(())
}
