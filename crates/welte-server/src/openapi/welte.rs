//! What the pages read.

use super::endpoint::{Endpoint, get};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    get("/welte/state", "Welte", "The engine at work"),
    get("/welte/table", "Welte", "The model's commands"),
    get("/openapi.json", "Welte", "This document"),
];
