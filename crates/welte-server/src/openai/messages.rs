//! Messages, tools and choices of tools in OpenAI's form.

use crate::ask::{Ask, MustCall};
use crate::error::Failure;
use crate::fields::Fields;
use crate::images;
use serde_json::{Map, Value, json};
use welte::{Image, Message};
use welte_text::ToolCall;

/// Takes the messages of a conversation.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Message>, Failure> {
    let all: Vec<Message> = fields
        .objects("messages")?
        .into_iter()
        .map(message)
        .collect::<Result<_, _>>()?;
    if all.is_empty() {
        Err(fields.wrong("messages", "at least one message is required"))
    } else {
        Ok(all)
    }
}

fn message(mut fields: Fields) -> Result<Message, Failure> {
    let role: String = fields.need("role")?;
    let role = match role.as_str() {
        "developer" => "system".to_string(),
        "system" | "user" | "assistant" | "tool" => role,
        _ => {
            let problem =
                format!("{role:?} is none of system, developer, user, assistant and tool");
            return Err(fields.wrong("role", problem));
        }
    };
    let (content, images) = match fields.take::<Value>("content")? {
        Some(content) => content_of(&fields, content)?,
        None => Default::default(),
    };
    // Two names are common; some servers send both.
    let reasoning: Option<String> = fields.take("reasoning_content")?;
    let other: Option<String> = fields.take("reasoning")?;
    let tool_calls = fields.objects("tool_calls")?;
    let tool_calls = tool_calls.into_iter().map(call).collect::<Result<_, _>>()?;
    let message = Message {
        content,
        images,
        marks: Vec::new(),
        reasoning: reasoning.or(other).unwrap_or_default(),
        tool_calls,
        tool_call_id: fields.take("tool_call_id")?,
        name: fields.take("name")?,
        role,
    };
    // Clients send earlier answers back as they came.
    fields.only("annotations", &[json!([])])?;
    fields.ignore(&["refusal"]);
    fields.finish()?;
    Ok(message)
}

/// The text of a string or of a list of parts.
pub(crate) fn text(fields: &Fields, content: Value) -> Result<String, Failure> {
    let (text, images) = content_of(fields, content)?;
    match images.first() {
        None => Ok(text),
        Some(image) => Err(Failure::field(
            image.name.as_str(),
            "only text can stand here",
        )),
    }
}

/// The text, the images and the sounds of a string or of a list of parts.
fn content_of(fields: &Fields, content: Value) -> Result<(String, Vec<Image>), Failure> {
    let parts = match content {
        Value::String(text) => return Ok((text, Vec::new())),
        Value::Array(parts) => parts,
        _ => return Err(fields.wrong("content", "must be a string or a list of parts")),
    };
    let (mut text, mut images) = (String::new(), Vec::new());
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = fields.inner(part, &format!("content[{i}]"))?;
        let kind: String = part.need("type")?;
        match kind.as_str() {
            // Open WebUI has names of the Responses API in results of tools.
            "text" | "input_text" => text.push_str(&part.need::<String>("text")?),
            "refusal" => text.push_str(&part.need::<String>("refusal")?),
            "image_url" | "input_image" => images.push(images::of_part(&mut part, text.len())?),
            // "video" is Qwen's, with a list of frames.
            "video_url" | "video" => {
                images.push(images::of_video_part(&mut part, &kind, text.len())?);
            }
            "input_audio" => images.push(images::of_sound_part(&mut part, text.len())?),
            "audio_url" => images.push(images::of_audio_url(&mut part, text.len())?),
            _ => {
                let supported =
                    "\"text\", \"image_url\", \"video_url\", \"input_audio\" or \"audio_url\"";
                let problem = images::unsupported(&kind, supported);
                return Err(part.wrong("type", problem));
            }
        }
        part.finish()?;
    }
    Ok((text, images))
}

fn call(mut fields: Fields) -> Result<ToolCall, Failure> {
    fields.only("type", &[json!("function")])?;
    fields.ignore(&["index"]);
    let id = fields.take("id")?.unwrap_or_default();
    let Some(mut function) = fields.object("function")? else {
        return Err(fields.wrong("function", "is required"));
    };
    let call = ToolCall {
        id,
        name: function.need("name")?,
        arguments: function
            .take("arguments")?
            .unwrap_or_else(|| "{}".to_string()),
    };
    function.finish()?;
    fields.finish()?;
    Ok(call)
}

/// Takes the tools and how to use them.
pub(crate) fn tools(fields: &mut Fields, ask: &mut Ask) -> Result<(), Failure> {
    for mut tool in fields.objects("tools")? {
        tool.only("type", &[json!("function")])?;
        let Some(inner) = tool.object("function")? else {
            return Err(tool.wrong("function", "is required"));
        };
        let described = function(inner, ask)?;
        ask.tools.push(described);
        tool.finish()?;
    }
    tool_choice(fields, ask)?;
    Ok(())
}

/// A function that the model may call, in the form that chat templates read.
pub(super) fn function(mut fields: Fields, ask: &mut Ask) -> Result<Value, Failure> {
    let name: String = fields.need("name")?;
    if fields.take::<bool>("strict")? == Some(true) {
        ask.strict.push((name.clone(), fields.name("strict")));
    }
    let mut description = Map::new();
    description.insert("name".to_string(), name.into());
    if let Some(text) = fields.take::<String>("description")? {
        description.insert("description".to_string(), text.into());
    }
    let parameters = fields.take::<Map<String, Value>>("parameters")?;
    let parameters =
        parameters.map_or_else(|| json!({"type": "object", "properties": {}}), Value::from);
    description.insert("parameters".to_string(), parameters);
    fields.finish()?;
    Ok(json!({"type": "function", "function": description}))
}

/// Takes `parallel_tool_calls` and `tool_choice`. Returns the choice as it came.
pub(super) fn tool_choice(fields: &mut Fields, ask: &mut Ask) -> Result<Value, Failure> {
    ask.one_call = fields.take::<bool>("parallel_tool_calls")? == Some(false);
    let choice = fields.take("tool_choice")?.unwrap_or_else(|| json!("auto"));
    let must_call = |name| {
        Some(MustCall {
            field: fields.name("tool_choice"),
            name,
        })
    };
    match &choice {
        Value::String(kind) if kind == "auto" => {}
        Value::String(kind) if kind == "none" => ask.tools.clear(),
        Value::String(kind) if kind == "required" => ask.must_call = must_call(None),
        Value::Object(_) => {
            let mut named = fields.inner(choice.clone(), "tool_choice")?;
            named.only("type", &[json!("function")])?;
            // Chats have a level more than responses.
            let mut inner = match named.object("function")? {
                Some(inner) => {
                    named.finish()?;
                    inner
                }
                None => named,
            };
            ask.must_call = must_call(Some(inner.need("name")?));
            inner.finish()?;
        }
        _ => {
            let problem = "must be auto, none, required or a function";
            return Err(fields.wrong("tool_choice", problem));
        }
    }
    Ok(choice)
}
