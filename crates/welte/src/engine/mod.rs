//! The engine: many requests on one loaded model. One thread owns the device context; handles send it requests and receive
//! tokens.

mod adapters;
mod channel;
mod clock;
mod disk;
mod draft;
mod embedding;
mod encoder;
mod encoding;
mod features;
mod guide;
mod host;
mod load_adapters;
mod logprobs;
mod media;
mod medium;
mod options;
mod pace;
mod pages;
mod pieces;
mod pooling;
mod request;
mod restore;
mod scheduler;
mod sequence;
mod shared;
#[cfg(test)]
mod simulation;
mod snapshot;
mod spelling;
mod stream;
mod submit;
mod thread;

pub use adapters::Adapter;
#[doc(hidden)]
pub use clock::Clock;
pub use embedding::{Embedding, SparseEmbedding, SparseVector, TextToEmbed};
pub use encoder::Turns;
pub(crate) use encoder::{Encoder, Neighbour};
pub use medium::{Medium, MediumAt};
pub use options::{EngineOptions, Speculation};
use pages::Tiers;
pub use request::Request;
#[doc(hidden)]
pub use request::SyntheticDraft;
pub use shared::Status;
pub use snapshot::{NodeSnapshot, SlotSnapshot, Snapshot, WaitingSnapshot};
pub use stream::Stream;
pub use submit::Session;
pub use thread::Driver;

use crate::cache::StoreMonitor;
use crate::{Error, Model, PrefixStoreStatus};
use disk::Disk;
use draft::Speculator;
pub use host::PrefixHostStatus;
use host::{Host, HostMonitor};
use scheduler::Scheduler;
use shared::Shared;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use thread::MakeContext;
use welte_device::{Context, Replaying};

/// Serves many requests on one loaded model. Every request gets the text that it would get alone. Clones are cheap and
/// share the engine; it ends when the last clone, session and stream are gone.
///
/// ```
/// # fn main() -> Result<(), welte::Error> {
/// let mut options = welte::LoadOptions::default();
/// (options.context, options.slots) = (64, 2);
/// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
/// let engine = model.engine()?;
/// let mut request = welte::Request::new(vec![1, 2, 3]);
/// request.options.max_tokens = 8;
/// let (one, two) = (engine.submit(request.clone())?, engine.submit(request)?);
/// assert_eq!(one.complete()?.0, two.complete()?.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Engine {
    model: Model,
    handle: Arc<Handle>,
}

/// Ends the thread when the last owner is gone.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    replaying: Option<Replaying>,
    host: Option<HostMonitor>,
    store: Option<StoreMonitor>,
    speculation: Speculation,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

impl Handle {
    /// Makes a context and starts the thread.
    pub(crate) fn start(model: &Model, options: &EngineOptions) -> Result<Arc<Handle>, Error> {
        let loaded = model.inner.loaded.clone();
        Handle::on_context(model, options, Box::new(move || loaded.context()))
    }

    fn on_context(
        model: &Model,
        options: &EngineOptions,
        make: MakeContext,
    ) -> Result<Arc<Handle>, Error> {
        let (handle, driver) = Handle::without_thread(model, options, make)?;
        model.inner.neighbour.set(&handle.shared);
        let thread = std::thread::Builder::new().name("welte-engine".into());
        let thread = thread.spawn(move || driver.run());
        let thread = thread.map_err(|error| Error::EngineStopped {
            why: Some(format!("its thread cannot be started: {error}")),
        })?;
        *handle.thread() = Some(thread);
        Ok(handle)
    }

    fn without_thread(
        model: &Model,
        options: &EngineOptions,
        mut make: MakeContext,
    ) -> Result<(Arc<Handle>, Driver), Error> {
        let speculation = options.speculation.resolved(model)?;
        let mut context = make()?;
        let program = model.inner.loaded.program();
        let shared = Arc::new(Shared::new(
            program.slots as usize,
            options.queue.max(1),
            options.clock.clone(),
            program
                .adapters
                .as_ref()
                .map_or(0, |adapters| adapters.places),
        ));
        let nodes = program.caches.iter().map(|cache| cache.pages as usize);
        let nodes = nodes.max().unwrap_or(0);
        let disk = options.prefix_store.as_ref();
        let disk = disk
            .map(|store| disk::open(store, model, nodes))
            .transpose()?;
        let host = match options.prefix_host_bytes {
            0 => None,
            bytes => {
                let layout = disk.as_ref().map(Disk::layout);
                let origin = || model.origin().to_string();
                let host = Host::new(context.as_mut(), bytes, layout, nodes, origin)?;
                Some(host)
            }
        };
        let handle = Handle {
            host: host.as_ref().map(Host::monitor),
            store: disk.as_ref().map(Disk::monitor),
            shared: shared.clone(),
            thread: Mutex::default(),
            speculation: speculation.clone(),
            replaying: context.replays().map(|tools| tools.replaying()),
        };
        let (decode, prompt) = (model.inner.decode, model.inner.prompt);
        let speculator = Speculator::of(model, &speculation, options)?;
        let embed = model.inner.embed;
        let mut scheduler = Scheduler::new(
            shared.clone(),
            program,
            decode,
            prompt,
            embed,
            Tiers { host, disk },
            speculator,
        );
        if matches!(speculation, Speculation::Own) {
            scheduler.guess_with_own(program);
        }
        if let Some(watcher) = &options.prefix_changes {
            scheduler.watch(watcher.clone());
        }
        handle.add_adapters_of(model)?;
        let driver = Driver::new(shared, scheduler, context, make);
        Ok((Arc::new(handle), driver))
    }

    fn thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.shared.close();
        let thread = self.thread().take();
        // A waker that the thread itself calls may drop the last handle.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Model {
    /// The engine of this model, made at the first call. It holds the memory that the plan shows.
    pub fn engine(&self) -> Result<Engine, Error> {
        let shared = self.inner.engine.lock();
        let mut shared = shared.unwrap_or_else(PoisonError::into_inner);
        let known = shared.clone().map(Arc::downcast::<Handle>);
        if let Some(Ok(handle)) = known {
            return Ok(Engine::of(self, handle));
        }
        let handle = Handle::start(self, &EngineOptions::default())?;
        *shared = Some(handle.clone());
        Ok(Engine::of(self, handle))
    }
}

impl Engine {
    /// An engine of its own for a model. [`Model::engine`] gives the model's shared one.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Engine, Error> {
        Ok(Engine::of(model, Handle::start(model, options)?))
    }

    pub(crate) fn of(model: &Model, handle: Arc<Handle>) -> Engine {
        Engine {
            model: model.clone(),
            handle,
        }
    }

    /// An engine whose contexts are wrapped: for tests that watch or break them.
    #[doc(hidden)]
    pub fn on_context(
        model: &Model,
        options: &EngineOptions,
        wrap: WrapContext,
    ) -> Result<Engine, Error> {
        let handle = Handle::on_context(model, options, wrapped(model, wrap))?;
        Ok(Engine::of(model, handle))
    }

    /// As [`Engine::on_context`], but without a thread: the caller takes the turns.
    #[doc(hidden)]
    pub fn without_thread(
        model: &Model,
        options: &EngineOptions,
        wrap: WrapContext,
    ) -> Result<(Engine, Driver), Error> {
        let (handle, driver) = Handle::without_thread(model, options, wrapped(model, wrap))?;
        Ok((Engine::of(model, handle), driver))
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How the device replays chains, if it has more than one way.
    pub fn replaying(&self) -> Option<&Replaying> {
        self.handle.replaying.as_ref()
    }

    /// How full the engine is.
    pub fn status(&self) -> Status {
        self.handle.shared.inbox().status
    }

    /// What the prefix store has done, if there is one. It is complete after [`Engine::shutdown`].
    pub fn prefix_store(&self) -> Option<PrefixStoreStatus> {
        self.handle.store.as_ref().map(StoreMonitor::status)
    }

    /// What the host tier has done, if there is one.
    pub fn prefix_host(&self) -> Option<PrefixHostStatus> {
        self.handle.host.as_ref().map(HostMonitor::status)
    }

    /// Forgets all prefixes that no running request uses.
    pub fn forget_prefixes(&self) {
        self.handle.shared.inbox().forget = true;
        self.handle.shared.wake();
    }

    /// Requests that may wait.
    pub fn queue(&self) -> usize {
        self.handle.shared.queue
    }

    /// Turns that the scheduler has completed. The count rises while the engine works, and after [`Engine::ping`].
    pub fn turns(&self) -> u64 {
        self.handle.shared.turns.load(Ordering::Relaxed)
    }

    /// Asks for a turn of the scheduler, even if it has nothing to do: to see that it still works.
    pub fn ping(&self) {
        self.handle.shared.inbox().ping = true;
        self.handle.shared.wake();
    }

    /// Asks the scheduler for a snapshot. [`Engine::take_snapshot`] has it after the next turn.
    pub fn ask_snapshot(&self) {
        let shared = &self.handle.shared;
        let snapshot = Snapshot::with_room(self.model.program(), shared.max_requests);
        let mut inbox = shared.inbox();
        inbox.snapshot = None;
        inbox.snapshot_wanted = Some(Box::new(snapshot));
        drop(inbox);
        self.ping();
    }

    /// The snapshot that was asked for, once it is there.
    pub fn take_snapshot(&self) -> Option<Box<Snapshot>> {
        self.handle.shared.inbox().snapshot.take()
    }

    /// Ends the engine. Requests that have not ended fail with [`Error::EngineStopped`].
    pub fn shutdown(&self) {
        self.handle.end();
    }

    pub(crate) fn cancel_handle(&self, flag: &Arc<AtomicBool>) -> CancelHandle {
        CancelHandle {
            flag: flag.clone(),
            shared: self.handle.shared.clone(),
        }
    }
}

/// Puts something between the engine and a context.
type WrapContext = Box<dyn FnMut(Box<dyn Context>) -> Box<dyn Context> + Send>;

fn wrapped(model: &Model, mut wrap: WrapContext) -> MakeContext {
    let loaded = model.inner.loaded.clone();
    Box::new(move || Ok(wrap(loaded.context()?)))
}

/// Cancels a request, or the requests of a session, from another thread or a signal handler.
#[derive(Clone)]
pub struct CancelHandle {
    flag: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl CancelHandle {
    /// Ends the current generation, or the next one of a session, with
    /// [`StopReason::Cancelled`](crate::StopReason::Cancelled).
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.shared.wake();
    }

    /// True from [`cancel`](CancelHandle::cancel) until the generation has ended.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}
