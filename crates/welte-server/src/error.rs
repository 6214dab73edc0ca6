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

/// The response to a request.
pub(crate) type Outcome = Result<Response, Failure>;

/// Why a request is refused or has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is at fault.
    pub(crate) field: Option<String>,
    /// Set if the prompt is longer than the context.
    pub(crate) overflow: Option<Overflow>,
    /// OpenAI's name for the error, if it has one of its own.
    pub(crate) code: Option<&'static str>,
}

/// A prompt that is longer than the context, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    /// Tokens of the prompt, at least.
    pub(crate) prompt: usize,
    /// Tokens that fit.
    pub(crate) context: usize,
}

/// OpenAI's name for the error of a prompt that is too long. Agents look for it to shorten their conversations.
const OVERFLOW: &str = "context_length_exceeded";

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
            field: None,
            overflow: None,
            code: None,
        }
    }

    /// The prompt is longer than the context.
    pub(crate) fn overflow(message: impl Into<String>, overflow: Overflow) -> Failure {
        Failure {
            overflow: Some(overflow),
            ..Failure::request(message)
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
            Api::Anthropic => {
                let mut error = json!({"type": self.anthropic_type(), "message": message});
                if let Some(Overflow { prompt, context }) = self.overflow {
                    // Anthropic's clients know this error by its first words.
                    let words = format!("prompt is too long: {prompt} tokens > {context} maximum");
                    error["message"] = words.into();
                    error["code"] = OVERFLOW.into();
                }
                json!({ "type": "error", "error": error })
            }
            Api::Ollama => match self.overflow {
                Some(_) => json!({ "error": message, "code": OVERFLOW }),
                None => json!({ "error": message }),
            },
            Api::LlamaCpp => {
                let mut error =
                    json!({"code": code, "message": message, "type": self.openai_type()});
                if let Some(Overflow { prompt, context }) = self.overflow {
                    error["type"] = "exceed_context_size_error".into();
                    (error["n_prompt_tokens"], error["n_ctx"]) = (prompt.into(), context.into());
                }
                json!({ "error": error })
            }
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
            _ if self.overflow.is_some() => Some(OVERFLOW),
            _ if self.code.is_some() => self.code,
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
        let refusal = Refusal(self.message.clone());
        response.extensions_mut().insert(refusal);
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

/// Why a request was refused, for the log.
#[derive(Clone)]
pub(crate) struct Refusal(String);

impl Refusal {
    /// The reason without texts of the request, as far as the JSON parser quotes them, and in one line of modest length.
    pub(crate) fn why(&self) -> String {
        let text = &self.0;
        let quoted = text
            .split_once("string \"")
            .zip(text.rsplit_once('"'))
            .filter(|((before, _), (upto, _))| upto.len() > before.len() + 7);
        let text = match quoted {
            Some(((before, _), (_, after))) => format!("{before}string{after}"),
            None => text.clone(),
        };
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        text.chars().map(plain).take(300).collect()
    }
}

impl From<welte::Error> for Failure {
    fn from(error: welte::Error) -> Failure {
        use welte::Error as E;
        let message = error.to_string();
        let status = match error {
            E::Busy { .. } | E::ManyImages { .. } => StatusCode::TOO_MANY_REQUESTS,
            E::Deadline | E::Memory { .. } => StatusCode::SERVICE_UNAVAILABLE,
            ref e if e.is_of_rank() => StatusCode::SERVICE_UNAVAILABLE,
            E::Speech { field, problem } => return Failure::field(field, problem),
            E::Sampling { field, .. } => {
                return Failure {
                    field: Some(field.to_string()),
                    ..Failure::request(message)
                };
            }
            E::ContextFull { prompt, context } => {
                return Failure::overflow(message, Overflow { prompt, context });
            }
            E::Bias { .. } => {
                return Failure {
                    field: Some("logit_bias".to_string()),
                    ..Failure::request(message)
                };
            }
            E::NoEmbeddings { .. }
            | E::NoSparse { .. }
            | E::NoScores { .. }
            | E::NoText { .. }
            | E::Adapter { .. } => StatusCode::BAD_REQUEST,
            E::Audio(_)
            | E::EmptyStopString
            | E::EmptyBreaker
            | E::NoInfill { .. }
            | E::NoSuchPrompt { .. }
            | E::PromptPooling { .. }
            | E::Constraint { .. }
            | E::TooMany { .. }
            | E::BothWays { .. }
            | E::Answered { .. }
            | E::Media { .. }
            | E::ImagePlaces { .. }
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
    if text.len() > 1000 {
        format!("{}…", &text[..text.floor_char_boundary(1000)]).into()
    } else {
        text.into()
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

/// A successful response whose JSON body is written without a tree of values.
pub(crate) fn written(value: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|error| Failure::server(error.to_string()))?;
    Ok(json_text(StatusCode::OK, text))
}

/// The JSON body of a successful response.
pub(crate) fn ok(value: &Value) -> Response {
    json_response(StatusCode::OK, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_why_without_the_text() {
        let fields = crate::fields::Fields::parse(
            br#"{"messages": "my \"secret\" text", "role": "king"}"#,
            &Default::default(),
        );
        let mut fields = fields.unwrap();
        let failure = fields.take::<Vec<Value>>("messages").unwrap_err();
        assert!(failure.message.contains("secret"), "{failure}");
        let why = |failure: &Failure| {
            let response = failure.response(Api::OpenAi);
            response.extensions().get::<Refusal>().unwrap().why()
        };
        let said = "messages: invalid type: string, expected a list";
        assert_eq!(why(&failure), said);
        let failure = fields.wrong("role", "\"king\" is not a role\n");
        assert_eq!(why(&failure), "role: \"king\" is not a role ");
        let long = Failure::request("x".repeat(5000));
        assert_eq!(why(&long).len(), 300);
    }

    /// Type and code of OpenAI's error, and Anthropic's type.
    #[test]
    fn clients_know_an_error_by_its_type() {
        for (status, kind, code, anthropic) in [
            (400, "invalid_request_error", None, "invalid_request_error"),
            (
                401,
                "authentication_error",
                Some("invalid_api_key"),
                "authentication_error",
            ),
            (403, "authentication_error", None, "permission_error"),
            (404, "not_found_error", Some("not_found"), "not_found_error"),
            (405, "invalid_request_error", None, "invalid_request_error"),
            (
                413,
                "invalid_request_error",
                Some("request_too_large"),
                "request_too_large",
            ),
            (
                429,
                "rate_limit_error",
                Some("queue_full"),
                "rate_limit_error",
            ),
            (500, "server_error", None, "api_error"),
            (501, "server_error", None, "api_error"),
            (503, "unavailable_error", None, "overloaded_error"),
        ] {
            let failure = Failure::new(StatusCode::from_u16(status).unwrap(), "why");
            let error = json!({ "message": "why", "type": kind, "param": null, "code": code });
            assert_eq!(failure.body(Api::OpenAi), json!({ "error": error }));
            let error = json!({ "message": "why", "type": anthropic });
            let body = json!({ "type": "error", "error": error });
            assert_eq!(failure.body(Api::Anthropic), body);
            assert_eq!(failure.body(Api::Ollama), json!({ "error": "why" }));
            let error = json!({ "message": "why", "type": kind, "code": status });
            assert_eq!(failure.body(Api::LlamaCpp), json!({ "error": error }));
            let response = failure.response(Api::OpenAi);
            assert_eq!(response.status(), status);
            let has = |name| response.headers().contains_key(name);
            assert_eq!(has(header::RETRY_AFTER), [429, 503].contains(&status));
            assert_eq!(has(header::WWW_AUTHENTICATE), status == 401);
        }
    }

    /// A model on several devices is unavailable, not wrong, and the client reads why.
    #[test]
    fn a_rank_that_failed_is_named_with_503() {
        let (rank, ranks, why) = (1, 3, "the others waited 60 s for it in vain".to_string());
        let error = welte_device::Error::Rank { rank, ranks, why };
        let failure = Failure::from(welte::Error::Fault(std::sync::Arc::new(error)));
        assert_eq!(failure.response(Api::OpenAi).status(), 503);
        let said = failure.body(Api::OpenAi)["error"]["message"].to_string();
        assert!(
            said.contains("rank 1 of 3: the others waited 60 s"),
            "{said}"
        );
    }

    /// Agents look for one of these to shorten their conversation.
    #[test]
    fn every_api_has_its_word_for_a_prompt_that_is_too_long() {
        let (prompt, context) = (700, 512);
        let failure = Failure::overflow("why", Overflow { prompt, context });
        assert_eq!(failure.status, 400);
        let body = |api| failure.body(api);
        let code = "context_length_exceeded";
        assert_eq!(body(Api::OpenAi)["error"]["code"], code);
        let anthropic = &body(Api::Anthropic)["error"];
        assert_eq!(anthropic["code"], code);
        let words = "prompt is too long: 700 tokens > 512 maximum";
        assert_eq!(anthropic["message"], words);
        let ollama = json!({ "error": "why", "code": code });
        assert_eq!(body(Api::Ollama), ollama);
        let llama = &body(Api::LlamaCpp)["error"];
        assert_eq!(llama["type"], "exceed_context_size_error");
        assert_eq!(
            (&llama["n_prompt_tokens"], &llama["n_ctx"]),
            (&json!(700), &json!(512))
        );
    }

    /// Who is at fault decides whether a client may try again.
    #[test]
    fn errors_of_the_engine_have_their_status_and_field() {
        use welte::Error as E;
        let origin = || "demo".to_string();
        let of = |error: E| {
            let message = error.to_string();
            let failure = Failure::from(error);
            assert_eq!(failure.message, message);
            (failure.status.as_u16(), failure.field)
        };
        assert_eq!(of(E::Busy { queue: 3 }), (429, None));
        assert_eq!(of(E::Deadline), (503, None));
        assert_eq!(of(E::EngineStopped { why: None }), (500, None));
        for error in [
            E::EmptyPrompt,
            E::EmptyStopString,
            E::EmptyBreaker,
            E::NoEmbeddings { origin: origin() },
            E::NoScores { origin: origin() },
            E::NoText { origin: origin() },
        ] {
            let name = error.to_string();
            assert_eq!(of(error), (400, None), "{name}");
        }
        let overflow = Failure::from(E::ContextFull {
            prompt: 9,
            context: 8,
        });
        assert_eq!(overflow.status, 400);
        let numbers = overflow.overflow.map(|o| (o.prompt, o.context));
        assert_eq!(numbers, Some((9, 8)));
    }

    /// A message may quote the request, which may be megabytes.
    #[test]
    fn long_messages_are_cut_between_characters() {
        let message = |text: &str| {
            let body = Failure::request(text).body(Api::Ollama);
            body["error"].as_str().unwrap().to_string()
        };
        assert_eq!(message(&"x".repeat(1000)), "x".repeat(1000));
        assert_eq!(message(&"x".repeat(1001)), "x".repeat(1000) + "…");
        let odd = "x".to_string() + &"é".repeat(600);
        assert_eq!(message(&odd), "x".to_string() + &"é".repeat(499) + "…");
    }

    #[test]
    fn the_log_keeps_a_quote_that_does_not_end() {
        let why = |text: &str| Refusal(text.to_string()).why();
        assert_eq!(why("a: string \"b"), "a: string \"b");
        assert_eq!(why("a: string \"\", not"), "a: string, not");
        assert_eq!(why("a: \"b\" is wrong"), "a: \"b\" is wrong");
    }
}
