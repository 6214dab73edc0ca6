//! `POST /v1/completions`

use super::{created, figures, finish_reason, take_common, usage};
use crate::answer::{Answers, End, Event, Whole};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::{Api, Failure, ok};
use crate::fields::Fields;
use crate::models::{Lease, Served};
use crate::router::Outcome;
use crate::sse;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's default for the longest completion.
const MAX_TOKENS: usize = 16;

pub(crate) async fn completions(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    let streaming = take_common(&mut fields, &mut ask)?;
    let prompt: Value = fields.need("prompt")?;
    ask.prompts = prompts(&fields, prompt)?;
    ask.options.max_tokens = fields.take("max_tokens")?.unwrap_or(MAX_TOKENS);
    let echo: bool = fields.take("echo")?.unwrap_or(false);
    fields.only("suffix", &[json!("")])?;
    fields.only("logprobs", &[json!(0)])?;
    fields.only("best_of", &[json!(1)])?;
    fields.finish()?;
    let before = match echo {
        true => texts(&served, &ask.prompts)?,
        false => vec![String::new(); ask.prompts.len()],
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
            before,
            ends: vec![None; count],
        };
        return Ok(sse::response(answers, format, "text/event-stream"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let ends: Vec<&End> = wholes.iter().map(Whole::end).collect::<Result<_, _>>()?;
    let choice = |(index, whole): (usize, &Whole)| {
        let text = format!("{}{}", before[index / choices], whole.text);
        choice(index, &text, Some(finish_reason(ends[index])))
    };
    let all: Vec<Value> = wholes.iter().enumerate().map(choice).collect();
    Ok(ok(&json!({
        "id": id, "object": "text_completion", "created": created(), "model": served.id,
        "choices": all, "usage": usage(&ends, choices), "welte": figures(ends[0]),
    })))
}

fn choice(index: usize, text: &str, reason: Option<&str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason })
}

/// A string, several, a list of tokens, or several lists.
fn prompts(fields: &Fields, value: Value) -> Result<Vec<Prompt>, Failure> {
    let wrong = || {
        fields.wrong(
            "prompt",
            "must be a string, a list of tokens, or a list of these",
        )
    };
    let tokens = |all: &[Value]| {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        all.iter()
            .map(token)
            .collect::<Option<Vec<u32>>>()
            .map(Prompt::Tokens)
    };
    let one = |value: Value| match value {
        Value::String(text) => Some(Prompt::Text(text)),
        Value::Array(all) => tokens(&all),
        _ => None,
    };
    match value {
        Value::Array(all) if all.first().is_some_and(Value::is_number) => {
            Ok(vec![tokens(&all).ok_or_else(wrong)?])
        }
        Value::Array(all) => all
            .into_iter()
            .map(|value| one(value).ok_or_else(wrong))
            .collect(),
        value => Ok(vec![one(value).ok_or_else(wrong)?]),
    }
}

fn texts(served: &Served, prompts: &[Prompt]) -> Result<Vec<String>, Failure> {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Tokens(tokens) => Ok(served.model.tokenizer()?.decode(tokens)),
        Prompt::Chat { .. } => Ok(String::new()),
    };
    prompts.iter().map(text).collect()
}

struct CompletionStream {
    served: Lease,
    id: String,
    created: u64,
    usage: bool,
    /// Answers to each prompt.
    choices: usize,
    /// Text before the answers to each prompt.
    before: Vec<String>,
    ends: Vec<Option<Box<End>>>,
}

impl CompletionStream {
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.served.id, "choices": choices,
        })
    }
}

impl sse::Format for CompletionStream {
    fn begin(&mut self) -> Vec<Value> {
        let begin = |index: usize| (index, &self.before[index / self.choices]);
        let begins = (0..self.ends.len())
            .map(begin)
            .filter(|(_, text)| !text.is_empty());
        begins
            .map(|(index, text)| self.chunk(json!([choice(index, text, None)])))
            .collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let choice = match event {
            Event::Text(text) | Event::Reasoning(text) => choice(index, &text, None),
            Event::Call { .. } => return Vec::new(),
            Event::End(end) => {
                let last = choice(index, "", Some(finish_reason(&end)));
                self.ends[index] = Some(end);
                last
            }
        };
        vec![self.chunk(json!([choice]))]
    }

    fn finish(&mut self) -> Vec<Value> {
        let ends: Vec<&End> = self.ends.iter().flatten().map(|end| &**end).collect();
        let (true, Some(first)) = (self.usage, ends.first()) else {
            return Vec::new();
        };
        let mut last = self.chunk(json!([]));
        last["usage"] = usage(&ends, self.choices);
        last["welte"] = figures(first);
        vec![last]
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::OpenAi)
    }

    fn write(&self, value: &Value) -> String {
        sse::data(value)
    }

    fn close(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}
