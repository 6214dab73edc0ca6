//! Where the engine takes the time from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use web_time::{Duration, Instant};

/// The system's clock, or one whose hands a simulation moves. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Hands>>);

#[derive(Debug)]
struct Hands {
    start: Instant,
    /// Nanoseconds since then.
    passed: AtomicU64,
}

impl Clock {
    /// A clock that stands still until somebody moves it.
    pub fn simulated() -> Clock {
        Clock(Some(Arc::new(Hands {
            start: Instant::now(),
            passed: AtomicU64::new(0),
        })))
    }

    /// What it shows.
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(hands) => hands.start + Duration::from_nanos(hands.passed.load(Ordering::Relaxed)),
        }
    }

    /// The time since an earlier one.
    pub(crate) fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Lets time pass on a simulated clock.
    pub fn advance(&self, time: Duration) {
        if let Some(hands) = &self.0 {
            hands
                .passed
                .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
