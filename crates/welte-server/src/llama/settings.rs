//! `generation_settings`: how an answer was generated, under llama.cpp's names.

use crate::ask::Ask;
use crate::models::Served;
use serde_json::{Map, Value, json};
use welte::{GenerateOptions, Sampling};

/// The settings that a request and the server's defaults share.
pub(crate) fn sampling(s: &Sampling) -> Map<String, Value> {
    let all = json!({
        "seed": s.seed, "temperature": s.temperature,
        "dynatemp_range": s.dynatemp_range, "dynatemp_exponent": s.dynatemp_exponent,
        "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p,
        "top_n_sigma": if s.top_n_sigma > 0.0 { s.top_n_sigma } else { -1.0 },
        "xtc_probability": s.xtc_probability, "xtc_threshold": s.xtc_threshold,
        "typical_p": s.typical_p,
        "repeat_last_n": s.penalty_last_n, "repeat_penalty": s.repeat_penalty,
        "presence_penalty": s.presence_penalty, "frequency_penalty": s.frequency_penalty,
        "dry_multiplier": s.dry_multiplier, "dry_base": s.dry_base,
        "dry_allowed_length": s.dry_allowed_length,
        "dry_penalty_last_n": i64::from(s.dry_last_n as i32),
        // Samplers that there are not: their values mean off.
        "mirostat": 0, "adaptive_target": -1.0, "adaptive_decay": 0.0,
    });
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

/// The settings of a request.
pub(crate) fn of(ask: &Ask) -> Value {
    let options = &ask.options;
    let mut all = sampling(&options.sampling);
    let most = match options.max_tokens {
        usize::MAX => -1,
        most => i64::try_from(most).unwrap_or(-1),
    };
    all.insert("max_tokens".into(), most.into());
    all.insert("n_predict".into(), most.into());
    all.insert("ignore_eos".into(), options.ignore_end.into());
    all.insert("stop".into(), options.stop.to_vec().into());
    let breakers = options.dry_breakers.clone();
    all.insert("dry_sequence_breakers".into(), breakers.into());
    let n_probs = options.logprobs.unwrap_or(0);
    all.insert("n_probs".into(), n_probs.into());
    all.insert("logit_bias".into(), biases(&ask.served, options));
    all.insert("timings_per_token".into(), ask.report.timings.into());
    Value::Object(all)
}

/// Every bias. JSON has no infinity: null forbids a token.
fn biases(served: &Served, options: &GenerateOptions) -> Value {
    let given = options.bias.iter().copied();
    let ends: &[u32] = match served.model.tokenizer() {
        Ok(tokenizer) if options.ignore_end => tokenizer.end_tokens(),
        _ => &[],
    };
    let ends = ends.iter().map(|end| (*end, f32::NEG_INFINITY));
    let one = |(token, bias): (u32, f32)| json!({ "token": token, "bias": bias });
    given.chain(ends).map(one).collect()
}
