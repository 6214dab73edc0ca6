//! Tools for models whose chat template has none: the system message explains them, and calls and results are text.

use crate::{Message, ToolCall};
use serde_json::{Value as Json, json};

/// How to call a function. The marks are those of [`Format::generic`](crate::calls::Format::generic).
pub(crate) const HOW: &str = "You can call functions. Each line here describes one as JSON:";
const CALL: &str = "If a function helps, answer with a call and nothing else:\n\
    <tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n</tool_call>\n\
    You then get the result between <tool_response> and </tool_response>. Otherwise answer in plain text.";

/// The explanation of tools, which are JSON of OpenAI's form.
fn explanation(tools: &[Json]) -> String {
    let lines = tools.iter().map(|tool| {
        let function = tool.get("function").unwrap_or(tool);
        let field = |name: &str| function.get(name).cloned().unwrap_or(Json::Null);
        let [name, description, parameters] = ["name", "description", "parameters"].map(field);
        json!({"name": name, "description": description, "parameters": parameters}).to_string()
    });
    let lines: Vec<String> = lines.collect();
    format!("{HOW}\n\n{}\n\n{CALL}", lines.join("\n"))
}

/// A conversation with tools as one without. `system`: the template has messages of the system; else the first question
/// begins with them.
pub(crate) fn without_tools(messages: &[Message], tools: &[Json], system: bool) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    let explained = messages.first().filter(|first| first.role == "system");
    let mut explanation = explanation(tools);
    if let Some(first) = explained {
        explanation = format!("{}\n\n{explanation}", first.content);
    }
    all.push(Message {
        images: explained.map_or(Vec::new(), |first| first.images.clone()),
        ..Message::new("system", explanation)
    });
    for message in messages.iter().skip(usize::from(explained.is_some())) {
        let mut plain = Message {
            reasoning: message.reasoning.clone(),
            images: message.images.clone(),
            ..Message::new(message.role.as_str(), message.content.as_str())
        };
        if message.role == "tool" {
            plain.role = "user".to_owned();
            let content = plain.clone();
            plain.images.clear();
            plain.content = "<tool_response>\n".to_owned();
            plain.append(content);
            plain.content.push_str("\n</tool_response>");
        }
        for call in &message.tool_calls {
            let line = if plain.content.is_empty() { "" } else { "\n" };
            plain.content.push_str(line);
            plain.content.push_str(&written(call));
        }
        match all.last_mut() {
            // Many templates want roles to alternate.
            Some(last) if last.role == "user" && plain.role == "user" => {
                last.content.push('\n');
                last.append(plain);
            }
            _ => all.push(plain),
        }
    }
    if !system {
        let mut explanation = all.remove(0);
        explanation.role = "user".to_owned();
        match all.first_mut() {
            Some(first) if first.role == "user" => {
                explanation.content.push_str("\n\n");
                explanation.append(std::mem::take(first));
                *first = explanation;
            }
            _ => all.insert(0, explanation),
        }
    }
    all
}

fn written(call: &ToolCall) -> String {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    let call: Json = json!({"name": call.name, "arguments": arguments});
    format!("<tool_call>\n{call}\n</tool_call>")
}
