//! Options that a device may take, in terms that mean the same on every device.

use std::fmt;

/// How a device runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// CPU threads; `None`: as many as the process may use cores, of which several hardware threads count once.
    pub threads: Option<usize>,
    /// Name of the CPU's instruction set; `None`: the best of this machine.
    pub instructions: Option<String>,
    /// How a GPU replays chains; `None`: in the fastest way that has run on this kind of GPU.
    pub replay: Option<Replay>,
    /// Measure tuning parameters at load even if stored ones exist.
    pub retune: bool,
}

/// How a chain is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// As `Launches`, with an allocation and a release per command besides: what an engine without a memory plan does.
    /// For comparisons.
    Allocate,
    /// The host launches every kernel.
    Launches,
    /// The decode pass is one graph, launched once per token, a few tokens ahead.
    Graph,
    /// The decode pass is the body of a loop on the device: one launch per chain.
    Loop,
    /// One kernel reads the decode pass on the GPU for a whole chain. A model that it does not support is replayed as a
    /// graph.
    Persistent,
}

impl Replay {
    /// Every way, from the slowest to the fastest.
    pub const ALL: [Replay; 5] = [
        Replay::Allocate,
        Replay::Launches,
        Replay::Graph,
        Replay::Loop,
        Replay::Persistent,
    ];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Replay::Allocate => "allocate",
            Replay::Launches => "launches",
            Replay::Graph => "graph",
            Replay::Loop => "loop",
            Replay::Persistent => "persistent",
        }
    }

    /// The way of that name.
    pub fn from_name(name: &str) -> Option<Replay> {
        Replay::ALL.into_iter().find(|replay| replay.name() == name)
    }
}

/// How chains are replayed, and why not as requested, if so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaying {
    /// In which way.
    pub replay: Replay,
    /// Why not as requested.
    pub note: Option<String>,
}

impl fmt::Display for Replaying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.replay.name())?;
        match &self.note {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}
