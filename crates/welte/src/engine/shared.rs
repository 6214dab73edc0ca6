//! What the handles of an engine and its thread share.

use super::adapters::{Loadable, LoadedAdapter};
use super::clock::Clock;
use super::encoder::{Job, RunsPasses};
use super::sequence::Sequence;
use super::snapshot::Snapshot;
use crate::Error;
use crate::cache::MediaNumbers;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use welte_device::Control;

/// How full an engine is, as of the end of its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that wait for a slot or for pages.
    pub waiting: usize,
    /// Slots that no request has.
    pub free_slots: usize,
    /// Pages of all caches that hold nothing.
    pub free_pages: usize,
    /// Pages of running requests, each counted for every request that has it, and at most those that are not free. The other
    /// pages hold prefixes that make room when somebody needs it.
    pub held_pages: usize,
    /// Pages of all caches.
    pub pages: usize,
}

/// The inbox of the thread, and its answers.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Ends the chain at hand.
    pub(crate) control: Control,
    /// Requests that have not ended.
    pub(crate) inside: Arc<AtomicUsize>,
    /// The most requests that may be inside.
    pub(crate) max_requests: usize,
    pub(crate) queue: usize,
    pub(crate) clock: Clock,
    pub(crate) adapters: Loadable,
    /// Turns that the scheduler has completed.
    pub(crate) turns: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) arrivals: Vec<Sequence>,
    /// Adapters that are to be written into the banks, before the arrivals begin.
    pub(crate) adapters: Vec<Arc<LoadedAdapter>>,
    /// Passes of encoders.
    pub(crate) passes: Vec<Job>,
    /// Somebody asks to forget all prefixes.
    pub(crate) forget: bool,
    /// Somebody asks for a turn, even if there is nothing to do.
    pub(crate) ping: bool,
    pub(crate) status: Status,
    /// Somebody wants this filled in.
    pub(crate) snapshot_wanted: Option<Box<Snapshot>>,
    /// The last one that was filled in.
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// The last handle has gone, or somebody shut the engine down.
    pub(super) closing: bool,
    /// The thread has ended. In words, if it was not asked to.
    pub(super) closed: Option<Option<String>>,
    /// Requests so far.
    pub(super) count: u64,
    /// The numbers of the media of all requests.
    pub(super) media: MediaNumbers,
}

impl Inbox {
    /// True if nothing has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.passes.is_empty() && self.adapters.is_empty()
    }
}

impl RunsPasses for Shared {
    fn push_pass(&self, job: Job) -> Result<(), Job> {
        let mut inbox = self.inbox();
        if inbox.closing || inbox.closed.is_some() {
            return Err(job);
        }
        inbox.passes.push(job);
        drop(inbox);
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        Shared::wake(self);
    }
}

impl Shared {
    pub(crate) fn new(slots: usize, queue: usize, clock: Clock, adapters: u32) -> Shared {
        let max_requests = slots + queue;
        let inbox = Inbox {
            arrivals: Vec::with_capacity(max_requests),
            ..Inbox::default()
        };
        Shared {
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
            control: Control::default(),
            inside: Arc::default(),
            max_requests,
            queue,
            clock,
            adapters: Loadable::new(adapters),
            turns: AtomicU64::new(0),
        }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the chain at hand, so that the thread looks at its inbox and at what was cancelled.
    pub(crate) fn wake(&self) {
        self.control.stop();
        self.changed.notify_one();
    }

    /// Asks the thread to end.
    pub(crate) fn close(&self) {
        self.inbox().closing = true;
        self.wake();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.inbox().closing
    }

    /// Sleeps until there is something to do. Returns false if the thread shall end.
    pub(crate) fn wait(&self) -> bool {
        let mut inbox = self.inbox();
        while !inbox.closing && inbox.is_empty() && !inbox.forget && !inbox.ping {
            let waited = self.changed.wait(inbox);
            inbox = waited.unwrap_or_else(PoisonError::into_inner);
        }
        !inbox.closing
    }

    /// The thread has ended: no request can come any more, and those that have just come end.
    pub(crate) fn closed(&self, why: Option<String>) {
        let mut late = {
            let mut inbox = self.inbox();
            inbox.closed = Some(why.clone());
            inbox.passes.clear();
            std::mem::take(&mut inbox.arrivals)
        };
        for sequence in &mut late {
            sequence.end = Some(Err(Error::EngineStopped { why: why.clone() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::channel::{Channel, Next};
    use crate::{LoadOptions, Model, Request};

    #[test]
    fn a_request_that_comes_too_late_learns_why() {
        let options = LoadOptions {
            context: 64,
            ..LoadOptions::default()
        };
        let model = Model::load("synthetic:tiny:q8_0", &options, &mut |_| ()).unwrap();
        let out = |most| Channel::new(most, Arc::default(), Clock::default());
        let sequence = Sequence::new(&model, &Request::new(vec![1]), out).unwrap();
        let (out, shared) = (
            sequence.out.clone(),
            Arc::new(Shared::new(1, 1, Clock::default(), 0)),
        );
        shared.push(sequence).unwrap();
        shared.closed(Some("a fault".to_string()));
        let Some(Next::End(Err(error))) = out.next() else {
            panic!("the request has not ended");
        };
        assert!(error.to_string().contains("a fault"), "{error}");
    }
}
