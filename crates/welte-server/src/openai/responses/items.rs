//! Items, the parts of a conversation: from a request to the form that is stored, and from there to messages.

use super::names::{Names, known_as};
use crate::app::App;
use crate::error::Failure;
use crate::fields::Fields;
use crate::images;
use serde_json::{Value, json};
use welte::{Image, ImageSource, Message};
use welte_text::ToolCall;

/// Takes `input`: text, or a list of items.
pub(super) fn take(app: &App, fields: &mut Fields) -> Result<Vec<Value>, Failure> {
    let input = match fields.take::<Value>("input")? {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => {
            let content = json!([{ "type": "input_text", "text": text }]);
            return Ok(vec![message(&app.id("msg_"), "user", content)]);
        }
        Some(Value::Array(items)) => items,
        Some(_) => return Err(fields.wrong("input", "must be a string or a list of items")),
    };
    let items = input.into_iter().enumerate();
    items
        .map(|(i, value)| item(app, fields.inner(value, &format!("input[{i}]"))?))
        .collect()
}

fn message(id: &str, role: &str, content: Value) -> Value {
    json!({ "type": "message", "id": id, "status": "completed", "role": role, "content": content })
}

fn item(app: &App, mut fields: Fields) -> Result<Value, Failure> {
    let kind: String = fields.take("type")?.unwrap_or_else(|| "message".into());
    let id: Option<String> = fields.take("id")?;
    let id = |prefix| id.unwrap_or_else(|| app.id(prefix));
    // Clients send earlier output back as it came.
    let status: Option<Value> = fields.take("status")?;
    let status = match status {
        Some(status) if status == "incomplete" => "incomplete",
        _ => "completed",
    };
    let value = match kind.as_str() {
        "message" => {
            fields.ignore(&["phase"]);
            let role: String = fields.need("role")?;
            if !matches!(role.as_str(), "user" | "assistant" | "system" | "developer") {
                let problem = format!("{role:?} is none of user, assistant, system and developer");
                return Err(fields.wrong("role", problem));
            }
            let content = parts(&mut fields, "content", &role)?;
            message(&id("msg_"), &role, content)
        }
        "function_call" => {
            let mut call = json!({
                "type": "function_call", "id": id("fc_"), "status": status,
                "call_id": fields.need::<String>("call_id")?, "name": fields.need::<String>("name")?,
                "arguments": fields.need::<String>("arguments")?,
            });
            if let Some(namespace) = fields.take::<String>("namespace")? {
                call["namespace"] = namespace.into();
            }
            call
        }
        "compaction" => json!({
            "type": "compaction", "id": id("cmp_"),
            "encrypted_content": fields.need::<String>("encrypted_content")?,
        }),
        "mcp_list_tools" => json!({
            "type": kind, "id": id("mcpl_"), "server_label": fields.need::<String>("server_label")?,
            "tools": fields.need::<Value>("tools")?, "error": fields.take::<Value>("error")?,
        }),
        "mcp_call" => json!({
            "type": kind, "id": id("mcp_"), "server_label": fields.need::<String>("server_label")?,
            "name": fields.need::<String>("name")?, "arguments": fields.need::<String>("arguments")?,
            "output": fields.take::<String>("output")?, "error": fields.take::<Value>("error")?,
            "approval_request_id": fields.take::<String>("approval_request_id")?,
        }),
        "mcp_approval_request" => json!({
            "type": kind, "id": id("mcpr_"), "server_label": fields.need::<String>("server_label")?,
            "name": fields.need::<String>("name")?, "arguments": fields.need::<String>("arguments")?,
        }),
        "mcp_approval_response" => json!({
            "type": kind, "id": id("mcpa_"), "approve": fields.need::<bool>("approve")?,
            "approval_request_id": fields.need::<String>("approval_request_id")?,
            "reason": fields.take::<String>("reason")?,
        }),
        "function_call_output" => json!({
            "type": "function_call_output", "id": id("fco_"), "status": "completed",
            "call_id": fields.need::<String>("call_id")?, "output": parts(&mut fields, "output", "user")?,
        }),
        "reasoning" => {
            let summary = texts(&mut fields, "summary", "summary_text")?;
            let content = texts(&mut fields, "content", "reasoning_text")?;
            fields.only("encrypted_content", &[json!("")])?;
            json!({ "type": "reasoning", "id": id("rs_"), "summary": summary, "content": content })
        }
        _ => {
            let problem = format!(
                "{kind:?} is not supported; use message, function_call, function_call_output, reasoning, compaction, mcp_list_tools, mcp_call, mcp_approval_request or mcp_approval_response"
            );
            return Err(fields.wrong("type", problem));
        }
    };
    fields.finish()?;
    Ok(value)
}

/// Content of a message or of a result: text, or a list of parts.
fn parts(fields: &mut Fields, name: &str, role: &str) -> Result<Value, Failure> {
    let text_kind = match role {
        "assistant" => "output_text",
        _ => "input_text",
    };
    let part = |text: String| match role {
        "assistant" => {
            json!({ "type": text_kind, "text": text, "annotations": [], "logprobs": [] })
        }
        _ => json!({ "type": text_kind, "text": text }),
    };
    let all = match fields.need::<Value>(name)? {
        Value::String(text) => return Ok(json!([part(text)])),
        Value::Array(all) => all,
        _ => return Err(fields.wrong(name, "must be a string or a list of parts")),
    };
    let mut parts = Vec::with_capacity(all.len());
    for (i, value) in all.into_iter().enumerate() {
        let mut fields = fields.inner(value, &format!("{name}[{i}]"))?;
        let kind: String = fields.need("type")?;
        parts.push(match kind.as_str() {
            "input_text" | "output_text" | "text" => {
                fields.ignore(&["annotations", "logprobs"]);
                part(fields.need("text")?)
            }
            "refusal" => part(fields.need("refusal")?),
            "input_image" if role != "assistant" => {
                fields.only("file_id", &[json!("")])?;
                let url: String = fields.need("image_url")?;
                images::of_url(&fields, "image_url", &url)?;
                let detail = fields.take("detail")?.unwrap_or_else(|| json!("auto"));
                json!({ "type": "input_image", "image_url": url, "detail": detail })
            }
            "input_audio" if role != "assistant" => {
                let sound = fields.peek("input_audio").cloned().unwrap_or_default();
                images::of_sound_part(&mut fields, 0)?;
                json!({ "type": "input_audio", "input_audio": sound })
            }
            _ => {
                let problem = images::unsupported(&kind, &format!("{text_kind:?}"));
                return Err(fields.wrong("type", problem));
            }
        });
        fields.finish()?;
    }
    Ok(parts.into())
}

/// A list of texts of one type.
fn texts(fields: &mut Fields, name: &str, kind: &str) -> Result<Value, Failure> {
    let mut all = Vec::new();
    for mut part in fields.objects(name)? {
        part.only("type", &[json!(kind)])?;
        all.push(json!({ "type": kind, "text": part.need::<String>("text")? }));
        part.finish()?;
    }
    Ok(all.into())
}

/// The messages of a conversation. Reasoning, text and calls that follow each other become one message. `names`: those of the tools
/// that the request offers.
pub(super) fn messages<'a>(items: impl Iterator<Item = &'a Value>, names: &Names) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    let mut requests: Vec<&Value> = Vec::new();
    for item in items {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_string();
        match item["type"].as_str() {
            Some("message") => {
                let (content, images) = (joined(&item["content"]), pictures(&item["content"]));
                match item["role"].as_str() {
                    Some("assistant") => {
                        let message = answer(&mut all, |last| {
                            last.content.is_empty() && last.tool_calls.is_empty()
                        });
                        message.content = content;
                    }
                    role => {
                        let role = role.filter(|role| *role == "user").unwrap_or("system");
                        all.push(Message {
                            images,
                            ..Message::new(role, content)
                        });
                    }
                }
            }
            Some("reasoning") => {
                let mut reasoning = joined(&item["content"]);
                if reasoning.is_empty() {
                    reasoning = joined(&item["summary"]);
                }
                answer(&mut all, |_| false).reasoning = reasoning;
            }
            // The source of a malformed call follows as text.
            Some("function_call") if item["status"] == "incomplete" => {}
            Some("function_call") => answer(&mut all, |_| true).tool_calls.push(ToolCall {
                id: text("call_id"),
                name: match item["namespace"].as_str() {
                    Some(namespace) => known_as(namespace, &text("name")),
                    None => text("name"),
                },
                arguments: text("arguments"),
            }),
            Some("compaction") => {
                let summary = text("encrypted_content");
                let content = format!("Summary of the conversation so far:\n\n{summary}");
                all.push(Message::new("user", content));
            }
            Some("mcp_call") => {
                let error = || match item["error"].as_str() {
                    Some(error) => format!("Error: {error}"),
                    None => item["error"].to_string(),
                };
                let said = item["output"].as_str().map_or_else(error, str::to_string);
                called(&mut all, item, said, names);
            }
            Some("mcp_approval_request") => requests.push(item),
            Some("mcp_approval_response") if item["approve"] != true => {
                let asked = requests
                    .iter()
                    .find(|asked| asked["id"] == item["approval_request_id"]);
                if let Some(asked) = asked {
                    let reason = item["reason"].as_str().map(|why| format!(": {why}"));
                    let said = format!(
                        "The user has refused this call{}.",
                        reason.unwrap_or_default()
                    );
                    called(&mut all, asked, said, names);
                }
            }
            Some("function_call_output") => all.push(Message {
                tool_call_id: Some(text("call_id")),
                images: pictures(&item["output"]),
                ..Message::new("tool", joined(&item["output"]))
            }),
            _ => {}
        }
    }
    all
}

/// A call of an MCP server's tool, and what it has said.
fn called(all: &mut Vec<Message>, item: &Value, said: String, names: &Names) {
    let text = |field: &str| item[field].as_str().unwrap_or_default();
    answer(all, |_| true).tool_calls.push(ToolCall {
        id: text("id").to_string(),
        name: names
            .of_remote(text("server_label"), text("name"))
            .to_string(),
        arguments: text("arguments").to_string(),
    });
    all.push(Message {
        tool_call_id: Some(text("id").to_string()),
        ..Message::new("tool", said)
    });
}

/// The last message if it is the model's and `goes_on` allows it, else a new one.
fn answer(all: &mut Vec<Message>, goes_on: impl Fn(&Message) -> bool) -> &mut Message {
    let same = |last: &Message| last.role == "assistant" && goes_on(last);
    if !all.last().is_some_and(same) {
        all.push(Message::new("assistant", ""));
    }
    let last = all.len() - 1;
    &mut all[last]
}

/// The images and sounds of a list of parts. What was accepted is well-formed.
fn pictures(parts: &Value) -> Vec<Image> {
    let (mut all, mut at) = (Vec::new(), 0);
    for part in parts.as_array().into_iter().flatten() {
        at += part["text"].as_str().map_or(0, str::len);
        let url = part["image_url"].as_str().map(str::to_string);
        let sound = part["input_audio"]["data"].as_str().map(images::sound);
        let source = url.map(ImageSource::Url).or(sound);
        all.extend(source.map(|source| images::known(source, at)));
    }
    all
}

/// The text of a list of parts.
fn joined(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::names::Remote;
    use super::*;

    #[test]
    fn calls_of_servers_have_the_names_that_the_model_knows() {
        let mut names = Names::default();
        let remote = Remote {
            label: "web".into(),
            name: "den".into(),
            ask_first: false,
        };
        names.add_remote("web__den".into(), remote);
        let call = |label: &str| json!({ "type": "mcp_call", "id": "1", "server_label": label, "name": "den", "arguments": "{}", "output": "3" });
        let items = [call("web"), call("gone")];
        let messages = messages(items.iter(), &names);
        let calls = messages.iter().flat_map(|message| &message.tool_calls);
        let called: Vec<&str> = calls.map(|call| call.name.as_str()).collect();
        assert_eq!(called, ["web__den", "den"]);
    }

    #[test]
    fn items_of_one_answer_become_one_message() {
        let text = |text: &str| json!([{ "type": "output_text", "text": text }]);
        let items = [
            json!({ "type": "message", "role": "developer", "content": text("rules") }),
            json!({ "type": "message", "role": "user", "content": text("question") }),
            json!({ "type": "reasoning", "summary": [], "content": text("hm") }),
            json!({ "type": "message", "role": "assistant", "content": text("one moment") }),
            json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" }),
            json!({ "type": "function_call", "call_id": "2", "name": "g", "arguments": "{}" }),
            json!({ "type": "function_call_output", "call_id": "1", "output": text("3") }),
            json!({ "type": "reasoning", "summary": text("short"), "content": [] }),
            json!({ "type": "message", "role": "assistant", "content": text("it is 3") }),
            json!({ "type": "message", "role": "assistant", "content": text("more") }),
        ];
        let messages = messages(items.iter(), &Names::default());
        let shape: Vec<(&str, &str, &str, usize)> = messages
            .iter()
            .map(|m| (&*m.role, &*m.content, &*m.reasoning, m.tool_calls.len()))
            .collect();
        assert_eq!(
            shape,
            [
                ("system", "rules", "", 0),
                ("user", "question", "", 0),
                ("assistant", "one moment", "hm", 2),
                ("tool", "3", "", 0),
                ("assistant", "it is 3", "short", 0),
                ("assistant", "more", "", 0),
            ]
        );
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("1"));
    }
}
