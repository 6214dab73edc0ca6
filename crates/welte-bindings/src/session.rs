//! A conversation.

use crate::library::Library;
use crate::waiting::{Alive, OnText};
use crate::{Problem, options};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A conversation: its messages, and the options of every answer. What the engine computed for earlier turns is not computed
/// again.
pub struct Session {
    library: Arc<Library>,
    messages: Vec<Value>,
    options: Map<String, Value>,
}

impl Session {
    /// A conversation, with a system message if one is given. `options` has the other fields of `/v1/chat/completions`.
    pub fn new(
        library: &Arc<Library>,
        system: Option<&str>,
        options: &str,
    ) -> Result<Session, Problem> {
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        Ok(Session {
            library: library.clone(),
            messages: system.into_iter().collect(),
            options: options::object("options", options)?,
        })
    }

    /// Says something and returns the answer. If that fails, the conversation is as before.
    pub fn say(&mut self, text: &str, on_text: OnText, alive: Alive) -> Result<String, Problem> {
        let asked = json!({ "role": "user", "content": text });
        let mut messages = self.messages.clone();
        messages.push(asked);
        let mut request = self.options.clone();
        request.insert("messages".into(), messages.clone().into());
        let request = Value::from(request).to_string();
        let response = self.library.chat(&request, on_text, alive)?;
        let content = response.pointer("/choices/0/message/content");
        let content = content.and_then(Value::as_str).unwrap_or_default();
        messages.push(json!({ "role": "assistant", "content": content }));
        self.messages = messages;
        Ok(content.to_string())
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }
}
