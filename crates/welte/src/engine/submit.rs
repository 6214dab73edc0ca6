//! How a request gets in: from a caller or a session to the inbox of the engine's thread.

use super::channel::Channel;
use super::draft::Draft;
use super::sequence::Sequence;
use super::shared::Shared;
use super::{CancelHandle, Engine, Request, Stream};
use crate::{Error, GenerateOptions, Model, Outcome, Prompt, StopReason};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One conversation. Its prompts find what the engine computed for earlier ones in the prefix cache.
pub struct Session {
    engine: Engine,
    /// Set by cancel handles, cleared when a generation ends.
    cancelled: Arc<AtomicBool>,
}

impl Session {
    /// The model.
    pub fn model(&self) -> &Model {
        self.engine.model()
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A handle that stops generation from elsewhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.engine.cancel_handle(&self.cancelled)
    }

    /// Continues a prompt. What the engine has cached of it is not computed again. `callback` gets each piece of text as
    /// soon as it is final: whole characters that cannot be part of a stop string. It may end the generation.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// use std::ops::ControlFlow;
    /// let mut options = welte::LoadOptions::default();
    /// options.context = 64;
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
    /// let mut session = model.session()?;
    /// let mut options = welte::GenerateOptions::default();
    /// options.max_tokens = 8;
    /// let outcome = session.generate(&[1, 2, 3], &options, &mut |_piece| ControlFlow::Continue(()))?;
    /// assert!(outcome.tokens.len() <= 8);
    /// # Ok(()) }
    /// ```
    pub fn generate(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
        callback: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let mut stream = self.pieces(prompt, options)?;
        while let Some(piece) = stream.next() {
            if callback(&piece?).is_break() {
                stream.stop(StopReason::Callback);
            }
        }
        let stopped = Error::EngineStopped { why: None };
        stream.outcome().cloned().ok_or(stopped)
    }

    /// As [`Session::generate`], but as a stream of pieces.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let mut options = welte::LoadOptions::default();
    /// options.context = 64;
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
    /// let mut session = model.session()?;
    /// let mut options = welte::GenerateOptions::default();
    /// options.max_tokens = 8;
    /// let mut pieces = session.pieces(&[1, 2, 3], &options)?;
    /// for piece in &mut pieces {
    ///     print!("{}", piece?);
    /// }
    /// assert!(pieces.outcome().is_some());
    /// # Ok(()) }
    /// ```
    pub fn pieces(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Stream, Error> {
        let prompt = prompt.into();
        let mut request = Request::new(prompt.tokens);
        request.media = prompt.media;
        request.options = options.clone();
        if request.options.adapter.is_none() {
            let for_all = self.model().adapter_for_all();
            request.options.adapter = for_all.and_then(|name| self.engine.adapter(name));
        }
        self.engine
            .submit_cancellable(request, self.cancelled.clone())
    }
}

impl Model {
    /// A session on the model's engine: one conversation.
    pub fn session(&self) -> Result<Session, Error> {
        Ok(self.engine()?.session())
    }
}

impl Engine {
    /// A conversation on this engine.
    pub fn session(&self) -> Session {
        Session {
            engine: self.clone(),
            cancelled: Arc::default(),
        }
    }

    /// Begins a request. The stream gives its text or its tokens.
    pub fn submit(&self, request: Request) -> Result<Stream, Error> {
        self.submit_cancellable(request, Arc::default())
    }

    /// As [`Engine::submit`], with a flag that cancels the request.
    pub(crate) fn submit_cancellable(
        &self,
        mut request: Request,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Stream, Error> {
        if self.model.is_encoder() {
            let origin = self.model.origin().to_string();
            return Err(Error::NoText { origin });
        }
        if request.options.adapter.is_none() && !request.media.is_empty() {
            let own = self.model.adapter_for_sounds();
            request.options.adapter = own.and_then(|name| self.adapter(name));
        }
        if let Some(adapter) = &request.options.adapter
            && !self.handle.shared.adapters.owns(adapter)
        {
            return Err(Error::Adapter {
                name: adapter.name().to_string(),
                problem: "belongs to another engine".into(),
            });
        }
        let clock = &self.handle.shared.clock;
        let started = clock.now();
        let out = |room| Channel::new(room, cancelled.clone(), clock.clone());
        let mut sequence = Sequence::new(&self.model, &request, out)?;
        let rows = self.model.rows_of(self.model.inner.decode);
        sequence.draft = Draft::new(&self.handle.speculation, &request, sequence.max_len(), rows);
        let mut stream = Stream::new(self, &sequence, request, cancelled.clone(), started);
        stream.number = self.handle.shared.push(sequence)?;
        Ok(stream)
    }
}

impl Shared {
    /// Hands a request to the thread.
    pub(super) fn push(&self, mut sequence: Sequence) -> Result<u64, Error> {
        let mut inbox = self.inbox();
        if let Some(why) = &inbox.closed {
            return Err(Error::EngineStopped { why: why.clone() });
        }
        if inbox.closing {
            return Err(Error::EngineStopped { why: None });
        }
        let inside = self.inside.fetch_add(1, Ordering::Relaxed);
        if inside >= self.max_requests {
            self.inside.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Busy { queue: self.queue });
        }
        let number = inbox.count;
        sequence.number = number;
        sequence.number_media(&mut inbox.media);
        inbox.count += 1;
        sequence.counted_by = Some(self.inside.clone());
        inbox.arrivals.push(sequence);
        drop(inbox);
        self.wake();
        Ok(number)
    }
}
