//! Sampling fields that several APIs share.

use crate::ask::{Ask, MOST_CHOICES};
use crate::error::Failure;
use crate::fields::Fields;
use crate::length;
use crate::models::Served;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use welte::{Constraint, GenerateOptions, Sampling, SamplingOption};

/// Takes a number among the settings.
fn take_option(
    fields: &mut Fields,
    option: &SamplingOption,
    name: &'static str,
    s: &mut Sampling,
) -> Result<(), Failure> {
    let value = if option.is_whole() {
        take_whole(fields, name)?.map(|whole| whole as f64)
    } else {
        fields.take(name)?
    };
    match value.map(|value| option.set(s, value)) {
        Some(Err(range)) => Err(fields.wrong(name, format!("must be {range}"))),
        _ => Ok(()),
    }
}

/// Takes a whole number of any size. Those beyond 64 bits have the nearest value.
fn take_whole(fields: &mut Fields, name: &str) -> Result<Option<i64>, Failure> {
    let Some(value) = fields.take::<serde_json::Number>(name)? else {
        return Ok(None);
    };
    let whole = match (value.as_i64(), value.as_u64(), value.as_f64()) {
        (Some(value), ..) => Some(value),
        (_, Some(_), _) => Some(i64::MAX),
        (.., Some(value)) if value.fract() == 0.0 => Some(value as i64),
        _ => None,
    };
    match whole {
        Some(whole) => Ok(Some(whole)),
        None => Err(fields.wrong(name, "must be a whole number")),
    }
}

/// Takes the limit of an answer's tokens under one of its names. Negative: no limit.
pub(crate) fn take_limit(
    fields: &mut Fields,
    name: &str,
    options: &mut GenerateOptions,
) -> Result<(), Failure> {
    if let Some(limit) = take_whole(fields, name)? {
        options.max_tokens = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    Ok(())
}

/// Takes how many answers are wanted.
pub(crate) fn take_choices(fields: &mut Fields, name: &str) -> Result<Option<usize>, Failure> {
    let choices: Option<usize> = fields.take(name)?;
    if choices.is_some_and(|choices| !(1..=MOST_CHOICES).contains(&choices)) {
        return Err(fields.wrong(name, format!("must be from 1 to {MOST_CHOICES}")));
    }
    Ok(choices)
}

/// Takes the sampling fields that have the same name in several APIs.
pub(crate) fn take(fields: &mut Fields, options: &mut GenerateOptions) -> Result<(), Failure> {
    let s = &mut options.sampling;
    for option in Sampling::OPTIONS {
        take_option(fields, option, option.name, s)?;
        for alias in option.aliases {
            take_option(fields, option, alias, s)?;
        }
    }
    if let Some(given) = fields.take::<serde_json::Number>("seed")? {
        match given.as_u64() {
            Some(seed) => s.seed = seed,
            // A negative seed asks for a random one, also where the server or the model has another default.
            None if given.is_i64() => s.seed = random_seed(),
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

/// A seed that JavaScript can represent, so that a client can repeat the request.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0) >> 12
}

/// llama.cpp's names of the steps of sampling, in the order of the steps.
pub(crate) const SAMPLERS: [&str; 10] = [
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
    if all.iter().any(String::is_empty) {
        return Err(fields.wrong(name, "has an empty text"));
    }
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

/// One string, or at most `max_len`.
pub(crate) fn texts(
    fields: &Fields,
    name: &str,
    value: Value,
    max_len: usize,
) -> Result<Vec<String>, Failure> {
    let all = match value {
        Value::String(one) => vec![one],
        Value::Array(all) if all.len() <= max_len => {
            let text = |value: Value| match value {
                Value::String(text) => Ok(text),
                _ => Err(fields.wrong(name, "must be a string or a list of strings")),
            };
            all.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Value::Array(_) => return Err(fields.wrong(name, format!("has more than {max_len}"))),
        _ => return Err(fields.wrong(name, "must be a string or a list of strings")),
    };
    Ok(all)
}

/// As [`biases`], where texts stand for all of their tokens.
pub(crate) fn biases_of_texts(
    fields: &Fields,
    served: &Served,
    value: Value,
) -> Result<Vec<(u32, f32)>, Failure> {
    let pairs: Vec<Value> = match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, bias)| json!([key, bias]))
            .collect(),
        Value::Array(all) => all,
        other => return biases(fields, other),
    };
    let mut all = Vec::new();
    for pair in pairs {
        match pair[0].as_str().map(|text| (text, text.parse::<u32>())) {
            Some((_, Ok(token))) => all.push(json!([token, pair[1]])),
            Some((text, Err(_))) => {
                length::check(served, text)?;
                let tokens = served.model.tokenizer()?.encode(text, false, true)?;
                all.extend(tokens.into_iter().map(|token| json!([token, pair[1]])));
            }
            None => all.push(pair),
        }
    }
    biases(fields, all.into())
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
        value => value
            .as_f64()
            .map(|v| v as f32)
            .filter(|value| value.is_finite()),
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
