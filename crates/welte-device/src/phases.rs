//! Where the time until the first token goes: work of a load, by name, from any thread.

use std::sync::{Mutex, PoisonError};
use web_time::{Duration, Instant};

/// A stretch of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What was done.
    pub name: String,
    /// When it began.
    pub begun: Instant,
    /// How long it took.
    pub time: Duration,
}

/// Notes phases. They may overlap, because threads work at the same time.
#[derive(Debug, Default)]
pub struct Phases(Mutex<Vec<Phase>>);

impl Phases {
    /// No phases yet.
    pub const fn new() -> Phases {
        Phases(Mutex::new(Vec::new()))
    }

    /// Does some work and notes how long it took.
    pub fn time<T>(&self, name: impl Into<String>, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        self.add(Phase {
            name: name.into(),
            begun,
            time: begun.elapsed(),
        });
        result
    }

    /// Adds a phase that was timed elsewhere.
    pub fn add(&self, phase: Phase) {
        let mut phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        phases.push(phase);
    }

    /// All phases so far, the earliest first.
    pub fn list(&self) -> Vec<Phase> {
        let phases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut phases = phases.clone();
        phases.sort_by_key(|phase| phase.begun);
        phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_listed_in_the_order_in_which_they_began() {
        let phases = Phases::default();
        let result = phases.time("outer", || {
            phases.time("inner", || 3);
            4
        });
        assert_eq!(result, 4);
        let list = phases.list();
        let names: Vec<&str> = list.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(names, ["outer", "inner"]);
        assert!(list[0].begun <= list[1].begun && list[1].time <= list[0].time);
    }
}
