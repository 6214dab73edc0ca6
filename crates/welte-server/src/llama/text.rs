//! `/tokenize`, `/detokenize` and `/apply-template`

use super::{Arc, Fields, Outcome};
use crate::app::App;
use crate::ask::{Ask, Ending};
use crate::error::{Failure, json_text, ok};
use crate::openai;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use welte::Message;

/// `POST /tokenize`: llama.cpp's, with `content`, or vLLM's, with `prompt` or `messages`.
pub(crate) async fn tokenize(app: Arc<App>, mut fields: Fields) -> Outcome {
    if fields.peek("messages").is_some() {
        return tokenize_chat(app, fields).await;
    }
    let served = app.lease_of(&mut fields).await?;
    let (prompt, content): (Option<String>, _) = (fields.take("prompt")?, fields.take("content")?);
    // vLLM's answer says how long the text is, and may be.
    let context = prompt.as_ref().map(|_| served.model.context());
    let name = if prompt.is_some() {
        "prompt"
    } else {
        "content"
    };
    // As llama.cpp has it, what is not there has no tokens.
    let content: String = prompt.or(content).unwrap_or_default();
    let asked: Option<bool> = fields.take("add_special_tokens")?;
    let special = asked
        .or(fields.take("add_special")?)
        .unwrap_or(context.is_some());
    let parse = fields.take("parse_special")?.unwrap_or(true);
    let pieces: bool = fields.take("with_pieces")?.unwrap_or(false);
    let most = app.options.longest_text;
    if content.len() > most {
        let problem = format!("has {} bytes, and {most} is the limit", content.len());
        return Err(fields.wrong(name, problem));
    }
    fields.finish()?;
    let work = move || {
        let tokenizer = served.model.tokenizer()?;
        let tokens = tokenizer.encode(&content, special, parse)?;
        let count = tokens.len();
        // Written without a tree, which would take a hundred times as much.
        let mut body = String::from("{\"tokens\":[");
        for (index, id) in tokens.into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = if pieces {
                let piece = piece(tokenizer.token_bytes(id));
                write!(body, "{comma}{{\"id\":{id},\"piece\":{piece}}}")
            } else {
                write!(body, "{comma}{id}")
            };
        }
        body.push(']');
        if let Some(context) = context {
            let _ = write!(body, ",\"count\":{count},\"max_model_len\":{context}");
        }
        body.push('}');
        Ok(json_text(StatusCode::OK, body))
    };
    app.bodies.aside(work).await
}

/// The tokens of a conversation's prompt.
async fn tokenize_chat(app: Arc<App>, mut fields: Fields) -> Outcome {
    let (ask, messages, variables) = conversation(&app, &mut fields).await?;
    for text in ["prompt", "content"] {
        let _: Option<String> = fields.take(text)?;
    }
    let flags = [
        "add_special",
        "add_special_tokens",
        "parse_special",
        "with_pieces",
    ];
    for flag in flags {
        let _: Option<bool> = fields.take(flag)?;
    }
    fields.finish()?;
    let work = move || {
        let (tokens, _) = ask.encode_chat(&messages, &variables)?;
        let (count, context) = (tokens.len(), ask.served.model.context());
        Ok(ok(
            &json!({ "tokens": tokens, "count": count, "max_model_len": context }),
        ))
    };
    app.bodies.aside(work).await
}

/// What a conversation's prompt is made of.
async fn conversation(
    app: &App,
    fields: &mut Fields,
) -> Result<(Ask, Vec<Message>, Map<String, Value>), Failure> {
    let served = app.lease_of(fields).await?;
    let mut ask = Ask::new(app, &served, String::new());
    let messages = openai::take_messages(fields)?;
    openai::tools(fields, &mut ask)?;
    ask.ending = Ending::take(fields, &messages)?;
    let variables = fields.take("chat_template_kwargs")?.unwrap_or_default();
    Ok((ask, messages, variables))
}

/// Text, or bytes that are not text on their own.
fn piece(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.into(),
    }
}

/// The longest text that tokens are turned into, in bytes.
const MOST_DETOKENIZED: usize = 32 << 20;

/// `POST /detokenize`
pub(crate) async fn detokenize(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let tokens: Vec<u32> = fields.need("tokens")?;
    let too_long = fields.wrong(
        "tokens",
        format!("their text has more than {MOST_DETOKENIZED} bytes"),
    );
    fields.finish()?;
    let work = move || {
        let tokenizer = served.model.tokenizer()?;
        let bytes = tokens
            .iter()
            .map(|token| tokenizer.token_bytes(*token).len());
        if bytes.sum::<usize>() > MOST_DETOKENIZED {
            return Err(too_long);
        }
        let content = tokenizer.decode(&tokens);
        // vLLM calls it the prompt.
        Ok(ok(&json!({ "content": content, "prompt": content })))
    };
    app.bodies.aside(work).await
}

/// `POST /apply-template`
pub(crate) async fn apply_template(app: Arc<App>, mut fields: Fields) -> Outcome {
    let (ask, messages, variables) = conversation(&app, &mut fields).await?;
    fields.finish()?;
    let work = move || {
        let variables = ask.served.variables(&variables);
        let prompt = ask.render(&messages, &variables)?;
        Ok(ok(&json!({ "prompt": prompt.text() })))
    };
    app.bodies.aside(work).await
}
