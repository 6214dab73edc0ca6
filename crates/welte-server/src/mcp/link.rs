//! What connections to MCP servers have in common.

use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The revisions of the protocol that we speak. We offer the first; servers may answer with another one.
pub(super) const PROTOCOLS: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];
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
    /// The revision of the protocol for all that follows.
    fn agree(&self, _version: &str) {}
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
pub(super) fn result(answer: Value) -> Result<Value, Problem> {
    let Value::Object(mut answer) = answer else {
        return Err(Problem::Broken("the answer is not an object".to_string()));
    };
    match answer.remove("error").filter(|error| !error.is_null()) {
        Some(error) => {
            let text = error["message"].as_str();
            let text = text.unwrap_or("an error without a message");
            Err(Problem::Refused(text.to_string()))
        }
        None => Ok(answer.remove("result").unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_of_any_form_are_read() {
        for (answer, wanted) in [
            (json!({ "result": 1, "error": null }), "Ok(Number(1))"),
            (json!({}), "Ok(Null)"),
            (
                json!({ "error": { "message": "no" } }),
                "Err(Refused(\"no\"))",
            ),
            (
                json!({ "error": 5 }),
                "Err(Refused(\"an error without a message\"))",
            ),
            (json!([]), "Err(Broken(\"the answer is not an object\"))"),
            (json!("ok"), "Err(Broken(\"the answer is not an object\"))"),
            (Value::Null, "Err(Broken(\"the answer is not an object\"))"),
        ] {
            assert_eq!(format!("{:?}", result(answer)), wanted);
        }
    }
}
