//! A session: the simple handle for one conversation on an engine.

use crate::{
    CancelHandle, Engine, Error, GenerateOptions, Model, Outcome, Prompt, Request, StopReason,
    Stream,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One conversation. Its prompts find what the engine computed for earlier ones in the prefix cache.
pub struct Session {
    engine: Engine,
    /// Set by cancel handles, cleared when a generation ends.
    cancelled: Arc<AtomicBool>,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Session {
        Session {
            engine,
            cancelled: Arc::default(),
        }
    }

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
        Session::new(self.clone())
    }
}
