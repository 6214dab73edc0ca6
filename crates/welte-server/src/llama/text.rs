//! `/tokenize`, `/detokenize` and `/apply-template`

use super::{Arc, Fields, Outcome};
use crate::app::App;
use crate::ask::{Ask, Ending};
use crate::error::{json_text, ok};
use crate::openai;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// `POST /tokenize`
pub(crate) async fn tokenize(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let content: String = fields.need("content")?;
    let special = fields.take("add_special")?.unwrap_or(false);
    let parse = fields.take("parse_special")?.unwrap_or(true);
    let pieces: bool = fields.take("with_pieces")?.unwrap_or(false);
    let most = app.options.longest_text;
    if content.len() > most {
        let problem = format!("has {} bytes, and {most} is the limit", content.len());
        return Err(fields.wrong("content", problem));
    }
    fields.finish()?;
    let work = move || {
        let tokenizer = served.model.tokenizer()?;
        let tokens = tokenizer.encode(&content, special, parse)?;
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
        body.push_str("]}");
        Ok(json_text(StatusCode::OK, body))
    };
    app.bodies.aside(work).await
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
        Ok(ok(&json!({ "content": content })))
    };
    app.bodies.aside(work).await
}

/// `POST /apply-template`
pub(crate) async fn apply_template(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, String::new());
    let messages = openai::take_messages(&mut fields)?;
    openai::tools(&mut fields, &mut ask)?;
    ask.ending = Ending::take(&mut fields, &messages)?;
    let variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    fields.finish()?;
    let work = move || {
        let variables = ask.served.variables(&variables);
        let prompt = ask.render(&messages, &variables)?;
        Ok(ok(&json!({ "prompt": prompt.text() })))
    };
    app.bodies.aside(work).await
}
