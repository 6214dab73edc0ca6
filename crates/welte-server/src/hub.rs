//! Models of the hub and those created from others: Ollama's `/api/pull`, `/api/create` and `/api/delete`.

use crate::app::App;
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::recipe::{self, Recipe, Recipes, Turn};
use crate::{answer, ollama};
use axum::body::Bytes;
use axum::http::StatusCode;
use futures_core::Stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use welte_hub::{Error, Event, Hub, ModelName, Report};

/// The pause between two lines of progress.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets clients download models into the hub's cache, and delete them there.
#[derive(Clone)]
pub struct HubAccess {
    hub: Hub,
    /// Whoever downloads holds it.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The name on the hub of a short name.
    short_names: fn(&str) -> Option<&'static str>,
}

impl From<Hub> for HubAccess {
    fn from(hub: Hub) -> HubAccess {
        HubAccess {
            hub,
            turn: Arc::default(),
            short_names: |_| None,
        }
    }
}

impl fmt::Debug for HubAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings contain a token.
        f.debug_struct("HubAccess").finish_non_exhaustive()
    }
}

impl HubAccess {
    /// As this one, with names that created models cannot have: `of` gives the name on the hub that such a name stands for.
    pub fn with_short_names(self, of: fn(&str) -> Option<&'static str>) -> HubAccess {
        HubAccess {
            short_names: of,
            ..self
        }
    }

    /// The models created from others.
    fn recipes(&self) -> Recipes {
        Recipes::new(self.hub.settings().created.clone())
    }
}

fn access(app: &App) -> Result<HubAccess, Failure> {
    app.options.hub.clone().ok_or_else(|| {
        let message = "the server does not manage models; start it with --models-cached";
        Failure::new(StatusCode::FORBIDDEN, message)
    })
}

fn parse_name(fields: &Fields, name: &str) -> Result<ModelName, Failure> {
    name.parse().map_err(|error| fields.wrong("model", error))
}

/// `POST /api/pull`
pub(crate) async fn pull(app: Arc<App>, mut fields: Fields) -> Outcome {
    let access = access(&app)?;
    let name = ollama::take_name(&mut fields)?;
    let name = parse_name(&fields, &name)?;
    let stream: bool = fields.take("stream")?.unwrap_or(true);
    fields.only("insecure", &[json!(false)])?;
    fields.finish()?;
    let Ok(turn) = access.turn.clone().try_lock_owned() else {
        let message = "another model is being downloaded; try again when it is there";
        return Err(Failure::new(StatusCode::CONFLICT, message));
    };
    let (lines, received) = unbounded_channel();
    // The download goes on if the client leaves.
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let mut progress = Progress::new(&lines);
        let pulled = access.hub.pull(&name, &mut |report| progress.tell(report));
        let last = pulled.map_err(|error| failure(&error)).map(|pulled| {
            app.models
                .add(&name.to_string(), &pulled.path, &app.options);
            json!({ "status": "success" })
        });
        let line = last.clone().unwrap_or_else(|f| f.body(Api::Ollama));
        // Nobody may be there to read it.
        let _ = lines.send(line);
        last
    });
    if stream {
        return Ok(answer::respond_bytes(
            Lines(received),
            "application/x-ndjson",
        ));
    }
    match done.await {
        Ok(last) => Ok(ok(&last?)),
        Err(error) => Err(Failure::fault(&error)),
    }
}

fn failure(error: &Error) -> Failure {
    let status = match error {
        Error::Name { .. } | Error::Choice { .. } => StatusCode::BAD_REQUEST,
        Error::NotCached { .. } => StatusCode::NOT_FOUND,
        Error::Refused { status: 404, .. } => StatusCode::NOT_FOUND,
        Error::Busy { .. } => StatusCode::CONFLICT,
        _ => StatusCode::BAD_GATEWAY,
    };
    Failure::new(status, error.to_string())
}

/// Sends lines of progress, not too many.
struct Progress<'a> {
    lines: &'a UnboundedSender<Value>,
    last: Option<Instant>,
}

impl Progress<'_> {
    fn new(lines: &UnboundedSender<Value>) -> Progress<'_> {
        let _ = lines.send(json!({ "status": "pulling manifest" }));
        Progress { lines, last: None }
    }

    fn tell(&mut self, report: &Report) {
        let soon = self.last.is_some_and(|last| last.elapsed() < PAUSE);
        if report.event == Event::Downloading && soon {
            return;
        }
        self.last = Some(Instant::now());
        let status = match report.event {
            Event::Waiting => format!("waiting for another download of {}", report.file),
            _ => format!("pulling {}", report.file),
        };
        let line = json!({ "status": status, "completed": report.done, "total": report.total });
        let _ = self.lines.send(line);
    }
}

/// Values, one a line.
struct Lines(UnboundedReceiver<Value>);

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        let line = ready!(self.0.poll_recv(context));
        Poll::Ready(line.map(|line| Ok(format!("{line}\n").into())))
    }
}

/// `POST /api/create`
pub(crate) async fn create(app: Arc<App>, mut fields: Fields) -> Outcome {
    let access = access(&app)?;
    let name = ollama::take_name(&mut fields)?;
    let Some(name) = Recipes::plain(&name).map(str::to_string) else {
        return Err(fields.wrong("model", recipe::bad_name(&name)));
    };
    if let Some(other) = (access.short_names)(&name) {
        let problem = format!("{name:?} is the short name of {other}; choose another one");
        return Err(fields.wrong("model", problem));
    }
    fields.refuse(&["adapters", "files", "modelfile", "path", "quantize"])?;
    let stream: bool = fields.take("stream")?.unwrap_or(true);
    let from: String = fields.need("from")?;
    let base = app.models.find(Some(&from))?;
    let Some(path) = &base.path else {
        return Err(fields.wrong("from", "this model has no file to load it from"));
    };
    let path = std::path::absolute(path).map_err(|error| Failure::server(error.to_string()))?;
    let license = match fields.take::<Value>("license")? {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all
            .iter()
            .filter_map(|text| Some(text.as_str()?.to_string()))
            .collect(),
        Some(_) => return Err(fields.wrong("license", "must be a text or a list of texts")),
    };
    let recipe = Recipe {
        from: path.display().to_string(),
        system: fields.take("system")?,
        template: fields.take("template")?,
        parameters: fields.take("parameters")?.unwrap_or_default(),
        messages: fields.take::<Vec<Turn>>("messages")?.unwrap_or_default(),
        license,
    };
    fields.finish()?;
    recipe.check().map_err(Failure::request)?;
    let recipe = match &base.recipe {
        Some(below) => recipe.over(below),
        None => recipe,
    };
    if app
        .models
        .find(Some(&name))
        .is_ok_and(|known| known.recipe.is_none())
    {
        let problem = format!("{name:?} is the name of a model that was not created here");
        return Err(Failure::field("model", problem));
    }
    // It writes a file, and may unload a model.
    let keep = move || {
        let kept = access.recipes().put(&name, &recipe);
        kept.map_err(Failure::server)?;
        app.models.add_created(&name, recipe, &app.options);
        Ok(())
    };
    blocking(keep).await?;
    let done = json!({ "status": "success" });
    if !stream {
        return Ok(ok(&done));
    }
    let (lines, received) = unbounded_channel();
    // The receiver is there.
    let _ = lines.send(done);
    Ok(answer::respond_bytes(
        Lines(received),
        "application/x-ndjson",
    ))
}

/// `DELETE /api/delete`
pub(crate) async fn delete(app: Arc<App>, mut fields: Fields) -> Outcome {
    let access = access(&app)?;
    let given = ollama::take_name(&mut fields)?;
    let name = parse_name(&fields, &given);
    fields.finish()?;
    blocking(move || {
        if let Some(plain) = Recipes::plain(&given)
            && access.recipes().remove(plain).map_err(Failure::server)?
        {
            app.models.remove_created(plain);
            return Ok(ok(&json!({ "status": "success" })));
        }
        let name = name?;
        let removal = access.hub.removal(&name);
        let removal = removal.map_err(|error| failure(&error))?;
        let apply = || removal.apply().map_err(|error| failure(&error));
        app.models.remove_deleted(apply)?;
        Ok(ok(&json!({ "status": "success" })))
    })
    .await
}

/// Does what takes a while.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::fault(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_progress_are_few_and_the_last_one_is_told() {
        let (sender, mut lines) = unbounded_channel();
        let mut progress = Progress::new(&sender);
        // However long this test takes, the last line was a moment ago.
        progress.last = Some(Instant::now() + Duration::from_secs(3600));
        for (done, event) in [(1, Event::Downloading), (2, Event::Done)] {
            let (file, total) = ("m.gguf", 2);
            progress.tell(&Report {
                file,
                done,
                total,
                event,
            });
        }
        let mut line = || lines.try_recv().unwrap();
        assert_eq!(line(), json!({ "status": "pulling manifest" }));
        let last = json!({ "status": "pulling m.gguf", "completed": 2, "total": 2 });
        assert_eq!(line(), last);
    }
}
