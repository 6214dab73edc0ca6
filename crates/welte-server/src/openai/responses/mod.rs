//! `/v1/responses`: answers with stored conversations.

mod compact;
mod items;
mod mcp;
mod names;
mod output;
mod store;
mod tools;

pub(crate) use compact::compact;
pub(crate) use store::Store;

use super::chat::reasoning_effort;
use super::messages::tool_choice;
use super::{created, take_labels};
use crate::answer::{Answer, Answers, Format};
use crate::app::App;
use crate::ask::{self, Ask, Prompt};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::ignored::Ignored;
use crate::{answer, logprobs, sampling};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use mcp::{Offer, Rounds};
use names::Names;
use output::{Building, Keep};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use store::{Item, Stored};
use tokio::sync::Notify;
use welte::Message;

const LOGPROBS: &str = "message.output_text.logprobs";

/// Values of `include`. Except [`LOGPROBS`] they ask for parts of items that the server never has, or for parts that it always sends.
pub(crate) const INCLUDES: [&str; 7] = [
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];

/// `POST /v1/responses`
pub(crate) async fn create(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_named(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("resp_"));
    let offer = mcp::look(&app, &fields).await?;
    let conversation = take_conversation(&app, &mut fields, &mut ask, &offer)?;
    sampling::take(&mut fields, &mut ask.options)?;
    let limit: Option<usize> = fields.take("max_output_tokens")?;
    ask.options.max_tokens = limit.unwrap_or(ask.options.max_tokens);
    ask.cache = fields.take("cache_prompt")?.unwrap_or(true);
    let stream: bool = fields.take("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.only("include_obfuscation", &[json!(false)])?;
        options.finish()?;
    }
    let store: bool = fields.take("store")?.unwrap_or(true);
    let background: bool = fields.take("background")?.unwrap_or(false);
    if background && !store {
        return Err(fields.wrong("background", "needs \"store\": true"));
    }
    if background && stream {
        return Err(fields.wrong("stream", "is not supported for a background response"));
    }
    let metadata: Map<String, Value> = fields.take("metadata")?.unwrap_or_default();
    let mut wants_logprobs = false;
    for name in fields.take::<Vec<String>>("include")?.unwrap_or_default() {
        match name.as_str() {
            LOGPROBS => wants_logprobs = true,
            name if INCLUDES.contains(&name) => {}
            _ => return Err(fields.wrong("include", format!("{name:?} is not supported"))),
        }
    }
    let top: Option<u32> = fields.take("top_logprobs")?;
    if wants_logprobs || top.is_some_and(|top| top > 0) {
        let top = logprobs::checked(&fields, "top_logprobs", top.unwrap_or(0))?;
        ask.options.logprobs = Some(top);
    }
    // It limits the calls of tools that the server runs: those of MCP servers.
    let most_calls: Option<u64> = fields.take("max_tool_calls")?;
    fields.ignore(&["prompt_cache_options"]);
    // These come back in the response.
    let safety_identifier: Option<String> = fields.take("safety_identifier")?;
    let prompt_cache_key: Option<String> = fields.take("prompt_cache_key")?;
    take_labels(&mut fields)?;
    fields.finish()?;
    let sampling = &ask.options.sampling;
    let head = json!({
        "id": ask.id, "object": "response", "created_at": created(), "status": "in_progress",
        "completed_at": null, "background": background, "error": null, "incomplete_details": null,
        "instructions": conversation.instructions, "max_output_tokens": limit, "max_tool_calls": most_calls,
        "metadata": metadata, "model": served.name(), "output": [],
        "parallel_tool_calls": !ask.one_call, "previous_response_id": conversation.previous,
        "reasoning": { "effort": conversation.effort, "summary": null }, "service_tier": "default",
        "store": store, "temperature": sampling.temperature, "text": { "format": conversation.format },
        "tool_choice": conversation.choice, "tools": conversation.tools, "top_logprobs": top.unwrap_or(0),
        "top_p": sampling.top_p, "truncation": "disabled", "usage": null,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "safety_identifier": safety_identifier, "prompt_cache_key": prompt_cache_key,
    });
    let items = conversation.before.iter().chain(&conversation.input);
    let approved = mcp::approved(items.clone().map(|item| &item.value));
    let approved: Vec<(Value, String)> = approved
        .into_iter()
        .map(|(item, id)| (item.clone(), id.to_string()))
        .collect();
    for (request, _) in &approved {
        let text = |field: &str| request[field].as_str().unwrap_or_default();
        let (label, name) = (text("server_label"), text("name"));
        if !conversation.names.offers(label, name) {
            let problem = format!(
                "must offer {name:?} of the MCP server {label:?}, which the user has agreed to call"
            );
            return Err(Failure::field("tools", problem));
        }
    }
    let lists = offer.items(&app, items);
    let rounds = Rounds::new(offer, &ask, &conversation.names, most_calls);
    let keep = store.then(|| Keep {
        before: conversation.before,
        input: conversation.input,
    });
    let answers = match approved.is_empty() {
        true => ask.start(&app).await?,
        // The calls come first.
        false => Vec::new(),
    };
    let mut building = Building::new(app, served, head, conversation.names, keep);
    building.with_tools(rounds, lists, approved);
    if background {
        return Ok(in_background(building, answers));
    }
    if stream {
        return Ok(answer::respond(answers, building, "text/event-stream"));
    }
    if let Err(failure) = run(&mut building, answers).await {
        if !building.has_called() {
            return Err(failure);
        }
        // Calls may have had effects: the client sees them.
        building.abort("failed", Some(&failure));
    }
    Ok(ok(&building.response()))
}

/// Waits for the whole answer.
async fn run(building: &mut Building, answers: Vec<Answer>) -> Result<(), Failure> {
    building.begin();
    let mut answers = Answers::new(answers);
    loop {
        while let Some(event) = answers.next().await {
            building.take(event?.1);
        }
        let Some(more) = building.more() else {
            return Ok(());
        };
        let step = more.await;
        let goes_on = step.goes_on();
        building.resume(step.results, goes_on);
        if let Some(failure) = step.failure {
            return Err(failure);
        }
        answers = Answers::new(step.answers);
    }
}

/// Lets the answer go on without the client.
fn in_background(mut building: Building, answers: Vec<Answer>) -> Response {
    let cancel = Arc::new(Notify::new());
    building.go_on_in_background(&cancel);
    let response = ok(&building.response());
    let (app, id) = building.app_and_id();
    app.background.send_modify(|ids| _ = ids.insert(id.clone()));
    tokio::spawn(async move {
        let done = tokio::select! {
            done = run(&mut building, answers) => Some(done),
            () = cancel.notified() => None,
        };
        match done {
            Some(Ok(())) => {}
            Some(Err(failure)) => building.abort("failed", Some(&failure)),
            None => building.abort("cancelled", None),
        }
        // A server that is about to end waits until somebody has read the response.
        if !app.is_draining() {
            app.forget_background(&id);
        }
    });
    response
}

/// `POST /v1/responses/input_tokens`
pub(crate) async fn input_tokens(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_named(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, String::new());
    let offer = mcp::look(&app, &fields).await?;
    take_conversation(&app, &mut fields, &mut ask, &offer)?;
    fields.finish()?;
    let count = ask::count(&app, ask).await?;
    Ok(ok(
        &json!({ "object": "response.input_tokens", "input_tokens": count }),
    ))
}

/// What a request says about its prompt.
struct Conversation {
    before: Vec<Arc<Item>>,
    input: Vec<Arc<Item>>,
    instructions: Option<String>,
    previous: Option<String>,
    effort: Option<String>,
    /// The tools and the choice of tools, as they came.
    tools: Value,
    /// The tools that are in namespaces.
    names: Names,
    choice: Value,
    /// The format of the text, as it came.
    format: Value,
}

/// Takes the fields that make the prompt.
fn take_conversation(
    app: &App,
    fields: &mut Fields,
    ask: &mut Ask,
    offer: &Offer,
) -> Result<Conversation, Failure> {
    let previous: Option<String> = fields.take("previous_response_id")?;
    let before = match &previous {
        Some(id) => {
            let Some(stored) = app.responses.get(id) else {
                let problem = format!("there is no stored response {id:?}");
                return Err(Failure {
                    status: StatusCode::NOT_FOUND,
                    ..fields.wrong("previous_response_id", problem)
                });
            };
            if stored.cancel.is_some() {
                let problem = format!("{id:?} is still in progress");
                return Err(fields.wrong("previous_response_id", problem));
            }
            stored.conversation()
        }
        None => Vec::new(),
    };
    let input = items::take(app, fields)?;
    if input.is_empty() && before.is_empty() {
        return Err(fields.wrong("input", "at least one item is required"));
    }
    let input: Vec<Arc<Item>> = input.into_iter().map(Item::new).collect();
    let instructions: Option<String> = fields.take("instructions")?;
    let (tools, names) = tools::take(fields, ask, offer)?;
    let system = instructions.iter().map(|text| Message::new("system", text));
    let items = before.iter().chain(&input).map(|item| &item.value);
    let messages = system.chain(items::messages(items, &names)).collect();
    let choice = tool_choice(fields, ask)?;
    let mut variables = Map::new();
    let mut effort = None;
    let mut format = json!({ "type": "text" });
    if let Some(mut reasoning) = fields.object("reasoning")? {
        effort = reasoning_effort(&mut reasoning, "effort", &mut variables)?;
        // Reasoning is sent as it is; there is no summary.
        reasoning.only("summary", &[json!("auto")])?;
        reasoning.only("generate_summary", &[json!("auto")])?;
        reasoning.finish()?;
    }
    if let Some(mut text) = fields.object("text")? {
        let given: Option<Value> = text.take("format")?;
        if let Some(given) = given {
            format = given.clone();
            let given = text.inner(given, "format")?;
            super::chat::text_format(Some(given), ask)?;
        }
        text.only("verbosity", &[json!("medium")])?;
        text.finish()?;
    }
    fields.only("truncation", &[json!("disabled")])?;
    fields.refuse(&["conversation", "prompt"])?;
    ask.prompts.push(Prompt::Chat {
        messages,
        variables,
    });
    Ok(Conversation {
        before,
        input,
        instructions,
        previous,
        effort,
        tools,
        names,
        choice,
        format,
    })
}

type Queried = Query<Vec<(String, String)>>;

/// The parameters of a URL.
fn parameters(Query(query): Queried, ignored: &Ignored) -> Result<Fields, Failure> {
    let query = query.into_iter();
    let map: Map<String, Value> = query.map(|(name, value)| (name, value.into())).collect();
    Fields::root(map, ignored)
}

fn respond(outcome: Outcome) -> Response {
    outcome.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

fn find(app: &App, id: &str) -> Result<Arc<Stored>, Failure> {
    app.responses.get(id).ok_or_else(|| absent(id))
}

fn absent(id: &str) -> Failure {
    let message = format!("there is no stored response {id:?}");
    Failure::new(StatusCode::NOT_FOUND, message)
}

/// `GET /v1/responses/ID`
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(ignored): Extension<Ignored>,
    query: Queried,
) -> Response {
    let find = || {
        let mut parameters = parameters(query, &ignored)?;
        parameters.ignore(&["include", "include[]", "include_obfuscation"]);
        parameters.only("stream", &[json!("false")])?;
        parameters.finish()?;
        let stored = find(&app, &id);
        if stored.as_ref().is_ok_and(|stored| stored.cancel.is_none()) {
            app.forget_background(&id);
        }
        Ok(ok(&stored?.response()))
    };
    respond(find())
}

/// `DELETE /v1/responses/ID`
pub(crate) async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let Some(stored) = app.responses.remove(&id) else {
        return absent(&id).response(Api::OpenAi);
    };
    if let Some(cancel) = &stored.cancel {
        cancel.notify_one();
    }
    app.forget_background(&id);
    ok(&json!({ "id": id, "object": "response", "deleted": true }))
}

/// `POST /v1/responses/ID/cancel`
pub(crate) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let cancel = || {
        let stored = find(&app, &id)?;
        if stored.head["background"] != true {
            return Err(Failure::request(
                "only background responses can be cancelled",
            ));
        }
        let mut response = stored.response();
        if let Some(cancel) = &stored.cancel {
            cancel.notify_one();
            response["status"] = "cancelled".into();
        }
        Ok(ok(&response))
    };
    respond(cancel())
}

/// `GET /v1/responses/ID/input_items`
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(ignored): Extension<Ignored>,
    query: Queried,
) -> Response {
    let listed =
        parameters(query, &ignored).and_then(|parameters| list_input(&app, &id, parameters));
    respond(listed)
}

fn list_input(app: &App, id: &str, mut parameters: Fields) -> Outcome {
    parameters.ignore(&["include", "include[]"]);
    let limit: Option<String> = parameters.take("limit")?;
    let limit = limit.map_or(Ok(20), |text| text.parse::<usize>());
    let limit = limit.ok().filter(|limit| (1..=100).contains(limit));
    let limit = limit.ok_or_else(|| parameters.wrong("limit", "must be from 1 to 100"))?;
    let order: Option<String> = parameters.take("order")?;
    let after: Option<String> = parameters.take("after")?;
    let stored = find(app, id)?;
    let mut items: Vec<&Value> = stored
        .before
        .iter()
        .chain(&stored.input)
        .map(|i| &i.value)
        .collect();
    match order.as_deref() {
        Some("asc") => {}
        None | Some("desc") => items.reverse(),
        Some(_) => return Err(parameters.wrong("order", "must be asc or desc")),
    }
    if let Some(after) = after {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        let Some(at) = at else {
            return Err(parameters.wrong("after", format!("there is no item {after:?}")));
        };
        items.drain(..=at);
    }
    parameters.finish()?;
    let more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&&Value>| item.map(|item| item["id"].clone());
    Ok(ok(&json!({
        "object": "list", "data": items, "first_id": id(items.first()), "last_id": id(items.last()),
        "has_more": more,
    })))
}
