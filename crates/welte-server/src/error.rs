//! Errors, in the format of the API that was called.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The APIs, which differ in the format of their errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaCpp,
}

impl Api {
    /// The API to which a path belongs.
    pub(crate) fn of(path: &str) -> Api {
        match path {
            _ if path.starts_with("/v1/messages") => Api::Anthropic,
            _ if path.starts_with("/v1/") || path.starts_with("/welte/") => Api::OpenAi,
            _ if path.starts_with("/api/") => Api::Ollama,
            _ => Api::LlamaCpp,
        }
    }
}

/// Why a request is refused or has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is at fault.
    pub(crate) field: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
            field: None,
        }
    }

    /// The request is at fault.
    pub(crate) fn request(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field of the request is at fault. The message begins with its name.
    pub(crate) fn field(field: impl Into<String>, problem: impl std::fmt::Display) -> Failure {
        let field = field.into();
        Failure {
            message: format!("{field}: {problem}"),
            field: Some(field),
            ..Failure::request("")
        }
    }

    /// The server is at fault.
    pub(crate) fn server(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// A thread of ours has failed.
    pub(crate) fn fault(error: &tokio::task::JoinError) -> Failure {
        Failure::server(format!("a fault of ours: {error}"))
    }

    pub(crate) fn body(&self, api: Api) -> Value {
        let (code, message) = (self.status.as_u16(), shortened(&self.message));
        let field = self.field.as_deref().map(shortened);
        match api {
            Api::OpenAi => json!({"error": {
                "message": message, "type": self.openai_type(), "param": field, "code": self.openai_code(),
            }}),
            Api::Anthropic => json!({
                "type": "error", "error": {"type": self.anthropic_type(), "message": message},
            }),
            Api::Ollama => json!({ "error": message }),
            Api::LlamaCpp => json!({"error": {
                "code": code, "message": message, "type": self.openai_type(),
            }}),
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 | 403 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "unavailable_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn openai_code(&self) -> Option<&'static str> {
        match self.status.as_u16() {
            401 => Some("invalid_api_key"),
            404 => Some("not_found"),
            413 => Some("request_too_large"),
            429 => Some("queue_full"),
            _ => None,
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        }
    }

    pub(crate) fn response(&self, api: Api) -> Response {
        let mut response = json_response(self.status, &self.body(api));
        let headers = response.headers_mut();
        if matches!(self.status.as_u16(), 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<welte::Error> for Failure {
    fn from(error: welte::Error) -> Failure {
        use welte::Error as E;
        let message = error.to_string();
        let status = match error {
            E::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            E::Deadline | E::Memory { .. } => StatusCode::SERVICE_UNAVAILABLE,
            E::Sampling { field, .. } => {
                return Failure {
                    field: Some(field.to_string()),
                    ..Failure::request(message)
                };
            }
            E::Bias { .. } => {
                return Failure {
                    field: Some("logit_bias".to_string()),
                    ..Failure::request(message)
                };
            }
            E::NoEmbeddings { .. } | E::NoScores { .. } | E::NoText { .. } => {
                StatusCode::BAD_REQUEST
            }
            E::EmptyStopString
            | E::EmptyBreaker
            | E::NoInfill { .. }
            | E::NoSuchPrompt { .. }
            | E::PromptPooling { .. }
            | E::Constraint { .. }
            | E::TooMany { .. }
            | E::ContextFull { .. }
            | E::EmptyPrompt
            | E::Token { .. }
            | E::NoTokenizer { .. }
            | E::NoChatTemplate { .. }
            | E::Text(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Failure::new(status, message)
    }
}

impl From<welte_text::Error> for Failure {
    fn from(error: welte_text::Error) -> Failure {
        Failure::from(welte::Error::from(error))
    }
}

/// A text without what follows the first 1000 bytes: a message may quote the request.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.len() > 1000 {
        true => format!("{}…", &text[..text.floor_char_boundary(1000)]).into(),
        false => text.into(),
    }
}

/// A response with a JSON body.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    json_text(status, value.to_string())
}

/// A response whose body is this JSON text.
pub(crate) fn json_text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The JSON body of a successful response.
pub(crate) fn ok(value: &Value) -> Response {
    json_response(StatusCode::OK, value)
}
