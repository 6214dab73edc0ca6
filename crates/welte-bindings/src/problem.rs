//! Errors as kinds and texts.

use axum::http::StatusCode;
use serde_json::Value;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An argument or an option has a value that cannot be used.
    Argument,
    /// The model cannot be loaded.
    Model,
    /// The model does not fit into the memory.
    Memory,
    /// The request cannot be answered as it is.
    Request,
    /// Too many requests are waiting.
    Busy,
    /// Cancelled by the caller.
    Cancelled,
    /// A fault of the device or of ours.
    Internal,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Its kind.
    pub kind: Kind,
    /// Its text.
    pub message: String,
}

impl Problem {
    /// An error of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Problem {
        Problem {
            kind,
            message: message.into(),
        }
    }

    /// An argument that cannot be used.
    pub fn argument(message: impl Into<String>) -> Problem {
        Problem::new(Kind::Argument, message)
    }

    /// What a call returns whose caller no longer wants the answer.
    pub fn cancelled() -> Problem {
        Problem::new(Kind::Cancelled, "the request was cancelled")
    }

    /// A response that is an error, in the format of any of the APIs.
    pub(crate) fn of_response(status: StatusCode, body: &str) -> Problem {
        let kind = match status.as_u16() {
            400..=422 => Kind::Request,
            429 | 503 => Kind::Busy,
            _ => Kind::Internal,
        };
        Problem::new(kind, message_in(body))
    }
}

impl From<welte::Error> for Problem {
    fn from(error: welte::Error) -> Problem {
        let kind = match &error {
            welte::Error::Memory { .. } => Kind::Memory,
            welte::Error::LoadEnded => Kind::Cancelled,
            welte::Error::UnknownDevice { .. } | welte::Error::CacheFormat { .. } => Kind::Argument,
            _ => Kind::Model,
        };
        Problem::new(kind, error.to_string())
    }
}

/// The text of an error's body.
pub(crate) fn message_in(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let message = value.pointer("/error/message").or(value.get("error"));
    let message = message.and_then(Value::as_str).unwrap_or(body);
    message.to_string()
}
