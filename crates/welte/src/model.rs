//! From a checkpoint to a model that is ready to run: spec, program, memory plan, weights on the device.

mod eyes;
mod plan;

pub use eyes::Images;

use crate::cache::fingerprint;
use crate::constraint::Grammars;
use crate::devices::{self, KINDS, Kind};
use crate::engine::Handle;
use crate::fit::FittedContext;
use crate::pictures::Eyes;
use crate::text::TextSide;
use crate::{
    DeviceChoice, Engine, EngineOptions, Error, Session, Skipped, Stepper, TextToEmbed, rerank,
    text,
};
use eyes::Found;
pub(crate) use plan::plan_program;
use plan::{check_fit, inspect_with_eyes, plan_on};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use web_time::{Duration, Instant};
use welte_device::{
    Activations, Device, DeviceInfo, DeviceOptions, Loaded, Phase, Phases, Plan, Progress, Replay,
    Steps,
};
use welte_formats::Narrowed;
use welte_formats::checkpoint::{Checkpoint, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, ModelSpec, Pooling, Survey, VectorSettings};
use welte_table::{Format, MemoryPlan, PassKind, Program, Row, cost};
use welte_text::{ChatTemplate, Message, Rendered, Tokenizer};

/// The default context of a model whose own context is longer.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// How to load a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where to run.
    pub device: DeviceChoice,
    /// Positions that a sequence can have; 0: the model's own context, at most [`DEFAULT_CONTEXT`] unless `fit_context`.
    pub context: u32,
    /// Sizes that are 0 follow the memory: the context is the model's own as far as memory allows, and the caches are cut
    /// to what fits ([`Model::fitted_context`] says what was chosen). Not for encoders.
    pub fit_context: bool,
    /// With `fit_context`: leave memory for other models, too.
    pub fit_with_others: bool,
    /// With `fit_context`: the bytes that the model may take in all; `None`: what is available.
    pub fit_within: Option<u64>,
    /// Threads of the CPU device; `None`: one for each core that the process may use, or for each core of `cpus`. Of a hybrid
    /// processor the performance cores count.
    pub threads: Option<usize>,
    /// The processors that threads of the CPU device are pinned to, as the system numbers them; `None`: the system chooses.
    /// [`cpu_list`](crate::cpu_list) reads a list such as `0-7,16`.
    pub cpus: Option<Vec<usize>>,
    /// Format of keys and values: F16 or Q8_0.
    pub kv_format: Format,
    /// Name of the CPU's instruction set; `None`: the best of this machine.
    pub instructions: Option<String>,
    /// Rows of a prompt that are computed together; 0: the device's default.
    pub prompt_rows: u32,
    /// The most rows of a step that yields the logits of every row.
    pub decode_rows: u32,
    /// Sequences that are decoded together.
    pub slots: u32,
    /// Positions in the caches, shared by all sequences; 0: as many as all slots need for their whole context.
    pub cache_positions: u32,
    /// States that are kept of earlier sequences, so that requests with the same prefix go on from there. Only for models
    /// with recurrent state.
    pub checkpoints: u32,
    /// Compute vectors of texts too, unless the checkpoint says that the model only scores pairs of texts.
    pub embeddings: bool,
    /// The rows of a text that make its vector; `None`: as the checkpoint says, else the last row.
    pub pooling: Option<Pooling>,
    /// Score pairs of texts in place of embeddings ([`Engine::score`]).
    pub scores: bool,
    /// The tokens for yes and no, whose logits are the scores.
    pub(crate) score_tokens: Option<[u32; 2]>,
    /// Positions of a page, which tests make small.
    pub(crate) page: u32,
    /// Engines of this model may have a prefix store ([`EngineOptions::prefix_store`]). The load then samples the weights,
    /// so that stored pages are never used with other weights.
    pub prefix_store: bool,
    /// Vectors that rows may read in place of tokens ([`Program::features`]); 0: none. Not for encoders.
    pub features: u32,
    /// Whether the model takes images, and where their encoder is.
    pub images: Images,
    /// The longest chain of tokens decoded in one submission.
    pub max_chain: u32,
    /// How a GPU replays chains; `None`: in the fastest way that has run on this kind of GPU.
    pub replay: Option<Replay>,
    /// Measure a device's tuning parameters at load even if stored ones exist.
    pub retune: bool,
    /// How a GPU rounds the activations that it multiplies with weights in FP8.
    pub activations: Activations,
    /// Which kernels a GPU may use for steps of few generated rows.
    pub steps: Steps,
    /// Load even if the plan exceeds the memory that the device reports as available.
    pub ignore_memory: bool,
    /// The experts of so many layers, from the first one on, run on the CPU, and all else on the device. 0: none;
    /// `u32::MAX`, or more than there are: all. Then a GPU runs kernel by kernel, whatever `replay` says.
    pub cpu_experts: u32,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            device: DeviceChoice::Auto,
            context: 0,
            fit_context: false,
            fit_with_others: false,
            fit_within: None,
            threads: None,
            cpus: None,
            kv_format: Format::F16,
            instructions: None,
            prompt_rows: 0,
            decode_rows: CompileOptions::default().decode_rows,
            slots: 1,
            cache_positions: 0,
            checkpoints: CompileOptions::default().checkpoints,
            embeddings: false,
            pooling: None,
            scores: false,
            score_tokens: None,
            page: CompileOptions::default().page,
            prefix_store: false,
            features: 0,
            images: Images::Off,
            max_chain: 256,
            replay: None,
            retune: false,
            activations: Activations::default(),
            steps: Steps::default(),
            ignore_memory: false,
            cpu_experts: 0,
        }
    }
}

impl LoadOptions {
    fn with_context(&self, context: u32) -> LoadOptions {
        LoadOptions {
            context,
            ..self.clone()
        }
    }

    /// Whether only a GPU can do what is asked for.
    fn needs_gpu(&self) -> bool {
        self.cpu_experts > 0 || self.activations == Activations::Float8
    }

    pub(crate) fn for_device(&self) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        options.threads = self.threads;
        options.cpus = self.cpus.clone();
        options.instructions = self.instructions.clone();
        options.replay = match self.cpu_experts {
            0 => self.replay,
            _ => Some(Replay::Launches),
        };
        options.retune = self.retune;
        options.activations = self.activations;
        options.steps = self.steps;
        options
    }
}

/// A model that is compiled and planned but not loaded: what `welte inspect` shows.
pub struct Inspection {
    /// The checkpoint.
    pub checkpoint: Arc<dyn Checkpoint>,
    /// What the model is.
    pub spec: ModelSpec,
    options: LoadOptions,
    skipped: Vec<Skipped>,
    device: Arc<dyn Device>,
    plan: Plan,
    fitted: Option<FittedContext>,
    /// What is known of its eyes, in words.
    images: Option<String>,
}

impl Inspection {
    /// Where the model comes from.
    pub fn origin(&self) -> &str {
        self.checkpoint.origin()
    }

    /// Facts about the model and how the device will run it, in order.
    pub fn facts(&self) -> Vec<(String, String)> {
        let text = |value: &Value| match value {
            Value::U64(v) => v.to_string(),
            Value::I64(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(v) => v.chars().take(80).collect(),
            Value::Array(v) => format!("{} values", v.len()),
        };
        let mut facts: Vec<(String, String)> = self.spec.facts();
        let metadata = self.checkpoint.metadata().iter();
        let general = metadata.filter(|(key, _)| key.starts_with("general."));
        facts.extend(general.map(|(key, value)| (key.clone(), text(value))));
        facts.extend(self.plan.facts.iter().cloned());
        let images = self.images.iter().cloned();
        facts.extend(images.map(|images| ("images".to_string(), images)));
        let others = KINDS
            .iter()
            .filter(|kind| kind.name != self.device.info().id.kind);
        facts.extend(others.flat_map(|kind| self.facts_elsewhere(kind)));
        facts
    }

    /// Facts about how another kind of device would run the model.
    fn facts_elsewhere(&self, kind: &Kind) -> Vec<(String, String)> {
        let Some((device, assumed)) = kind.for_planning(&self.options.for_device()) else {
            return Vec::new();
        };
        let note = if assumed {
            format!(
                "; assuming an {}, since there is none here",
                device.info().name
            )
        } else {
            String::new()
        };
        let checkpoint = self.checkpoint.as_ref();
        let facts = match plan_on(device.as_ref(), checkpoint, &self.spec, &self.options) {
            Ok(plan) => plan.facts,
            Err(why) => vec![("not possible".to_string(), why.to_string())],
        };
        let on_kind =
            |(name, value)| (format!("{name} on {}", kind.name), format!("{value}{note}"));
        facts.into_iter().map(on_kind).collect()
    }

    /// Its passes.
    pub fn program(&self) -> &Program {
        &self.plan.program
    }

    /// Memory by class.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan.memory
    }

    /// Memory that the device could allocate now, if it is known and the plan takes no other memory besides.
    pub fn available(&self) -> Option<u64> {
        match self.device.demands(&self.plan)[..] {
            [demand] => demand.have,
            _ => None,
        }
    }

    /// The device on which the model would run.
    pub fn device(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The devices that an automatic choice did not take.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The context that was chosen, if the options asked for that.
    pub fn fitted_context(&self) -> Option<FittedContext> {
        self.fitted
    }
}

/// A loaded model. Clones are cheap and share the weights.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Model").field(&self.inner.origin).finish()
    }
}

pub(crate) struct Inner {
    origin: String,
    spec: ModelSpec,
    plan: MemoryPlan,
    facts: Vec<(String, String)>,
    device: Arc<dyn Device>,
    skipped: Vec<Skipped>,
    fitted: Option<FittedContext>,
    pub(crate) loaded: Arc<dyn Loaded>,
    /// Index of the decode pass.
    pub(crate) decode: usize,
    /// Index of the prompt pass.
    pub(crate) prompt: usize,
    /// Index of the embed pass, if there is one.
    pub(crate) embed: Option<usize>,
    /// The embed pass yields scores.
    pub(crate) scores: bool,
    /// Segments of a text, each of which may have the whole context.
    pub(crate) segments: u32,
    vectors: VectorSettings,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    /// Made for the first constraint.
    grammars: OnceLock<Result<Grammars, String>>,
    pub(crate) eyes: OnceLock<Eyes>,
    no_images: Option<String>,
    template: Option<String>,
    end_tokens: Vec<u32>,
    pub(crate) max_chain: usize,
    /// Stands for the weights, if a prefix store may need it.
    pub(crate) fingerprint: Option<[u8; 32]>,
    engine: Mutex<Option<Arc<Handle>>>,
    load_time: Duration,
    /// What loading spent its time on outside the device.
    phases: Arc<Phases>,
}

/// Opens a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`.
pub fn open(source: &str) -> Result<Box<dyn Checkpoint>, Error> {
    match source.strip_prefix("synthetic:") {
        Some(what) => Ok(Box::new(Synthetic::parse(what)?)),
        None => Ok(welte_formats::open(Path::new(source))?),
    }
}

/// A checkpoint with weights for the activations asked for. One that already has FP8 weights is left unchanged.
fn as_asked(checkpoint: Box<dyn Checkpoint>, options: &LoadOptions) -> Box<dyn Checkpoint> {
    let has_float8 = |c: &dyn Checkpoint| c.tensors().iter().any(|t| t.format == Format::F8_E4M3);
    match options.activations {
        Activations::Float8 if !has_float8(&*checkpoint) => Box::new(Narrowed::new(checkpoint)),
        _ => checkpoint,
    }
}

impl Model {
    /// Compiles the model of a source and plans its memory, reading headers only.
    pub fn inspect(source: &str, options: &LoadOptions) -> Result<Inspection, Error> {
        let checkpoint = as_asked(open(source)?, options);
        inspect_with_eyes(checkpoint.into(), options, &mut Found::default())
    }

    /// What a source contains, beside the tensors of the most similar architecture. It also works for models that cannot be
    /// compiled.
    pub fn survey(source: &str) -> Result<Survey, Error> {
        Ok(welte_models::survey(open(source)?.as_ref()))
    }

    /// Loads a model from a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`. `progress` is called as
    /// weights are read and as the device tunes itself.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let mut options = welte::LoadOptions::default();
    /// options.context = 64;
    /// let model = welte::Model::load("synthetic:tiny:q4_0", &options, &mut |_| ())?;
    /// assert_eq!(model.context(), 64);
    /// # Ok(()) }
    /// ```
    pub fn load(
        source: &str,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, Error> {
        let phases = Phases::default();
        let checkpoint = phases.time("opening the file", || open(source))?;
        Model::prepared(checkpoint, options, phases, progress)
    }

    /// Loads a model from a checkpoint that is already open.
    pub fn from_checkpoint(
        checkpoint: Box<dyn Checkpoint>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, Error> {
        Model::prepared(checkpoint, options, Phases::default(), progress)
    }

    /// Loads while the device starts and the vocabulary is read.
    fn prepared(
        checkpoint: Box<dyn Checkpoint>,
        options: &LoadOptions,
        phases: Phases,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, Error> {
        let checkpoint: Arc<dyn Checkpoint> = as_asked(checkpoint, options).into();
        let phases = Arc::new(phases);
        let read = || {
            phases.time("vocabulary and template", || {
                TextSide::of(checkpoint.as_ref())
            })
        };
        std::thread::scope(|scope| {
            if let Some(start) = devices::starter(options.device) {
                scope.spawn(start);
            }
            let reader = std::thread::Builder::new().spawn_scoped(scope, read);
            let side = || match reader {
                Ok(reader) => reader.join().unwrap_or_else(|e| resume_unwind(e)),
                // A browser has no threads.
                Err(_) => read(),
            };
            Model::of(checkpoint.clone(), side, options, &phases, progress)
        })
    }

    /// Loads; `side` is called for the text side, which another thread reads.
    fn of(
        checkpoint: Arc<dyn Checkpoint>,
        side: impl FnOnce() -> Result<TextSide, Error>,
        options: &LoadOptions,
        phases: &Arc<Phases>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, Error> {
        let start = Instant::now();
        let scores = options.scores
            || options.embeddings && welte_models::vector_settings(checkpoint.as_ref())?.scores;
        if scores && options.pooling.is_some() {
            let origin = checkpoint.origin().to_string();
            return Err(Error::ScorePooling { origin });
        }
        // Scores need tokens before the plan, everything else only afterwards.
        let (score_tokens, side) = if scores {
            let side = side()?;
            (rerank::score_tokens(side.tokenizer.as_ref()), Ok(side))
        } else {
            (None, Err(side))
        };
        let options = &LoadOptions {
            scores,
            score_tokens,
            ..options.clone()
        };
        let mut found = Found::default();
        let Inspection {
            checkpoint,
            spec,
            skipped,
            device,
            plan,
            fitted,
            options: sized,
            images: _,
        } = phases.time("opening the device, plan", || {
            inspect_with_eyes(checkpoint, options, &mut found)
        })?;
        if !options.ignore_memory {
            let checkpoint = checkpoint.as_ref();
            phases.time("free memory", || {
                check_fit(&plan, device.as_ref(), checkpoint, &spec, &sized)
            })?;
        }
        let pass = |kind: PassKind| {
            plan.program.pass(kind).ok_or_else(|| Error::Program {
                origin: checkpoint.origin().to_string(),
                problem: format!("it has no {} pass", kind.name()),
            })
        };
        let embed = plan.program.pass(PassKind::Embed);
        let (decode, prompt) = match (&spec.encoder, embed) {
            // It has no other pass, and refuses requests for text.
            (Some(_), Some(embed)) => (embed, embed),
            _ => (pass(PassKind::Decode)?, pass(PassKind::Prompt)?),
        };
        let segments = spec.segments(options.scores);
        let vectors = welte_models::vector_settings(checkpoint.as_ref())?;
        let prefix_store = options.prefix_store;
        let fingerprint = prefix_store
            .then(|| phases.time("fingerprint", || fingerprint(checkpoint.as_ref(), &spec)));
        let (memory, facts) = (plan.memory.clone(), plan.facts.clone());
        let loaded = device.load(plan, checkpoint.as_ref(), progress)?;
        let side = side.or_else(|read| read())?;
        let tokenizer = side.tokenizer.map(Arc::new);
        let width = loaded.program().embedding() as usize;
        let eyes = found.open(checkpoint.origin(), &sized, tokenizer.as_ref(), width)?;
        Ok(Model {
            inner: Arc::new(Inner {
                origin: checkpoint.origin().to_string(),
                spec,
                plan: memory,
                facts,
                device,
                skipped,
                fitted,
                loaded,
                decode,
                prompt,
                embed,
                scores: options.scores,
                segments,
                vectors,
                tokenizer,
                eyes: eyes.map_or_else(OnceLock::new, OnceLock::from),
                no_images: found.missing,
                grammars: OnceLock::new(),
                template: side.template,
                end_tokens: side.end_tokens,
                max_chain: options.max_chain.max(1) as usize,
                fingerprint,
                engine: Mutex::default(),
                load_time: start.elapsed(),
                phases: phases.clone(),
            }),
        })
    }

    /// The engine of this model, made at the first call. It holds the memory that the plan shows.
    pub fn engine(&self) -> Result<Engine, Error> {
        let engine = self.inner.engine.lock();
        let mut engine = engine.unwrap_or_else(PoisonError::into_inner);
        let handle = match &*engine {
            Some(handle) => handle.clone(),
            None => engine
                .insert(Handle::start(self, &EngineOptions::default())?)
                .clone(),
        };
        Ok(Engine::of(self, handle))
    }

    /// A session on the model's engine: one conversation.
    pub fn session(&self) -> Result<Session, Error> {
        Ok(self.engine()?.session())
    }

    /// A stepper with caches of its own.
    pub fn stepper(&self) -> Result<Stepper, Error> {
        Stepper::new(self)
    }

    /// Where the model comes from.
    pub fn origin(&self) -> &str {
        &self.inner.origin
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// Its passes.
    pub fn program(&self) -> &Program {
        self.inner.loaded.program()
    }

    /// Memory by class, as planned before the load.
    pub fn plan(&self) -> &MemoryPlan {
        &self.inner.plan
    }

    /// Positions that a sequence can have.
    pub fn context(&self) -> usize {
        (self.program().context / self.inner.segments) as usize
    }

    /// Size of the vocabulary as the model computes it.
    pub fn vocab(&self) -> u32 {
        self.program().vocab
    }

    /// Values of the vector of a text, if it was loaded for embeddings.
    pub fn embedding_size(&self) -> Option<usize> {
        self.embed_width().filter(|_| !self.inner.scores)
    }

    /// Values that the embed pass yields for a text.
    pub(crate) fn embed_width(&self) -> Option<usize> {
        let pass = self.program().passes.get(self.inner.embed?)?;
        Some(pass.width as usize)
    }

    /// True if it was loaded to score pairs of texts.
    pub fn scores_pairs(&self) -> bool {
        self.inner.scores && self.inner.embed.is_some()
    }

    /// True if it computes vectors or scores only, and no text.
    pub fn is_encoder(&self) -> bool {
        self.inner.spec.encoder.is_some()
    }

    /// What the checkpoint says about vectors of texts.
    pub fn vector_settings(&self) -> &VectorSettings {
        &self.inner.vectors
    }

    /// The device it runs on.
    pub fn device(&self) -> &DeviceInfo {
        self.inner.device.info()
    }

    /// How the device runs it: facts for a person, in order.
    pub fn device_facts(&self) -> &[(String, String)] {
        &self.inner.facts
    }

    /// The devices that an automatic choice did not take.
    pub fn skipped(&self) -> &[Skipped] {
        &self.inner.skipped
    }

    /// The context that was chosen, if the options asked for that.
    pub fn fitted_context(&self) -> Option<FittedContext> {
        self.inner.fitted
    }

    /// Bytes per second that its device reads from memory, measured for about `seconds`.
    pub fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        Ok(self.inner.device.read_bandwidth(seconds)?)
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.inner.load_time
    }

    /// What loading spent its time on, and the first context too: phases in the order in which they began. Some happened at the
    /// same time.
    pub fn phases(&self) -> Vec<Phase> {
        let mut phases = self.inner.phases.list();
        phases.extend(self.inner.loaded.phases());
        phases.sort_by_key(|phase| phase.begun);
        phases
    }

    /// Tokens that end a text: from the metadata, the generation configuration and the vocabulary.
    pub fn end_tokens(&self) -> &[u32] {
        &self.inner.end_tokens
    }

    /// Prepares the vocabulary for constraints, which takes up to a second. The first constraint does so otherwise.
    pub fn prepare_constraints(&self) -> Result<(), Error> {
        self.grammars().map(|_| ())
    }

    /// The compiler of constraints.
    pub(crate) fn grammars(&self) -> Result<&Grammars, Error> {
        let inner = &self.inner;
        let tokenizer = inner.tokenizer.as_ref();
        let tokenizer = tokenizer.ok_or_else(|| Error::NoTokenizer {
            origin: self.origin().to_string(),
        })?;
        let made = inner
            .grammars
            .get_or_init(|| Grammars::new(tokenizer, self.vocab(), &inner.end_tokens));
        made.as_ref().map_err(|problem| Error::Constraint {
            kind: "constraint",
            at: None,
            problem: problem.clone(),
        })
    }

    /// The tokenizer, if the checkpoint has one.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.inner
            .tokenizer
            .as_deref()
            .ok_or_else(|| Error::NoTokenizer {
                origin: self.origin().to_string(),
            })
    }

    /// Encodes text, with the begin-of-text token if the model expects one. Control tokens are recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, true, true)?)
    }

    /// Encodes a text to embed, with the prompt of this name before it. Without a name, the model's default prompt is used,
    /// if it has one ([`VectorSettings`]).
    pub fn encode_to_embed(&self, prompt: Option<&str>, text: &str) -> Result<TextToEmbed, Error> {
        let settings = &self.inner.vectors;
        let Some(name) = prompt.or(settings.default_prompt.as_deref()) else {
            return Ok(self.encode(text)?.into());
        };
        let prompt = settings.prompt(name).ok_or_else(|| {
            let known: Vec<&str> = settings.prompts.iter().map(|p| p.0.as_str()).collect();
            Error::NoSuchPrompt {
                name: name.to_string(),
                known: if known.is_empty() {
                    "none".to_string()
                } else {
                    known.join(", ")
                },
            }
        })?;
        Ok(TextToEmbed {
            tokens: self.encode(&format!("{prompt}{text}"))?,
            left_out: if settings.leaves_out_prompts && !prompt.is_empty() {
                self.tokenizer()?.count_prompt(prompt)?
            } else {
                0
            },
        })
    }

    /// A prompt that makes the model write what is between two texts.
    pub fn encode_infill(&self, prefix: &str, suffix: &str) -> Result<Vec<u32>, Error> {
        let tokens = self.tokenizer()?.encode_infill(prefix, suffix)?;
        tokens.ok_or_else(|| Error::NoInfill {
            origin: self.origin().to_string(),
        })
    }

    /// True if the checkpoint has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.inner.template.is_some()
    }

    /// The source of the checkpoint's chat template.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.inner.template.as_deref()
    }

    /// The checkpoint's chat template.
    pub fn chat_template(&self) -> Result<ChatTemplate, Error> {
        let source = self
            .inner
            .template
            .as_deref()
            .ok_or_else(|| Error::NoChatTemplate {
                origin: self.origin().to_string(),
            })?;
        self.chat_template_from(source)
    }

    /// A chat template from somewhere else, for this model's tokens.
    pub fn chat_template_from(&self, source: &str) -> Result<ChatTemplate, Error> {
        text::template(source, self.tokenizer()?)
    }

    /// Encodes a conversation so that the model answers next.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Vec<u32>, Error> {
        self.encode_rendered(&template.render(messages, true)?)
    }

    /// Encodes a conversation that a chat template has rendered. Control tokens that messages spell stay text.
    pub fn encode_rendered(&self, prompt: &Rendered) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode_rendered(prompt)?)
    }

    /// Bytes that decoding one token must read when `depth` positions are in use: all weights once, and the cached
    /// positions that attention reads.
    pub fn bytes_per_token(&self, depth: usize) -> u64 {
        let program = self.program();
        let Some(pass) = program.passes.get(self.inner.decode) else {
            return 0;
        };
        let row = Row::new(0, depth.saturating_sub(1) as u32, 0);
        let context = |command| cost::of_context(command, program, &[row]).bytes;
        let cached: u64 = pass.commands.iter().map(context).sum();
        pass.row_bytes().saturating_add(cached)
    }

    /// The bytes of a token's text; none without a tokenizer.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        match &self.inner.tokenizer {
            Some(tokenizer) if (token as usize) < tokenizer.vocab_size() => {
                tokenizer.token_bytes(token)
            }
            _ => &[],
        }
    }

    /// The most tokens of a span of a prompt that attends both ways; 0: the device computes none. A step has room for one, and
    /// for all who decode.
    pub(crate) fn longest_span(&self) -> usize {
        if !self.inner.device.takes_features() {
            return 0;
        }
        let (rows, slots) = (
            self.rows_of(self.inner.prompt),
            self.program().slots as usize,
        );
        if slots < rows { rows - slots } else { rows }
    }

    /// Values of a vector that a row may read in place of a token ([`Medium`](crate::Medium)).
    pub fn feature_width(&self) -> usize {
        self.program().embedding() as usize
    }

    /// Rows of media that fit into the model's memory at a time ([`LoadOptions::features`]); 0: it takes none.
    pub fn feature_room(&self) -> usize {
        self.program().feature_count() as usize
    }

    /// The most rows of a step of a pass.
    pub(crate) fn rows_of(&self, pass: usize) -> usize {
        let pass = self.program().passes.get(pass);
        pass.map_or(1, |pass| pass.rows.max(1) as usize)
    }
}

#[cfg(test)]
mod tests;
