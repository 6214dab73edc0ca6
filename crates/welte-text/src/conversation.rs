//! Conversations with tools and reasoning, in the form that a chat template expects.
//!
//! Templates differ in what they read: arguments as an object or as JSON text, content as text or as parts, one call or
//! several in a message. A template does not say so. It is tried with a short conversation instead.

use serde_json::{Map, Value as Json, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The field of a part that is a control token of the model's family.
pub(crate) const MARK: &str = "welte_mark";

/// An image, a video or a sound in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where it stands: before this byte of the text, at a border of characters.
    pub at: usize,
    /// The file, or where it can be had.
    pub source: ImageSource,
    /// What errors call it.
    pub name: String,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// The bytes of a file.
    Bytes(Arc<[u8]>),
    /// An address: a place on the web, or `data:` with the bytes as base64.
    Url(String),
    /// The address of a video, or those of its frames.
    VideoUrls {
        /// One of a video, or several of images.
        urls: Vec<String>,
        /// How long each frame lasts.
        step: Option<Duration>,
    },
    /// A video, which becomes text and pictures as the model's family wants it.
    Video(Arc<Video>),
    /// Frames that become one picture.
    Clip(Arc<Clip>),
    /// The bytes of a file of sound.
    Sound(Arc<[u8]>),
    /// The address of a sound.
    SoundUrl(String),
}

impl ImageSource {
    /// It is a sound.
    pub fn is_sound(&self) -> bool {
        matches!(self, ImageSource::Sound(_) | ImageSource::SoundUrl(_))
    }

    /// What templates call it.
    fn kind(&self) -> &'static str {
        if self.is_sound() { "audio" } else { "image" }
    }
}

/// Frames of a video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Video {
    /// The frames, in order.
    pub frames: Vec<Frame>,
    /// How long the video is.
    pub length: Duration,
}

/// A frame of a video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The bytes of an image's file.
    pub bytes: Arc<[u8]>,
    /// When it is shown.
    pub at: Duration,
}

/// Frames that become one picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clip {
    /// The bytes of images' files.
    pub frames: Vec<Arc<[u8]>>,
    /// How long as many frames as the encoder reads at once last.
    pub length: Duration,
    /// The most features that they become at once, if the family scales pictures.
    pub most_features: u32,
}

/// One message of a chat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Images and sounds in the text, in order.
    pub images: Vec<Image>,
    /// Control tokens of the model's family in the text, in order, each before this byte of it and before an image there. None of them
    /// comes from a request.
    pub marks: Vec<(usize, &'static str)>,
    /// The reasoning before the text; empty if there is none.
    pub reasoning: String,
    /// Calls after the text.
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: the call that it answers.
    pub tool_call_id: Option<String>,
    /// In a `tool` message: the function. Taken from the call if missing.
    pub name: Option<String>,
}

/// A call in a message of the assistant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Identifies the call.
    pub id: String,
    /// The function.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

impl Message {
    /// A message with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            ..Message::default()
        }
    }

    /// Adds text, images and sounds of another message.
    pub fn append(&mut self, other: Message) {
        let before = self.content.len();
        self.content.push_str(&other.content);
        let moved = other.images.into_iter().map(|image| Image {
            at: image.at + before,
            ..image
        });
        self.images.extend(moved);
        let marks = other.marks.into_iter();
        self.marks
            .extend(marks.map(|(at, mark)| (at + before, mark)));
    }

    /// The content as a list of parts.
    fn parts(&self, content: &str) -> Json {
        let text = |text: &str| json!({"type": "text", "text": text});
        if self.images.is_empty() {
            return json!([text(content)]);
        }
        let mark =
            |(at, mark): &(usize, &str)| (*at, json!({"type": "text", "text": mark, MARK: true}));
        let medium = |image: &Image| (image.at, json!({"type": image.source.kind()}));
        let marks = self.marks.iter().map(mark);
        let mut all: Vec<(usize, Json)> = marks.chain(self.images.iter().map(medium)).collect();
        // Marks stay before images at the same place.
        all.sort_by_key(|(at, _)| *at);
        let (mut parts, mut from) = (Vec::new(), 0);
        for (at, part) in all {
            let at = content.floor_char_boundary(at).max(from);
            if at > from {
                parts.push(text(&content[from..at]));
            }
            parts.push(part);
            from = at;
        }
        if from < content.len() {
            parts.push(text(&content[from..]));
        }
        parts.into()
    }
}

/// The form of messages that a template reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// Content is a list of parts.
    pub(crate) parts: bool,
    /// Arguments are JSON text, not an object.
    text_arguments: bool,
    /// Without text the content of a message with calls is null, not empty.
    null_content: bool,
    /// Identifiers of calls have nine letters or digits.
    short_ids: bool,
    /// A message has at most one call.
    single_calls: bool,
    /// Reasoning is in the field `thinking`, and a message with calls has either that or content.
    thinking: bool,
    /// Results are in the field `tool_responses` of the message with the calls.
    tool_responses: bool,
    /// Tools appear in the prompt.
    pub(crate) tools: bool,
}

/// Words of the trial conversation that no template contains.
const TOOL: &str = "welte_trial_tool";
const SECOND_TOOL: &str = "welte_second_tool";
const KEY: &str = "welte_trial_key";
const VALUE: &str = "welte_trial_value";
const TEXT: &str = "welte trial text";

/// In a template that reads messages of the role `tool`.
const READS_TOOL_MESSAGES: [&str; 4] = ["== 'tool'", "!= 'tool'", "== \"tool\"", "!= \"tool\""];

/// Renders messages with tools.
type Render<'a> = dyn Fn(&[Json], &[Json]) -> Option<String> + 'a;

impl Dialect {
    /// Tries a template, without tools and calls if `plain`.
    pub(crate) fn of(source: &str, plain: bool, render: &Render) -> Dialect {
        let mut dialect = Dialect {
            thinking: source.contains(".thinking") || source.contains("['thinking']"),
            tool_responses: source.contains("tool_responses")
                && !READS_TOOL_MESSAGES.iter().any(|text| source.contains(text)),
            ..Dialect::default()
        };
        let user = [Message::new("user", TEXT)];
        let shows = |dialect: Dialect, messages: &[Message], texts: &[&str]| {
            let tools = [TOOL, SECOND_TOOL].map(|name| {
                let parameters = json!({
                    "type": "object",
                    "properties": {"welte_parameter": {"type": "string", "description": "A parameter."}},
                    "required": ["welte_parameter"],
                });
                json!({"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}})
            });
            let tools = if plain { &[] } else { tools.as_slice() };
            let rendered = render(&dialect.messages(messages), tools);
            // Python's or a doubly escaped form of the arguments is not what the model was trained on.
            let wrong = [format!("{{'{KEY}"), format!("\\\"{KEY}")];
            rendered.is_some_and(|text| {
                texts.iter().all(|part| text.contains(part))
                    && !wrong.iter().any(|part| text.contains(part))
            })
        };
        let in_parts = Dialect {
            parts: true,
            ..dialect
        };
        if !shows(dialect, &user, &[TEXT]) && shows(in_parts, &user, &[TEXT]) {
            dialect = in_parts;
        }
        if plain {
            return dialect;
        }
        dialect.tools = shows(dialect, &user, &[TOOL]);
        let one_call = conversation(&[TOOL]);
        let mut choices = (0..8u8).map(|bits| Dialect {
            short_ids: bits & 4 != 0,
            text_arguments: bits & 2 != 0,
            null_content: bits & 1 != 0,
            ..dialect
        });
        // Where no form works, the plainest gives the template's own error.
        let shown = [TOOL, KEY, VALUE];
        if let Some(choice) = choices.find(|choice| shows(*choice, &one_call, &shown)) {
            dialect = choice;
        }
        let two_calls = conversation(&[TOOL, SECOND_TOOL]);
        let both = [TOOL, SECOND_TOOL].map(|name| format!("{VALUE} {name}"));
        let both = [both[0].as_str(), both[1].as_str()];
        let split = Dialect {
            single_calls: true,
            ..dialect
        };
        if !shows(dialect, &two_calls, &both) && shows(split, &two_calls, &both) {
            dialect = split;
        }
        dialect
    }

    /// The messages in this form.
    pub(crate) fn messages(&self, messages: &[Message]) -> Vec<Json> {
        let mut all = Vec::new();
        let mut rest: VecDeque<Message> = messages.iter().cloned().collect();
        while let Some(message) = rest.pop_front() {
            if message.tool_calls.is_empty() {
                all.push(self.message(&message, &[]));
                continue;
            }
            let results = rest
                .iter()
                .take_while(|message| message.role == "tool")
                .count();
            let results: Vec<Message> = rest.drain(..results).collect();
            self.calls(message, results, &mut all);
        }
        all
    }

    /// A message with calls, and their results.
    fn calls(&self, mut message: Message, mut results: Vec<Message>, all: &mut Vec<Json>) {
        for result in &mut results {
            let of = |call: &&ToolCall| result.tool_call_id.as_ref() == Some(&call.id);
            if let (None, Some(call)) = (&result.name, message.tool_calls.iter().find(of)) {
                result.name = Some(call.name.clone());
            }
        }
        if self.single_calls {
            while message.tool_calls.len() > 1 {
                let later = message.tool_calls.split_off(1);
                let of = |result: &Message| {
                    result.tool_call_id.as_ref() == Some(&message.tool_calls[0].id)
                };
                let result = results.iter().position(of).map(|at| results.remove(at));
                self.calls(message, result.into_iter().collect(), all);
                message = Message {
                    tool_calls: later,
                    ..Message::new("assistant", "")
                };
            }
        }
        all.push(self.message(&message, &results));
        if !self.tool_responses {
            all.extend(results.iter().map(|result| self.message(result, &[])));
        }
    }

    fn message(&self, message: &Message, results: &[Message]) -> Json {
        let mut fields = Map::new();
        let has_calls = !message.tool_calls.is_empty();
        let mut reasoning = message.reasoning.clone();
        let mut content = message.content.as_str();
        if self.thinking && has_calls && !content.is_empty() && !reasoning.is_empty() {
            reasoning = format!("{reasoning}\n{content}");
            content = "";
        }
        fields.insert("role".into(), message.role.as_str().into());
        let content = if self.null_content && has_calls && content.is_empty() {
            Json::Null
        } else if self.parts || !message.images.is_empty() {
            message.parts(content)
        } else {
            content.into()
        };
        fields.insert("content".into(), content);
        if !reasoning.is_empty() {
            let name = if self.thinking {
                "thinking"
            } else {
                "reasoning_content"
            };
            fields.insert(name.into(), reasoning.into());
        }
        if has_calls {
            let calls = message.tool_calls.iter().map(|call| self.call(call));
            fields.insert("tool_calls".into(), calls.collect());
        }
        if self.tool_responses && !results.is_empty() {
            let response = |result: &Message| {
                let response = serde_json::from_str::<Map<String, Json>>(&result.content);
                let response =
                    response.map_or_else(|_| result.content.as_str().into(), Json::Object);
                json!({"name": result.name, "response": response})
            };
            fields.insert(
                "tool_responses".into(),
                results.iter().map(response).collect(),
            );
        }
        if let Some(id) = &message.tool_call_id {
            fields.insert("tool_call_id".into(), self.id(id).into());
        }
        if let Some(name) = &message.name {
            fields.insert("name".into(), name.as_str().into());
        }
        Json::Object(fields)
    }

    fn call(&self, call: &ToolCall) -> Json {
        let parsed = serde_json::from_str::<Map<String, Json>>(&call.arguments);
        let arguments = match parsed {
            Ok(object) if !self.text_arguments => Json::Object(object),
            _ if call.arguments.trim().is_empty() && !self.text_arguments => json!({}),
            _ => call.arguments.as_str().into(),
        };
        json!({
            "id": self.id(&call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        })
    }

    /// The identifier, or nine letters and digits that stand for it.
    fn id(&self, id: &str) -> String {
        let is_short = id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if is_short || !self.short_ids {
            return id.to_owned();
        }
        // FNV-1a: equal identifiers must stay equal, different ones should stay different.
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{:09x}", hash % 0x10_0000_0000)
    }
}

/// A conversation with calls of these tools and their results.
fn conversation(tools: &[&str]) -> Vec<Message> {
    let call = |name: &&str| ToolCall {
        id: format!("call_{name}"),
        name: (*name).to_owned(),
        arguments: json!({KEY: format!("{VALUE} {name}")}).to_string(),
    };
    let mut messages = vec![
        Message::new("user", TEXT),
        Message {
            tool_calls: tools.iter().map(call).collect(),
            ..Message::new("assistant", "")
        },
    ];
    messages.extend(tools.iter().map(|name| Message {
        tool_call_id: Some(format!("call_{name}")),
        ..Message::new("tool", "1")
    }));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template that shows a conversation of one form only.
    fn only(takes: impl Fn(&[Json]) -> bool) -> impl Fn(&[Json], &[Json]) -> Option<String> {
        move |messages, tools| {
            let has_calls = messages
                .iter()
                .any(|message| !message["tool_calls"].is_null());
            // Arguments that are text are shown as such.
            let shown = |message: &Json| {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                let arguments = calls.map(|call| match &call["function"]["arguments"] {
                    Json::String(text) => format!("{} {text}", call["function"]["name"]),
                    other => format!("{} {other}", call["function"]["name"]),
                });
                format!("{} {}", message["content"], arguments.collect::<String>())
            };
            let all: Vec<String> = messages.iter().chain(tools).map(shown).collect();
            let tools = Json::from(tools.to_vec());
            (!has_calls || takes(messages)).then(|| format!("{all:?} {tools}").replace('\\', ""))
        }
    }

    /// Whether the first call has nine letters, text as arguments, and null as content.
    fn form(messages: &[Json]) -> (bool, bool, bool) {
        let calling = messages
            .iter()
            .find(|m| !m["tool_calls"].is_null())
            .unwrap();
        let call = &calling["tool_calls"][0];
        let is_short = call["id"].as_str().unwrap().len() == 9;
        (
            is_short,
            call["function"]["arguments"].is_string(),
            calling["content"].is_null(),
        )
    }

    #[test]
    fn the_form_that_a_template_reads_is_found() {
        for bits in 0..8 {
            let wanted = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
            let dialect = Dialect::of("", false, &only(|messages| form(messages) == wanted));
            let found = (
                dialect.short_ids,
                dialect.text_arguments,
                dialect.null_content,
            );
            assert_eq!(found, wanted);
            assert!(dialect.tools && !dialect.single_calls && !dialect.parts);
        }
        // Results name their calls, and the second call is in a message of its own.
        let named = |messages: &[Json]| {
            let results = messages.iter().filter(|m| m["role"] == "tool");
            results.into_iter().all(|m| m["tool_call_id"].is_string())
                && messages
                    .iter()
                    .all(|m| m["tool_calls"].as_array().is_none_or(|all| all.len() == 1))
        };
        let dialect = Dialect::of("", false, &only(named));
        assert!(dialect.single_calls && !dialect.null_content);
        // Of several forms that it reads, the plainest.
        let any = Dialect::of("", false, &only(|_| true));
        let least = (any.short_ids, any.text_arguments, any.null_content);
        assert_eq!(least, (false, false, false));
        let none = Dialect::of("", false, &|_, _| None);
        assert_eq!(none, Dialect::default());
        let parts = |messages: &[Json], _: &[Json]| {
            messages[0]["content"].is_array().then(|| TEXT.to_owned())
        };
        let plain = Dialect::of("m.thinking", true, &parts);
        assert!(plain.parts && plain.thinking && !plain.tools);
        for (source, reads) in [
            ("m.tool_responses", true),
            ("m.tool_responses m.role == 'tool'", false),
            ("m.tool_responses m.role != \"tool\"", false),
            ("", false),
        ] {
            assert_eq!(
                Dialect::of(source, true, &parts).tool_responses,
                reads,
                "{source}"
            );
        }
        assert!(Dialect::of("m['thinking']", true, &parts).thinking);
    }

    #[test]
    fn identifiers_get_nine_letters_where_needed() {
        let short = Dialect {
            short_ids: true,
            ..Dialect::default()
        };
        for kept in ["abcdefghi", "A1b2C3d4E"] {
            assert_eq!(short.id(kept), kept);
        }
        let others = [
            "",
            "abcdefgh",
            "abcdefghij",
            "abc-efghi",
            "éabcdefg",
            "call_1",
            "call_2",
        ];
        let made: std::collections::BTreeSet<String> = others.map(|id| short.id(id)).into();
        assert_eq!(made.len(), others.len());
        for id in &made {
            assert!(
                id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()),
                "{id}"
            );
        }
        for id in others {
            assert_eq!(short.id(id), short.id(id));
            assert_eq!(Dialect::default().id(id), id);
        }
    }
}
