//! `POST /v1/responses/compact`: a conversation in few words, to go on from when the context is almost full.

use super::mcp::Offer;
use super::output::usage;
use super::take_conversation;
use crate::answer::Answers;
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::{Failure, Outcome, ok};
use crate::fields::Fields;
use crate::openai::{created, figures, take_labels};
use serde_json::{Value, json};
use std::sync::Arc;
use welte::Message;

/// The request for a summary, which follows the conversation.
const REQUEST: &str = "Summarize the conversation above for an assistant that will go on with it and sees nothing else of it. \
    Name the task, what was decided and done, facts and file names that matter, and the next steps. Write only the summary.";

/// The part of the context that a summary may take.
const SHARE: usize = 4;

pub(crate) async fn compact(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_named(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("resp_"));
    let offer = Offer::default();
    let conversation = take_conversation(&app, &mut fields, &mut ask, &offer)?;
    take_labels(&mut fields)?;
    fields.finish()?;
    // The answer is text, whatever the conversation's answers are.
    (ask.tools, ask.strict, ask.must_call) = (Vec::new(), Vec::new(), None);
    (ask.options.constraint, ask.constrained_by) = (None, None);
    ask.options.max_tokens = (served.model.context() / SHARE).max(1);
    if let Some(Prompt::Chat { messages, .. }) = ask.prompts.last_mut() {
        messages.push(Message::new("user", REQUEST));
    }
    let id = ask.id.clone();
    let wholes = Answers::new(ask.start(&app).await?).collect().await?;
    let [whole] = wholes.as_slice() else {
        return Err(Failure::server("the engine gave no result"));
    };
    let end = whole.end()?;
    // What the user said stays as it is.
    let items = conversation.before.iter().chain(&conversation.input);
    let of_user = |item: &&Value| item["type"] == "message" && item["role"] == "user";
    let mut output: Vec<Value> = items
        .map(|item| &item.value)
        .filter(of_user)
        .cloned()
        .collect();
    output.push(json!({
        "type": "compaction", "id": app.id("cmp_"), "encrypted_content": whole.text,
    }));
    Ok(ok(&json!({
        "id": id, "object": "response.compaction", "created_at": created(), "model": served.id,
        "output": output, "usage": usage(end), "welte": figures(end),
    })))
}
