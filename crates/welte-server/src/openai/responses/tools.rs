//! Tools of a response: functions, and namespaces of functions. Tools that OpenAI's servers run are passed over.

use super::mcp::Offer;
use super::names::{Names, known_as};
use crate::ask::Ask;
use crate::error::Failure;
use crate::fields::Fields;
use crate::openai::messages::function;
use serde_json::{Value, json};

/// Types of tools that OpenAI's servers run. The model cannot call them here.
const SERVER_TOOLS: [&str; 8] = [
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "tool_search",
];

/// Takes the tools. Returns them as they came, with null in place of what functions leave out.
pub(super) fn take(
    fields: &mut Fields,
    ask: &mut Ask,
    offer: &Offer,
) -> Result<(Value, Names), Failure> {
    let mut all: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let mut names = Names::default();
    // Functions keep their names, so those of servers come after them.
    let (remote, own): (Vec<_>, Vec<_>) =
        (all.iter().enumerate()).partition(|(_, tool)| tool["type"] == "mcp");
    for (i, tool) in own.into_iter().chain(remote) {
        let mut tool = fields.inner(tool.clone(), &format!("tools[{i}]"))?;
        let kind: String = tool.need("type")?;
        match kind.as_str() {
            "function" => {
                let described = function(tool, ask)?;
                ask.tools.push(described);
            }
            "mcp" => offer.take(tool, ask, &mut names)?,
            "namespace" => take_namespace(tool, ask, &mut names)?,
            kind if SERVER_TOOLS.contains(&kind) => {
                let problem = format!("{kind:?} is a tool that OpenAI's servers run");
                tool.pass_over("type", &problem)?;
            }
            _ => {
                let problem = format!(
                    "{kind:?} is not supported; use \"function\", \"mcp\" or \"namespace\""
                );
                return Err(tool.wrong("type", problem));
            }
        }
    }
    for tool in all.iter_mut().filter(|tool| tool["type"] == "function") {
        for name in ["description", "parameters", "strict"] {
            if tool.get(name).is_none() {
                tool[name] = Value::Null;
            }
        }
    }
    Ok((all.into(), names))
}

/// Takes functions whose names are unique within their namespace only.
fn take_namespace(mut space: Fields, ask: &mut Ask, names: &mut Names) -> Result<(), Failure> {
    let namespace: String = space.need("name")?;
    // The functions have descriptions of their own.
    space.take::<String>("description")?;
    for mut tool in space.objects("tools")? {
        tool.only("type", &[json!("function")])?;
        tool.rename("name", |name| known_as(&namespace, name));
        let described = function(tool, ask)?;
        let known_as = described["function"]["name"].as_str().unwrap_or_default();
        let name = known_as.get(namespace.len() + 2..).unwrap_or_default();
        let place = (namespace.clone(), name.to_string());
        names.add_function(known_as.to_string(), place);
        ask.tools.push(described);
    }
    space.finish()
}
