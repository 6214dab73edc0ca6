//! The models that the server knows. They are loaded on demand, and unloaded when they are idle for long or when another
//! one needs their memory; never while they serve.

use crate::client::Client;
use crate::error::Failure;
use crate::for_all::ForAll;
use crate::metrics::Metrics;
use crate::rates::History;
use crate::recipe::Recipe;
use crate::volatile_lines::Changing;
use crate::{ServerOptions, times};
use axum::http::StatusCode;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use welte::{
    Adapter, AdapterSource, Card, ChatTemplate, DeviceInfo, Engine, Inspection, LoadOptions, Model,
    TemplateCard,
};
use welte_text::calls::Format;

/// A load that waits for memory looks again at the latest after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The longest wait of [`Served::settle`].
const SETTLE: Duration = Duration::from_millis(20);
/// The most names in an error message.
const MOST_NAMES: usize = 20;
/// The most clients of a model whose wishes are remembered.
const MOST_CLIENTS: usize = 64;

/// The models to serve, in order. The first one is the default.
#[derive(Default)]
pub struct Catalog {
    load: LoadOptions,
    sources: Vec<Source>,
}

struct Source {
    name: String,
    /// What to load; `None`: the model is loaded and stays.
    path: Option<String>,
    model: Option<Model>,
    /// Further names.
    aliases: Vec<String>,
    /// How it was created from the model at its path.
    recipe: Option<Recipe>,
}

/// What loading a model would need.
pub struct Planned {
    /// The model's name.
    pub name: String,
    /// Where it lies; `None`: it is loaded and stays.
    pub path: Option<String>,
    /// Bytes by its memory plan, or why it cannot be loaded.
    pub bytes: Result<u64, welte::Error>,
    /// Bytes that its device has available.
    pub available: Option<u64>,
}

impl Catalog {
    /// No models yet. Models are loaded with these options.
    pub fn new(load: LoadOptions) -> Catalog {
        Catalog {
            load,
            sources: Vec::new(),
        }
    }

    /// Adds a model that is loaded at its first request. Returns false if the name is taken.
    #[must_use]
    pub fn add(&mut self, name: impl Into<String>, path: impl Into<String>) -> bool {
        self.push(name.into(), Some(path.into()), None)
    }

    /// Adds a loaded model. It may be unloaded and loaded again from `path`, if one is given. Returns false if the name is
    /// taken.
    #[must_use]
    pub fn add_loaded(
        &mut self,
        name: impl Into<String>,
        model: Model,
        path: Option<String>,
    ) -> bool {
        self.push(name.into(), path, Some(model))
    }

    fn push(&mut self, name: String, path: Option<String>, model: Option<Model>) -> bool {
        let new = !self.has(&name);
        if new {
            self.sources.push(Source {
                name,
                path,
                model,
                aliases: Vec::new(),
                recipe: None,
            });
        }
        new
    }

    /// Says how the model `name` was created from the one at its path. Does nothing if there is no such model.
    pub fn created(&mut self, name: &str, recipe: Recipe) {
        let source = self.sources.iter_mut().find(|source| source.name == name);
        if let Some(source) = source {
            source.recipe = Some(recipe);
        }
    }

    /// Gives the model `name` a further name. Returns false if the name is taken, or if there is no such model.
    #[must_use]
    pub fn alias(&mut self, name: &str, alias: &str) -> bool {
        if self.has(alias) {
            return false;
        }
        let source = self.sources.iter_mut().find(|source| source.name == name);
        source.is_some_and(|source| {
            source.aliases.push(alias.to_string());
            true
        })
    }

    fn has(&self, name: &str) -> bool {
        let is = |known: &String| known == name;
        let has = |source: &Source| is(&source.name) || source.aliases.iter().any(is);
        self.sources.iter().any(has)
    }

    /// True if there is no model.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The memory plan of every model, from headers alone.
    pub fn plan(&self) -> Vec<Planned> {
        let plan = |source: &Source| {
            let loaded = source.model.as_ref().map(|model| model.plan().total());
            let inspection = match (&source.path, loaded) {
                (Some(path), None) => {
                    let load = with_context(&self.load, source.recipe.as_ref());
                    Some(Model::inspect(path, &load))
                }
                _ => None,
            };
            let available = match &inspection {
                Some(Ok(inspection)) => inspection.available(),
                _ => None,
            };
            let planned = |inspection: Inspection| inspection.plan().total();
            Planned {
                name: source.name.clone(),
                path: source.path.clone(),
                bytes: inspection.map_or(Ok(loaded.unwrap_or(0)), |found| found.map(planned)),
                available,
            }
        };
        self.sources.iter().map(plan).collect()
    }
}

/// How a model is loaded that was created by a recipe: with the context that it asks for, if nothing else was said.
fn with_context(load: &LoadOptions, recipe: Option<&Recipe>) -> LoadOptions {
    let mut load = load.clone();
    if load.context == 0 {
        load.context = recipe.and_then(Recipe::context).unwrap_or(0);
    }
    load
}

impl From<Model> for Catalog {
    /// One model, which stays loaded. Its name is that of its file.
    fn from(model: Model) -> Catalog {
        let mut catalog = Catalog::default();
        let name = name_of(model.origin());
        catalog.push(name, None, Some(model));
        catalog
    }
}

/// The last part of a path, without `.gguf`.
pub fn name_of(path: &str) -> String {
    let last = path.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or(path);
    last.strip_suffix(".gguf").unwrap_or(last).to_string()
}

/// A loaded model with what the server needs beside it.
pub(crate) struct Served {
    pub(crate) id: String,
    pub(crate) model: Model,
    pub(crate) engine: Engine,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) template_source: Option<String>,
    /// How it was created from another model.
    pub(crate) recipe: Option<Recipe>,
    /// How the model writes calls and reasoning.
    pub(crate) format: Option<Format>,
    /// Control tokens that mark calls and reasoning.
    pub(crate) controls: Vec<u32>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) history: tokio::sync::Mutex<History>,
    /// Bytes per second that the device reads, if they are known.
    pub(crate) bandwidth: Option<f64>,
    /// Lines of system prompts to leave out.
    pub(crate) drop_changing: Vec<Changing>,
    /// Variables of the chat template that requests do not set.
    variables: Map<String, Value>,
    /// The adapter of requests that choose none.
    pub(crate) for_all: ForAll,
    /// Requests in the engine, by the numbers that the engine gave them.
    active: Mutex<BTreeMap<u64, Active>>,
}

/// A request in the engine, as the server sees it.
#[derive(Clone)]
pub(crate) struct Active {
    pub(crate) id: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) since: Instant,
}

impl Served {
    /// The model's card, with the chat template that it is served with.
    pub(crate) fn card(&self) -> Card {
        let template = self.template_source.as_deref().zip(self.template.as_ref());
        let template = template.map(|(source, made)| TemplateCard::of(source, made));
        self.model.card_with(template)
    }

    /// Why the engine does not accept a request.
    pub(crate) fn refused(&self, error: welte::Error) -> Failure {
        if matches!(error, welte::Error::Busy { .. }) {
            self.metrics.refused.fetch_add(1, Ordering::Relaxed);
        }
        error.into()
    }

    fn new(entry: &Entry, model: Model, options: &ServerOptions) -> Result<Served, welte::Error> {
        let recipe = entry.recipe.as_ref();
        let source = recipe.and_then(|recipe| recipe.template.as_deref());
        let source = source.or(options.chat_template.as_deref());
        let source = source.or(model.chat_template_source());
        let format = source.map(Format::of_template);
        let controls = match (&format, model.tokenizer()) {
            (Some(format), Ok(tokenizer)) => format.control_tokens(tokenizer),
            _ => Vec::new(),
        };
        let template = source.map(|source| model.chat_template_from(source));
        let template = template.transpose()?;
        let template_source = source.map(str::to_string);
        let mut engine = options.engine.clone();
        if let Some(events) = &options.kv_events {
            let page = model.program().page.max(1) as usize;
            let watcher = events.watch(&entry.id, page);
            engine.prefix_changes = watcher
                .inspect_err(|error| tracing::error!(%error, "no cache events"))
                .ok();
        }
        let engine = Engine::new(&model, &engine)?;
        let for_all = model.adapter_for_all();
        let for_all = for_all.and_then(|name| engine.adapter(name));
        Ok(Served {
            id: entry.id.clone(),
            for_all: ForAll::new(for_all),
            engine,
            template,
            template_source,
            recipe: entry.recipe.clone(),
            format,
            controls,
            created: entry.created,
            metrics: entry.metrics.clone(),
            history: tokio::sync::Mutex::default(),
            bandwidth: options.bandwidth.and_then(|of| of(model.device())),
            drop_changing: options.drop_changing.clone(),
            variables: options.template_variables.clone(),
            active: Mutex::default(),
            model,
        })
    }

    /// The variables of a request, and those that it does not set.
    pub(crate) fn variables(&self, own: &Map<String, Value>) -> Map<String, Value> {
        let mut all = self.variables.clone();
        all.extend(own.clone());
        all
    }

    /// Waits a moment for the scheduler to clear away what it has just answered.
    pub(crate) async fn settle(&self) {
        let (begun, turns) = (Instant::now(), self.engine.turns());
        self.engine.ping();
        while self.engine.turns() == turns && begun.elapsed() < SETTLE {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn active(&self) -> MutexGuard<'_, BTreeMap<u64, Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The speed at which a device reads memory, in bytes per second.
pub type BandwidthOf = fn(&DeviceInfo) -> Option<f64>;

/// A model that the server knows.
pub(crate) struct Entry {
    pub(crate) id: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// What to load; `None`: it is loaded and stays.
    pub(crate) path: Option<String>,
    /// How it was created from the model at that path.
    pub(crate) recipe: Option<Recipe>,
    pub(crate) metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Says that a model was released, to those that wait for memory.
    released: Arc<Notify>,
}

struct State {
    served: Option<Arc<Served>>,
    /// When the last request ended.
    used: Instant,
    /// How long it stays loaded for a client that does not say; `None`: until its memory is needed.
    keep_alive: Option<Duration>,
    /// What its clients want, since it was loaded.
    wishes: BTreeMap<Client, Wish>,
}

/// How long a client wants a model to stay loaded. Without this one client could unload a model that others use.
struct Wish {
    /// When the client's last request ended.
    used: Instant,
    /// The time after that; `None`: until the model's memory is needed.
    keep_alive: Option<Duration>,
}

impl Wish {
    /// When it is over, if ever.
    fn end(&self) -> Option<Instant> {
        self.used.checked_add(self.keep_alive?)
    }
}

impl State {
    /// The wish of a client, a new one if need be. A client that is forgotten has one that ended soon.
    fn wish(&mut self, client: Client) -> &mut Wish {
        if self.wishes.len() >= MOST_CLIENTS && !self.wishes.contains_key(&client) {
            let ends = |wish: &Wish| (wish.end().is_none(), wish.end());
            let first = self.wishes.iter().min_by_key(|(_, wish)| ends(wish));
            if let Some(first) = first.map(|(client, _)| *client) {
                self.wishes.remove(&first);
            }
        }
        let keep_alive = self.keep_alive;
        self.wishes.entry(client).or_insert_with(|| Wish {
            used: Instant::now(),
            keep_alive,
        })
    }

    /// Time counts from now on.
    fn use_now(&mut self, client: Client) {
        self.used = Instant::now();
        self.wish(client).used = self.used;
    }

    /// When nobody wants it to stay loaded any more; `None`: never.
    fn end(&self) -> Option<Instant> {
        let own = Wish {
            used: self.used,
            keep_alive: self.keep_alive,
        };
        let wishes = self
            .wishes
            .values()
            .chain(self.wishes.is_empty().then_some(&own));
        let ends: Option<Vec<Instant>> = wishes.map(Wish::end).collect();
        ends?.into_iter().max()
    }

    /// Whether nobody wants it to stay loaded.
    fn is_unwanted(&self) -> bool {
        self.end().is_some_and(|end| end <= Instant::now())
    }
}

impl Entry {
    fn new(
        name: String,
        path: Option<String>,
        keep_alive: Option<Duration>,
        released: &Arc<Notify>,
    ) -> Entry {
        Entry {
            id: name,
            aliases: Vec::new(),
            created: times::since_1970().as_secs(),
            path,
            recipe: None,
            released: released.clone(),
            metrics: Arc::default(),
            state: Mutex::new(State {
                served: None,
                used: Instant::now(),
                keep_alive,
                wishes: BTreeMap::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it stays loaded if no request comes; `None`: until its memory is needed.
    pub(crate) fn stays(&self) -> Option<Duration> {
        let end = self.state().end()?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    /// The model, if it is loaded. This does not count as use.
    pub(crate) fn loaded(&self) -> Option<Arc<Served>> {
        self.state().served.clone()
    }

    /// A lease for a request that came at `since`, if the model is loaded.
    fn lease(self: &Arc<Entry>, client: Client, since: Instant) -> Option<Lease> {
        let mut state = self.state();
        let served = state.served.clone()?;
        state.use_now(client);
        let release = Release {
            entry: self.clone(),
            client,
        };
        Some(Lease {
            used: Arc::new(Use { served, release }),
            adapter: None,
            since,
            waited: since.elapsed(),
        })
    }

    /// Takes the model out if nobody uses it and `when` agrees.
    fn take_idle(&self, when: impl FnOnce(&State) -> bool) -> Option<Arc<Served>> {
        let mut state = self.state();
        let idle = self.path.is_some()
            && state
                .served
                .as_ref()
                .is_some_and(|s| Arc::strong_count(s) == 1);
        if !idle || !when(&state) {
            return None;
        }
        state.wishes.clear();
        state.served.take()
    }
}

/// Keeps a model loaded. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Lease {
    used: Arc<Use>,
    /// That which the request named.
    adapter: Option<Adapter>,
    /// When the request came, and how long it waited for the model.
    since: Instant,
    waited: Duration,
}

/// The fields are dropped in this order.
struct Use {
    served: Arc<Served>,
    release: Release,
}

struct Release {
    entry: Arc<Entry>,
    client: Client,
}

impl Lease {
    /// The adapter that the request named, or that of all requests.
    pub(crate) fn adapter(&self) -> Option<Adapter> {
        self.adapter.clone().or_else(|| self.for_all.get())
    }

    /// The name that answers give: that of the adapter that the request named, or the model's.
    pub(crate) fn name(&self) -> &str {
        let adapter = self.adapter.as_ref();
        adapter.map_or(&self.id, Adapter::name)
    }

    /// Refuses a request that names an adapter where none is used.
    pub(crate) fn without_adapter(self) -> Result<Lease, Failure> {
        match &self.adapter {
            None => Ok(self),
            Some(adapter) => {
                let problem = format!(
                    "adapter {:?} is for texts that are generated",
                    adapter.name()
                );
                Err(Failure::field("model", problem))
            }
        }
    }

    /// When the request came.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// How long the request waited for the model.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// When the request is given up.
    pub(crate) fn deadline(&self, options: &ServerOptions) -> Option<Instant> {
        options.timeout.map(|timeout| self.since + timeout)
    }

    /// Sets how long the model stays loaded for this client, after its last request.
    pub(crate) fn keep_alive(&self, time: Option<Duration>) {
        let Release { entry, client } = &self.used.release;
        entry.state().wish(*client).keep_alive = time;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        self.entry.state().use_now(self.client);
        self.entry.released.notify_waiters();
    }
}

impl Deref for Lease {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.used.served
    }
}

/// All models.
pub(crate) struct Models {
    load: LoadOptions,
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Loads take turns: two at once would count the same memory twice.
    turn: Arc<tokio::sync::Mutex<()>>,
    released: Arc<Notify>,
}

impl Models {
    pub(crate) fn new(catalog: Catalog, options: &ServerOptions) -> Result<Models, welte::Error> {
        let released = Arc::default();
        let mut entries = Vec::new();
        for source in catalog.sources {
            let mut entry = Entry::new(source.name, source.path, options.keep_alive, &released);
            entry.aliases = source.aliases;
            entry.recipe = source.recipe;
            if let Some(model) = source.model {
                let served = Served::new(&entry, model, options)?;
                entry.state().served = Some(Arc::new(served));
            }
            entries.push(Arc::new(entry));
        }
        let models = Models {
            load: catalog.load,
            entries: Mutex::new(entries),
            turn: Arc::default(),
            released,
        };
        models.check_adapters()?;
        Ok(models)
    }

    /// Refuses adapters that requests cannot choose, since a model has their name.
    fn check_adapters(&self) -> Result<(), welte::Error> {
        let mut chosen = self.load.adapters.iter().filter(|source| !source.for_all);
        match chosen.find(|source| self.find(Some(&source.name)).is_ok()) {
            None => Ok(()),
            Some(source) => Err(welte::Error::Adapter {
                name: source.name.clone(),
                problem: "is the name of a model; give it another one: --lora NAME=PATH".into(),
            }),
        }
    }

    /// The adapters that a model has once it is loaded.
    pub(crate) fn adapter_sources(&self) -> &[AdapterSource] {
        &self.load.adapters
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All models that the server knows, the default one first.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries().clone()
    }

    /// The folders of the models' files, each with the separator at its end.
    pub(crate) fn folders(&self) -> impl Iterator<Item = String> {
        let all = self.all().into_iter();
        all.filter_map(|entry| {
            let loaded = entry.loaded();
            let path = match (&entry.path, &loaded) {
                (Some(path), _) => path,
                (None, served) => served.as_ref()?.model.origin(),
            };
            let name = Path::new(path).file_name()?.to_str()?;
            let folder = path.trim_end_matches('/').strip_suffix(name)?;
            (folder.len() > 1).then(|| folder.to_string())
        })
    }

    /// Those that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<Served>> {
        self.entries()
            .iter()
            .filter_map(|entry| entry.loaded())
            .collect()
    }

    /// Adds a model that is loaded at its first request, unless one has this name.
    #[cfg(feature = "hub")]
    pub(crate) fn add(&self, name: &str, path: &Path, options: &ServerOptions) {
        let path = path.display().to_string();
        let mut entries = self.entries();
        if entries.iter().all(|entry| entry.id != name) {
            let entry = Entry::new(
                name.to_string(),
                Some(path),
                options.keep_alive,
                &self.released,
            );
            entries.push(Arc::new(entry));
        }
    }

    /// Adds a created model, in the place of one that was created under this name. Requests at work go on. Blocks.
    #[cfg(feature = "hub")]
    pub(crate) fn add_created(&self, name: &str, recipe: Recipe, options: &ServerOptions) {
        let path = Some(recipe.from.clone());
        let mut entry = Entry::new(name.to_string(), path, options.keep_alive, &self.released);
        entry.recipe = Some(recipe);
        let mut entries = self.entries();
        let before = entries.iter_mut().find(|known| known.id == name);
        let Some(place) = before else {
            entries.push(Arc::new(entry));
            return;
        };
        entry.aliases = place.aliases.clone();
        let before = std::mem::replace(place, Arc::new(entry));
        drop(entries);
        if let Some(served) = before.take_idle(|_| true) {
            unload(served);
        }
    }

    /// Forgets models. Their memory is freed outside of the lock, which every request takes.
    #[cfg(feature = "hub")]
    fn forget(&self, gone: impl Fn(&Entry) -> bool) {
        let forgotten: Vec<Arc<Entry>> = self.entries().extract_if(.., |e| gone(e)).collect();
        for entry in forgotten {
            if let Some(served) = entry.take_idle(|_| true) {
                unload(served);
            }
        }
    }

    /// Forgets a created model.
    #[cfg(feature = "hub")]
    pub(crate) fn remove_created(&self, name: &str) {
        self.forget(|entry| entry.id == name && entry.recipe.is_some());
    }

    /// Deletes files, and forgets the models whose files are gone. Requests at work go on.
    #[cfg(feature = "hub")]
    pub(crate) fn remove_deleted(
        &self,
        delete: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let exists = |entry: &Entry| entry.path.as_ref().is_some_and(|p| Path::new(p).exists());
        let mut before = self.all();
        before.retain(|entry| exists(entry));
        let before: Vec<String> = before.iter().map(|entry| entry.id.clone()).collect();
        delete()?;
        self.forget(|entry| before.contains(&entry.id) && !exists(entry));
        Ok(())
    }

    /// The model that a request names, or the default one.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Arc<Entry>, Failure> {
        let entries = self.entries();
        let Some(name) = name else {
            let none = || Failure::new(StatusCode::NOT_FOUND, "no models are served here");
            return entries.first().cloned().ok_or_else(none);
        };
        // Clients of Ollama name a tag.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = entries
            .iter()
            .find(|entry| entry.id == name || entry.aliases.iter().any(|alias| alias == name))
            .or(entries.iter().find(|entry| entry.id == plain));
        found.cloned().ok_or_else(|| {
            let known = entries.iter().map(|entry| format!("{:?}", entry.id));
            let mut known: Vec<String> = known.take(MOST_NAMES).collect();
            match entries.len().saturating_sub(MOST_NAMES) {
                0 => {}
                more => known.push(format!("{more} more")),
            }
            Failure {
                field: Some("model".to_string()),
                ..Failure::new(
                    StatusCode::NOT_FOUND,
                    format!(
                        "model {name:?} is not served here; use {}",
                        known.join(", ")
                    ),
                )
            }
        })
    }

    /// The model whose adapter a request names, and the adapter's name: `MODEL:ADAPTER`, or the adapter's name alone.
    pub(crate) fn find_adapter(&self, name: &str) -> Option<(Arc<Entry>, String)> {
        let has = |entry: &Entry, adapter: &str| match entry.loaded() {
            Some(served) => served.engine.adapter(adapter).is_some(),
            None => self
                .load
                .adapters
                .iter()
                .any(|source| source.name == adapter),
        };
        if let Some((model, adapter)) = name.rsplit_once(':')
            && let Ok(entry) = self.find(Some(model))
            && has(&entry, adapter)
        {
            return Some((entry, adapter.to_string()));
        }
        let all = self.all().into_iter();
        let found = all.into_iter().find(|entry| has(entry, name));
        found.map(|entry| (entry, name.to_string()))
    }

    /// Whether requests may choose adapters of a model.
    fn adapts(&self, entry: &Entry) -> bool {
        match entry.loaded() {
            Some(served) => served.model.program().adapters.is_some(),
            None => !self.load.adapters.is_empty() || self.load.max_adapters > 0,
        }
    }

    /// As [`Models::find`], for clients that know a fixed name: if one model is served, it answers to every name, unless other names
    /// may be those of adapters.
    pub(crate) fn find_any(
        &self,
        name: Option<&str>,
        options: &ServerOptions,
    ) -> Result<Arc<Entry>, Failure> {
        let found = self.find(name);
        let mut all = self.all();
        match found {
            Err(_)
                if all.len() == 1
                    && !options.grows()
                    && !options.strict
                    && !self.adapts(&all[0]) =>
            {
                Ok(all.remove(0))
            }
            found => found,
        }
    }

    /// The model that a request names, for use, with its adapter. Loads it if need be. Requests for other models go on meanwhile.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        name: Option<&str>,
        options: &ServerOptions,
    ) -> Result<Lease, Failure> {
        let adapter = name.filter(|name| self.find(Some(name)).is_err());
        let Some((entry, adapter)) = adapter.and_then(|name| self.find_adapter(name)) else {
            return self
                .lease_entry(self.find_any(name, options)?, options)
                .await;
        };
        let mut lease = self.lease_entry(entry, options).await?;
        let loaded = lease.engine.adapter(&adapter);
        lease.adapter = Some(loaded.ok_or_else(|| {
            let message = format!("adapter {adapter:?} is not loaded any more");
            Failure::new(StatusCode::NOT_FOUND, message)
        })?);
        Ok(lease)
    }

    async fn lease_entry(
        self: &Arc<Self>,
        entry: Arc<Entry>,
        options: &ServerOptions,
    ) -> Result<Lease, Failure> {
        let since = Instant::now();
        let client = Client::current();
        if let Some(lease) = entry.lease(client, since) {
            return Ok(lease);
        }
        let deadline = options.timeout.map(|timeout| since + timeout);
        loop {
            let released = self.released.notified();
            let turn = self.turn.clone().lock_owned();
            let turn = match deadline {
                None => turn.await,
                Some(deadline) => tokio::time::timeout_at(deadline.into(), turn)
                    .await
                    .map_err(|_| welte::Error::Deadline)?,
            };
            if let Some(lease) = entry.lease(client, since) {
                return Ok(lease);
            }
            let (models, entry, options) = (self.clone(), entry.clone(), options.clone());
            let loading = tokio::task::spawn_blocking(move || {
                let done = models.load(&entry, (client, since), &options);
                drop(turn);
                done
            });
            let shortage = match loading.await {
                Ok(Ok(Loading::Done(lease))) => return Ok(lease),
                Ok(Ok(Loading::Short(shortage))) => shortage,
                Ok(Err(failure)) => return Err(failure),
                Err(error) => return Err(Failure::fault(&error)),
            };
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late || shortage.busy.is_empty() {
                return Err(shortage.failure());
            }
            // Others may load smaller models meanwhile.
            let _ = tokio::time::timeout(LOOK_AGAIN, released).await;
        }
    }

    /// Makes room and loads.
    fn load(
        &self,
        entry: &Arc<Entry>,
        (client, since): (Client, Instant),
        options: &ServerOptions,
    ) -> Result<Loading, Failure> {
        let path = entry.path.as_deref().unwrap_or_default();
        let load = loop {
            let (load, inspection) = self.inspect(entry, options)?;
            let shortage = self.shortage(&inspection, options);
            // A short context is of little use, so idle models make room for a longer one.
            let fitted = inspection.fitted_context();
            let cramped = fitted.is_some_and(|fitted| fitted.is_cramped());
            if (shortage.is_some() || cramped) && self.unload_oldest() {
                continue;
            }
            let Some((need, have)) = shortage else {
                break load;
            };
            return Ok(Loading::Short(Shortage {
                name: entry.id.clone(),
                need,
                have,
                busy: self.loaded().iter().map(|s| s.id.clone()).collect(),
            }));
        };
        let begun = Instant::now();
        let model = Model::load(path, &load, &mut |_| ())?;
        let sizes = model.fitted_context().map(|sizes| sizes.to_string());
        let served = Served::new(entry, model, options)?;
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(model = entry.id, ms, sizes, "loaded");
        // This reference keeps it loaded until there is a lease.
        let served = Arc::new(served);
        entry.state().served = Some(served.clone());
        let gone = || Failure::server("the model was unloaded at once");
        let lease = entry.lease(client, since);
        lease.map(Loading::Done).ok_or_else(gone)
    }

    /// Bytes that all models may take beside the loaded ones, if they have a limit.
    fn limit(&self, options: &ServerOptions) -> Option<u64> {
        let limit = options.models_memory?;
        Some(limit.saturating_sub(self.used()))
    }

    /// Bytes of the loaded models.
    fn used(&self) -> u64 {
        self.loaded().iter().map(|s| s.model.plan().total()).sum()
    }

    /// Plans a model beside the loaded ones.
    fn inspect(
        &self,
        entry: &Entry,
        options: &ServerOptions,
    ) -> Result<(LoadOptions, Inspection), Failure> {
        let mut load = with_context(&self.load, entry.recipe.as_ref());
        load.fit_within = self.limit(options);
        let inspection = Model::inspect(entry.path.as_deref().unwrap_or_default(), &load)?;
        Ok((load, inspection))
    }

    /// Bytes that a model needs and those that it can have beside the loaded ones, if they are too few.
    fn shortage(&self, inspection: &Inspection, options: &ServerOptions) -> Option<(u64, u64)> {
        let need = inspection.plan().total();
        let limit = self.limit(options);
        let have = if self.load.ignore_memory {
            None
        } else {
            inspection.available()
        };
        // A device that an automatic choice prefers may have the room once others are gone.
        let skipped = inspection
            .skipped()
            .iter()
            .find_map(|skipped| match &skipped.why {
                welte::Error::Memory { need, have, .. } => Some((*need, *have)),
                _ => None,
            });
        let skipped = skipped.filter(|_| self.used() > 0);
        let own = limit.into_iter().chain(have).min();
        let own = own.filter(|have| need > *have).map(|have| (need, have));
        own.or(skipped)
    }

    /// Unloads the idle model that was not used for the longest time. False if there is none.
    fn unload_oldest(&self) -> bool {
        let mut all = self.all();
        all.sort_by_key(|entry| entry.state().used);
        let found = all.iter().find_map(|entry| entry.take_idle(|_| true));
        found.map(unload).is_some()
    }

    /// Unloads the models whose time is over.
    pub(crate) fn unload_idle(&self) {
        for entry in self.all() {
            if let Some(served) = entry.take_idle(State::is_unwanted) {
                unload(served);
            }
        }
    }
}

fn unload(served: Arc<Served>) {
    tracing::info!(model = served.id, "unloaded");
    served.engine.shutdown();
}

enum Loading {
    Done(Lease),
    Short(Shortage),
}

/// Why a model does not fit now.
struct Shortage {
    name: String,
    need: u64,
    have: u64,
    /// The models that are loaded and at work.
    busy: Vec<String>,
}

impl Shortage {
    fn failure(&self) -> Failure {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (name, need, have) = (&self.name, gib(self.need), gib(self.have));
        let mut message =
            format!("{name} needs {need:.2} GiB of memory, {have:.2} GiB are available");
        if !self.busy.is_empty() {
            let busy = self.busy.join(", ");
            message.push_str(&format!(" beside {busy}, at work; try again later"));
        }
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}
