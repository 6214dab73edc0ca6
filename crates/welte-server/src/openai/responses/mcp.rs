//! Tools of MCP servers in a response: which ones a request offers, calls that wait for the user, and calls that are made. After
//! calls the model goes on with their results, in the same response.

use super::items;
use super::names::{Names, Remote, known_as};
use super::store::Item;
use crate::answer::{More, Said, Step};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::Failure;
use crate::fields::Fields;
use crate::mcp::{McpServers, Tool};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use welte::Message;

/// Calls of a response without `max_tool_calls`.
const MOST_CALLS: u64 = 64;

/// The servers that a request names, and what they offer.
#[derive(Default)]
pub(super) struct Offer {
    servers: Option<McpServers>,
    lists: BTreeMap<String, Vec<Tool>>,
}

/// Asks the servers that a request names for their tools.
pub(super) async fn look(app: &App, fields: &Fields) -> Result<Offer, Failure> {
    let Some(servers) = app.options.mcp.clone() else {
        return Ok(Offer::default());
    };
    let mut lists = BTreeMap::new();
    let tools = fields.peek("tools").and_then(Value::as_array);
    for tool in tools
        .into_iter()
        .flatten()
        .filter(|tool| tool["type"] == "mcp")
    {
        let label = tool["server_label"]
            .as_str()
            .unwrap_or_default()
            .to_string();
        if !servers.has(&label) || lists.contains_key(&label) {
            continue;
        }
        let listed = servers.offered(&label).await?;
        lists.insert(label, listed);
    }
    Ok(Offer {
        servers: Some(servers),
        lists,
    })
}

impl Offer {
    /// Takes a tool of type `mcp`: the tools of a server.
    pub(super) fn take(
        &self,
        mut fields: Fields,
        ask: &mut Ask,
        names: &mut Names,
    ) -> Result<(), Failure> {
        let Some(servers) = &self.servers else {
            return fields.pass_over("type", "the server has no MCP servers; see --mcp-config");
        };
        let label: String = fields.need("server_label")?;
        let Some(listed) = self.lists.get(&label) else {
            let problem = format!(
                "{label:?} is none of the servers of --mcp-config: {}",
                servers.labels()
            );
            return Err(fields.wrong("server_label", problem));
        };
        // Where servers are, and what they are told, is the operator's matter.
        fields.refuse(&["server_url", "connector_id", "authorization", "headers"])?;
        fields.ignore(&["server_description"]);
        let allowed = match fields.take::<Value>("allowed_tools")? {
            None => None,
            Some(names @ Value::Array(_)) => Some(texts(&fields, "allowed_tools", names)?),
            Some(filter) => Some(filtered(&fields, "allowed_tools", filter)?),
        };
        let approval = Approval::take(&mut fields)?;
        fields.finish()?;
        for tool in listed {
            if allowed
                .as_ref()
                .is_some_and(|allowed| !allowed.contains(&tool.name))
            {
                continue;
            }
            let taken = |name: &String| {
                ask.tools
                    .iter()
                    .any(|tool| tool["function"]["name"] == **name)
            };
            let long = known_as(&label, &tool.name);
            let numbered = (2..).map(|nth| format!("{long}_{nth}"));
            let mut names_of = [tool.name.clone(), long.clone()]
                .into_iter()
                .chain(numbered);
            let name = names_of.find(|name| !taken(name)).unwrap_or_default();
            ask.tools.push(json!({ "type": "function", "function": {
                "name": name, "description": tool.description, "parameters": tool.schema,
            } }));
            let remote = Remote {
                label: label.clone(),
                name: tool.name.clone(),
                ask_first: approval.is_needed(&tool.name),
            };
            names.add_remote(name, remote);
        }
        Ok(())
    }

    /// Items that list the tools of servers, those apart that the conversation has already.
    pub(super) fn items<'a>(
        &self,
        app: &App,
        conversation: impl Iterator<Item = &'a Arc<Item>>,
    ) -> Vec<Value> {
        let lists = conversation.filter(|item| item.value["type"] == "mcp_list_tools");
        let known: Vec<&str> = lists
            .filter_map(|item| item.value["server_label"].as_str())
            .collect();
        let new = self
            .lists
            .iter()
            .filter(|(label, _)| !known.contains(&label.as_str()));
        let tool = |tool: &Tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.schema, "annotations": null });
        let item = |(label, tools): (&String, &Vec<Tool>)| {
            json!({
                "type": "mcp_list_tools", "id": app.id("mcpl_"), "server_label": label, "error": null,
                "tools": tools.iter().map(tool).collect::<Value>(),
            })
        };
        new.map(item).collect()
    }
}

fn texts(fields: &Fields, name: &str, value: Value) -> Result<Vec<String>, Failure> {
    serde_json::from_value(value).map_err(|_| fields.wrong(name, "must be a list of names"))
}

/// The names of a filter: `{"tool_names": […]}`.
fn filtered(fields: &Fields, name: &str, filter: Value) -> Result<Vec<String>, Failure> {
    match filter {
        Value::Object(mut filter) if filter.len() == 1 && filter.contains_key("tool_names") => {
            texts(fields, name, filter["tool_names"].take())
        }
        _ => Err(fields.wrong(name, "a filter must have tool_names and nothing else")),
    }
}

/// Which calls the user must agree to.
enum Approval {
    Always,
    Never,
    /// By name. A tool that neither list names needs it if there is a list of those that do not.
    Named {
        always: Option<Vec<String>>,
        never: Option<Vec<String>>,
    },
}

impl Approval {
    fn take(fields: &mut Fields) -> Result<Approval, Failure> {
        const NAME: &str = "require_approval";
        let filter = match fields.take::<Value>(NAME)? {
            None => return Ok(Approval::Always),
            Some(Value::String(word)) if word == "always" => return Ok(Approval::Always),
            Some(Value::String(word)) if word == "never" => return Ok(Approval::Never),
            Some(Value::Object(filter)) => filter,
            Some(_) => {
                return Err(fields.wrong(
                    NAME,
                    "must be always, never, or an object with them as fields",
                ));
            }
        };
        let (mut always, mut never) = (None, None);
        for (kind, names) in filter {
            let list = match kind.as_str() {
                "always" => &mut always,
                "never" => &mut never,
                _ => return Err(fields.wrong(NAME, "must have no fields but always and never")),
            };
            if !names.is_null() {
                *list = Some(filtered(fields, NAME, names)?);
            }
        }
        if always.is_none() && never.is_none() {
            return Err(fields.wrong(NAME, "must have always or never"));
        }
        Ok(Approval::Named { always, never })
    }

    fn is_needed(&self, tool: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|name| name == tool);
        match self {
            Approval::Always => true,
            Approval::Never => false,
            Approval::Named { always, never } => {
                let listed = always.as_deref().is_some_and(has);
                listed || never.as_deref().is_some_and(|names| !has(names))
            }
        }
    }
}

/// A call to be made.
#[derive(Clone)]
pub(super) struct Call {
    /// Its item's place in the output.
    pub(super) index: usize,
    pub(super) label: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// How the model is asked again after calls.
pub(super) struct Rounds {
    servers: McpServers,
    /// A request as the first one, without its prompt.
    ask: Ask,
    messages: Vec<Message>,
    variables: Map<String, Value>,
    /// Calls that may still be made.
    left: u64,
    names: Names,
}

impl Rounds {
    /// `None` if the request has no tools of MCP servers.
    pub(super) fn new(offer: Offer, ask: &Ask, names: &Names, most: Option<u64>) -> Option<Rounds> {
        let servers = offer.servers.filter(|_| names.has_remote())?;
        let Some(Prompt::Chat {
            messages,
            variables,
        }) = ask.prompts.first()
        else {
            return None;
        };
        Some(Rounds {
            servers,
            messages: messages.clone(),
            variables: variables.clone(),
            ask: ask.again(),
            left: most.unwrap_or(MOST_CALLS),
            names: names.clone(),
        })
    }

    /// Makes calls, and asks the model again unless this was the last round. `output`: that of the response so far; `made`: tokens of
    /// the last round.
    pub(super) fn go_on(
        &mut self,
        app: &Arc<App>,
        calls: Vec<Call>,
        mut output: Vec<Value>,
        made: usize,
        last: bool,
    ) -> More {
        let may = usize::try_from(self.left).unwrap_or(usize::MAX);
        self.left = self.left.saturating_sub(calls.len() as u64);
        if self.left == 0 {
            // The client's own functions stay.
            let names = &self.names;
            let is_own = |tool: &Value| {
                let name = tool["function"]["name"].as_str().unwrap_or_default();
                names.remote(name).is_none()
            };
            self.ask.tools.retain(is_own);
        }
        let most = &mut self.ask.options.max_tokens;
        // Before the first answer nothing is made, and even a limit of 0 has its answer.
        let full = made > 0 && *most <= made;
        if *most != usize::MAX {
            *most = most.saturating_sub(made);
        }
        let mut ask = (!last && !full).then(|| self.ask.again());
        let (servers, app) = (self.servers.clone(), app.clone());
        let (messages, variables) = (self.messages.clone(), self.variables.clone());
        let names = self.names.clone();
        Box::pin(async move {
            let mut results = Vec::new();
            for (nth, call) in calls.into_iter().enumerate() {
                let Call {
                    index,
                    label,
                    name,
                    arguments,
                } = call;
                let said = if nth < may {
                    servers.call(&label, name, arguments).await
                } else {
                    Err("max_tool_calls is reached".to_string())
                };
                tell(&mut output[index], &said);
                results.push((index, said));
            }
            let (mut answers, mut failure) = (Vec::new(), None);
            if let Some(mut ask) = ask.take() {
                let more = items::messages(output.iter(), &names);
                let messages = messages.into_iter().chain(more).collect();
                ask.prompts.push(Prompt::Chat {
                    messages,
                    variables,
                });
                match ask.start(&app).await {
                    Ok(more) => answers = more,
                    Err(problem) => failure = Some(problem),
                }
            }
            Step {
                results,
                answers,
                failure,
            }
        })
    }
}

/// Puts the result of a call into its item.
pub(super) fn tell(item: &mut Value, said: &Said) {
    match said {
        Ok(text) => (item["output"], item["status"]) = (text.as_str().into(), "completed".into()),
        Err(text) => (item["error"], item["status"]) = (text.as_str().into(), "failed".into()),
    }
}

/// Calls that the user has agreed to and that were not made yet: with the ids of their requests.
pub(super) fn approved<'a>(
    items: impl Iterator<Item = &'a Value> + Clone,
) -> Vec<(&'a Value, &'a str)> {
    let id = |item: &'a Value| item["approval_request_id"].as_str();
    let made: Vec<&str> = items
        .clone()
        .filter(|item| item["type"] == "mcp_call")
        .filter_map(id)
        .collect();
    // The last answer to a request counts, and once.
    let mut said: Vec<(&str, bool)> = Vec::new();
    for item in items.clone() {
        if item["type"] == "mcp_approval_response"
            && let Some(id) = id(item)
        {
            said.retain(|(known, _)| *known != id);
            said.push((id, item["approve"] == true));
        }
    }
    let agreed = said.into_iter().filter(|(_, agreed)| *agreed);
    let open = agreed.map(|(id, _)| id).filter(|id| !made.contains(id));
    let request = |id: &'a str| {
        let is = |item: &&Value| item["type"] == "mcp_approval_request" && item["id"] == id;
        Some((items.clone().find(is)?, id))
    };
    open.filter_map(request).collect()
}
