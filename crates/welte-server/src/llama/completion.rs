//! `/completion` and `/infill`

use super::{Arc, Extras, Fields, Outcome, sampled, settings, timings};
use crate::answer::{Answers, End, Event, Reason, Whole};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::{Api, Failure, ok};
use crate::lines::LineLimits;
use crate::models::{Lease, Served};
use crate::openai::figures;
use crate::{answer, logprobs, prompts};
use serde_json::{Value, json};
use std::time::Duration;
use welte::{Logprobs, RequestProgress, Sampling, StopReason};

/// `POST /completion`
pub(crate) async fn completion(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    let prompt: Value = fields.need("prompt")?;
    let (prompts, several) = prompts::several(&fields, "prompt", prompt)?;
    ask.prompts = prompts;
    answer(app, fields, ask, several).await
}

/// `POST /infill`
pub(crate) async fn infill(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    let mut prefix = String::new();
    for mut file in fields.objects("input_extra")? {
        let name: String = file.take("filename")?.unwrap_or_default();
        let text: String = file.need("text")?;
        file.finish()?;
        prefix.push_str(&format!("{name}\n{text}\n\n"));
    }
    prefix.push_str(&fields.need::<String>("input_prefix")?);
    ask.prompts = vec![Prompt::Infill {
        prefix,
        suffix: fields.need("input_suffix")?,
        middle: fields.take("prompt")?.unwrap_or_default(),
        field: "input_suffix",
    }];
    answer(app, fields, ask, false).await
}

/// Takes the fields that completions share, and answers: with a list, if the prompts came as one.
async fn answer(app: Arc<App>, mut fields: Fields, mut ask: Ask, several: bool) -> Outcome {
    if let Some(bias) = fields.take::<Value>("logit_bias")? {
        ask.options.bias = crate::sampling::biases_of_texts(&fields, &ask.served, bias)?;
    }
    let top_k = ask.options.sampling.top_k;
    ask.options.sampling.top_k = u32::MAX;
    crate::sampling::take(&mut fields, &mut ask.options)?;
    let asked_top_k = ask.options.sampling.top_k != u32::MAX;
    if !asked_top_k {
        ask.options.sampling.top_k = top_k;
    }
    crate::sampling::take_samplers(&mut fields, &mut ask.options.sampling)?;
    crate::sampling::take_grammar(&mut fields, &mut ask)?;
    let time: Option<i64> = fields.take("t_max_predict_ms")?;
    ask.lines = Some(LineLimits {
        indent: fields.take("n_indent")?.unwrap_or(0),
        time: time.and_then(|ms| Some(Duration::from_millis(u64::try_from(ms).ok()?))),
    });
    crate::sampling::take_limit(&mut fields, "n_predict", &mut ask.options)?;
    ask.cache = fields.take("cache_prompt")?.unwrap_or(true);
    ask.take_answered(&mut fields)?;
    let stream: bool = fields.take("stream")?.unwrap_or(false);
    // A prompt is never cut, so these change nothing.
    fields.take::<i64>("n_keep")?;
    fields.take::<i64>("n_discard")?;
    fields.take::<i64>("t_max_prompt_ms")?;
    Extras::take(&mut fields, &mut ask)?;
    let choices = crate::sampling::take_choices(&mut fields, "n")?;
    ask.choices = crate::sampling::take_choices(&mut fields, "n_cmpl")?
        .or(choices)
        .unwrap_or(1);
    let response_fields: Vec<String> = fields.take("response_fields")?.unwrap_or_default();
    let top = fields.take::<u32>("n_probs")?.filter(|top| *top > 0);
    if let Some(top) = top {
        ask.options.logprobs = Some(logprobs::checked(&fields, "n_probs", top)?);
    }
    let after_sampling: bool = fields.take("post_sampling_probs")?.unwrap_or(false);
    let after_sampling = match top.filter(|_| after_sampling) {
        Some(top) => {
            sampled::restrict(&fields, &mut ask, asked_top_k)?;
            Some((top as usize, ask.options.sampling))
        }
        None => None,
    };
    let return_tokens: bool = fields.take("return_tokens")?.unwrap_or(false);
    fields.finish()?;
    (ask.report.prompt, ask.report.tokens) = (true, stream);
    let form = Form {
        served: ask.served.clone(),
        settings: settings::of(&ask),
        return_tokens,
        after_sampling,
        response_fields,
    };
    if after_sampling.is_some() {
        // All of them are needed to know what was left.
        ask.options.logprobs = Some(Logprobs::MOST as u32);
    }
    let several = several || ask.choices > 1;
    let answers = ask.start(&app).await?;
    if stream {
        let format = CompletionStream {
            pending: answers.iter().map(|_| Pending::default()).collect(),
            form,
        };
        return Ok(answer::respond(answers, format, "text/event-stream"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let all = wholes.iter().enumerate();
    let all = all.map(|(index, whole)| form.whole(index, whole));
    let mut all: Vec<Value> = all.collect::<Result<_, _>>()?;
    match all.len() {
        0 => Err(Failure::server("the engine gave no result")),
        1 if !several => Ok(ok(&all.remove(0))),
        _ => Ok(ok(&all.into())),
    }
}

/// What the responses to a request have.
struct Form {
    served: Lease,
    settings: Value,
    return_tokens: bool,
    /// Probabilities after sampling, of this many tokens.
    after_sampling: Option<(usize, Sampling)>,
    response_fields: Vec<String>,
}

impl Form {
    fn whole(&self, index: usize, whole: &Whole) -> Result<Value, Failure> {
        let end = whole.end()?;
        let tokens = if self.return_tokens {
            end.new_tokens()
        } else {
            &[]
        };
        let mut value = self::whole(&self.served, &self.settings, &whole.text, tokens, end);
        value["index"] = index.into();
        let value = self.with_probabilities(value, &whole.logprobs);
        Ok(only_fields(value, &self.response_fields))
    }

    /// Adds the probabilities of tokens, if there are any.
    fn with_probabilities(&self, mut value: Value, all: &[Logprobs]) -> Value {
        if all.is_empty() {
            return value;
        }
        value["completion_probabilities"] = match &self.after_sampling {
            None => logprobs::of_llama(&self.served, all),
            Some((top, s)) => {
                let entry = |one: &Logprobs| {
                    logprobs::sampled(&self.served, one.token(), &sampled::left(one, s), *top)
                };
                all.iter().map(entry).collect()
            }
        };
        value
    }
}

/// The parts of a response at these paths, such as `timings/prompt_n`, under their paths. Without paths everything.
fn only_fields(value: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return value;
    }
    let at = |path: &String| Some((path.clone(), value.pointer(&format!("/{path}"))?.clone()));
    Value::Object(paths.iter().filter_map(at).collect())
}

/// A complete response.
pub(crate) fn whole(
    served: &Served,
    settings: &Value,
    text: &str,
    tokens: &[u32],
    end: &End,
) -> Value {
    let outcome = &end.outcome;
    let (kind, word) = match &end.reason {
        Reason::StopString(word) => ("word", word.as_str()),
        Reason::Length => ("limit", ""),
        Reason::Stop | Reason::Calls => ("eos", ""),
    };
    json!({
        "index": 0, "content": text, "tokens": tokens, "id_slot": -1, "stop": true, "model": served.id,
        "tokens_predicted": outcome.tokens.len(), "tokens_evaluated": outcome.prompt_tokens,
        "generation_settings": settings, "prompt": spelled(served, &end.prompt),
        "has_new_line": text.contains('\n'), "truncated": outcome.stop == StopReason::ContextFull,
        "stop_type": kind, "stopping_word": word, "tokens_cached": outcome.cached_tokens,
        "timings": timings::of(end), "welte": figures(end),
    })
}

/// The text of a prompt, with the spelling of its control tokens.
fn spelled(served: &Served, tokens: &[u32]) -> String {
    let Ok(tokenizer) = served.model.tokenizer() else {
        return String::new();
    };
    let mut bytes = Vec::new();
    for token in tokens
        .iter()
        .filter(|t| (**t as usize) < tokenizer.vocab_size())
    {
        if tokenizer.is_control(*token) {
            bytes.extend(tokenizer.token_text(*token).as_bytes())
        } else {
            bytes.extend(tokenizer.token_bytes(*token))
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What the next event of an answer has.
#[derive(Default)]
struct Pending {
    logprobs: Vec<Logprobs>,
    tokens: Vec<u32>,
    progress: Option<RequestProgress>,
    has_new_line: bool,
}

struct CompletionStream {
    form: Form,
    pending: Vec<Pending>,
}

impl CompletionStream {
    fn text(&mut self, index: usize, text: &str) -> Value {
        let pending = &mut self.pending[index];
        pending.has_new_line |= text.contains('\n');
        let mut value = json!({
            "index": index, "content": text, "tokens": std::mem::take(&mut pending.tokens),
            "stop": false, "id_slot": -1,
        });
        if let Some(progress) = pending.progress.take() {
            value["timings"] = timings::so_far(&progress);
        }
        value
    }
}

impl answer::Format for CompletionStream {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let value = match event {
            Event::Logprobs(logprobs) => {
                self.pending[index].logprobs.extend(logprobs);
                return Vec::new();
            }
            Event::Tokens(tokens) => {
                self.pending[index].tokens.extend(tokens);
                return Vec::new();
            }
            Event::Timings(progress) => {
                self.pending[index].progress = Some(progress);
                return Vec::new();
            }
            Event::Progress(progress) => {
                let mut value = self.text(index, "");
                value["prompt_progress"] = timings::progress(&progress);
                value["timings"] = timings::so_far(&progress);
                return vec![value];
            }
            Event::Text(text) | Event::Reasoning(text) => self.text(index, &text),
            Event::CallBegin(_) | Event::CallArguments(_) => return Vec::new(),
            Event::CallEnd | Event::CallVoid => return Vec::new(),
            Event::End(end) => {
                let Form {
                    served, settings, ..
                } = &self.form;
                let mut value = whole(served, settings, "", &[], &end);
                value["index"] = index.into();
                value["has_new_line"] = self.pending[index].has_new_line.into();
                only_fields(value, &self.form.response_fields)
            }
        };
        let logprobs = std::mem::take(&mut self.pending[index].logprobs);
        vec![self.form.with_probabilities(value, &logprobs)]
    }

    fn finish(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::LlamaCpp)
    }

    fn write(&self, value: &Value) -> String {
        answer::sse(value)
    }
}
