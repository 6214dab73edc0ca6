//! An MCP server at an address: streamable HTTP. Every message is a request; its answer is JSON, or a stream of events with it.

use super::link::{LARGEST, Link, Problem, result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use ureq::Agent;

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";

pub(super) struct Address {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    agreed: Mutex<Agreed>,
}

/// What was agreed upon at the beginning. Later messages name it.
#[derive(Clone, Default)]
struct Agreed {
    /// What the server calls this connection.
    session: Option<String>,
    /// The revision of the protocol.
    version: Option<String>,
}

impl Address {
    pub(super) fn new(
        url: &str,
        headers: &BTreeMap<String, String>,
        patience: Duration,
    ) -> Address {
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_global(Some(patience))
            .user_agent(concat!("welte/", env!("CARGO_PKG_VERSION")));
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        Address {
            agent: config.build().into(),
            url: url.to_string(),
            headers: headers.collect(),
            agreed: Mutex::default(),
        }
    }

    fn agreed(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message. Returns the answer with this id, if one is wanted.
    fn send(&self, message: &Value, wanted: Option<&Value>) -> Result<Option<Value>, Problem> {
        // Without the address, which may have a key and is not for clients.
        let broken = |error: &dyn std::fmt::Display| Problem::Broken(error.to_string());
        let mut request = self.agent.post(&self.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request = request
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        let Agreed { session, version } = self.agreed().clone();
        for (name, value) in [(SESSION, session), (VERSION, version)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let mut response = request
            .send(message.to_string())
            .map_err(|error| broken(&error))?;
        if !response.status().is_success() {
            return Err(broken(&format!("the server answers {}", response.status())));
        }
        let header = |name: &str| {
            response
                .headers()
                .get(name)?
                .to_str()
                .ok()
                .map(str::to_string)
        };
        if let Some(session) = header(SESSION) {
            self.agreed().session = Some(session);
        }
        let is_stream =
            header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let Some(id) = wanted else {
            return Ok(None);
        };
        let mut body = response.body_mut().as_reader().take(LARGEST as u64);
        if !is_stream {
            let answer = serde_json::from_reader(body).map_err(|error| broken(&error))?;
            return Ok(Some(answer));
        }
        let mut data = String::new();
        for line in BufReader::new(&mut body).lines() {
            let line = line.map_err(|error| broken(&error))?;
            if let Some(more) = line.strip_prefix("data:") {
                data.push_str(more.trim_start());
                data.push('\n');
            } else if line.is_empty() {
                let event = serde_json::from_str::<Value>(&std::mem::take(&mut data));
                // Others are notifications, and requests that we do not offer to answer.
                if let Ok(answer) = event
                    && answer.get("method").is_none()
                    && answer["id"] == *id
                {
                    return Ok(Some(answer));
                }
            }
        }
        Err(broken(&"the stream ends without an answer"))
    }
}

impl Link for Address {
    fn call(&self, request: &Value) -> Result<Value, Problem> {
        let answer = self.send(request, request.get("id"))?;
        result(answer.unwrap_or_default())
    }

    fn tell(&self, notification: &Value) -> Result<(), Problem> {
        self.send(notification, None).map(|_| ())
    }

    fn agree(&self, version: &str) {
        self.agreed().version = Some(version.to_string());
    }
}
