//! Waiting for the engine from a caller's thread, as long as the caller wants the answer.

use crate::{Kind, Problem};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{EnterGuard, Runtime};

/// How often a call that waits asks whether its caller still wants the answer.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Says whether the caller still wants the answer. It is asked several times a second.
pub type Alive<'a> = &'a mut dyn FnMut() -> bool;
/// Gets each piece of text; `Break` ends the generation.
pub type OnText<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// The threads that work on requests.
#[derive(Clone)]
pub(crate) struct Waiter(Arc<Runtime>);

impl Waiter {
    pub(crate) fn new() -> Result<Waiter, Problem> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("welte-calls")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| {
            let message = format!("the threads for requests cannot be started: {error}");
            Problem::new(Kind::Internal, message)
        })?;
        Ok(Waiter(Arc::new(runtime)))
    }

    /// For what starts timers.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }

    /// Waits for a future as long as the caller wants its result.
    pub(crate) fn wait<T>(
        &self,
        future: impl Future<Output = T>,
        alive: Alive,
    ) -> Result<T, Problem> {
        let mut future = std::pin::pin!(future);
        loop {
            let turn = async { tokio::time::timeout(LOOK, future.as_mut()).await };
            if let Ok(done) = self.0.block_on(turn) {
                return Ok(done);
            }
            if !alive() {
                return Err(Problem::cancelled());
            }
        }
    }
}
