//! Sampling fields that several APIs share.

use crate::ask::Ask;
use crate::error::Failure;
use crate::fields::Fields;
use serde_json::{Number, Value};
use welte::{Constraint, GenerateOptions, Sampling};

/// Takes the sampling fields that have the same name in several APIs.
pub(crate) fn take(fields: &mut Fields, options: &mut GenerateOptions) -> Result<(), Failure> {
    let s = &mut options.sampling;
    for (name, value) in [
        ("temperature", &mut s.temperature),
        ("top_p", &mut s.top_p),
        ("min_p", &mut s.min_p),
        ("repeat_penalty", &mut s.repeat_penalty),
        ("frequency_penalty", &mut s.frequency_penalty),
        ("presence_penalty", &mut s.presence_penalty),
        ("typical_p", &mut s.typical_p),
        ("top_n_sigma", &mut s.top_n_sigma),
        ("xtc_probability", &mut s.xtc_probability),
        ("xtc_threshold", &mut s.xtc_threshold),
        ("dynatemp_range", &mut s.dynatemp_range),
        ("dynatemp_exponent", &mut s.dynatemp_exponent),
        ("dry_multiplier", &mut s.dry_multiplier),
        ("dry_base", &mut s.dry_base),
    ] {
        if let Some(given) = fields.take(name)? {
            *value = given;
        }
    }
    // llama.cpp switches it off with -1.
    if s.top_n_sigma == -1.0 {
        s.top_n_sigma = 0.0;
    }
    if let Some(given) = fields.take("dry_allowed_length")? {
        s.dry_allowed_length = given;
    }
    if let Some(given) = fields.take::<i64>("dry_penalty_last_n")? {
        s.dry_last_n = u32::try_from(given).unwrap_or(u32::MAX);
    }
    // vLLM's name for the same.
    if let Some(given) = fields.take("repetition_penalty")? {
        s.repeat_penalty = given;
    }
    // Some clients switch a limit off with -1 or 0.
    if let Some(given) = fields.take::<i64>("top_k")? {
        s.top_k = u32::try_from(given.max(0)).unwrap_or(0);
    }
    if let Some(given) = fields.take::<i64>("repeat_last_n")? {
        s.penalty_last_n = u32::try_from(given).unwrap_or(u32::MAX);
    }
    if let Some(given) = fields.take::<Number>("seed")? {
        match given.as_u64() {
            Some(seed) => s.seed = seed,
            // A negative seed asks for a random one.
            None if given.is_i64() => {}
            None => return Err(fields.wrong("seed", "must be a whole number of at most 64 bits")),
        }
    }
    if let Some(stop) = fields.take::<Value>("stop")? {
        options.stop = strings(fields, "stop", stop)?.into();
    }
    if let Some(bias) = fields.take::<Value>("logit_bias")? {
        options.bias = biases(fields, bias)?;
    }
    if let Some(ignore) = fields.take("ignore_eos")? {
        options.ignore_end = ignore;
    }
    if let Some(breakers) = fields.take::<Value>("dry_sequence_breakers")? {
        options.dry_breakers = strings(fields, "dry_sequence_breakers", breakers)?;
    }
    if let Some(tokens) = fields.take("stop_token_ids")? {
        options.stop_tokens = tokens;
    }
    if let Some(least) = fields.take("min_tokens")? {
        options.min_tokens = least;
    }
    Ok(())
}

/// llama.cpp's names of the steps of sampling, in the order of the steps.
const SAMPLERS: [&str; 10] = [
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
];

/// The sampler `infill` drops tokens that are not nearly as probable as the likeliest one.
const INFILL_MIN_P: f32 = 0.2;

/// Takes llama.cpp's list of samplers: those that are not in it are switched off.
pub(crate) fn take_samplers(fields: &mut Fields, s: &mut Sampling) -> Result<(), Failure> {
    let Some(names) = fields.take::<Vec<String>>("samplers")? else {
        return Ok(());
    };
    let place = |name: &String| {
        let name = if name == "typical_p" { "typ_p" } else { name };
        SAMPLERS.iter().position(|known| *known == name)
    };
    let wrong = || {
        let problem = format!(
            "must be names of this list in its order: {}",
            SAMPLERS.join(", ")
        );
        fields.wrong("samplers", problem)
    };
    let places: Option<Vec<usize>> = names.iter().map(place).collect();
    let places = places.filter(|places| places.is_sorted_by(|a, b| a < b));
    let places = places.ok_or_else(wrong)?;
    let off = |name: &str| places.iter().all(|place| SAMPLERS[*place] != name);
    if off("penalties") {
        (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) = (1.0, 0.0, 0.0);
    }
    for (name, value, neutral) in [
        ("dry", &mut s.dry_multiplier, 0.0),
        ("top_n_sigma", &mut s.top_n_sigma, 0.0),
        ("typ_p", &mut s.typical_p, 1.0),
        ("top_p", &mut s.top_p, 1.0),
        ("min_p", &mut s.min_p, 0.0),
        ("xtc", &mut s.xtc_probability, 0.0),
        ("temperature", &mut s.temperature, 1.0),
        ("temperature", &mut s.dynatemp_range, 0.0),
    ] {
        if off(name) {
            *value = neutral;
        }
    }
    if off("top_k") {
        s.top_k = 0;
    }
    if !off("infill") {
        s.min_p = s.min_p.max(INFILL_MIN_P);
    }
    Ok(())
}

/// Takes llama.cpp's fields of what the answer must look like.
pub(crate) fn take_grammar(fields: &mut Fields, ask: &mut Ask) -> Result<(), Failure> {
    if let Some(schema) = fields.take("json_schema")? {
        ask.constrain(fields.name("json_schema"), Constraint::JsonSchema(schema))?;
    }
    let grammar: Option<String> = fields.take("grammar")?;
    match grammar.filter(|grammar| !grammar.is_empty()) {
        Some(grammar) => ask.constrain(fields.name("grammar"), Constraint::grammar(grammar)),
        None => Ok(()),
    }
}

/// The most stop strings of a request, and their lengths in bytes: of one, and of all.
const MOST_STOPS: usize = 64;
const LONGEST_STOP: usize = 4 << 10;
const LONGEST_STOPS: usize = 64 << 10;

/// One short string or several.
pub(crate) fn strings(fields: &Fields, name: &str, value: Value) -> Result<Vec<String>, Failure> {
    let all = texts(fields, name, value, MOST_STOPS)?;
    if let Some(long) = all.iter().find(|one| one.len() > LONGEST_STOP) {
        let problem = format!(
            "has a string of {} bytes; {LONGEST_STOP} is the limit",
            long.len()
        );
        return Err(fields.wrong(name, problem));
    }
    let bytes: usize = all.iter().map(String::len).sum();
    if bytes > LONGEST_STOPS {
        let problem = format!("has {bytes} bytes in all; {LONGEST_STOPS} is the limit");
        return Err(fields.wrong(name, problem));
    }
    Ok(all)
}

/// One string, or at most `most`.
pub(crate) fn texts(
    fields: &Fields,
    name: &str,
    value: Value,
    most: usize,
) -> Result<Vec<String>, Failure> {
    let all = match value {
        Value::String(one) => vec![one],
        Value::Array(all) if all.len() <= most => {
            let text = |value: Value| match value {
                Value::String(text) => Ok(text),
                _ => Err(fields.wrong(name, "must be a string or a list of strings")),
            };
            all.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Value::Array(_) => return Err(fields.wrong(name, format!("has more than {most}"))),
        _ => return Err(fields.wrong(name, "must be a string or a list of strings")),
    };
    Ok(all)
}

/// An object from tokens to numbers, or a list of pairs. `false` forbids a token.
fn biases(fields: &Fields, value: Value) -> Result<Vec<(u32, f32)>, Failure> {
    let wrong = || {
        fields.wrong(
            "logit_bias",
            "must map tokens to numbers (false forbids a token)",
        )
    };
    let number = |value: &Value| match value {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        value => value.as_f64().map(|v| v as f32),
    };
    match value {
        Value::Object(map) => {
            let pair =
                |(token, value): (String, Value)| Some((token.parse().ok()?, number(&value)?));
            map.into_iter()
                .map(|one| pair(one).ok_or_else(wrong))
                .collect()
        }
        Value::Array(all) => {
            let pair = |value: Value| {
                let pair = value.as_array().filter(|pair| pair.len() == 2)?;
                Some((u32::try_from(pair[0].as_u64()?).ok()?, number(&pair[1])?))
            };
            all.into_iter()
                .map(|one| pair(one).ok_or_else(wrong))
                .collect()
        }
        _ => Err(wrong()),
    }
}
