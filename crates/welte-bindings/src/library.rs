//! A loaded model with the server's endpoints.

use crate::options::{self, Loading};
use crate::waiting::{Alive, OnText, Waiter};
use crate::{Events, Kind, Problem};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use tower::ServiceExt;
use welte::{LoadOptions, Model, Progress};
use welte_table::{Class, MemoryPlan};

/// Texts that are embedded with one request.
const TEXTS: usize = 1024;

/// A loaded model that answers requests. Several threads may use it at the same time.
pub struct Library {
    model: Model,
    name: String,
    options: LoadOptions,
    router: Router,
    waiter: Waiter,
}

impl Library {
    /// Loads a model. `options` is a JSON object, or empty. `progress` gets the bytes read so far and in all,
    /// and may end the load.
    pub fn load(
        source: &str,
        options: &str,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Arc<Library>, Problem> {
        let Loading { load, serve } = Loading::parse(options)?;
        let mut tell = |at| match at {
            Progress::Weights { done, total } => progress(done, total),
            Progress::Tuning { .. } => ControlFlow::Continue(()),
        };
        let model = Model::load_while(source, &load, &mut tell)?;
        let waiter = Waiter::new()?;
        let inside = waiter.enter();
        let router = welte_server::router(model.clone(), serve)?;
        drop(inside);
        Ok(Arc::new(Library {
            name: welte_server::name_of(model.origin()),
            options: load,
            model,
            router,
            waiter,
        }))
    }

    /// The model's name, which is that of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Facts about the model.
    pub fn info(&self) -> Value {
        let model = &self.model;
        json!({
            "name": self.name,
            "origin": model.origin(),
            "device": model.device().id.to_string(),
            "context": model.context(),
            "slots": self.options.slots,
            "vocabulary": model.vocab(),
            "embedding_size": model.embedding_size(),
            "generates_text": !model.is_encoder(),
            "scores_pairs": model.scores_pairs(),
            "has_chat_template": model.has_chat_template(),
            "end_tokens": model.end_tokens(),
            "memory": memory(model.plan()),
            "load_seconds": model.load_time().as_secs_f64(),
            "facts": facts(model.spec().facts()),
        })
    }

    /// Encodes a text. `special`: add the tokens that the model expects around a text, and recognise control tokens.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, Problem> {
        let tokenizer = self.model.tokenizer()?;
        let tokens = tokenizer.encode(text, special, special);
        tokens.map_err(|error| Problem::new(Kind::Request, error.to_string()))
    }

    /// The text of tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Problem> {
        let vocab = self.model.vocab();
        if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
            return Err(Problem::argument(format!(
                "token {token} is outside the vocabulary of {vocab} tokens"
            )));
        }
        Ok(self.model.tokenizer()?.decode(tokens))
    }

    /// Sends a request to an endpoint and waits for the whole response. An empty body is a request without one.
    pub fn request(
        self: &Arc<Library>,
        method: &str,
        path: &str,
        body: &str,
        alive: Alive,
    ) -> Result<String, Problem> {
        let response = self.send(method, path, body.to_string(), alive)?;
        self.text(response, alive)
    }

    /// Sends a request whose response is streamed.
    pub fn stream(
        self: &Arc<Library>,
        path: &str,
        body: &str,
        alive: Alive,
    ) -> Result<Events, Problem> {
        let mut body = options::object("request", body)?;
        body.insert("stream".into(), true.into());
        if path.starts_with("/v1/chat/") || path.starts_with("/v1/completions") {
            let usage = || json!({ "include_usage": true });
            body.entry("stream_options").or_insert_with(usage);
        }
        let response = self.send("POST", path, Value::from(body).to_string(), alive)?;
        Ok(Events::new(self.waiter.clone(), response))
    }

    /// Continues a prompt, which is a text or an array of tokens. `options` has the other fields of `/v1/completions`. Returns
    /// the whole response.
    pub fn generate(
        self: &Arc<Library>,
        prompt: Value,
        options: &str,
        on_text: OnText,
        alive: Alive,
    ) -> Result<Value, Problem> {
        let mut body = options::object("options", options)?;
        unlimited(&mut body);
        body.insert("prompt".into(), prompt);
        let body = Value::from(body).to_string();
        let events = self.stream("/v1/completions", &body, alive)?;
        events.merge(on_text, alive)
    }

    /// Answers a request of `/v1/chat/completions`. Returns the whole response.
    pub fn chat(
        self: &Arc<Library>,
        request: &str,
        on_text: OnText,
        alive: Alive,
    ) -> Result<Value, Problem> {
        let events = self.stream("/v1/chat/completions", request, alive)?;
        events.merge(on_text, alive)
    }

    /// The text that the chat template makes of messages.
    pub fn render(self: &Arc<Library>, messages: Value, alive: Alive) -> Result<String, Problem> {
        let body = json!({ "messages": messages }).to_string();
        let answer = self.request("POST", "/apply-template", &body, alive)?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        Ok(answer["prompt"].as_str().unwrap_or_default().to_string())
    }

    /// The vectors of texts, one after the other, and the size of each. `options` has the other fields of `/v1/embeddings`.
    pub fn embed(
        self: &Arc<Library>,
        texts: &[String],
        options: &str,
        alive: Alive,
    ) -> Result<(Vec<f32>, usize), Problem> {
        let mut body = options::object("options", options)?;
        let (mut all, mut size) = (Vec::new(), 0);
        for texts in texts.chunks(TEXTS) {
            body.insert("input".into(), texts.into());
            body.insert("encoding_format".into(), "float".into());
            let sent = Value::from(body.clone()).to_string();
            let answer = self.request("POST", "/v1/embeddings", &sent, alive)?;
            let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
            for vector in answer["data"].as_array().into_iter().flatten() {
                let vector = vector["embedding"].as_array();
                let vector = vector.map_or(&[][..], |values| values);
                size = vector.len();
                let values = vector
                    .iter()
                    .map(|value| value.as_f64().unwrap_or(0.0) as f32);
                all.extend(values);
            }
        }
        if all.len() != texts.len() * size || size == 0 && !texts.is_empty() {
            let problem = "the response does not have a vector for each text";
            return Err(Problem::new(Kind::Internal, problem));
        }
        Ok((all, size))
    }

    /// The response, if it is not an error.
    fn send(
        self: &Arc<Library>,
        method: &str,
        path: &str,
        body: String,
        alive: Alive,
    ) -> Result<Response, Problem> {
        if !alive() {
            return Err(Problem::cancelled());
        }
        let body = self.with_model(path, body);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body));
        let request = request.map_err(|error| {
            Problem::argument(format!("{method} {path}: not a request: {error}"))
        })?;
        let response = self
            .waiter
            .wait(self.router.clone().oneshot(request), alive)?;
        let response = response.unwrap_or_else(|never| match never {});
        let status = response.status();
        if status.is_success() {
            Ok(response)
        } else {
            Err(Problem::of_response(status, &self.text(response, alive)?))
        }
    }

    /// The body with the field `model`, which the APIs require.
    fn with_model(&self, path: &str, body: String) -> String {
        let is_api = path.starts_with("/v1/") || path.starts_with("/api/");
        match serde_json::from_str::<Map<String, Value>>(&body) {
            Ok(mut fields) if is_api && !fields.contains_key("model") => {
                fields.insert("model".into(), self.name.as_str().into());
                Value::from(fields).to_string()
            }
            _ => body,
        }
    }

    fn text(&self, response: Response, alive: Alive) -> Result<String, Problem> {
        let bytes = self
            .waiter
            .wait(to_bytes(response.into_body(), usize::MAX), alive)?;
        let bytes = bytes.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The memory plan of a model, from its headers alone, as JSON.
pub fn plan(source: &str, options: &str) -> Result<Value, Problem> {
    let loading = Loading::parse(options)?;
    let found = Model::inspect(source, &loading.load)?;
    Ok(json!({
        "origin": found.origin(),
        "device": found.device().id.to_string(),
        "context": found.program().context,
        "memory": memory(found.plan()),
        "total": found.plan().total(),
        "available": found.available(),
        "facts": facts(found.spec.facts()),
    }))
}

/// Without a limit of its own an answer ends where the model ends it, or with the context.
fn unlimited(body: &mut Map<String, Value>) {
    if !body.contains_key("max_tokens") && !body.contains_key("n_predict") {
        body.insert("max_tokens".into(), i32::MAX.into());
    }
}

fn memory(plan: &MemoryPlan) -> Value {
    let bytes = |class: Class| (class.name().to_string(), plan.bytes(class).into());
    Class::ALL
        .into_iter()
        .map(bytes)
        .collect::<Map<_, _>>()
        .into()
}

fn facts(facts: Vec<(String, String)>) -> Value {
    let facts = facts.into_iter().map(|(name, value)| (name, value.into()));
    facts.collect::<Map<_, _>>().into()
}
