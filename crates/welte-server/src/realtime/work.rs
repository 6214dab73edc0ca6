//! Writes down what a session has committed, one item after the other.

use super::settings::Settings;
use crate::app::App;
use crate::bodies::Held;
use crate::error::Failure;
use crate::scribe::{Left, Scribe, flow, in_time, probabilities};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use welte::{Audio, Update};
use welte_audio::RATE;

/// An item to be written down.
pub(super) struct Job {
    pub(super) item: String,
    pub(super) samples: Vec<f32>,
    pub(super) held: Held,
    pub(super) settings: Settings,
}

/// What became of an item.
pub(super) enum Told {
    Delta(String),
    Completed(Written),
    Failed(Failure),
}

/// A transcript.
pub(super) struct Written {
    pub(super) text: String,
    pub(super) seconds: f64,
    pub(super) logprobs: Value,
}

/// An item, its samples, and what became of it.
pub(super) type Report = (String, usize, Told);

/// Works until the session ends.
pub(super) async fn work(
    app: Arc<App>,
    mut jobs: UnboundedReceiver<Job>,
    reports: UnboundedSender<Report>,
    gone: Arc<AtomicBool>,
) {
    while let Some(job) = jobs.recv().await {
        if gone.load(Ordering::Relaxed) {
            return;
        }
        let (item, count) = (job.item.clone(), job.samples.len());
        let done = match transcribe(&app, job, &reports, &gone).await {
            Ok(written) => Told::Completed(written),
            Err(failure) => Told::Failed(app.without_folders(failure)),
        };
        // Nobody may listen any more.
        let _ = reports.send((item, count, done));
    }
}

async fn transcribe(
    app: &Arc<App>,
    job: Job,
    reports: &UnboundedSender<Report>,
    gone: &Arc<AtomicBool>,
) -> Result<Written, Failure> {
    let Job {
        item,
        samples,
        mut held,
        settings,
    } = job;
    // The model may have been unloaded since.
    let scribe = Scribe::find(app, settings.asked.as_deref()).await?;
    let deadline = scribe.deadline(app);
    let left = Left::default();
    let (late, gone) = (left.0.clone(), gone.clone());
    let (own, reports) = (app.clone(), reports.clone());
    let work = scribe.clone().listening(app, move || {
        let audio = Audio {
            samples,
            rate: RATE,
            channels: 1,
        };
        held.add(audio.seconds().ceil() as usize * scribe.bytes_per_second())?;
        let mut deltas = scribe.deltas();
        let see = &mut |update: Update<'_>| {
            if let Some(text) = deltas.text(&update) {
                let delta = (item.clone(), 0, Told::Delta(text.to_string()));
                let _ = reports.send(delta);
            }
            flow(!gone.load(Ordering::Relaxed) && !late.load(Ordering::Relaxed))
        };
        let options = settings.options(own.options.seed.unwrap_or(0));
        let transcript = scribe.transcribe(&own, &audio, &options, see)?;
        let logprobs = settings
            .logprobs
            .then(|| probabilities(&scribe, &transcript.segments));
        Ok(Written {
            text: transcript.text(),
            seconds: transcript.seconds,
            logprobs: logprobs.into(),
        })
    });
    in_time(deadline, work).await
}
