//! `POST /v1/completions`

use super::{FINGERPRINT, created, figures, finish_reason, take_common, usage, with_tokens};
use crate::answer::{Answers, End, Event, Whole};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::logprobs::{self, Columns};
use crate::models::Lease;
use crate::{answer, llama, prompts, sampling};
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's default for the longest completion.
const MAX_TOKENS: usize = 16;

pub(crate) async fn completions(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_named(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    sampling::take(&mut fields, &mut ask.options)?;
    let streaming = take_common(&mut fields, &mut ask)?;
    let prompt: Value = fields.need("prompt")?;
    ask.prompts = prompts::several(&fields, "prompt", prompt)?.0;
    let limit: Option<usize> = fields.take("max_tokens")?;
    let limit = limit.or(fields.take("n_predict")?);
    ask.options.max_tokens = limit.unwrap_or(MAX_TOKENS);
    let echo: bool = fields.take("echo")?.unwrap_or(false);
    let suffix: Option<String> = fields.take("suffix")?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    if let Some(suffix) = &suffix {
        for prompt in &mut ask.prompts {
            let Prompt::Text(prefix) = prompt else {
                return Err(fields.wrong("suffix", "needs a prompt that is text"));
            };
            *prompt = Prompt::Infill {
                prefix: std::mem::take(prefix),
                suffix: suffix.clone(),
                middle: String::new(),
                field: "suffix",
            };
        }
    }
    let top: Option<u32> = fields.take("logprobs")?;
    if let Some(top) = top {
        let top = logprobs::checked(&fields, "logprobs", top)?;
        ask.options.logprobs = Some(top);
        ask.options.prompt_logprobs = echo.then_some(top);
    }
    fields.only("best_of", &[json!(1)])?;
    if streaming.on && ask.options.prompt_logprobs.is_some() {
        let problem = "is not supported together with \"echo\" and \"logprobs\"";
        return Err(fields.wrong("stream", problem));
    }
    if echo && !ask.answered.is_empty() {
        return Err(fields.wrong("echo", "cannot be combined with \"answered_tokens\""));
    }
    fields.finish()?;
    if echo && suffix.is_some() {
        // An echo makes tokens of the prompts, which do not tell that something is filled in.
        ask.options
            .stop_tokens
            .extend(served.model.tokenizer()?.infill_ends());
    }
    let before = if echo {
        echoed(&app, &served, &mut ask.prompts).await?
    } else {
        vec![Echo::default(); ask.prompts.len()]
    };
    let (id, choices) = (ask.id.clone(), ask.choices);
    let answers = ask.start(&app).await?;
    if streaming.on {
        let count = answers.len();
        let format = CompletionStream {
            served,
            id,
            created: created(),
            usage: streaming.usage,
            choices,
            columns: (0..count)
                .map(|index| Columns::at(before[index / choices].text.chars().count()))
                .collect(),
            before,
            tokens: streaming.tokens.then(|| vec![Vec::new(); count]),
            ends: vec![None; count],
        };
        return Ok(answer::respond(answers, format, "text/event-stream"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let ends: Vec<&End> = wholes.iter().map(Whole::end).collect::<Result<_, _>>()?;
    let choice = |(index, whole): (usize, &Whole)| {
        let echo = &before[index / choices];
        let text = format!("{}{}", echo.text, whole.text);
        let logprobs = if ends[index].prompt_logprobs.is_empty() {
            let mut columns = Columns::at(echo.text.chars().count());
            columns.add(&served, &whole.logprobs);
            columns.take()
        } else {
            let mut columns = Columns::of_text();
            let first = echo.tokens.first();
            first.iter().for_each(|id| columns.add_first(&served, **id));
            columns.add(&served, &ends[index].prompt_logprobs);
            columns.add(&served, &whole.logprobs);
            columns.take()
        };
        let tokens = streaming.tokens.then(|| ends[index].new_tokens());
        let choice = choice(index, &text, logprobs, Some(finish_reason(ends[index])));
        with_tokens(choice, tokens)
    };
    let all: Vec<Value> = wholes.iter().enumerate().map(choice).collect();
    Ok(ok(&json!({
        "id": id, "object": "text_completion", "created": created(), "model": served.name(),
        "system_fingerprint": FINGERPRINT, "choices": all, "usage": usage(&ends, choices),
        "timings": llama::timings(ends[0]), "welte": figures(ends[0]),
    })))
}

fn choice(index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
}

/// A prompt that is part of the answer.
#[derive(Clone, Default)]
struct Echo {
    tokens: Vec<u32>,
    text: String,
}

/// Encodes the prompts, and returns them as they are echoed.
async fn echoed(
    app: &App,
    served: &Lease,
    prompts: &mut Vec<Prompt>,
) -> Result<Vec<Echo>, Failure> {
    let (served, all) = (served.clone(), std::mem::take(prompts));
    let encode = move || {
        let echo = |prompt: Prompt| {
            let tokens = prompt.encode(&served)?;
            let text = match prompt {
                Prompt::Text(text) | Prompt::Infill { prefix: text, .. } => text,
                _ => served.model.tokenizer()?.decode(&tokens),
            };
            Ok(Echo { tokens, text })
        };
        all.into_iter()
            .map(echo)
            .collect::<Result<Vec<Echo>, Failure>>()
    };
    let echoed = app.bodies.aside(encode).await?;
    let tokens = echoed.iter().map(|echo| echo.tokens.clone());
    *prompts = tokens.map(Prompt::Tokens).collect();
    Ok(echoed)
}

struct CompletionStream {
    served: Lease,
    id: String,
    created: u64,
    usage: bool,
    /// Answers to each prompt.
    choices: usize,
    /// What comes before the answers to each prompt.
    before: Vec<Echo>,
    /// Probabilities that the next chunk of each answer has.
    columns: Vec<Columns>,
    /// Tokens that the next chunk of each answer has, if they were asked for.
    tokens: Option<Vec<Vec<u32>>>,
    ends: Vec<Option<Box<End>>>,
}

impl CompletionStream {
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.served.name(), "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }
}

impl answer::Format for CompletionStream {
    fn begin(&mut self) -> Vec<Value> {
        let begin = |index: usize| (index, &self.before[index / self.choices].text);
        let begins = (0..self.ends.len())
            .map(begin)
            .filter(|(_, text)| !text.is_empty());
        begins
            .map(|(index, text)| self.chunk(json!([choice(index, text, Value::Null, None)])))
            .collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let choice = match event {
            Event::Logprobs(logprobs) => {
                self.columns[index].add(&self.served, &logprobs);
                return Vec::new();
            }
            Event::Text(text) | Event::Reasoning(text) => {
                choice(index, &text, self.columns[index].take(), None)
            }
            Event::Tokens(tokens) => {
                let pending = self.tokens.iter_mut().flat_map(|all| all.get_mut(index));
                pending.for_each(|own| own.extend(&tokens));
                return Vec::new();
            }
            Event::Timings(_) => return Vec::new(),
            Event::Progress(progress) => {
                let mut chunk = self.chunk(json!([choice(index, "", Value::Null, None)]));
                chunk["prompt_progress"] = llama::progress(&progress);
                return vec![chunk];
            }
            Event::CallBegin(_) | Event::CallArguments(_) => return Vec::new(),
            Event::CallEnd | Event::CallVoid => return Vec::new(),
            Event::End(end) => {
                let logprobs = self.columns[index].take();
                let last = choice(index, "", logprobs, Some(finish_reason(&end)));
                self.ends[index] = Some(end);
                last
            }
        };
        let tokens = self
            .tokens
            .as_mut()
            .map(|all| std::mem::take(&mut all[index]));
        vec![self.chunk(json!([with_tokens(choice, tokens.as_deref())]))]
    }

    fn finish(&mut self) -> Vec<Value> {
        let ends: Vec<&End> = self.ends.iter().flatten().map(|end| &**end).collect();
        let (true, Some(first)) = (self.usage, ends.first()) else {
            return Vec::new();
        };
        let mut last = self.chunk(json!([]));
        last["usage"] = usage(&ends, self.choices);
        last["timings"] = llama::timings(first);
        last["welte"] = figures(first);
        vec![last]
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::OpenAi)
    }

    fn write(&self, value: &Value) -> String {
        answer::sse(value)
    }

    fn close(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}
