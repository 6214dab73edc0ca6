//! `generation_settings`: how an answer was generated, under llama.cpp's names.

use crate::ask::Ask;
use crate::models::Served;
use serde_json::{Map, Value, json};
use welte::{GenerateOptions, Sampling, SamplingOption};

/// The settings that a request and the server's defaults share.
pub(crate) fn sampling(s: &Sampling) -> Map<String, Value> {
    let number = |option: &SamplingOption| match option.get(s) {
        // What stands for all tokens.
        value if option.is_whole() && value == f64::from(u32::MAX) => json!(-1),
        value if option.is_whole() => json!(value as u64),
        value => json!(value),
    };
    let options = Sampling::OPTIONS.iter();
    let mut all: Map<String, Value> = options
        .map(|option| (option.name.into(), number(option)))
        .collect();
    all.insert("seed".into(), s.seed.into());
    if s.top_n_sigma <= 0.0 {
        all.insert("top_n_sigma".into(), json!(-1.0));
    }
    // Samplers that do not exist here: their values mean off.
    all.insert("mirostat".into(), json!(0));
    all.insert("adaptive_target".into(), json!(-1.0));
    all.insert("adaptive_decay".into(), json!(0.0));
    all
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
