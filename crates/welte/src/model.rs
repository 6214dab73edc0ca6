//! From a checkpoint to a model that is ready to run: spec, program, memory plan, weights on the device.

mod card;
mod drafter;
mod ending;
pub(crate) mod eyes;
mod images;
mod inspection;
mod open;
mod plan;
mod sparse;

pub use eyes::hears;
pub use inspection::Inspection;
pub use open::open;

use crate::adapter::{AdapterContent, read_all};
use crate::cache::{fingerprint, sha256, with_head};
use crate::card::Card;
use crate::constraint::Grammars;
use crate::engine::Neighbour;
use crate::fit::FittedContext;
use crate::pictures::Sense;
use crate::text::TextSide;
use crate::{AdapterSource, DeviceChoice, Error, HeadKind, LoadOptions, Skipped, device, text};
use eyes::Found;
use inspection::inspect_with_eyes;
use plan::check_fit;
pub(crate) use plan::plan_program;
pub(crate) use sparse::Sparse;
use std::any::Any;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use web_time::{Duration, Instant};
use welte_device::{Activations, Device, DeviceInfo, Loaded, Phase, Phases, Progress};
use welte_formats::checkpoint::Checkpoint;
use welte_formats::{Dialect, Narrowed, WithDraft};
use welte_models::{ModelSpec, Survey, TOKEN_WEIGHT_FLOATS, VectorSettings};
use welte_table::{Format, MemoryPlan, PassKind, Program, Row, Source, cost};
use welte_text::{ChatTemplate, Message, Rendered, Tokenizer};

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
    /// What the checkpoint says of the model, without what it can do.
    card: Card,
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
    /// How the embed pass makes sparse vectors, if it does.
    pub(crate) sparse: Option<Sparse>,
    /// Segments of a text, each of which may have the whole context.
    pub(crate) segments: u32,
    vectors: VectorSettings,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    /// Made for the first constraint.
    grammars: OnceLock<Result<Grammars, String>>,
    pub(crate) eyes: OnceLock<Sense>,
    pub(crate) ears: OnceLock<Sense>,
    /// The engine that encoders on the same device leave steps to.
    pub(crate) neighbour: Neighbour,
    no_images: Option<String>,
    no_sounds: Option<String>,
    /// It was loaded with a draft head.
    draft_head: bool,
    /// How its tensors are named.
    pub(crate) dialect: Dialect,
    /// The adapters that engines load at their start.
    pub(crate) adapters: Vec<(AdapterSource, Arc<AdapterContent>)>,
    template: Option<String>,
    end_tokens: Vec<u32>,
    pub(crate) max_chain: usize,
    /// Stands for the weights, if a prefix store may need it.
    pub(crate) fingerprint: Option<[u8; 32]>,
    /// The shared engine, once there is one. [`Engine`](crate::Engine) knows its type.
    pub(crate) engine: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    load_time: Duration,
    /// What loading spent its time on outside the device.
    phases: Arc<Phases>,
}

/// A checkpoint with weights for the activations asked for. One that already has FP8 weights is left unchanged.
fn as_asked(checkpoint: Box<dyn Checkpoint>, options: &LoadOptions) -> Box<dyn Checkpoint> {
    let has_float8 = |c: &dyn Checkpoint| c.tensors().iter().any(|t| t.format == Format::F8_E4M3);
    match options.activations {
        Activations::Float8 if !has_float8(&*checkpoint) => Box::new(Narrowed::new(checkpoint)),
        _ => checkpoint,
    }
}

/// A checkpoint with the draft head asked for.
fn with_draft(
    checkpoint: Arc<dyn Checkpoint>,
    options: &LoadOptions,
) -> Result<Arc<dyn Checkpoint>, Error> {
    match &options.draft_head {
        Some(head) => Ok(Arc::new(WithDraft::new(checkpoint, open(head)?.into()))),
        None if options.draft_beside => drafter::with_one_beside(checkpoint),
        None => Ok(checkpoint),
    }
}

/// The kind of a source that drafts for a model ([`LoadOptions::draft_head`]) and is none itself.
pub fn draft_head_kind(source: &str) -> Result<Option<HeadKind>, Error> {
    Ok(welte_models::head_kind(&*open(source)?))
}

/// The fingerprint of a model with what its program adds to it: control vectors.
fn steered(print: [u8; 32], program: &Program) -> [u8; 32] {
    let weights = program.weights.iter();
    let vectors = weights.filter_map(|weight| match &weight.source {
        Source::Constant(values) if weight.name.ends_with("control vector") => {
            Some((weight.name.as_bytes(), values))
        }
        _ => None,
    });
    // The names say which layers they are added to.
    vectors.fold(print, |print, (name, values)| {
        let values: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        sha256([print.as_slice(), name, &values])
    })
}

impl Model {
    /// Compiles the model of a source and plans its memory, reading headers only.
    pub fn inspect(source: &str, options: &LoadOptions) -> Result<Inspection, Error> {
        let checkpoint = with_draft(as_asked(open(source)?, options).into(), options)?;
        inspect_with_eyes(checkpoint, options, &mut Found::default())
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
        if let DeviceChoice::Assumed(name) = options.device {
            return Err(Error::NotHere { name });
        }
        let checkpoint = with_draft(as_asked(checkpoint, options).into(), options)?;
        let phases = Arc::new(phases);
        let read = || {
            phases.time("vocabulary and template", || {
                TextSide::of(checkpoint.as_ref())
            })
        };
        std::thread::scope(|scope| {
            if let Some(start) = device::starter(options.device) {
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
            (text::score_tokens(side.tokenizer.as_ref()), Ok(side))
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
            media: _,
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
        let width = embed.map(|embed| plan.program.passes[embed].width);
        let pooling = options.pooling.or(vectors.pooling);
        let sparse = Sparse::of(&spec, pooling, width, options.scores);
        let prefix_store = options.prefix_store;
        let fingerprint = prefix_store
            .then(|| phases.time("fingerprint", || fingerprint(checkpoint.as_ref(), &spec)));
        let fingerprint = fingerprint.map(|print| steered(print, &plan.program));
        // An assistant has no keys and values of its own.
        let stores = plan.program.pass(PassKind::Draft).is_some() && !plan.program.guesses_stay();
        let head = checkpoint.draft().filter(|_| stores);
        let fingerprint = fingerprint.map(|print| match head {
            Some(head) => with_head(print, head),
            None => print,
        });
        let (memory, mut facts) = (plan.memory.clone(), plan.facts.clone());
        if let Some(kind) = spec.draft_kind(checkpoint.as_ref()) {
            let said = match plan.program.pass(PassKind::Draft) {
                Some(_) => "loaded: it can guess tokens ahead".to_string(),
                None if !device.drafts() => {
                    format!("not used: {} cannot guess with it", device.info().id)
                }
                None => "not loaded".to_string(),
            };
            facts.push(("draft layer".to_string(), format!("{kind}; {said}")));
        }
        // Before the weights, so that a wrong one is found at once.
        let adapters = read_all(&plan.program, &spec, checkpoint.dialect(), &sized)?;
        let loaded = device.load(plan, checkpoint.as_ref(), progress)?;
        let mut side = side.or_else(|read| read())?;
        let tokenizer = side.tokenizer.map(Arc::new);
        let place = (device.info().id, &**loaded.program(), &spec);
        let eyes = found.open_eyes(checkpoint.origin(), &sized, tokenizer.as_ref(), place)?;
        let ears = found.open_ears(checkpoint.origin(), &sized, tokenizer.as_ref(), place)?;
        side.end_tokens.extend(found.speech);
        let neighbour = Neighbour::default();
        let once = |sense: Option<Sense>| {
            let sense = sense.map(|sense| sense.beside(device.info().id, &neighbour));
            sense.map_or_else(OnceLock::new, OnceLock::from)
        };
        let (eyes, ears) = (once(eyes), once(ears));
        Ok(Model {
            inner: Arc::new(Inner {
                origin: checkpoint.origin().to_string(),
                card: Card::of_model(&spec, checkpoint.as_ref()),
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
                sparse,
                segments,
                vectors,
                tokenizer,
                eyes,
                ears,
                neighbour,
                no_images: found.missing,
                no_sounds: found.deaf,
                draft_head: checkpoint.draft().is_some(),
                dialect: checkpoint.dialect(),
                adapters,
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

    /// The name of the adapter that its directory has for requests with sounds.
    pub(crate) fn adapter_for_sounds(&self) -> Option<&str> {
        let own = Path::new(self.origin());
        let adapters = &self.inner.adapters;
        let mut for_sounds = adapters.iter().filter(|(source, _)| source.path == own);
        for_sounds.next().map(|(source, _)| source.name.as_str())
    }

    /// The name of the adapter that it was loaded with for all requests that choose none.
    pub fn adapter_for_all(&self) -> Option<&str> {
        let adapters = self.inner.adapters.iter();
        let mut for_all = adapters.filter(|(source, _)| source.for_all);
        for_all.next().map(|(source, _)| source.name.as_str())
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
        let dense = !self.inner.scores && self.inner.sparse != Some(Sparse::Vocabulary);
        let width = self.embed_width().filter(|_| dense);
        width.map(|width| width - self.embed_skipped())
    }

    /// Values that the embed pass yields for a text.
    pub(crate) fn embed_width(&self) -> Option<usize> {
        let pass = self.program().passes.get(self.inner.embed?)?;
        Some(pass.width as usize)
    }

    /// Values of an output row that are not part of a vector.
    pub(crate) fn embed_skipped(&self) -> usize {
        match self.inner.sparse {
            Some(Sparse::Tokens { .. }) => TOKEN_WEIGHT_FLOATS as usize,
            _ => 0,
        }
    }

    /// True if it has sparse vectors of texts ([`Engine::embed_sparse`](crate::Engine::embed_sparse)).
    pub fn has_sparse_vectors(&self) -> bool {
        self.inner.sparse.is_some()
    }

    /// An error that says why it has no sparse vectors, unless it has them.
    pub fn check_sparse(&self) -> Result<(), Error> {
        if self.has_sparse_vectors() {
            return Ok(());
        }
        let encoder = self.inner.spec.encoder.as_ref();
        let why = match encoder.map(|encoder| (encoder.weighs_tokens, encoder.masked_head)) {
            Some((true, _)) => {
                "it was loaded for scores, or with mean pooling, which does not go with its weights of tokens"
            }
            Some((_, true)) => "if it was trained for them (SPLADE), load it with --pooling splade",
            _ => "it has no weights of tokens, such as sparse_linear.pt of BGE-M3",
        };
        Err(Error::NoSparse {
            origin: self.origin().to_string(),
            why,
        })
    }

    /// True if it was loaded to score pairs of texts.
    pub fn scores_pairs(&self) -> bool {
        self.inner.scores && self.inner.embed.is_some()
    }

    /// True if it can guess tokens with a draft layer of its own.
    pub fn has_draft_layer(&self) -> bool {
        self.program().pass(PassKind::Draft).is_some()
    }

    /// True if it was loaded with a head that drafts for it. [`Model::has_draft_layer`] says whether its device can use it.
    pub fn has_draft_head(&self) -> bool {
        self.inner.draft_head
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
        let template = text::template(source, self.tokenizer()?)?;
        let media = [("image", self.eyes()), ("audio", self.ears())];
        let media = media
            .into_iter()
            .filter_map(|(kind, sense)| Some((kind, sense?)));
        Ok(media.fold(template, |template, (kind, sense)| {
            template.with_media(kind, sense.placeholder())
        }))
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
        self.program().feature_width() as usize
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
