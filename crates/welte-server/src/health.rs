//! `/health` proves that the schedulers of all loaded models advance: it asks for a turn of each and waits for it.

use crate::app::App;
use crate::error::{Api, Failure, ok};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// It is answered whatever the load.
pub(crate) const PATH: &str = "/health";

/// A piece of a long prompt may take seconds on a slow device.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let unavailable = |message: &str| {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, message).response(Api::LlamaCpp)
    };
    if app.is_draining() {
        return unavailable("the server is about to end");
    }
    let begun = Instant::now();
    let loaded = app.models.loaded();
    let engines = loaded.iter().map(|served| &served.engine);
    let asked: Vec<_> = engines.map(|engine| (engine, engine.turns())).collect();
    for (engine, _) in &asked {
        engine.ping();
    }
    let mut pause = Duration::from_micros(100);
    while asked
        .iter()
        .any(|(engine, before)| engine.turns() == *before)
    {
        if begun.elapsed() > PATIENCE {
            return unavailable("the scheduler does not advance");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    ok(&json!({ "status": "ok" }))
}
