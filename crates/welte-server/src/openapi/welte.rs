//! What the pages read.

use super::endpoint::{Endpoint, get, post};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    get("/welte/state", "Welte", "The engine at work"),
    get("/welte/table", "Welte", "The model's commands"),
    get("/welte/tools", "Welte", "The servers of --mcp-config"),
    get("/welte/tools/{id}", "Welte", "The tools of such a server"),
    post(
        "/welte/tools",
        "Welte",
        "Call a tool of such a server",
        &[&[
            ("server", "!string", "the server's name in the file"),
            ("name", "!string", "the tool's name"),
            ("arguments", "string", "JSON, as a text"),
        ]],
    ),
    get("/openapi.json", "Welte", "This document"),
];
