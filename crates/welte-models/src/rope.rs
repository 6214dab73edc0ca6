//! Rope scaling and inverse frequencies.

use crate::arch::Architecture;
use crate::keys::Keys;
use crate::spec::{Rope, Scaling};
use crate::{Error, names};
use std::f64::consts::TAU;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};
use welte_table::{Format, Sections};

/// Reads the rope settings. `rot` elements of each head are rotated.
pub(crate) fn read(
    keys: &Keys<'_>,
    rot: u32,
    arch: &Architecture,
    context: u32,
) -> Result<Rope, Error> {
    let first = |names: &[&str]| -> String {
        let known = names.iter().find(|n| keys.value(n).is_some());
        known
            .or(names.first())
            .map_or(String::new(), |n| n.to_string())
    };
    let theta_key = if keys.is_gguf() {
        keys.name("rope.freq_base", "")
    } else {
        first(&[
            "rope_theta",
            "rope_parameters.rope_theta",
            "rope_parameters.full_attention.rope_theta",
            // GPT-NeoX
            "rotary_emb_base",
        ])
    };
    let mut theta = match keys.value(&theta_key) {
        // Step 3.5 reads the base of each layer itself.
        Some(Value::Array(_)) if arch.name == "step35" && !keys.is_gguf() => 10000.0,
        _ if keys.is_gguf() => keys.positive(&theta_key, Some(10000.0))?,
        _ => keys.positive(&theta_key, Some(arch.usual.theta))?,
    };
    let alpha = first(&["rope_scaling.alpha", "rope_parameters.alpha"]);
    if !keys.is_gguf() && keys.value(&alpha).is_some() && rot > 2 {
        // Hunyuan's fixed stretch of the base. GGUF converters have already applied it.
        let pairs = f64::from(rot) / f64::from(rot - 2);
        theta *= keys.positive(&alpha, None)?.powf(pairs);
    }
    let scaling = if keys.is_gguf() {
        gguf_scaling(keys, context)?
    } else {
        hugging_face_scaling(keys, &first, context)?
    };
    Ok(Rope {
        interleaved: keys.is_gguf() && arch.gguf_interleaved,
        theta: theta as f32,
        rot,
        scaling,
        sections: sections(keys, &first, rot)?,
    })
}

/// How many pairs of a head follow each axis of a row, if the model is one for images.
fn sections(
    keys: &Keys<'_>,
    first: &dyn Fn(&[&str]) -> String,
    rot: u32,
) -> Result<Option<Sections>, Error> {
    let parts = ["rope_scaling", "rope_parameters"];
    let field = |name: &str| {
        let names = parts.map(|part| format!("{part}.{name}"));
        first(&names.each_ref().map(String::as_str))
    };
    let key = if keys.is_gguf() {
        keys.name("rope.dimension_sections", "")
    } else {
        field("mrope_section")
    };
    let Some(value) = keys.value(&key) else {
        return Ok(None);
    };
    let Value::Array(list) = value else {
        return Err(keys.error(&key, "is not a list"));
    };
    let number = |value: &Value| match value {
        Value::U64(v) => u8::try_from(*v).ok(),
        Value::I64(v) => u8::try_from(*v).ok(),
        _ => None,
    };
    let numbers: Option<Vec<u8>> = list.iter().map(number).collect();
    let pairs = match numbers.as_deref() {
        // GGUF has a fourth axis, which no model uses.
        Some([time, height, width] | [time, height, width, 0]) => [*time, *height, *width],
        _ => return Err(keys.error(&key, "is not a list of three numbers from 0 to 255")),
    };
    let sum: u32 = pairs.iter().map(|n| u32::from(*n)).sum();
    if sum != rot / 2 {
        let problem = format!("adds up to {sum}; must be {}, half of {rot}", rot / 2);
        return Err(keys.error(&key, problem));
    }
    let interleaved = keys.bool(&field("mrope_interleaved"))?.unwrap_or(false);
    Ok(Some(Sections { pairs, interleaved }))
}

fn gguf_scaling(keys: &Keys<'_>, context: u32) -> Result<Scaling, Error> {
    let name = |s: &str| keys.name(s, "");
    if keys.checkpoint.tensor(&long_factors(true)).is_some() {
        let original = keys.size(
            &name("rope.scaling.original_context_length"),
            Some(context),
            1 << 30,
        )?;
        let stretch = f64::from(context) / f64::from(original);
        let magnitude = keys.positive(
            &name("rope.scaling.attn_factor"),
            Some(long_magnitude(stretch, original)),
        )?;
        return Ok(Scaling::Long {
            original,
            magnitudes: [magnitude as f32; 2],
        });
    }
    let factors = names::weight(names::GGUF.rope_factors, 0);
    let type_key = name("rope.scaling.type");
    let old = name("rope.scale_linear");
    match keys.text(&type_key)? {
        None | Some("none") if keys.checkpoint.tensor(&factors).is_some() => Ok(Scaling::Factors),
        Some(other) if keys.checkpoint.tensor(&factors).is_some() => {
            let other: String = other.chars().filter(|c| !c.is_control()).take(64).collect();
            Err(keys.error(
                &type_key,
                format!(
                    "is '{other}' although the tensor {factors} exists, which is not supported"
                ),
            ))
        }
        None if keys.value(&old).is_some() => linear(keys.positive(&old, None)?),
        None | Some("none") => Ok(Scaling::None),
        Some("linear") => linear(keys.positive(&name("rope.scaling.factor"), None)?),
        Some("yarn") => {
            let factor = at_least_one(keys, &name("rope.scaling.factor"))?;
            let attention = keys.positive(&name("rope.scaling.attn_factor"), Some(1.0))?;
            let all = keys.f64(&name("rope.scaling.yarn_log_multiplier"))?;
            let all = yarn_magnitude(factor, all.unwrap_or(0.0));
            Ok(Scaling::Yarn {
                factor: factor as f32,
                original: keys.size(
                    &name("rope.scaling.original_context_length"),
                    None,
                    1 << 30,
                )?,
                beta_fast: keys.positive(&name("rope.scaling.yarn_beta_fast"), Some(32.0))? as f32,
                beta_slow: keys.positive(&name("rope.scaling.yarn_beta_slow"), Some(1.0))? as f32,
                magnitude: (attention * yarn_magnitude(factor, 1.0) / all) as f32,
                truncate: true,
            })
        }
        Some(other) => Err(unknown(keys, &type_key, other)),
    }
}

fn hugging_face_scaling(
    keys: &Keys<'_>,
    first: &dyn Fn(&[&str]) -> String,
    context: u32,
) -> Result<Scaling, Error> {
    let field = |name: &str| {
        first(&[
            &format!("rope_scaling.{name}"),
            &format!("rope_parameters.{name}"),
            &format!("rope_parameters.full_attention.{name}"),
        ])
    };
    let type_key = first(&[
        "rope_scaling.rope_type",
        "rope_scaling.type",
        "rope_parameters.rope_type",
        "rope_parameters.type",
        "rope_parameters.full_attention.rope_type",
    ]);
    match keys.text(&type_key)? {
        None | Some("default" | "mrope") => Ok(Scaling::None),
        // Hunyuan's factor of the base does not change.
        Some("dynamic") if keys.value(&field("alpha")).is_some() => Ok(Scaling::None),
        Some("dynamic") => Ok(Scaling::Dynamic { original: context }),
        Some("linear") => linear(keys.positive(&field("factor"), None)?),
        Some("proportional") => {
            let key = field("partial_rotary_factor");
            let part = keys.positive(&key, Some(1.0))?;
            if part > 1.0 {
                return Err(keys.error(&key, format!("is {part}; must be at most 1")));
            }
            Ok(Scaling::Proportional {
                part: part as f32,
                factor: keys.positive(&field("factor"), Some(1.0))? as f32,
            })
        }
        Some("llama3") => {
            let low = keys.positive(&field("low_freq_factor"), None)?;
            let high_key = field("high_freq_factor");
            let high = keys.positive(&high_key, None)?;
            if high < low {
                return Err(keys.error(
                    &high_key,
                    format!("is {high}; must not be below low_freq_factor, {low}"),
                ));
            }
            Ok(Scaling::Llama3 {
                factor: at_least_one(keys, &field("factor"))? as f32,
                low: low as f32,
                high: high as f32,
                original: keys.size(&field("original_max_position_embeddings"), None, 1 << 30)?,
            })
        }
        Some("yarn") => {
            let factor = at_least_one(keys, &field("factor"))?;
            let scale =
                |name: &str| -> Result<f64, Error> { Ok(keys.f64(&field(name))?.unwrap_or(0.0)) };
            let plain = match (scale("mscale")?, scale("mscale_all_dim")?) {
                (0.0, _) | (_, 0.0) => yarn_magnitude(factor, 1.0),
                (own, all) => yarn_magnitude(factor, own) / yarn_magnitude(factor, all),
            };
            Ok(Scaling::Yarn {
                factor: factor as f32,
                original: keys.size(
                    &field("original_max_position_embeddings"),
                    Some(context),
                    1 << 30,
                )?,
                beta_fast: keys.positive(&field("beta_fast"), Some(32.0))? as f32,
                beta_slow: keys.positive(&field("beta_slow"), Some(1.0))? as f32,
                magnitude: keys.positive(&field("attention_factor"), Some(plain))? as f32,
                truncate: keys.bool(&field("truncate"))?.unwrap_or(true),
            })
        }
        Some("longrope") => {
            // Published configurations have the original length outside `rope_scaling`.
            let original_key = first(&[
                "original_max_position_embeddings",
                "rope_scaling.original_max_position_embeddings",
                "rope_parameters.original_max_position_embeddings",
            ]);
            let original = keys.size(&original_key, None, 1 << 30)?;
            let stretch = keys.positive(
                &field("factor"),
                Some(f64::from(context) / f64::from(original)),
            )?;
            let magnitude = keys.positive(
                &field("attention_factor"),
                Some(long_magnitude(stretch, original)),
            )?;
            // Phi-3.5-MoE gives one for each list.
            let own = |name: &str| keys.positive(&field(name), Some(magnitude));
            let magnitudes = [own("short_mscale")?, own("long_mscale")?];
            Ok(Scaling::Long {
                original,
                magnitudes: magnitudes.map(|m| m as f32),
            })
        }
        Some(other) => Err(unknown(keys, &type_key, other)),
    }
}

/// YaRN's magnitude for a factor of the context, with the weight `scale`.
pub(crate) fn yarn_magnitude(factor: f64, scale: f64) -> f64 {
    0.1 * scale * factor.ln() + 1.0
}

/// LongRoPE's magnitude for a context stretched by this factor.
fn long_magnitude(stretch: f64, original: u32) -> f64 {
    if stretch <= 1.0 {
        1.0
    } else {
        (1.0 + stretch.ln() / f64::from(original).max(2.0).ln()).sqrt()
    }
}

fn linear(factor: f64) -> Result<Scaling, Error> {
    Ok(Scaling::Linear {
        factor: factor as f32,
    })
}

fn at_least_one(keys: &Keys<'_>, key: &str) -> Result<f64, Error> {
    let factor = keys.positive(key, None)?;
    if factor < 1.0 {
        Err(keys.error(key, format!("is {factor}; must be at least 1")))
    } else {
        Ok(factor)
    }
}

fn unknown(keys: &Keys<'_>, key: &str, name: &str) -> Error {
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    keys.error(
        key,
        format!(
            "the rope scaling '{name}' is not supported; supported are: none, linear, llama3, yarn, longrope, proportional"
        ),
    )
}

/// The `rot / 2` inverse frequencies and the magnitude of rotated pairs, for this context length.
pub(crate) fn frequencies(
    rope: &Rope,
    checkpoint: &dyn Checkpoint,
    context: u32,
) -> Result<(Vec<f32>, f32), Error> {
    let half = rope.rot / 2;
    let plain: Vec<f64> = (0..half)
        .map(|i| f64::from(rope.theta).powf(-2.0 * f64::from(i) / f64::from(rope.rot)))
        .collect();
    let mut magnitude = 1.0;
    let scaled: Vec<f64> = match rope.scaling {
        Scaling::None => plain,
        Scaling::Dynamic { original } if context > original => {
            return Err(Error::Option {
                option: "context",
                problem: format!(
                    "is {context}; beyond {original} positions, the rope scaling 'dynamic' of this model is not supported"
                ),
            });
        }
        Scaling::Dynamic { .. } => plain,
        Scaling::Linear { factor } => plain.iter().map(|f| f / f64::from(factor)).collect(),
        Scaling::Proportional { part, factor } => {
            let rotated = (f64::from(part) * f64::from(rope.rot) / 2.0).floor() as usize;
            let one = |(i, f): (usize, &f64)| {
                if i < rotated {
                    f / f64::from(factor)
                } else {
                    0.0
                }
            };
            plain.iter().enumerate().map(one).collect()
        }
        Scaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => {
            let [factor, low, high] = [factor, low, high].map(f64::from);
            plain
                .iter()
                .map(|f| llama3(*f, factor, low, high, original.into()))
                .collect()
        }
        Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            magnitude: m,
            truncate,
        } => {
            magnitude = m;
            let ends = [beta_fast, beta_slow].map(|turns| pair(rope, original, turns));
            let ends = if truncate {
                [ends[0].floor(), ends[1].ceil()]
            } else {
                ends
            };
            yarn(&plain, factor.into(), ends, f64::from(rope.rot) - 1.0)
        }
        Scaling::Factors => {
            let name = names::weight(names::GGUF.rope_factors, 0);
            divided(&plain, &factors(checkpoint, &name, half)?)
        }
        Scaling::Long {
            original,
            magnitudes,
        } => {
            let long = context > original;
            magnitude = magnitudes[usize::from(long)];
            let by = match checkpoint.dialect() {
                Dialect::Gguf => factors(checkpoint, &long_factors(long), half)?,
                Dialect::HuggingFace => listed_factors(checkpoint, long, half)?,
            };
            divided(&plain, &by)
        }
    };
    Ok((scaled.into_iter().map(|f| f as f32).collect(), magnitude))
}

/// Long waves are stretched, short waves kept, and those between blended.
fn llama3(f: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let turns = original * f / TAU;
    if turns < low {
        f / factor
    } else if turns >= high {
        f
    } else {
        let keep = (turns - low) / (high - low);
        f * keep + f / factor * (1.0 - keep)
    }
}

/// The index of the pair that makes this many turns over the original context. It may be fractional.
fn pair(rope: &Rope, original: u32, turns: f32) -> f64 {
    let length = f64::from(original) / (f64::from(turns) * TAU);
    f64::from(rope.rot) * length.ln() / (2.0 * f64::from(rope.theta).ln())
}

/// Pairs before the first end keep their frequency, pairs after the second are stretched, those between are blended.
fn yarn(plain: &[f64], factor: f64, ends: [f64; 2], most: f64) -> Vec<f64> {
    let (low, high) = (ends[0].max(0.0), ends[1].min(most));
    let span = if high > low { high - low } else { 0.001 };
    let blend = |(i, f): (usize, &f64)| {
        let stretch = ((i as f64 - low) / span).clamp(0.0, 1.0);
        f / factor * stretch + f * (1.0 - stretch)
    };
    plain.iter().enumerate().map(blend).collect()
}

fn divided(plain: &[f64], by: &[f32]) -> Vec<f64> {
    plain
        .iter()
        .zip(by)
        .map(|(f, by)| f / f64::from(*by))
        .collect()
}

/// LongRoPE's tensor for contexts longer than the original length, or for shorter ones.
pub(crate) fn long_factors(long: bool) -> String {
    let which = if long { "long" } else { "short" };
    format!("rope_factors_{which}.weight")
}

/// The factors in a tensor of a GGUF file.
fn factors(checkpoint: &dyn Checkpoint, name: &str, half: u32) -> Result<Vec<f32>, Error> {
    let fault = |problem: String| Error::Tensor {
        origin: checkpoint.origin().into(),
        name: name.into(),
        problem,
    };
    let info = checkpoint
        .tensor(name)
        .ok_or_else(|| fault("is missing".into()))?;
    // Files may also have factors for pairs of a head that are not rotated. These must be 1.
    if info.format != Format::F32 || info.n != 1 || info.k < half as usize {
        let found = format!("is {} of {} x {}", info.format.name(), info.n, info.k);
        return Err(fault(format!("{found}, expected F32 of 1 x {half}")));
    }
    let bytes = checkpoint.rows(info, 0, 1)?;
    let mut values: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let rest = values.split_off(half as usize);
    if rest.iter().any(|factor| *factor != 1.0) {
        return Err(fault(format!(
            "has factors beyond the {half} rotated pairs"
        )));
    }
    if !are_factors(&values, half) {
        return Err(fault(format!("must be {half} finite numbers above 0")));
    }
    Ok(values)
}

/// LongRoPE's factors in a configuration.
pub(crate) fn listed_factors(
    checkpoint: &dyn Checkpoint,
    long: bool,
    half: u32,
) -> Result<Vec<f32>, Error> {
    let keys = Keys::new(checkpoint, "");
    let which = if long { "long_factor" } else { "short_factor" };
    let key = format!("rope_scaling.{which}");
    let key = match keys.value(&key) {
        Some(_) => key,
        None => format!("rope_parameters.{which}"),
    };
    let values: Vec<f32> = match keys.value(&key) {
        Some(Value::Array(list)) => list
            .iter()
            .map(|v| match v {
                Value::F64(f) => *f as f32,
                Value::U64(u) => *u as f32,
                _ => f32::NAN,
            })
            .collect(),
        _ => return Err(keys.error(&key, "is missing or not a list")),
    };
    if !are_factors(&values, half) {
        return Err(keys.error(&key, format!("must be {half} finite numbers above 0")));
    }
    Ok(values)
}

fn are_factors(values: &[f32], half: u32) -> bool {
    values.len() == half as usize && values.iter().all(|v| v.is_finite() && *v > 0.0)
}
