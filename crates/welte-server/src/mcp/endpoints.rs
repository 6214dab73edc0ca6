//! What the chat page asks about tools. The page makes the calls that its reader agrees to.

use super::Tool;
use crate::app::App;
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /welte/tools`: the labels of the servers. Starts none of them.
pub(crate) async fn servers(State(app): State<Arc<App>>) -> Response {
    let labels: Vec<&String> = app
        .options
        .mcp
        .iter()
        .flat_map(|mcp| mcp.0.keys())
        .collect();
    ok(&json!({ "servers": labels }))
}

/// `GET /welte/tools/LABEL`: the tools of a server.
pub(crate) async fn list(State(app): State<Arc<App>>, Path(label): Path<String>) -> Response {
    let listed = async {
        let tools = servers_with(&app, &label)?.offered(&label).await?;
        let tool = |tool: &Tool| json!({ "name": tool.name, "description": tool.description, "parameters": tool.schema });
        Ok(ok(
            &json!({ "tools": tools.iter().map(tool).collect::<Value>() }),
        ))
    };
    let listed: Outcome = listed.await;
    listed.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

/// `POST /welte/tools`: calls a tool.
pub(crate) async fn call(app: Arc<App>, mut fields: Fields) -> Outcome {
    let label: String = fields.need("server")?;
    let tool: String = fields.need("name")?;
    let arguments: Option<String> = fields.take("arguments")?;
    let servers = servers_with(&app, &label)?;
    fields.finish()?;
    let said = servers.call(&label, tool, arguments.unwrap_or_default());
    Ok(ok(&match said.await {
        Ok(text) => json!({ "output": text }),
        Err(problem) => json!({ "error": problem }),
    }))
}

/// The servers, if this one is among them.
fn servers_with<'a>(app: &'a App, label: &str) -> Result<&'a super::McpServers, Failure> {
    let servers = app
        .options
        .mcp
        .as_ref()
        .filter(|servers| servers.has(label));
    servers.ok_or_else(|| {
        let message = format!("there is no MCP server {label:?}; see --mcp-config");
        Failure::new(StatusCode::NOT_FOUND, message)
    })
}
