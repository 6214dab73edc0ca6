//! What connections to MCP servers have in common.

use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The revision of the protocol that we speak. Servers may answer with an older one.
pub(super) const PROTOCOL: &str = "2025-06-18";
/// How long a server may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The largest message of a server.
pub(super) const LARGEST: usize = 8 << 20;

/// A connection.
pub(super) trait Link: Send + Sync {
    /// Sends a request and waits for its result.
    fn call(&self, request: &Value) -> Result<Value, Problem>;
    /// Sends what has no answer.
    fn tell(&self, notification: &Value) -> Result<(), Problem>;
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Problem {
    /// The server answers with an error.
    Refused(String),
    /// The connection is of no further use.
    Broken(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Problem::Refused(text) | Problem::Broken(text)) = self;
        f.write_str(text)
    }
}

/// The result in a server's answer.
pub(super) fn result(mut answer: Value) -> Result<Value, Problem> {
    match answer.get_mut("error") {
        Some(error) => {
            let text = error["message"]
                .as_str()
                .unwrap_or("an error without a message");
            Err(Problem::Refused(text.to_string()))
        }
        None => Ok(answer["result"].take()),
    }
}
