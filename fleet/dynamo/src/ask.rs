//! A request of Dynamo as one of Welte.

use crate::error;
use dynamo_backend_common::{
    BackendError, DynamoError, GuidedDecodingOptions, PreprocessedRequest,
};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use welte::{Constraint, Request, Sampling};

/// The request with this id. Without a seed of its own it has one that follows from the id: another worker that continues
/// it chooses the same tokens.
pub(crate) fn request(asked: &PreprocessedRequest, id: &str) -> Result<Request, DynamoError> {
    let sampling = &asked.sampling_options;
    let more_than_one = |n: Option<u8>| n.is_some_and(|n| n > 1);
    for (refused, what) in [
        (asked.prompt_embeds.is_some(), "prompt_embeds"),
        (asked.multi_modal_data.is_some(), "multi_modal_data"),
        (
            asked.output_options.prompt_logprobs.is_some(),
            "prompt_logprobs",
        ),
        (
            asked.stop_conditions.max_thinking_tokens.is_some(),
            "max_thinking_tokens",
        ),
        (more_than_one(sampling.n), "n above 1"),
        (more_than_one(sampling.best_of), "best_of above 1"),
        (sampling.use_beam_search == Some(true), "use_beam_search"),
    ] {
        if refused {
            return Err(wrong(format!("{what} is not supported")));
        }
    }
    let mut request = Request::new(asked.token_ids.to_vec());
    let options = &mut request.options;
    let numbers = [
        ("temperature", Some(sampling.temperature.unwrap_or(1.0))),
        ("top_p", sampling.top_p),
        ("top_k", sampling.top_k.map(|k| k as f32)),
        ("min_p", sampling.min_p),
        ("repeat_penalty", sampling.repetition_penalty),
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ];
    for (name, value) in numbers {
        let Some(value) = value else { continue };
        let option = Sampling::OPTIONS.iter().find(|option| option.name == name);
        let option = option.ok_or_else(|| wrong(format!("{name} is not a setting")))?;
        let set = option.set(&mut options.sampling, f64::from(value));
        set.map_err(|range| wrong(format!("{name} is {value}, which is not {range}")))?;
    }
    let of_id = || BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
    options.sampling.seed = sampling.seed.map_or_else(of_id, |seed| seed as u64);
    let stops = &asked.stop_conditions;
    options.max_tokens = stops.max_tokens.map_or(usize::MAX, |max| max as usize);
    options.min_tokens = stops.min_tokens.unwrap_or(0) as usize;
    options.ignore_end = stops.ignore_eos == Some(true);
    // Stop strings are the front end's: it makes the text.
    let ends = [
        &stops.stop_token_ids,
        &stops.stop_token_ids_visible,
        &stops.stop_token_ids_hidden,
    ];
    let ends = ends.into_iter().flatten().flatten().copied();
    let own = asked
        .eos_token_ids
        .iter()
        .copied()
        .filter(|_| !options.ignore_end);
    options.stop_tokens = ends.chain(own).collect();
    options.stop_tokens.sort_unstable();
    options.stop_tokens.dedup();
    options.logprobs = asked.output_options.logprobs;
    let form = sampling.guided_decoding.as_ref().map(constraint);
    options.constraint = form.transpose()?.flatten();
    Ok(request)
}

fn wrong(problem: String) -> DynamoError {
    error(BackendError::InvalidArgument, problem)
}

fn constraint(form: &GuidedDecodingOptions) -> Result<Option<Constraint>, DynamoError> {
    if form.structural_tag.is_some() || form.whitespace_pattern.is_some() {
        return Err(wrong(
            "structural_tag and whitespace_pattern are not supported".into(),
        ));
    }
    let json =
        match &form.json {
            None | Some(serde_json::Value::Null) => None,
            Some(serde_json::Value::String(text)) => {
                let schema = serde_json::from_str(text);
                Some(schema.map_err(|problem| {
                    wrong(format!("guided_decoding.json is not JSON: {problem}"))
                })?)
            }
            Some(schema) => Some(schema.clone()),
        };
    let all = [
        json.map(Constraint::JsonSchema),
        form.regex.clone().map(Constraint::Regex),
        form.choice.clone().map(Constraint::Choice),
        form.grammar.clone().map(Constraint::grammar),
    ];
    let mut all = all.into_iter().flatten();
    match (all.next(), all.next()) {
        (_, Some(_)) => Err(wrong("guided_decoding has more than one form".into())),
        (form, None) => Ok(form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(change: serde_json::Value) -> PreprocessedRequest {
        let mut value = json!({ "model": "fox", "token_ids": [1, 2, 3], "sampling_options": {}, "stop_conditions": {} });
        for (field, inner) in change.as_object().unwrap() {
            value[field] = inner.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn settings_arrive() {
        let all = asked(json!({
            "sampling_options": {
                "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2,
                "presence_penalty": 0.3, "frequency_penalty": 0.4, "seed": 7,
            },
            "stop_conditions": { "max_tokens": 9, "min_tokens": 2, "stop_token_ids": [5], "stop_token_ids_hidden": [6, 5] },
            "eos_token_ids": [8], "output_options": { "logprobs": 3 },
        }));
        let options = request(&all, "a").unwrap().options;
        let s = options.sampling;
        assert_eq!(
            (s.temperature, s.top_k, s.top_p, s.min_p, s.seed),
            (0.5, 0, 0.9, 0.1, 7)
        );
        assert_eq!(
            (s.repeat_penalty, s.presence_penalty, s.frequency_penalty),
            (1.2, 0.3, 0.4)
        );
        assert_eq!(
            (options.max_tokens, options.min_tokens, options.logprobs),
            (9, 2, Some(3))
        );
        assert_eq!(options.stop_tokens, [5, 6, 8]);
    }

    #[test]
    fn the_seed_follows_from_the_id() {
        let seed = |id| {
            request(&asked(json!({})), id)
                .unwrap()
                .options
                .sampling
                .seed
        };
        assert_eq!(seed("a"), seed("a"));
        assert_ne!(seed("a"), seed("b"));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (change, name) in [
            (json!({ "sampling_options": { "n": 2 } }), "n above 1"),
            (
                json!({ "sampling_options": { "use_beam_search": true } }),
                "use_beam_search",
            ),
            (
                json!({ "sampling_options": { "temperature": -1.0 } }),
                "temperature",
            ),
            (
                json!({ "stop_conditions": { "max_thinking_tokens": 4 } }),
                "max_thinking_tokens",
            ),
            (
                json!({ "output_options": { "prompt_logprobs": 1 } }),
                "prompt_logprobs",
            ),
            (
                json!({ "sampling_options": { "guided_decoding": { "json": "{" } } }),
                "guided_decoding.json",
            ),
            (
                json!({ "sampling_options": { "guided_decoding": { "regex": "a", "choice": ["b"] } } }),
                "more than one",
            ),
        ] {
            let refused = request(&asked(change), "a").unwrap_err().to_string();
            assert!(refused.contains(name), "{name}: {refused}");
        }
        let choice = json!({ "sampling_options": { "guided_decoding": { "choice": ["a", "b"] } } });
        let form = request(&asked(choice), "a").unwrap().options.constraint;
        assert_eq!(form, Some(Constraint::Choice(vec!["a".into(), "b".into()])));
    }
}
