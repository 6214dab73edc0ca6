//! Tools of MCP servers (Model Context Protocol): the servers of the operator's file, a client for them, their tools. Models reach
//! them through `/v1/responses` and the chat page. Nothing here runs unless the operator has named a file.

pub(crate) mod endpoints;
#[cfg(feature = "hub")]
mod http;
mod link;
mod process;
#[cfg(test)]
mod tests;

use crate::error::Failure;
use axum::http::StatusCode;
use link::{Link, PATIENCE, PROTOCOLS, Problem};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The most tools of a server, and the most pages of the list of them.
const MOST_TOOLS: usize = 512;
const MOST_PAGES: usize = 64;
/// Requests that a server handles at a time. Each holds a thread; further ones wait without.
const PLACES: usize = 16;

/// The servers that models may use, by their labels.
#[derive(Clone, Default)]
pub struct McpServers(Arc<BTreeMap<String, Arc<Server>>>);

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Their variables and headers may have keys.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How a server is reached.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Place {
    /// A program that talks through its standard streams.
    Program {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        cwd: Option<PathBuf>,
        #[serde(default, rename = "type")]
        _kind: Option<String>,
    },
    /// An address that takes messages by streamable HTTP.
    Address {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        #[serde(default, rename = "type")]
        _kind: Option<String>,
    },
}

/// A server, and the connection to it once it was needed.
struct Server {
    place: Place,
    connection: Connection,
    ids: AtomicU64,
    places: Arc<Semaphore>,
    /// How long it may take to answer, and others may wait for a place.
    patience: Duration,
}

/// The connection to a server. It is made when it is needed.
#[derive(Default)]
struct Connection {
    held: Mutex<Held>,
    attempts: AtomicU64,
}

#[derive(Default)]
struct Held {
    link: Option<Arc<dyn Link>>,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// A tool of a server.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) schema: Value,
}

impl McpServers {
    /// Reads the operator's file: `{"mcpServers": {LABEL: {"command": …, "args": […], "env": {…}} or {"url": …, "headers": {…}}}}`.
    pub fn parse(text: &str) -> Result<McpServers, String> {
        #[derive(Deserialize)]
        struct File {
            #[serde(rename = "mcpServers")]
            servers: Map<String, Value>,
        }
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut servers = BTreeMap::new();
        for (label, value) in file.servers {
            let place = serde_json::from_value(value).map_err(|_| {
                format!(
                    "mcpServers.{label}: must have command, with args, env and cwd if need be, or url, with headers"
                )
            })?;
            if let Place::Address { url, .. } = &place {
                let known = url.starts_with("http://") || url.starts_with("https://");
                if !known || cfg!(not(feature = "hub")) {
                    return Err(format!(
                        "mcpServers.{label}.url: {url} is not an address that this program can reach"
                    ));
                }
            }
            servers.insert(label, Arc::new(Server::new(place, PATIENCE)));
        }
        Ok(McpServers(Arc::new(servers)))
    }

    pub(crate) fn has(&self, label: &str) -> bool {
        self.0.contains_key(label)
    }

    /// The labels, for messages.
    pub(crate) fn labels(&self) -> String {
        let labels: Vec<&str> = self.0.keys().map(String::as_str).collect();
        labels.join(", ")
    }

    /// The tools of a server.
    pub(crate) async fn tools(&self, label: &str) -> Result<Vec<Tool>, String> {
        let tools = self.run(label, Server::tools).await;
        tools.inspect_err(|problem| tracing::warn!(label, problem, "MCP server"))
    }

    /// As [`McpServers::tools`], for clients.
    pub(crate) async fn offered(&self, label: &str) -> Result<Vec<Tool>, Failure> {
        self.tools(label).await.map_err(|problem| {
            let message = format!("the MCP server {label:?} offers no tools: {problem}");
            Failure::new(StatusCode::BAD_GATEWAY, message)
        })
    }

    /// Calls a tool. Returns its text, or what went wrong.
    pub(crate) async fn call(
        &self,
        label: &str,
        tool: String,
        arguments: String,
    ) -> Result<String, String> {
        let said = self.run(label, move |server| server.run(&tool, &arguments));
        // What a tool itself says is not logged: it may quote the conversation.
        let said = said.await;
        said.inspect_err(|problem| tracing::warn!(label, problem, "MCP server"))?
    }

    /// Does work that blocks, once the server has a place for it.
    async fn run<T: Send + 'static>(
        &self,
        label: &str,
        work: impl FnOnce(&Server) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let server = self.0.get(label);
        let server = server.ok_or_else(|| format!("there is no MCP server {label:?}"))?;
        let server = server.clone();
        let place = server.places.clone().acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(server.patience, place).await else {
            return Err("too many calls wait for it".to_string());
        };
        // A client that leaves does not free the place: the thread goes on.
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&server)
        });
        done.await
            .map_err(|error| format!("a fault of ours: {error}"))?
    }
}

impl Server {
    fn new(place: Place, patience: Duration) -> Server {
        Server {
            place,
            connection: Connection::default(),
            ids: AtomicU64::new(1),
            places: Arc::new(Semaphore::new(PLACES)),
            patience,
        }
    }

    fn tools(&self) -> Result<Vec<Tool>, String> {
        let begun = Instant::now();
        let mut tools = Vec::new();
        let mut params = json!({});
        for _ in 0..MOST_PAGES {
            if begun.elapsed() > self.patience {
                return Err("the list of its tools takes too long".to_string());
            }
            let page = self.ask("tools/list", &params)?;
            for tool in page["tools"].as_array().into_iter().flatten() {
                let name = tool["name"].as_str().ok_or("a tool has no name")?;
                let schema = tool.get("inputSchema").filter(|schema| schema.is_object());
                tools.push(Tool {
                    name: name.to_string(),
                    description: tool["description"].as_str().map(str::to_string),
                    schema: schema
                        .cloned()
                        .unwrap_or_else(|| json!({ "type": "object" })),
                });
            }
            if tools.len() > MOST_TOOLS {
                return Err(format!("has more than {MOST_TOOLS} tools"));
            }
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return Ok(tools),
            }
        }
        Err(format!("lists its tools on more than {MOST_PAGES} pages"))
    }

    /// Calls a tool. Returns its text, or its error; the outer one is the connection's.
    fn run(&self, tool: &str, arguments: &str) -> Result<Result<String, String>, String> {
        let arguments = match arguments.trim() {
            "" => Ok(json!({})),
            text => serde_json::from_str::<Value>(text),
        };
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(error) => return Ok(Err(format!("arguments: {error}"))),
        };
        let params = json!({ "name": tool, "arguments": arguments });
        let result = self.ask("tools/call", &params)?;
        let part = |part: &Value| match part["type"].as_str() {
            Some("text") => part["text"].as_str().unwrap_or_default().to_string(),
            Some("resource") => match part["resource"]["text"].as_str() {
                Some(text) => text.to_string(),
                None => format!(
                    "[{}]",
                    part["resource"]["uri"].as_str().unwrap_or("resource")
                ),
            },
            Some("resource_link") => format!("[{}]", part["uri"].as_str().unwrap_or_default()),
            other => format!("[{}]", other.unwrap_or("nothing")),
        };
        let parts = result["content"].as_array().into_iter().flatten();
        let mut text = parts.map(part).collect::<Vec<String>>().join("\n");
        if text.is_empty() && !result["structuredContent"].is_null() {
            text = result["structuredContent"].to_string();
        }
        Ok(match result["isError"].as_bool() {
            Some(true) => Err(text),
            _ => Ok(text),
        })
    }

    /// Asks, over a new connection if there is none or the old one has broken.
    fn ask(&self, method: &str, params: &Value) -> Result<Value, String> {
        let (link, new) = self.link()?;
        let request = self.request(method, params);
        match link.call(&request) {
            Ok(result) => Ok(result),
            Err(Problem::Refused(text)) => Err(text),
            Err(Problem::Broken(text)) => {
                self.connection.forget(&link);
                // A call may have had an effect, so that only a list is asked for twice.
                if new || method == "tools/call" {
                    return Err(text);
                }
                let (link, _) = self.link()?;
                link.call(&request).map_err(|problem| problem.to_string())
            }
        }
    }

    /// The connection. True: it is a new one.
    fn link(&self) -> Result<(Arc<dyn Link>, bool), String> {
        let seen = self.connection.attempts();
        self.connection.get(seen, || self.connect())
    }

    fn connect(&self) -> Result<Arc<dyn Link>, Problem> {
        let patience = self.patience;
        let link: Arc<dyn Link> = match &self.place {
            Place::Program {
                command,
                args,
                env,
                cwd,
                ..
            } => {
                let folder = cwd.as_deref();
                Arc::new(process::Process::start(
                    command, args, env, folder, patience,
                )?)
            }
            #[cfg(feature = "hub")]
            Place::Address { url, headers, .. } => {
                Arc::new(http::Address::new(url, headers, patience))
            }
            #[cfg(not(feature = "hub"))]
            Place::Address { .. } => {
                let problem = "addresses are not supported in this build";
                return Err(Problem::Broken(problem.to_string()));
            }
        };
        let hello = json!({
            "protocolVersion": PROTOCOLS[0], "capabilities": {},
            "clientInfo": { "name": "welte", "version": env!("CARGO_PKG_VERSION") },
        });
        let agreed = link.call(&self.request("initialize", &hello))?;
        let version = agreed["protocolVersion"].as_str().unwrap_or_default();
        if !PROTOCOLS.contains(&version) {
            return Err(Problem::Broken(format!(
                "speaks MCP {version:?}, and this program {}",
                PROTOCOLS.join(", ")
            )));
        }
        link.agree(version);
        link.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(link)
    }

    fn request(&self, method: &str, params: &Value) -> Value {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }
}

impl Connection {
    /// Attempts so far to make it.
    fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    /// The connection, made if there is none. True: it is new. `seen`: the attempts when the caller began to wait. Those who wait
    /// for an attempt share its failure.
    fn get(
        &self,
        seen: u64,
        connect: impl FnOnce() -> Result<Arc<dyn Link>, Problem>,
    ) -> Result<(Arc<dyn Link>, bool), String> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = &held.link {
            return Ok((link.clone(), false));
        }
        if let Some(failure) = held.failure.as_ref().filter(|_| seen != self.attempts()) {
            return Err(failure.clone());
        }
        let made = connect().map_err(|problem| problem.to_string());
        self.attempts.fetch_add(1, Ordering::Release);
        held.failure = made.as_ref().err().cloned();
        let link = made?;
        held.link = Some(link.clone());
        Ok((link, true))
    }

    /// Gives up a connection that is broken. Others may have a new one by now.
    fn forget(&self, link: &Arc<dyn Link>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_held = held.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link));
        let broken = if is_held { held.link.take() } else { None };
        drop(held);
        // The end of a program takes a while.
        drop(broken);
    }
}
