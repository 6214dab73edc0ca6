//! The worker: a loaded model behind Dynamo's trait for engines.

use crate::{ask, card, error, events};
use anyhow::Result;
use async_trait::async_trait;
use clap::Parser;
use dynamo_backend_common::{
    AsyncEngineContext, BackendError, CommonArgs, ComponentSnapshot, DynamoError, EngineConfig,
    GenerateContext, KvEventPublisher, KvEventSource, LLMEngine, LLMEngineOutput,
    LLMEngineOutputExt, LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
    PromptTokensDetails, SnapshotPublisher, TopLogprob, WorkerConfig, usage,
};
use futures::stream::{BoxStream, StreamExt, unfold};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use welte::{Engine, EngineOptions, Error, LoadOptions, Logprobs, Model, PrefixChange, StopReason};

/// How often the load is told.
const PULSE: Duration = Duration::from_millis(250);

type Output = std::result::Result<LLMEngineOutput, DynamoError>;

/// Serves a model to NVIDIA Dynamo.
#[derive(Parser)]
#[command(name = "welte-dynamo", version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// A GGUF file, or a directory as Hugging Face has it.
    #[arg(short, long)]
    model: String,
    /// The name that clients use; otherwise the file's.
    #[arg(long, env = "DYN_SERVED_MODEL_NAME")]
    served_model_name: Option<String>,
    /// The device: cpu, cuda, cuda:1.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Positions of a sequence; 0: the model's own as far as memory allows.
    #[arg(short = 'c', long, default_value_t = 0)]
    ctx_size: u32,
    /// Sequences that are decoded together.
    #[arg(long, default_value_t = 8)]
    parallel: u32,
    /// Threads of the CPU.
    #[arg(short, long)]
    threads: Option<usize>,
    /// Where a GGUF file's tokenizer and chat template are written for the front end, with the same path for all workers of a
    /// model; otherwise a folder of the user's cache.
    #[arg(long)]
    card: Option<PathBuf>,
}

/// A model, and its engine while it serves.
pub struct Worker {
    name: String,
    model: Model,
    running: Mutex<Option<Running>>,
}

struct Running {
    engine: Engine,
    /// Ends the thread that tells the load.
    ended: Arc<AtomicBool>,
    /// What the prefix cache tells, until a publisher takes it.
    changes: Arc<Mutex<Option<Receiver<PrefixChange>>>>,
}

impl Worker {
    /// Loads the model that the arguments name, and says how Dynamo is to register it.
    pub fn from_args(
        args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<(Worker, WorkerConfig)> {
        let args = Args::parse_from(args);
        let mut options = LoadOptions::default();
        options.device = args.device.parse()?;
        (options.context, options.fit_context) = (args.ctx_size, args.ctx_size == 0);
        (options.slots, options.threads) = (args.parallel, args.threads);
        let model = Model::load(&args.model, &options, &mut |_| ())?;
        let of_file = || {
            let stem = std::path::Path::new(&args.model).file_stem();
            stem.map_or_else(
                || args.model.clone(),
                |stem| stem.to_string_lossy().into_owned(),
            )
        };
        let name = args.served_model_name.clone().unwrap_or_else(of_file);
        let card = card::folder(&args.model, &model, args.card.as_deref())?;
        let common = args.common;
        let config = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: card.to_string_lossy().into_owned(),
            served_model_name: Some(name.clone()),
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            disaggregation_mode: common.disaggregation_mode,
            runtime: common.runtime,
            ..WorkerConfig::default()
        };
        Ok((Worker::new(name, model), config))
    }

    /// A worker that serves a model under a name.
    pub fn new(name: String, model: Model) -> Worker {
        Worker {
            name,
            model,
            running: Mutex::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self) -> std::result::Result<Engine, DynamoError> {
        let running = self.running();
        let engine = running.as_ref().map(|running| running.engine.clone());
        engine.ok_or_else(|| error(BackendError::EngineShutdown, "the engine does not run"))
    }

    /// Pages of the largest cache: the blocks that routers count.
    fn blocks(&self) -> u64 {
        let pages = self.model.program().caches.iter().map(|cache| cache.pages);
        pages.max().unwrap_or(0).into()
    }
}

#[async_trait]
impl LLMEngine for Worker {
    async fn start(&self, _worker: u64) -> std::result::Result<EngineConfig, DynamoError> {
        let (sender, receiver) = channel();
        let mut options = EngineOptions::default();
        options.prefix_changes = Some(sender);
        let engine = Engine::new(&self.model, &options);
        let engine = engine.map_err(|problem| error(BackendError::Unknown, problem))?;
        *self.running() = Some(Running {
            engine,
            ended: Arc::default(),
            changes: Arc::new(Mutex::new(Some(receiver))),
        });
        let program = self.model.program();
        Ok(EngineConfig {
            model: self.name.clone(),
            llm: Some(LlmRegistration {
                context_length: u32::try_from(self.model.context()).ok(),
                kv_cache_block_size: Some(program.page),
                total_kv_blocks: Some(self.blocks()),
                max_num_seqs: Some(program.slots.into()),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        asked: PreprocessedRequest,
        context: GenerateContext,
    ) -> std::result::Result<BoxStream<'static, Output>, DynamoError> {
        let engine = self.engine()?;
        let request = ask::request(&asked, context.id())?;
        let visible = asked.stop_conditions.stop_token_ids_visible.clone();
        // A constraint may wait until others are compiled.
        let started = tokio::task::spawn_blocking(move || engine.submit(request)).await;
        let started = started.map_err(|problem| error(BackendError::Unknown, problem))?;
        let answer = Answer {
            stream: started.map_err(refused)?,
            context: context.inner_arc(),
            prompt: asked.token_ids.len() as u32,
            visible: visible.unwrap_or_default(),
            tokens: 0,
            failed: None,
            over: false,
        };
        Ok(unfold(answer, Answer::next).boxed())
    }

    async fn cleanup(&self) -> std::result::Result<(), DynamoError> {
        let running = self.running().take();
        if let Some(Running { engine, ended, .. }) = running {
            ended.store(true, Ordering::Relaxed);
            let ended = tokio::task::spawn_blocking(move || engine.shutdown()).await;
            ended.map_err(|problem| error(BackendError::Unknown, problem))?;
        }
        Ok(())
    }

    async fn kv_event_sources(&self) -> std::result::Result<Vec<KvEventSource>, DynamoError> {
        let running = self.running();
        let Some(changes) = running.as_ref().map(|running| running.changes.clone()) else {
            return Ok(Vec::new());
        };
        let on_ready = move |publisher: Arc<KvEventPublisher>| {
            let changes = changes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(changes) = changes {
                let thread = std::thread::Builder::new().name("welte-kv-events".into());
                let started = thread.spawn(move || events::tell(&changes, &publisher));
                started.map_err(|problem| error(BackendError::Unknown, problem))?;
            }
            Ok(())
        };
        Ok(vec![KvEventSource::Push {
            on_ready: Box::new(on_ready),
            dp_rank: 0,
        }])
    }

    async fn setup_metrics(
        &self,
        _context: MetricsCtx<'_>,
    ) -> std::result::Result<MetricsBindings, DynamoError> {
        let (engine, blocks) = (self.engine()?, self.blocks());
        let ended = self.running().as_ref().map(|running| running.ended.clone());
        let ended = ended.unwrap_or_default();
        let on_ready = move |publisher: Arc<SnapshotPublisher>| {
            let thread = std::thread::Builder::new().name("welte-load".into());
            let started = thread.spawn(move || tell_load(&engine, blocks, &ended, &publisher));
            started
                .map(drop)
                .map_err(|problem| error(BackendError::Unknown, problem))
        };
        Ok(MetricsBindings {
            dp_ranks: vec![0],
            on_publisher_ready: Some(Box::new(on_ready)),
        })
    }

    async fn health_check_payload(
        &self,
    ) -> std::result::Result<Option<serde_json::Value>, DynamoError> {
        Ok(Some(probe()))
    }
}

/// A request for one token.
fn probe() -> serde_json::Value {
    serde_json::json!({
        "token_ids": [1], "sampling_options": { "temperature": 0.0 }, "stop_conditions": { "max_tokens": 1 },
        "_HEALTH_CHECK": true,
    })
}

/// Tells how full the caches are, until the engine has ended.
fn tell_load(engine: &Engine, blocks: u64, ended: &AtomicBool, publisher: &SnapshotPublisher) {
    let mut told = None;
    while !ended.load(Ordering::Relaxed) {
        let status = engine.status();
        let share = status.held_pages as f32 / status.pages.max(1) as f32;
        if told != Some(status.held_pages) {
            told = Some(status.held_pages);
            publisher.publish(
                0,
                ComponentSnapshot {
                    kv_used_blocks: (f64::from(share) * blocks as f64) as u64,
                    kv_total_blocks: blocks,
                    gpu_cache_usage: share,
                    kv_cache_hit_rate: None,
                    dp_rank: 0,
                },
            );
        }
        std::thread::sleep(PULSE);
    }
}

/// Why the engine does not take a request.
fn refused(problem: Error) -> DynamoError {
    let kind = match problem {
        Error::Busy { .. } => BackendError::CannotConnect,
        Error::EngineStopped { .. } => BackendError::EngineShutdown,
        Error::Fault(_) | Error::Device(_) => BackendError::Unknown,
        _ => BackendError::InvalidArgument,
    };
    error(kind, problem)
}

/// An answer while it is made. Dropping it ends the request.
struct Answer {
    stream: welte::Stream,
    context: Arc<dyn AsyncEngineContext>,
    prompt: u32,
    /// Tokens that end the answer and are part of it.
    visible: Vec<u32>,
    tokens: u32,
    /// What follows the tokens.
    failed: Option<Error>,
    over: bool,
}

impl Answer {
    /// The next tokens, or the end.
    async fn next(mut self) -> Option<(Output, Answer)> {
        if self.over {
            return None;
        }
        if let Some(problem) = self.failed.take() {
            self.over = true;
            return Some((Err(refused(problem)), self));
        }
        let context = self.context.clone();
        let first = tokio::select! {
            biased;
            () = context.stopped() => None,
            () = context.killed() => None,
            token = std::future::poll_fn(|executor| self.stream.poll_next_token(executor)) => Some(token),
        };
        let output = match first {
            None => self.end(LLMEngineOutput::cancelled()),
            Some(Some(Ok(token))) => self.chunk(token),
            Some(Some(Err(problem))) => {
                self.over = true;
                Err(refused(problem))
            }
            Some(None) => self.ended(),
        };
        Some((output, self))
    }

    /// A token, and those that have come since.
    fn chunk(&mut self, first: u32) -> Output {
        let mut tokens = vec![first];
        while let Poll::Ready(Some(next)) = self.stream.poll_token() {
            match next {
                Ok(token) => tokens.push(token),
                Err(problem) => {
                    self.failed = Some(problem);
                    break;
                }
            }
        }
        self.tokens += tokens.len() as u32;
        let logprobs = self.stream.take_logprobs().to_vec();
        Ok(with_logprobs(
            LLMEngineOutput::default().with_tokens(tokens),
            &logprobs,
        ))
    }

    fn ended(&mut self) -> Output {
        let stop = self.stream.outcome().map(|outcome| outcome.stop.clone());
        let output = match stop {
            Some(StopReason::End(token)) if self.visible.contains(&token) => {
                self.tokens += 1;
                LLMEngineOutput::stop().with_tokens(vec![token])
            }
            Some(StopReason::End(_) | StopReason::StopString(_)) => LLMEngineOutput::stop(),
            Some(StopReason::Length | StopReason::ContextFull | StopReason::Deadline) => {
                LLMEngineOutput::length()
            }
            Some(StopReason::Callback | StopReason::Cancelled) => LLMEngineOutput::cancelled(),
            None => {
                self.over = true;
                return Err(error(BackendError::Unknown, "the engine gave no result"));
            }
        };
        self.end(output)
    }

    fn end(&mut self, output: LLMEngineOutput) -> Output {
        self.over = true;
        let mut usage = usage(self.prompt, self.tokens);
        let cached = self
            .stream
            .progress()
            .map_or(0, |progress| progress.cached_tokens);
        usage.prompt_tokens_details = Some(PromptTokensDetails {
            cached_tokens: u32::try_from(cached).ok(),
            ..PromptTokensDetails::default()
        });
        Ok(output.with_usage(usage))
    }
}

/// An output with the probabilities of its tokens, if they were asked for.
fn with_logprobs(mut output: LLMEngineOutput, all: &[Logprobs]) -> LLMEngineOutput {
    if all.is_empty() {
        return output;
    }
    output.log_probs = Some(all.iter().map(|one| f64::from(one.logprob())).collect());
    let top = |one: &Logprobs| {
        let ranked = (1..).zip(one.top());
        let entry = |(rank, (token, logprob)): (u32, &(u32, f32))| TopLogprob {
            rank,
            token_id: *token,
            token: None,
            logprob: f64::from(*logprob),
            bytes: None,
        };
        ranked.map(entry).collect()
    };
    output.top_logprobs = Some(all.iter().map(top).collect());
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_a_request() {
        let probe: PreprocessedRequest = serde_json::from_value(probe()).unwrap();
        assert!(probe.is_probe);
        assert!(ask::request(&probe, "probe").is_ok());
    }
}
